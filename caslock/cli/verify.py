"""Runs ``caslock verify``: the contract, then torture, on keys of its own, and prints the report."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import sys
import textwrap
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from caslock.cli.doctor import examined
from caslock.cli.finding import Severity
from caslock.cli.progress import Progress
from caslock.connect import connect
from caslock.errors import StoreError
from caslock.verify import Plan, locations, torture
from caslock.verify.cleanup import PATIENCE as CLEANUP
from caslock.verify.processes import PATIENCE as BEGIN
from caslock.verify.run import LEEWAY
from caslock.verify.sharing import check_sharing
from caslock.verify.signals import Interrupts
from caslock.verify.timeline import timeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from caslock.cli.finding import Finding
    from caslock.verify import Outcome
    from caslock.verify.contract import ContractResult
    from caslock.verify.route import Route

NOT_TRIED: Final = 2

CONTRACT: Final = 30.0
"""Seconds that the contract takes, at the most, on a store that answers at once."""

SHORTEST, LONGEST = 0.25, 3.0
"""Seconds of leases in torture."""

START, ACQUIRE, EXPIRY_LAG = 3.0, 5.0, 4.0
"""Seconds: until all processes of torture run; of the longest acquire; that a record may last after its lease."""

REQUESTS: Final = 10
"""How many requests without an answer a client of torture may have to sit out before it comes to its end."""


class NotTried(Exception):  # noqa: N818 - named by the outcome
    """It could not even begin."""


def verify(url: str, store: str, seconds: float, seed: int | None, picture: str, *, as_json: bool) -> int:
    """Run `caslock verify`; gives the exit code."""
    plan = Plan(
        url=url,
        factory=store,
        seconds=seconds,
        seed=secrets.randbelow(2**32) if seed is None else seed,
        ttls=(SHORTEST, min(LONGEST, max(2 * SHORTEST, seconds / 4))),  # a short run has many tenures all the same
    )
    interrupts = Interrupts()
    try:
        with interrupts:
            contract, outcome, findings = _verify(plan, picture, interrupts)
    except NotTried as error:
        return _say(f"caslock verify: {error}", NOT_TRIED)
    except KeyboardInterrupt:
        return _say("caslock verify: interrupted; nothing is left behind", interrupts.exit_code)
    passed = outcome.report.passed and not contract.broken  # what was not tried is named in the report
    reason = f"the contract is broken: {contract.broken[0].sentence}" if contract.broken else ""
    reason = "; ".join(filter(None, (reason, outcome.report.reason)))
    if as_json:
        answer = outcome.report.to_dict() | {"passed": passed, "reason": reason, "contract": contract.to_dict()}
        answer["doctor"] = [finding.to_dict() for finding in findings]
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
    else:
        lines = [*_lines(contract, outcome), *(f"{'doctor':18} {finding}" for finding in findings)]
        sys.stdout.write("\n".join([*map(_wrapped, lines), "PASS" if passed else f"FAIL: {reason}"]) + "\n")
    return 0 if passed else 1


def _verify(plan: Plan, picture: str, interrupts: Interrupts) -> tuple[ContractResult, Outcome, list[Finding]]:
    try:
        from caslock.verify.contract import run_contract  # noqa: PLC0415 - it needs pytest
        from caslock.verify.route import PATIENCE, find_route  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pytest":
            raise
        raise NotTried("the contract of a store runs under pytest: pip install 'caslock[cli]'") from error
    if picture and not Path(picture).resolve().parent.is_dir():
        raise NotTried(f"the directory of {picture} does not exist")
    with _not_tried():
        locations.close(locations.reach(plan, write=True))
        if plan.factory:
            check_sharing(plan)
    findings = _examined(plan)
    with Progress() as progress:

        def show(done: str) -> None:
            interrupts.check()
            progress.at(done)

        progress.phase("server", f"looking for it, up to {PATIENCE:.0f} s")
        route = find_route(plan)
        progress.phase("contract", f"up to {CONTRACT + 20 * route.timeout:.0f} s")
        contract = run_contract(plan, route, show)
        if contract.interrupted:
            raise KeyboardInterrupt
        # Torture takes the same route, and waits for longer where the store's own timeout is long.
        plan = replace(plan, proxy=route.server is not None, patience=plan.patience + REQUESTS * route.timeout)
        more = f"up to {_tail(plan, route):.0f} s for its clients to end, or {_longest_tail(plan):.0f} s if one hangs"
        progress.phase("torture", f"{plan.seconds:g} s, and {more}")
        with _not_tried():
            outcome = torture(plan, watch=lambda done, requests: show(_so_far(done, requests)))
    if not (contract.broken or outcome.report.broken or any(outcome.report.acquires.values())):
        raise NotTried("no client has come to its first acquire: give more --seconds, or use a machine with less to do")
    if picture:
        Path(picture).write_text(timeline(outcome))
    return contract, outcome, findings


def _examined(plan: Plan) -> list[Finding]:
    """Give doctor's warnings; a server that is full, or set up so that locks can't be safe, is not tried."""
    if not plan.url:
        return []
    with _not_tried(), connect(plan.url) as store:
        _, findings = examined(store, plan.url)
    for finding in findings:
        if finding.severity == Severity.danger:
            raise NotTried(str(finding))
    return [finding for finding in findings if finding.severity == Severity.warning]


@contextlib.contextmanager
def _not_tried() -> Iterator[None]:
    """Say in one line why a store can't be had."""
    try:
        yield
    except (StoreError, ValueError, TypeError, ImportError, AttributeError, OSError) as error:
        raise NotTried(str(error) or repr(error)) from error
    except Exception as error:  # of a store under test, which may raise whatever it likes
        raise NotTried(f"the store raised {error!r}, which is not a StoreError") from error


def _tail(plan: Plan, route: Route) -> float:
    """Tell how long the clients of a sound store may take to come to an end, and its keys to be free."""
    lease = max(plan.ttls[1], plan.several_ttl if plan.several else 0.0)
    return START + ACQUIRE + 2 * plan.ttls[1] + plan.longest_delay + 4 * route.timeout + lease + EXPIRY_LAG


def _longest_tail(plan: Plan) -> float:
    """Tell how long torture can take at the most, beside its time."""
    lease = max(plan.ttls[1], plan.several_ttl if plan.several else 0.0)
    return BEGIN + plan.grace + LEEWAY + plan.longest_delay + lease + EXPIRY_LAG + CLEANUP


def _so_far(seconds: float, requests: int) -> str:
    """Say how far torture is; how many requests there were is known only where they go through the proxy."""
    return f"{seconds:.0f} s, {requests} requests" if requests else f"{seconds:.0f} s"


def _lines(contract: ContractResult, outcome: Outcome) -> Iterator[str]:
    report = outcome.report
    faults = ", ".join(f"{times} x {kind}" for kind, times in sorted(report.faults.items()))
    hand_over = f"p50 {_ms(report.hand_over_p50)}, p99 {_ms(report.hand_over_p99)} (faults included)"
    figures = {
        "store": report.location,
        "contract": f"{contract.passed} tests passed, {len(contract.broken)} failed, {len(contract.skipped)} not tried",
        "torture": f"{report.seconds:g} s, seed {report.seed}",
        "operations": report.requests,
        "faults": f"{sum(report.faults.values())} ({faults})",
        "acquires": ", ".join(f"{times} {what}" for what, times in report.acquires.items()),
        "sections": report.sections,
        "overlaps": report.overlaps,
        "fence inversions": report.fence_inversions,
        "orphaned records": report.orphans,
        "losses reported": report.lost_and_reported,
        "late writes": f"{report.late_writes} (refused by the fence)",
        "hand-over": hand_over,
        "longest wait": f"{report.longest_wait:.3g} s",
    }
    for name, figure in figures.items():
        yield f"{name:18} {figure}"
    sentences = defaultdict[str, list[str]](list)  # not tried, by the reason
    for sentence, why in contract.skipped:
        sentences[why].append(sentence)
    for line in [*(f"{'; '.join(each)} ({why})" for why, each in sentences.items()), *report.skipped]:
        yield f"{'not tried':18} {line}"
    if contract.skipped or report.skipped:
        yield f"{'':18} What was not tried is no fault, and PASS says nothing of it."
    for sentence, why in contract.broken:
        yield f"{'BROKEN contract':18} {sentence}: {' '.join(why.split())}"
    for violation in report.violations:
        yield f"{'BROKEN law':18} {violation}"


def _wrapped(line: str) -> str:
    """Fit a line into a terminal."""
    if not sys.stdout.isatty():
        return line
    width = max(40, shutil.get_terminal_size().columns)
    return textwrap.fill(line, width, subsequent_indent=19 * " ", break_long_words=False, break_on_hyphens=False)


def _ms(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{1000 * seconds:.3g} ms"


def _say(line: str, code: int) -> int:
    sys.stderr.write(" ".join(line.split()) + "\n")
    return code
