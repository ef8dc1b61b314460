"""How much is measured, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Crew:
    """The workers that contend."""

    processes: int
    threads: int  # in each

    @property
    def workers(self) -> int:
        """The number of workers."""
        return self.processes * self.threads

    def __str__(self) -> str:
        """Give its name in tables."""
        return f"{self.processes} processes" if self.processes > 1 else f"{self.threads} threads"


THREADS_32: Final = Crew(1, 32)
PROCESSES_8: Final = Crew(8, 1)


@dataclass(frozen=True)
class Effort:
    """How much is done; times are seconds."""

    name: str
    rounds: int  # of each measure that alternates between the candidates
    cycles: int  # of one candidate in one round, uncontended
    round_time: float  # the limit of such a round
    contended_rounds: int
    contended_time: float  # of one measurement, all rounds together
    crews: tuple[Crew, ...]
    holds: tuple[float, ...]
    handovers: int
    waiters: int
    waiting_time: float
    tasks: int
    imports: int
    objects: int


FULL: Final = Effort(
    "full", 12, 1500, 0.4, 2, 2.0, (Crew(1, 2), Crew(1, 8), THREADS_32, PROCESSES_8), (0.0, 0.001),
    100, 100, 5.0, 1000, 15, 1000,
)  # fmt: skip
QUICK: Final = Effort("quick", 3, 300, 0.1, 1, 0.3, (THREADS_32, PROCESSES_8), (0.0,), 8, 100, 0.5, 1000, 3, 200)
SMOKE: Final = Effort("smoke", 2, 20, 0.1, 1, 1.0, (Crew(1, 4), Crew(3, 1)), (0.0,), 2, 5, 0.1, 20, 1, 20)
EFFORTS: Final = {effort.name: effort for effort in (FULL, QUICK, SMOKE)}
