"""What a fork, the end of an event loop, or an exception asks of whoever keeps something open."""
