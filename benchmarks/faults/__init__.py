"""caslock and other lock libraries under the same faults: ``python -m benchmarks.faults``."""
