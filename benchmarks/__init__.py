"""caslock beside other lock libraries and hand-written floors: ``make bench``, or ``python -m benchmarks --quick``."""
