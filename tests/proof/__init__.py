"""What searches for faults, and what shows that it finds them."""
