"""The coordinator's metrics as Prometheus reads them, from the coordinator's own state at the moment they are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final, get_args
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serve_app.core.reports import RegionPhase
from serve_app.edge.coordinator import Coordinator
from serve_app.metrics import CONTROL

_PHASES: Final = get_args(RegionPhase)
#: By metric, what the hub counts.
_COUNTED: Final[Mapping[str, str]] = {
    "grix_control_reports_total": "reports",
    "grix_control_refused_total": "refused",
    "grix_control_sent_total": "sent",
    "grix_control_sent_bytes_total": "sent_bytes",
    "grix_control_store_failures_total": "store_failures",
}


class ControlMetrics(Collector):
    """Every metric of ``metrics.CONTROL``. What a coordinator that does not serve cannot know is left out."""

    def __init__(self, coordinator: Callable[[], Coordinator | None]) -> None:
        self._coordinator = coordinator

    def collect(self) -> Iterator[Metric]:
        values = self._values()
        for metric in CONTROL:
            family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            made = family(metric.name, metric.help, labels=metric.labels)
            for labels, value in values.get(metric.name, {}).items():
                made.add_metric(labels, value)
            yield made

    def _values(self) -> dict[str, dict[tuple[str, ...], float]]:
        coordinator = self._coordinator()
        hub = None if coordinator is None else coordinator.hub
        if hub is None:
            return {"grix_control_serving": {(): 0.0}}
        fleet = hub.fleet
        phases = Counter(m.shown.phase for m in list(fleet.members.values()))
        plain = {
            "grix_control_serving": 1.0,
            "grix_control_links": len(hub.links),
            "grix_control_epoch": fleet.facts.epoch,
            "grix_control_generation": fleet.generation,
            **{name: hub.counts[key] for name, key in _COUNTED.items()},
        }
        by_phase = {(phase,): float(phases[phase]) for phase in _PHASES}
        return {"grix_control_regions": by_phase} | {name: {(): float(value)} for name, value in plain.items()}


def serve_metrics(address: str, coordinator: Callable[[], Coordinator | None]) -> WSGIServer:
    """Answers ``GET /metrics`` at ``HOST:PORT`` from a thread; ``shutdown`` and ``server_close`` end it.

    Raises:
        ValueError: for what is no address.
        OSError: when nobody can listen there.
    """
    host, found, port = address.rpartition(":")
    if not found or not port.isdecimal():
        raise ValueError(f"metrics: {address[:60]!r} is no address; allowed: HOST:PORT")
    registry = CollectorRegistry()
    registry.register(ControlMetrics(coordinator))
    server, _ = start_http_server(int(port), host.strip("[]"), registry)
    return server
