"""The law of this file: ``python -m caslock.cli`` is ``caslock``."""

import sys

from caslock.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
