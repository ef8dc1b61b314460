"""The law of this file: it proves a store with keys of its own only, says why not, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from caslock.cli.display import display
from caslock.errors import StoreError
from caslock.interrupts import interruptible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from caslock.cli.display import Display
    from caslock.cli.store_contract import ContractResult
    from caslock.store import AsyncStore, Store
    from caslock.testing.torture import Outcome, Plan

NOT_TRIED: Final = 2


class NotTried(Exception):  # noqa: N818 - named by the outcome
    """It could not even begin."""


def verify(url: str, store: str, seconds: float, seed: int | None, picture: str, *, as_json: bool) -> int:
    """Run `caslock verify`."""
    struck: list[int] = []
    try:
        with interruptible(struck):
            return _verify(url, store, seconds, seed, picture, as_json=as_json)
    except NotTried as error:
        return _say(f"caslock verify: {error}", NOT_TRIED)
    except KeyboardInterrupt:
        return _say("caslock verify: interrupted; nothing is left behind", 128 + (struck or [signal.SIGINT])[0])


def _verify(url: str, store: str, seconds: float, seed: int | None, picture: str, *, as_json: bool) -> int:
    try:
        from caslock.testing.torture import Plan, torture  # noqa: PLC0415 - it needs caslock.testing
        from caslock.testing.torture.timeline import timeline  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise NotTried(f"the proof kit needs {error.name}: pip install {error.name}") from error
    plan = Plan(url=url, factory=store, seconds=seconds, seed=secrets.randbelow(2**32) if seed is None else seed)
    if picture and not Path(picture).resolve().parent.is_dir():
        raise NotTried(f"there is no folder for {picture}")
    make = _reach(plan)
    with display() as shown:
        contract = _contract(make, plan, shown)
        if contract is not None and contract.interrupted:
            raise KeyboardInterrupt
        shown.phase("torture", seconds)
        with _trouble():
            outcome = torture(
                plan, watch=lambda done, requests: shown.at(done, f"{requests} requests" if requests else "")
            )
    if picture:
        Path(picture).write_text(timeline(outcome))
    passed = outcome.report.passed and not (contract and contract.broken)
    sys.stdout.write(_json(contract, outcome, passed=passed) if as_json else _text(contract, outcome, passed=passed))
    return 0 if passed else 1


def _reach(plan: Plan) -> Callable[[], Store | AsyncStore]:
    """Make sure that the store can be made and reached; give what makes it."""
    from caslock.testing.drive import driven  # noqa: PLC0415 - as above
    from caslock.testing.torture import places  # noqa: PLC0415 - as above

    def make() -> Store | AsyncStore:
        return places.open_store(plan, plan.url)

    with _trouble():
        if plan.url.startswith("memory:"):
            raise NotTried("memory:// lives in one process, and verify needs several: name a store that they can share")
        first = make()
        try:
            driven(first).get(plan.names()[0])
        finally:
            places.close(first)
    return make


@contextlib.contextmanager
def _trouble() -> Iterator[None]:
    """Say in one line why a store can't be had."""
    try:
        yield
    except StoreError as error:
        raise NotTried(str(error)) from error
    except (ValueError, TypeError, ImportError, AttributeError, OSError) as error:
        raise NotTried(str(error) or repr(error)) from error


def _contract(make: Callable[[], Store | AsyncStore], plan: Plan, shown: Display) -> ContractResult | None:
    try:
        from caslock.cli.store_contract import run_contract  # noqa: PLC0415 - it needs pytest
    except ModuleNotFoundError:
        shown.phase("contract: left out, for it needs pytest (pip install pytest)", None)
        return None
    shown.phase("contract", None)
    return run_contract(make, plan, lambda done: shown.at(done, f"{done} sentences hold"))


def _text(contract: ContractResult | None, outcome: Outcome, *, passed: bool) -> str:
    report = outcome.report
    faults = ", ".join(f"{times} x {kind}" for kind, times in sorted(report.faults.items()))
    acquires = ", ".join(f"{times} {what}" for what, times in report.acquires.items())
    lines = [
        f"store              {report.place}",
        f"contract           {_told(contract)}",
        f"torture            {report.seconds:g} s, seed {report.seed}",
        f"operations         {report.requests}",
        f"faults             {sum(report.faults.values())} ({faults})",
        f"acquires           {acquires}",
        f"sections           {report.sections}",
        f"overlaps           {report.overlaps}",
        f"fence inversions   {report.fence_inversions}",
        f"ghosts             {report.ghosts}",
        f"losses told        {report.lost_and_told}",
        f"late writes        {report.late_writes} (refused by the fence)",
        f"hand-over          p50 {_ms(report.hand_over_p50)}, p99 {_ms(report.hand_over_p99)} (faults included)",
        f"longest wait       {report.longest_wait:.3g} s",
    ]
    broken = contract.broken if contract else []
    lines += [f"BROKEN contract    {each.sentence}: {' '.join(each.why.split())}" for each in broken]
    for violation in report.violations:
        text = " ".join(str(violation["text"]).split())
        lines.append(f"BROKEN law         {violation['law']}, key {violation['key']}, at {violation['at']}: {text}")
    lines.append("PASS" if passed else f"FAIL: {_reason(contract, outcome)}")
    return "\n".join(lines) + "\n"


def _json(contract: ContractResult | None, outcome: Outcome, *, passed: bool) -> str:
    told = outcome.report.to_dict() | {"passed": passed, "reason": _reason(contract, outcome)}
    told["contract"] = contract and {
        "passed": contract.passed,
        "broken": [broken._asdict() for broken in contract.broken],
    }
    return json.dumps(told, indent=2) + "\n"


def _reason(contract: ContractResult | None, outcome: Outcome) -> str:
    broken = f"the contract is broken: {contract.broken[0].sentence}" if contract and contract.broken else ""
    return "; ".join(filter(None, (broken, outcome.report.reason)))


def _told(contract: ContractResult | None) -> str:
    if contract is None:
        return "left out (pip install pytest)"
    return f"{contract.passed} sentences hold, {len(contract.broken)} do not"


def _ms(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{1000 * seconds:.3g} ms"


def _say(line: str, code: int) -> int:
    sys.stderr.write(" ".join(line.split()) + "\n")
    return code
