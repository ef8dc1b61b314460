"""``caslock run``: holds one or more keys while a command runs."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click

from caslock.cli.main import say
from caslock.cli.seconds import Seconds
from caslock.cli.which_store import opened, store_option
from caslock.errors import LockLost, NotAcquired, StoreError, with_notes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from caslock.blocking import Hold, MultiHold, MultiLock
    from caslock.cli.child import Child

LOST: Final = 123
BUSY: Final = 124
REFUSED: Final = 125
NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
SIGNAL: Final = 128
"""Exit statuses; the help below says what they mean.  124 to 127 are those of timeout(1)."""


_ENDS: Final = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
"""Signals that end the wait for the lock, and are passed on to a command that runs."""

_OTHERS: Final = (
    *("SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGCONT"),
    *("SIGALRM", "SIGVTALRM", "SIGPROF", "SIGXCPU", "SIGIO", "SIGPWR"),
)
"""Signals that are passed on as well, where the system has them: most would end us, and leave the command unlocked."""


class _BeforeDashes(click.Command):
    """Takes the command after ``--`` as it is."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Cut the command off."""
        if "--" in args:
            cut = args.index("--")
            args, context.obj = args[:cut], args[cut + 1 :]
        return super().parse_args(context, args)


@click.command("run", cls=_BeforeDashes, no_args_is_help=True)
@click.argument("keys", nargs=-1, required=True, metavar="KEY... -- COMMAND...")
@store_option
@click.option(
    "--ttl", default=30.0, show_default=True, help="Seconds of the lease, which is renewed after a third of them."
)
@click.option("--timeout", type=float, help="Seconds to wait for the lock.  [default: no limit]")
@click.option("--no-wait", is_flag=True, help="Try once, as --timeout 0 does.")
@click.option("--max-hold", type=float, help="Seconds after which the lease is renewed no more, and COMMAND ended.")
@click.option("--min-hold", type=float, help="Seconds in which nobody else gets the key, though COMMAND has ended.")
@click.option("--note", default="", help="Text for people who ask who holds the key.")
@click.option("--owner", help="A name: all who give it hold the key together.")
@click.option(
    "--busy-exit-code",
    "busy",
    type=click.IntRange(0, 255),
    help="Exit status if somebody else holds a key, of which nothing is said then.  [default: 124, and a message]",
)
@click.option(
    "--kill-after",
    type=Seconds(0, 86_400),
    default=5.0,
    show_default=True,
    help="Seconds from SIGTERM to SIGKILL if the lock is lost.",
)
@click.pass_obj
def command(
    program: list[str] | None,
    *,
    keys: tuple[str, ...],
    url: str | None,
    ttl: float,
    timeout: float | None,
    no_wait: bool,
    max_hold: float | None,
    min_hold: float | None,
    note: str,
    owner: str | None,
    busy: int | None,
    kill_after: float,
) -> int:
    """Run COMMAND while holding each KEY, and give back its exit status.

    The command finds CASLOCK_KEY, CASLOCK_FENCE and CASLOCK_OWNER in its environment (of several keys: one in a line).
    It runs in a process group of its own, which gets the signals that caslock gets.  If the lock is lost, the group
    gets SIGTERM, and SIGKILL later.

    \b
    Example:
      caslock run nightly --timeout 60 --store redis://localhost -- ./nightly.sh

    \b
    Exit status: that of COMMAND, or
      2      bad arguments
      123    the lock was lost
      124    somebody else held a key (--busy-exit-code)
      125    the store could not be reached
      126    COMMAND can't be started
      127    COMMAND was not found
      128+n  signal n has ended COMMAND, or the wait for the lock
    """  # noqa: D301 - \b is a mark for click
    if not program or not program[0]:
        raise click.UsageError("write -- and a command after the keys: caslock run KEY -- COMMAND")
    if no_wait and timeout is not None:
        raise click.UsageError("give --timeout or --no-wait, not both")
    if not hasattr(os, "posix_spawn"):
        raise click.UsageError("caslock run needs process groups, which this system does not have")
    from caslock.blocking import MultiLock  # noqa: PLC0415 - not for `--help`

    run = _Run(program, kill_after)
    try:
        store = opened(url)
    except StoreError as error:
        say(with_notes(error))
        return REFUSED
    with store:
        lock = MultiLock(
            store,
            keys,
            ttl=ttl,
            timeout=0 if no_wait else timeout,
            max_hold=max_hold,
            min_hold=min_hold,
            note=note,
            owner=owner,
            on_lost=run.lost,
        )
        return run.run(lock, keys, busy)


class _Interrupted(BaseException):
    """A signal has ended the wait for the lock."""


class _Run:
    """One run, in the main thread."""

    def __init__(self, program: Sequence[str], kill_after: float) -> None:
        self._program, self._kill_after = program, kill_after
        self._pending: list[int] | None = None  # signals for a command that is yet to be started
        self._child: Child | None = None
        self._started = threading.Event()

    def run(self, lock: MultiLock, keys: Sequence[str], busy: int | None) -> int:
        """Acquire, run, release; gives the exit status."""
        status = None
        logging.getLogger("caslock").addFilter(lambda record: " was lost: " not in record.getMessage())  # said below
        sys.unraisablehook = self._dropped
        try:
            self._listen(_ENDS)
            with lock as held:
                self._pending = []
                status = self._hold(held, list(dict.fromkeys(keys)))
        except _Interrupted as interrupt:
            status = -int(interrupt.args[0])
        except NotAcquired as error:
            if busy is not None:
                return busy  # in silence, as `flock -n -E`: cron would send a mail
            say(with_notes(error))
            return BUSY
        except LockLost as error:
            say(with_notes(error))
            return LOST
        except StoreError as error:
            say(with_notes(error))
            if status is None:
                return REFUSED
        return self._exit_status(status)

    def lost(self, _hold: Hold) -> None:
        """End the command: called from another thread, once for each key."""
        self._started.wait()
        if self._child is not None:
            self._child.end(self._kill_after)

    def _hold(self, held: MultiHold, keys: Sequence[str]) -> int:
        from caslock.cli.child import Child  # noqa: PLC0415 - not every system has the signals that it uses

        self._listen(_OTHERS)  # before there is a child: they would end us otherwise
        told_of = {"KEY": keys, "OWNER": [held[key].owner for key in keys], "FENCE": []}
        with suppress(StoreError):  # a store that has no fences
            told_of["FENCE"] = [str(held[key].fence) for key in keys]
        environment = {name: value for name, value in os.environ.items() if name != "CASLOCK_FENCE"}
        environment |= {f"CASLOCK_{name}": "\n".join(values) for name, values in told_of.items() if values}
        try:
            child = self._child = Child(self._program, environment, lambda: not held.lost)
        except OSError as error:
            shell = ".  A line for a shell is given as -- sh -c 'LINE'" if " " in self._program[0] else ""
            say(f"{self._program[0]}: {error.strerror}{shell}")
            return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        finally:
            self._started.set()
        for number in self._pending or ():
            child.pass_on(number)
        status = child.wait()
        if held.lost:
            child.end(self._kill_after)  # what it has left behind, too
        return status

    def _exit_status(self, status: int) -> int:
        if status == -signal.SIGINT and (self._child is None or self._child.is_at_terminal):
            # Ctrl-C.  A script that it shall end, too, has to get it, and looks whether it has ended us.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(0 if self._child and self._child.in_foreground else os.getpid(), signal.SIGINT)
        return status if status >= 0 else SIGNAL - status

    def _listen(self, names: Sequence[str]) -> None:
        for number in [signal.Signals[name] for name in names if hasattr(signal, name)]:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup`, and `&` in a script, have it
                signal.signal(number, self._heard)

    def _dropped(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Raise again, in a moment, what a handler has raised inside a finalizer: Python drops that."""
        if isinstance(unraisable.exc_value, _Interrupted):
            number = unraisable.exc_value.args[0]
            signal.signal(signal.SIGALRM, lambda *_: self._heard(number, None))
            signal.setitimer(signal.ITIMER_REAL, 0.01)

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        if self._child is not None:
            self._child.pass_on(number)
        elif self._pending is not None:
            self._pending.append(number)
        else:
            raise _Interrupted(number)
