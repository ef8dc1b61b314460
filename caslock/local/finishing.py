"""What is done about an acquire or a release that was interrupted or cancelled, for both APIs: see their `finish`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caslock.errors import CaslockError, NotHeld, with_notes

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from caslock.local.hold import Holding


def stop_renewals(holds: Iterable[Holding]) -> None:
    """Renew none of these any more, whatever becomes of the rest: a traceback may keep them for long."""
    for hold in holds:
        if hold._attempt.levels == [hold]:
            hold._attempt.begin_release()


async def finished(work: Callable[[], Coroutine[object, object, object]], interrupt: BaseException) -> None:
    """Do the rest; what can't be done becomes a note of the interrupt."""
    try:
        await work()
    except NotHeld:
        pass
    except (CaslockError, ValueError) as trouble:
        interrupt.add_note(with_notes(trouble))
