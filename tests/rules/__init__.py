"""The rules of locking, step by step, in scripted or virtual time."""
