"""Many waiters for one key, in virtual time: what they cost the store, and how long they wait."""
