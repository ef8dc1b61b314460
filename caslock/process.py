"""The law of this file: a forked child is another process than its parent, and to know that costs no system call."""

from __future__ import annotations

import os

generation = 0
"""How many forks lie between this process and the one that has imported caslock."""


def _count() -> None:
    global generation  # noqa: PLW0603 - one for each process, as its pid is
    generation += 1


os.register_at_fork(after_in_child=_count)
