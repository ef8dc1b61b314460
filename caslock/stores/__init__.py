"""The stores that ship with caslock, one file each: import the one that you need."""
