"""What `import caslock` brings, and what it does not need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import caslock

ROOT = Path(__file__).parent.parent

EXTRAS = ("redis", "hiredis", "pymemcache", "rich", "testcontainers", "pytest", "hypothesis")

SCRIPT = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
sys.path.insert(0, sys.argv[1])
import caslock
for name in caslock.__all__:
    getattr(caslock, name)
print(*sorted({{name.partition(".")[0] for name in sys.modules}} & {{*{EXTRAS!r}}}))
"""


def test_import_needs_no_extra() -> None:
    """Caslock can be imported, and every public name used, where no extra is installed."""
    python = [sys.executable, "-I", "-W", "error", "-c", SCRIPT, str(ROOT)]
    done = subprocess.run(python, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_public_names_are_sorted_and_exist() -> None:
    """`__all__` is a table of contents: sorted, without repetition, and each name is there."""
    assert list(caslock.__all__) == sorted(set(caslock.__all__))
    assert [name for name in caslock.__all__ if not hasattr(caslock, name)] == []
