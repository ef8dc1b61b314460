"""``caslock doctor``: what can go wrong with locks on a server, as it is set up."""

from __future__ import annotations

import statistics
import time
from importlib import import_module
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from caslock.cli.finding import STATUS, Finding, Severity, danger, note, warning
from caslock.cli.holders import print_json
from caslock.cli.which_store import default_url, json_option, opened, store_option
from caslock.connect import OWN
from caslock.errors import StoreError, StoreUnavailable, with_notes

if TYPE_CHECKING:
    from caslock.store import Store

_LOOKS: Final = 9
_SLOW: Final = 0.1
_KEY: Final = "caslock-doctor"


@click.command("doctor")
@click.argument("named", metavar="[URL]", default="")
@store_option
@json_option
@click.pass_context
def command(context: click.Context, named: str, url: str | None, *, as_json: bool) -> int:
    """Look at a store: how fast it answers, what its settings mean for locks, and what to set.

    It changes nothing.  URL is the same as --store URL.

    \b
    Example:
      caslock doctor redis://localhost

    Exit status: 0 nothing, or notes; 1 warnings; 3 danger; 2 the store could not be reached.
    """  # noqa: D301 - \b is a mark for click
    if named and url and context.get_parameter_source("url") is not ParameterSource.ENVIRONMENT:
        raise click.UsageError("name one store, by URL or by --store")
    url = named or url
    with opened(url, looks=True) as store:
        trip, findings = examined(store, url or default_url())
        location = store.traits.location
    worst = max((each.severity for each in findings), default=Severity.note)
    if as_json:
        found = [each.to_dict() for each in findings]
        print_json({"store": location, "round_trip": trip, "findings": found})
    else:
        click.echo(location if trip is None else f"{location} answers in {1000 * trip:.2g} ms")
        for finding in sorted(findings, reverse=True):
            click.echo(str(finding))
    return STATUS[worst]


def examined(store: Store, url: str) -> tuple[float | None, list[Finding]]:
    """Give the seconds of a round trip (None: it was refused), and what was found; raises `StoreUnavailable`."""
    findings = list[Finding]()
    try:
        trip = _round_trip(store)
    except StoreError as error:
        refused = danger("it refuses to be asked", with_notes(error))
        findings += _of_settings(store, url)
        if isinstance(error, StoreUnavailable) and not any(each.severity == refused.severity for each in findings):
            raise  # nothing in its settings explains that
        return None, [refused, *findings]
    if trip >= _SLOW:
        findings.append(
            warning(f"it answers in {trip:.1f} s", "short leases can't be renewed in time", "Use a long ttl")
        )
    return trip, [*findings, *_of_settings(store, url)]


def _of_settings(store: Store, url: str) -> list[Finding]:
    kind = OWN.get(url.partition(":")[0].lower())
    if kind is None:
        return [note("no settings are looked at", "caslock doctor does not know this kind of store")]
    findings = list[Finding]()
    try:
        examine = import_module(f"caslock.cli.doctor_{kind.extra or kind.module}").examine
        for finding in examine(store.traits.location if kind.module == "sqlite" else url):
            findings.append(finding)  # it stays, even if the rest can't be read
    except Exception as error:  # noqa: BLE001 - of a client library; its text may show a secret of the URL
        findings.append(warning("its settings can't be read", f"what they mean is not known ({type(error).__name__})"))
    return findings


def _round_trip(store: Store) -> float:
    store.get(_KEY)  # it connects
    times = []
    for _ in range(_LOOKS):
        began = time.perf_counter()
        store.get(_KEY)
        times.append(time.perf_counter() - began)
    return statistics.median(times)
