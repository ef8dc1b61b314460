"""Observers for metrics and traces; each needs an extra: ``prometheus`` or ``otel``."""
