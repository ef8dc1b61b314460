"""The observers for Prometheus and OpenTelemetry, with their real libraries."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import CollectorRegistry

from caslock import Lock, LockLost, observe
from caslock.observers.otel import OtelObserver
from caslock.observers.prometheus import PrometheusObserver
from caslock.stores.memory import MemoryStore
from tests.support.locations import make_due, present, until


def test_prometheus_counts_and_times() -> None:
    """Each outcome has its series; keys are grouped as the user says."""
    registry = CollectorRegistry()
    store = MemoryStore()
    forget = observe(PrometheusObserver(registry, group=lambda key: key.split(":")[0]))

    def value(name: str, group: str, outcome: str) -> float | None:
        labels = {"location": store.traits.location, "group": group, "outcome": outcome}
        return registry.get_sample_value(name, labels)

    with Lock(store, "room:42", ttl=60) as hold:
        make_due(hold._attempt)
        assert Lock(store, "room:42").acquire(timeout=0) is None
        assert until(lambda: value("caslock_renewals_total", "room", "renewed"))
    with pytest.raises(LockLost), Lock(store, "job:1"):
        Lock(store, "job:1").force_release()
    assert until(lambda: value("caslock_hold_seconds_count", "job", "lost") == 1)
    forget()
    assert value("caslock_acquire_seconds_count", "room", "acquired") == 1
    assert value("caslock_acquire_seconds_count", "room", "busy") == 1
    assert value("caslock_hold_seconds_count", "room", "released") == 1
    assert value("caslock_hold_seconds_count", "job", "released") is None
    with pytest.raises(ValueError, match="Duplicated"):
        PrometheusObserver(registry)


def test_opentelemetry_traces_and_measures() -> None:
    """A span for each acquire and hold, within the current one; the lost hold has the status ERROR."""
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    store = MemoryStore()
    forget = observe(OtelObserver(tracers, MeterProvider([reader])))
    with tracers.get_tracer("test").start_as_current_span("booking") as booking, Lock(store, "room:42") as hold:
        fence = hold.fence
    with pytest.raises(LockLost), Lock(store, "job:1"):
        Lock(store, "job:1").force_release()

    def finished() -> list[ReadableSpan]:
        """Return the spans of this store: other tests may have left something behind that is lost now."""
        location = store.traits.location
        return [
            span for span in spans.get_finished_spans() if (span.attributes or {}).get("caslock.location") == location
        ]

    assert until(lambda: len(finished()) == 4)
    forget()
    acquire, held, _, lost = finished()
    assert [span.name for span in (acquire, held, lost)] == ["caslock.acquire", "caslock.hold", "caslock.hold"]
    for span in (acquire, held):
        assert span.parent is not None
        assert span.parent.span_id == booking.get_span_context().span_id
        assert span.attributes is not None
        assert span.attributes["caslock.key"] == "room:42"
        assert span.attributes["caslock.fence"] == fence
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.end_time >= span.start_time
    assert lost.status.status_code is StatusCode.ERROR
    assert lost.status.description == "this process called force_release()"
    data = present(reader.get_metrics_data())
    names = [each.name for each in data.resource_metrics[0].scope_metrics[0].metrics]
    assert {"caslock.acquire.duration", "caslock.hold.duration"} <= {*names}
