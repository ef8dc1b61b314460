"""The types that users see: mypy accepts right programs, and refuses wrong ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long  # `make check` does the same
def test_mypy_says_of_programs_what_it_should() -> None:
    """Each line of `tests/api/types` gets the errors that it names, and no others."""
    command = [sys.executable, "-m", "mypy", "tests/api/types"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
