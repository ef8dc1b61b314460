"""Planted bugs: each is one that somebody could write, and only the tests switch it on."""
