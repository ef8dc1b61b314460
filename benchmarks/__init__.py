"""Measures caslock and other locks: ``make bench``, or ``python -m benchmarks --quick``."""
