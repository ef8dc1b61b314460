"""Runs the command line with ``python -m caslock.cli``."""

import sys

from caslock.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
