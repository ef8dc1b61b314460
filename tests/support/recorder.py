"""An observer that keeps what it is told."""

from __future__ import annotations

from caslock import LockEvent, Observer


class Recorder(Observer):
    def __init__(self) -> None:
        self.events: list[tuple[str, LockEvent]] = []

    def note(self, name: str, event: LockEvent) -> None:
        self.events.append((name, event))

    def __getattribute__(self, name: str) -> object:
        if name in vars(Observer) and not name.startswith("_"):
            return lambda event: self.note(name, event)
        return super().__getattribute__(name)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]
