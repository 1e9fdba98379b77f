"""What is counted, kept and logged of a finished request."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from serve_app.edge.journal import RequestJournal
from serve_app.metrics import BY_NAME
from serve_app.ports import RequestRecord
from tests.fakes import FakeMeter, a_record

WHERE = {"region": "cloud-a", "agent": "qwen-chat"}
SPOKEN = {**WHERE, "language": "ja"}
PAID = {**WHERE, "tenant": "acme"}


def journal(kept: int = 10) -> tuple[RequestJournal, FakeMeter, list[RequestRecord]]:
    meter = FakeMeter()
    spans: list[RequestRecord] = []
    return RequestJournal(meter, spans.append, kept), meter, spans


def test_a_success_is_counted_and_measured() -> None:
    made, meter, spans = journal()
    record = a_record()
    made.finished(record)
    assert meter.added == [
        ("grix_requests_total", {**SPOKEN, "outcome": "success", "status": "200"}, 1),
        ("grix_tenant_requests_total", {"region": "cloud-a", "tenant": "acme", "outcome": "success"}, 1),
        ("grix_admissions_total", {"region": "cloud-a", "decided_by": "region"}, 1),
        ("grix_reserved_tokens_total", {"region": "cloud-a", "tenant": "acme"}, 107),
        ("grix_prompt_tokens_total", PAID, 7),
        ("grix_completion_tokens_total", PAID, 3),
    ]
    assert meter.observed == [
        ("grix_queue_wait_ms", WHERE, 1.5),
        ("grix_wait_ms", WHERE, 5.0),
        ("grix_first_token_ms", WHERE, 4.5),
        ("grix_total_ms", WHERE, 9.0),
        ("grix_completion_tokens", SPOKEN, 3),
    ]
    assert spans == [record]


def test_a_refusal_that_knows_nothing_claims_nothing() -> None:
    made, meter, _ = journal()
    made.finished(RequestRecord("r1", "chat", outcome="rejected", error="no_api_key", status=401, total_ms=0.0))
    nobody = {"region": "none", "agent": "none", "language": "none", "outcome": "rejected", "status": "401"}
    assert meter.added == [
        ("grix_requests_total", nobody, 1),
        ("grix_errors_total", {"region": "none", "reason": "no_api_key"}, 1),
    ]
    assert meter.observed == [("grix_total_ms", {"region": "none", "agent": "none"}, 0.0)]


def test_a_request_that_a_limit_refused_is_counted_for_its_tenant() -> None:
    made, meter, _ = journal()
    record = RequestRecord(
        "r1", "chat", tenant="acme", region="cloud-a", outcome="rejected", error="root_limit", status=429
    )
    made.finished(record)
    whose = {"region": "cloud-a", "tenant": "acme"}
    assert ("grix_limited_total", {**whose, "reason": "root_limit"}, 1) in meter.added
    assert ("grix_tenant_requests_total", {**whose, "outcome": "rejected"}, 1) in meter.added
    assert "grix_admissions_total" not in {name for name, _, _ in meter.added}


def test_retries_and_truncation_are_counted() -> None:
    made, meter, _ = journal()
    attempts = [{"target": "a", "result": "upstream_failed", "ms": 1.0}] * 2 + [{"target": "a", "result": "started"}]
    made.finished(a_record(attempts=attempts, finish_reason="length", completion_tokens=0))
    counted = {name: (labels, value) for name, labels, value in meter.added}
    assert counted["grix_retries_total"] == (WHERE, 2)
    assert counted["grix_truncated_total"] == (SPOKEN, 1)
    assert "grix_completion_tokens_total" not in counted


def test_the_way_of_a_request_is_counted() -> None:
    made, meter, _ = journal()
    made.finished(a_record(hops=1, spilled=True, serving_region="cloud-b", tripped=["cloud-a", "edge-1"]))
    assert ("grix_hops", WHERE, 1) in meter.observed
    assert [(labels["to"], n) for name, labels, n in meter.added if name == "grix_spills_total"] == [("cloud-b", 1)]
    trips = [(labels, n) for name, labels, n in meter.added if name == "grix_breaker_trips_total"]
    assert trips == [({**WHERE, "to": "cloud-a"}, 1), ({**WHERE, "to": "edge-1"}, 1)]
    made.finished(a_record(hops=0, spilled=False, serving_region="cloud-a"))
    assert [n for name, _, n in meter.observed if name == "grix_hops"] == [1, 0]
    assert sum(name == "grix_spills_total" for name, _, _ in meter.added) == 1


def test_a_session_is_counted_by_its_store_and_when_it_moves() -> None:
    made, meter, _ = journal()
    made.finished(a_record(session_store="degraded", session_moved_from="cloud-b"))
    assert ("grix_session_requests_total", {"region": "cloud-a", "store": "degraded"}, 1) in meter.added
    assert ("grix_session_moves_total", WHERE, 1) in meter.added


def test_a_question_about_a_language_is_counted_by_what_came_of_it() -> None:
    made, meter, _ = journal()
    made.finished(a_record(language_question="late"))
    assert ("grix_language_questions_total", {"region": "cloud-a", "outcome": "late"}, 1) in meter.added


#: Counted when it happens, not when a request ends.
ELSEWHERE = {
    "grix_session_store_errors_total",
    "grix_config_put_back_total",
    "grix_preemptions_total",
    "grix_preemption_restores_total",
    "grix_missing_replicas",
    "grix_failed_starts_total",
}


def test_every_number_has_the_labels_of_the_table() -> None:
    made, meter, _ = journal()
    session: dict[str, Any] = {"session_store": "kept", "session_moved_from": "cloud-b"}
    session |= {"hops": 1, "spilled": True, "serving_region": "cloud-b", "tripped": ["cloud-b"], "canary_break": True}
    asked = {"language_question": "late"}
    made.finished(a_record(attempts=[{}, {}], finish_reason="length", error="requests_limit", **session, **asked))
    given = meter.added + meter.observed
    assert {name for name, _, _ in given} == set(BY_NAME) - ELSEWHERE
    assert all(tuple(sorted(labels)) == tuple(sorted(BY_NAME[name].labels)) for name, labels, _ in given)


def test_the_last_ones_are_kept_and_the_oldest_forgotten() -> None:
    made, _, _ = journal(kept=2)
    for request_id in ("a", "b", "c"):
        made.finished(a_record(request_id))
    assert made.find("a") is None
    assert [made.find(i)["request_id"] for i in ("b", "c")] == ["b", "c"]  # type: ignore[index]


def test_an_id_used_again_is_young_again() -> None:
    made, _, _ = journal(kept=2)
    for request_id in ("a", "b", "a", "c"):
        made.finished(a_record(request_id))
    assert made.find("b") is None
    assert made.find("a") is not None


def test_a_kept_record_does_not_change_with_the_live_one() -> None:
    made, _, _ = journal()
    record = a_record()
    made.finished(record)
    record.attempts.append({"target": "late"})
    assert len(made.find("r1")["attempts"]) == 1  # type: ignore[index]


#: Ends of lines, terminal controls of 7 and 8 bits, changes of direction, invisible text, half a character.
EVIL = [
    "\r\nINFO forged",
    "\x0b\x0c\x1c\x85\u2028\u2029",
    "\x1b[2J\x9b31m\x07\x08\x7f",
    "\u202e\u2066\u200f",
    "\ufeff\u200b",
    "\ud83e",
]


@pytest.mark.parametrize("evil", EVIL)
@pytest.mark.parametrize("field", ["session_id", "model", "traceparent", "request_id", "reason", "rule_reason"])
def test_what_callers_write_stays_inside_its_line(caplog: pytest.LogCaptureFixture, field: str, evil: str) -> None:
    made, _, _ = journal()
    with caplog.at_level(logging.INFO, logger="ray.serve"):
        made.finished(a_record(**({"request_id": evil} if field == "request_id" else {field: evil})))
    (line,) = [r.getMessage() for r in caplog.records if r.name == "ray.serve"]
    assert line.isascii() and line.isprintable()
    assert json.loads(line.removeprefix("request "))[field] == evil


def test_a_long_text_does_not_make_a_long_line(caplog: pytest.LogCaptureFixture) -> None:
    made, _, _ = journal()
    with caplog.at_level(logging.INFO, logger="ray.serve"):
        made.finished(a_record(traceparent="x" * 60_000))
    (line,) = [r.getMessage() for r in caplog.records if r.name == "ray.serve"]
    assert len(line) < 3000
    assert len(made.find("r1")["traceparent"]) == 60_000  # type: ignore[index]


def test_the_log_is_one_ascii_line_of_json_whatever_the_text(caplog: pytest.LogCaptureFixture) -> None:
    made, _, _ = journal()
    with caplog.at_level(logging.INFO, logger="ray.serve"):
        made.finished(a_record(session_id="s\ud83e\n日本", candidates=[{"target": "x"}] * 3))
    (line,) = [r.getMessage() for r in caplog.records if r.name == "ray.serve"]
    assert line.startswith("request {") and line.isascii() and "\n" not in line
    plain = json.loads(line.removeprefix("request "))
    assert (plain["session_id"], plain["candidates"], plain["outcome"]) == ("s\ud83e\n日本", 3, "success")
    assert "error" not in plain and "traceparent" not in plain
