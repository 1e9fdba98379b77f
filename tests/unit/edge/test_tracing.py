"""What leaves a process in a span: facts about a request, nothing of what was said in it or of who may say it."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from serve_app.edge.tracing import attributes, write_span
from serve_app.ports import Body, RequestRecord
from tests.fakes import BEARER, GOOD, KEY, Stage, Step

PROMPT, ANSWER, SESSION = "the-prompt-of-a-caller", "the-answer-of-an-engine", "the-session-of-a-caller"
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
#: What a span tells; another field of the record is a decision, not a matter of course.
TOLD = {
    *("request_id", "tenant", "region", "model", "language", "rule", "agent", "template", "target", "release"),
    *("outcome", "error", "status", "prompt_tokens", "completion_tokens", "finish_reason"),
    *("queue_wait_ms", "first_token_ms", "wait_ms", "total_ms"),
}


def written(record: RequestRecord) -> dict[str, Any]:
    """The span of a record as an exporter gets it."""
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    write_span(provider.get_tracer("grix"), record, ended_unix_s=1000.0)
    (span,) = spans.get_finished_spans()
    return dict(json.loads(span.to_json()))


async def recorded(*script: Step, **more: Any) -> RequestRecord:
    """The record of a request that was really run, with a key, a prompt and an answer."""
    stage = Stage(scripts=[script or GOOD])
    body = {"messages": [{"role": "user", "content": PROMPT}], "metadata": {"session_id": SESSION}, **more}
    await stage.run(json.dumps(body).encode(), {**BEARER, "traceparent": TRACEPARENT})
    return stage.journal.records[-1]


@pytest.mark.parametrize(
    "more", [{}, {"tools": PROMPT}, {"model": "nobody-has-it"}], ids=["answered", "bad", "unknown"]
)
async def test_a_span_has_no_key_prompt_or_answer(more: dict[str, Any]) -> None:
    record = await recorded(GOOD[0], GOOD[1], Body(json.dumps({"said": ANSWER}).encode()), GOOD[3], **more)
    span = written(record)
    told = json.dumps(span)
    for secret in (KEY, BEARER["authorization"], "authorization", PROMPT, ANSWER, SESSION):
        assert secret not in told
    assert span["attributes"]["grix.request_id"] == "r1"
    assert span["context"]["trace_id"] == "0x4bf92f3577b34da6a3ce929d0e0e4736"
    assert span["attributes"]["grix.outcome"] == ("rejected" if more else "success")


def test_what_a_span_does_not_tell_cannot_reach_it() -> None:
    """Each other field holds secrets here, whatever its type is."""
    others = {f.name: f"Bearer {KEY}: {PROMPT}" for f in fields(RequestRecord) if f.name not in TOLD}
    record = replace(RequestRecord("r1", "chat", tenant="acme", total_ms=5.0), **others)  # type: ignore[arg-type]
    assert attributes(record) == {"grix.request_id": "r1", "grix.tenant": "acme", "grix.total_ms": 5.0}
    told = json.dumps(written(record))
    assert KEY not in told and PROMPT not in told
