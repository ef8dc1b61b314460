"""The layers of tests, and how each of them catches a planted bug.

A check passes without the mutant, and catches it by failing for the right reason: an assertion of the layer, a rule
that the simulator names, or an outcome of the lock that the scenario does not allow.  A TypeError, an `assert` in the
protocol or in a mutant, and a test that hangs, are no such reason; they are raised.
"""

from __future__ import annotations

import builtins
import contextlib
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import pytest

from caslock import testing
from caslock.errors import CaslockError
from caslock.stores.memory import MemoryStore
from caslock.testing import StoreContract
from caslock.testing.life_contract import LifeContract
from caslock.testing.server_contract import ServerContract
from tests.proof.laws.scene import LONG
from tests.proof.simulator import Violation
from tests.proof.simulator.chance import simulate
from tests.proof.simulator.explore import Bounds, explore
from tests.proof.simulator.scenes import SCENES
from tests.proof.simulator.shrink import replay
from tests.proof.test_contract_bites import meets
from tests.proof.test_laws_bite import hurried, play
from tests.support.locations import opened

Patches: TypeAlias = tuple[tuple[object, str, object], ...]
"""What is replaced: owner, name, value."""

PATIENCE: Final = 2 * LONG
"""Seconds in which a check has to go red: longer than a law waits for what has to happen."""

_JUDGES: Final = (Path(testing.__file__).parent, Path(__file__).parents[2])
_CORE: Final = _JUDGES[0].parent
_CULPRITS: Final = frozenset({"planted.py", "test_contract_bites.py", "test_laws_bite.py", "test_simulate_bites.py"})
"""Where mutants live: an error raised in these files is no verdict."""


class Mutant(NamedTuple):
    name: str
    wrong: str
    """What is wrong, in a sentence."""
    checks: tuple[Check, ...]
    """What is to catch it, in the order of the layers."""
    patches: Patches = ()
    """What is replaced in the protocol or in a store."""
    make: Callable[[], MemoryStore] = MemoryStore
    """Makes the store, where that is what is broken."""
    control: Patches = ()
    """What is replaced without the mutant too."""


class Contract(NamedTuple):
    """All of `StoreContract` that needs no server and no other process, the nastiest first, until one goes red."""

    location: str = "memory"
    layer: str = "contract"

    def catches(self, mutant: Mutant, request: pytest.FixtureRequest) -> bool:
        for sentence in in_order(StoreContract):
            meet = partial(self._meet, sentence, request)
            green(self, sentence, run=partial(meet, MemoryStore))
            with patched(mutant.patches):
                if red(partial(meet, mutant.make)):
                    return True
        return False

    def _meet(self, sentence: str, request: pytest.FixtureRequest, make: Callable[[], MemoryStore]) -> None:
        with contextlib.ExitStack() as stack:
            store = make() if self.location == "memory" else stack.enter_context(opened(self.location, request)).store()
            with contextlib.suppress(pytest.skip.Exception):  # what a store does not have catches no mutant
                meets(lambda: store, sentence)


class Law(NamedTuple):
    """A scenario of `LockContract`: it goes red with each API."""

    scenario: str
    arguments: tuple[tuple[str, object], ...] = ()
    layer: str = "laws"

    def catches(self, mutant: Mutant, request: pytest.FixtureRequest) -> bool:
        del request
        for api in ("blocking", "asyncio"):
            with patched(mutant.control):
                green(self, api, mutant.control, run=partial(self._play, api, MemoryStore))
                with patched(mutant.patches), pytest.MonkeyPatch.context() as patch:
                    hurried(patch)
                    if red(partial(self._play, api, mutant.make)) is None:
                        return False
        return True

    def _play(self, api: str, make: Callable[[], MemoryStore]) -> None:
        play(api, make(), self.scenario, dict(self.arguments))


class Seeds(NamedTuple):
    """Seeds of the simulator, until one breaks a law that speaks of `word`."""

    word: str = ""
    most: int = 1_500
    """Run at most this many; nearly every mutant is caught within a hundred."""
    layer: str = "simulator"

    def catches(self, mutant: Mutant, request: pytest.FixtureRequest) -> bool:
        del request
        return any(breaks_a_law(mutant, self.word, partial(simulate, seed)) for seed in range(self.most))


class Search(NamedTuple):
    """A scene of the simulator, searched under so many faults at the most, until a law is broken that has `word`."""

    scene: str
    faults: int = 1
    word: str = ""
    layer: str = "simulator"

    def catches(self, mutant: Mutant, request: pytest.FixtureRequest) -> bool:
        del request
        search = partial(explore, SCENES[self.scene], Bounds(self.faults, states=30_000))
        return breaks_a_law(mutant, self.word, search)


def breaks_a_law(mutant: Mutant, word: str, runs: Callable[[], object]) -> bool:
    """Whether a run of the simulator breaks a law that speaks of `word`, and the same choices break none without it."""
    with patched(mutant.control):
        with patched(mutant.patches):
            found = red(runs, 2 * PATIENCE, time.process_time)  # it computes, and waits for nothing
        if not isinstance(found, Violation) or word not in found.law:
            return False
        assert not replay(found.plan, found.choices), "it is red without the mutant too"
        return True


class Directed(NamedTuple):
    """A test of the suite, or a scene, for just this bug."""

    name: str
    scene: Callable[[pytest.FixtureRequest], None]
    layer: str = "directed"

    def catches(self, mutant: Mutant, request: pytest.FixtureRequest) -> bool:
        scene = partial(self.scene, request)
        with patched(mutant.control):
            green(self, mutant.control, run=scene)
            with patched(mutant.patches):
                patience = 10 * PATIENCE if self.layer == "torture" else PATIENCE  # torture ends when all clients have
                return red(scene, patience) is not None


Check: TypeAlias = Contract | Law | Seeds | Search | Directed

_green: set[tuple[object, ...]] = set()


def green(*check: object, run: Callable[[], object]) -> None:
    """Check once for all mutants that a check passes without any."""
    if check not in _green:
        assert not run(), "a check that is red without a mutant catches nothing"
        _green.add(check)


def red(
    check: Callable[[], object], patience: float = PATIENCE, clock: Callable[[], float] = time.monotonic
) -> BaseException | None:
    """Return what a check raises, None if it is green; raises errors that are no verdict."""
    began = clock()
    try:
        check()
    except (AssertionError, pytest.fail.Exception, CaslockError) as error:
        if not is_judgement(error) or clock() - began > patience:
            raise
        return error
    return None


def is_judgement(error: BaseException) -> bool:
    """Whether a layer has raised that, and not the mutant by accident."""
    if isinstance(error, Violation):
        return " raises " not in error.law  # else it reports an unexpected error
    if isinstance(error, CaslockError):  # out of a lock or a store, through a check that does not allow it
        return True
    files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    ours = [file for file in files if any(location in file.parents for location in (*_JUDGES, _CORE))]
    raised_in = ours[-1]
    judged = any(location in raised_in.parents for location in _JUDGES) and raised_in.name not in _CULPRITS
    return judged and not str(error).startswith("Timeout")  # that is pytest-timeout's


@contextlib.contextmanager
def patched(patches: Patches) -> Iterator[None]:
    """Replace attributes for a while; a module may mask a builtin."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, value in patches:
            patch.setattr(owner, name, value, raising=not hasattr(builtins, name))
        yield


def in_order(contract: type) -> list[str]:
    """Name the tests of a contract as pytest runs them: from the last of its classes on."""
    verbs = [part for part in reversed(contract.__mro__) if part not in (ServerContract, LifeContract)]
    return [name for part in verbs for name in vars(part) if name.startswith("test_")]
