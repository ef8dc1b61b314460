"""Traces and measures what happens to locks with OpenTelemetry."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from caslock.observer import LockEvent, Observer

try:
    from opentelemetry import metrics, trace
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        "caslock.observers.otel needs the package opentelemetry-api: pip install 'caslock[otel]'", name=_missing.name
    ) from None

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider


class OtelObserver(Observer):
    """A span for each acquire and one for each hold, children of the current span, and three instruments.

    The spans are ``caslock.acquire`` and ``caslock.hold``, with the attributes ``caslock.key``, ``caslock.owner``,
    ``caslock.location`` and ``caslock.fence``; a lost hold has the status ERROR.  ``caslock.acquire.duration`` and
    ``caslock.hold.duration`` are histograms in seconds, ``caslock.renewals`` is a counter; they have the attributes
    ``caslock.location`` and ``caslock.outcome`` (acquired, adopted, busy; released, handed_over, lost; renewed,
    failed), but not the key, of which there may be too many.
    """

    def __init__(
        self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        """Make the instruments; to be given to `caslock.observe`.

        Args:
            tracer_provider: None: the global one.
            meter_provider: None: the global one.

        """
        self._tracer = trace.get_tracer("caslock", tracer_provider=tracer_provider)
        meter = metrics.get_meter("caslock", meter_provider=meter_provider)
        self._acquire = meter.create_histogram("caslock.acquire.duration", "s", "Time that an acquire took")
        self._hold = meter.create_histogram("caslock.hold.duration", "s", "Time for which a key was held")
        self._renewals = meter.create_counter("caslock.renewals", "{renewal}", "Renewals in the background")

    def acquired(self, event: LockEvent) -> None:
        """See `Observer.acquired`."""
        self._acquire.record(event.seconds, _attributes(event, "acquired"))
        self._span("caslock.acquire", event, "acquired")

    def adopted(self, event: LockEvent) -> None:
        """See `Observer.adopted`."""
        self._acquire.record(event.seconds, _attributes(event, "adopted"))
        self._span("caslock.acquire", event, "adopted")

    def busy(self, event: LockEvent) -> None:
        """See `Observer.busy`."""
        self._acquire.record(event.seconds, _attributes(event, "busy"))
        self._span("caslock.acquire", event, "busy")

    def released(self, event: LockEvent) -> None:
        """See `Observer.released`."""
        self._hold.record(event.seconds, _attributes(event, "released"))
        self._span("caslock.hold", event, "released")

    def handed_over(self, event: LockEvent) -> None:
        """See `Observer.handed_over`."""
        self._hold.record(event.seconds, _attributes(event, "handed_over"))
        self._span("caslock.hold", event, "handed_over")

    def lost(self, event: LockEvent) -> None:
        """See `Observer.lost`."""
        self._hold.record(event.seconds, _attributes(event, "lost"))
        self._span("caslock.hold", event, "lost", error=True)

    def renewed(self, event: LockEvent) -> None:
        """See `Observer.renewed`."""
        self._renewals.add(1, _attributes(event, "renewed"))

    def renewal_failed(self, event: LockEvent) -> None:
        """See `Observer.renewal_failed`."""
        self._renewals.add(1, _attributes(event, "failed"))

    def _span(self, name: str, event: LockEvent, outcome: str, *, error: bool = False) -> None:
        now = time.time_ns()
        attributes = {**_attributes(event, outcome), "caslock.key": event.key, "caslock.owner": event.owner}
        if event.fence is not None:
            attributes["caslock.fence"] = event.fence
        span = self._tracer.start_span(name, attributes=attributes, start_time=now - int(event.seconds * 1e9))
        if error:
            span.set_status(trace.StatusCode.ERROR, event.reason)
        span.end(now)


def _attributes(event: LockEvent, outcome: str) -> dict[str, str | int]:
    return {"caslock.location": event.location, "caslock.outcome": outcome}
