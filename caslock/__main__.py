"""Runs the command line with ``python -m caslock``."""

import sys

from caslock.cli import main

if __name__ == "__main__":
    sys.exit(main())
