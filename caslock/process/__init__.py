"""What is done about a fork, the end of an event loop, or an exception while something is open."""
