"""What the locks of one process share: local queues, holds, settings and renewal, for threads and for tasks."""
