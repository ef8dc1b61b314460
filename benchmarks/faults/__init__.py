"""The peers under the same faults: ``python -m benchmarks.faults``."""
