"""One span a request, exported over OTLP when ``OTEL_EXPORTER_OTLP_ENDPOINT`` says where; otherwise nothing is made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from serve_app.ports import RequestRecord

ENDPOINT_VARIABLE: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
#: Fields of a record that become attributes ``grix.<field>``.
_TOLD: Final = (
    *("request_id", "tenant", "region", "model", "language", "rule", "agent", "template", "target", "release"),
    *("outcome", "error", "status", "prompt_tokens", "completion_tokens", "finish_reason"),
    *("queue_wait_ms", "first_token_ms", "wait_ms", "total_ms"),
)


def tracer() -> trace.Tracer:
    """The tracer of this process, with an exporter when one is configured."""
    if os.environ.get(ENDPOINT_VARIABLE):
        provider = TracerProvider(resource=Resource.create({"service.name": "grix-router"}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return provider.get_tracer("grix")
    return trace.NoOpTracer()


def attributes(record: RequestRecord) -> dict[str, Any]:
    """What a span says about a request: only what is known."""
    values = {f"grix.{name}": getattr(record, name) for name in _TOLD}
    return {name: value for name, value in values.items() if value is not None}


def write_span(tracer: trace.Tracer, record: RequestRecord, ended_unix_s: float) -> None:
    """The finished span of a request, a child of the caller's ``traceparent`` if there was one."""
    carrier: Mapping[str, str] = {"traceparent": record.traceparent} if record.traceparent else {}
    began_unix_s = ended_unix_s - (record.total_ms or 0.0) / 1000
    span = tracer.start_span(
        "grix.request",
        context=propagate.extract(carrier),
        kind=trace.SpanKind.SERVER,
        attributes=attributes(record),
        start_time=int(began_unix_s * 1e9),
    )
    if record.error is not None:
        span.set_status(trace.StatusCode.ERROR, record.error)
    span.end(end_time=int(ended_unix_s * 1e9))
