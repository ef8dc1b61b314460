"""The rules of locking: no threads, no asyncio, no I/O of their own."""
