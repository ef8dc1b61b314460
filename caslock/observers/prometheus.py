"""Counts and times what happens to locks as metrics of Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caslock.observer import LockEvent, Observer

try:
    from prometheus_client import REGISTRY, Counter, Histogram
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        "caslock.observers.prometheus needs the package prometheus-client: pip install 'caslock[prometheus]'",
        name=_missing.name,
    ) from None

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry


class PrometheusObserver(Observer):
    """Three metrics, with the labels ``location`` (of the store), ``group`` and ``outcome``.

    ``caslock_acquire_seconds`` (acquired, adopted, busy) has the time that acquires take, ``caslock_hold_seconds``
    (released, handed_over, lost) the time for which keys are held; both are histograms.  ``caslock_renewals_total``
    (renewed, failed) counts.
    """

    def __init__(
        self, registry: CollectorRegistry = REGISTRY, *, group: Callable[[str], str] = lambda _key: ""
    ) -> None:
        """Register the metrics; to be given to `caslock.observe`.

        Args:
            registry: where to; each registry takes one observer.
            group: the label of a key, for example ``lambda key: key.split(":")[0]``.  It should return one of a few
                texts, because Prometheus keeps a time series for each.

        Raises:
            ValueError: the registry has these metrics already.

        """
        labels = ("location", "group", "outcome")
        buckets = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10, 30, 60, 300, 1800)
        self._acquire = Histogram(
            "caslock_acquire_seconds", "Time that an acquire took", labels, buckets=buckets, registry=registry
        )
        self._hold = Histogram(
            "caslock_hold_seconds", "Time for which a key was held", labels, buckets=buckets, registry=registry
        )
        self._renewals = Counter("caslock_renewals", "Renewals in the background", labels, registry=registry)
        self._group = group

    def acquired(self, event: LockEvent) -> None:
        """See `Observer.acquired`."""
        self._acquire.labels(event.location, self._group(event.key), "acquired").observe(event.seconds)

    def adopted(self, event: LockEvent) -> None:
        """See `Observer.adopted`."""
        self._acquire.labels(event.location, self._group(event.key), "adopted").observe(event.seconds)

    def busy(self, event: LockEvent) -> None:
        """See `Observer.busy`."""
        self._acquire.labels(event.location, self._group(event.key), "busy").observe(event.seconds)

    def released(self, event: LockEvent) -> None:
        """See `Observer.released`."""
        self._hold.labels(event.location, self._group(event.key), "released").observe(event.seconds)

    def handed_over(self, event: LockEvent) -> None:
        """See `Observer.handed_over`."""
        self._hold.labels(event.location, self._group(event.key), "handed_over").observe(event.seconds)

    def lost(self, event: LockEvent) -> None:
        """See `Observer.lost`."""
        self._hold.labels(event.location, self._group(event.key), "lost").observe(event.seconds)

    def renewed(self, event: LockEvent) -> None:
        """See `Observer.renewed`."""
        self._renewals.labels(event.location, self._group(event.key), "renewed").inc()

    def renewal_failed(self, event: LockEvent) -> None:
        """See `Observer.renewal_failed`."""
        self._renewals.labels(event.location, self._group(event.key), "failed").inc()
