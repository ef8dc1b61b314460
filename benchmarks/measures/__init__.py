"""What is measured, one file each: a measure takes the `Bench`, and gives rows of one kind."""
