"""Servers that fail, and how long calls then take."""
