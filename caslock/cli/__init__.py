"""The command line: ``caslock verify URL``.  Nothing else in caslock imports it."""

from caslock.cli.main import main

__all__ = ["main"]
