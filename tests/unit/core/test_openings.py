"""What an answer says before a byte of it has gone to the client: bodies and first events that broke other gateways."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.openings import MOST_HELD_BYTES, Fault, find_error, judge_end, judge_opening, judge_whole


def event(value: Any, *, end: str = "\n\n", colon: str = ": ") -> bytes:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"data{colon}{text}{end}".encode()


def delta(*, finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"id": "c1", "choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]}


ROLE = delta(role="assistant", content="")
NO_CAPACITY = {"choices": [], "error": {"code": 502, "message": "no capacity"}}

SILENT = [
    b"",
    b"data: {",
    event(ROLE)[:-1],
    event(ROLE),
    event(ROLE, end="\r\n\r\n"),
    event(delta()),
    event(delta(role="assistant", content=None, refusal=None, tool_calls=[])),
    event({"choices": [{"index": 0, "delta": None}]}),
    event({"choices": [{"index": 0, "text": "", "finish_reason": None}]}),
    # What some providers send first: results of their own checks, or counts, beside an empty list of choices.
    event({"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}),
    event({"choices": [], "usage": {"prompt_tokens": 5}}),
    b": keep-alive\n\n",
    b"event: ping\n\n",
    b"\n\n",
]
SAYING = [
    event(delta(content="h")),
    event(delta(content="h"), colon=":"),
    event(delta(content="h"), end="\r\n\r\n"),
    event(delta(content="h"), end="\r\r"),
    event(delta(content=" ")),
    event(delta(reasoning_content="h")),
    event(delta(tool_calls=[{"index": 0, "id": "c9"}])),
    event(delta(finish_reason="stop")),
    event({"choices": [{"index": 0, "text": "h"}]}),
    event(ROLE) + event(delta(content="h")),
    # One event on two lines of data.
    b'data: {"choices": [{"index": 0,\r\ndata: "delta": {"content": "h"}}]}\r\n\r\n',
    event({"choices": [ROLE["choices"][0], delta(content="h")["choices"][0]]}),
    event({"error": None, **delta(content="h")}),
    event(delta(content='an {"error": "in text"} is only text')),
]
FAULTY = [
    (event(NO_CAPACITY), "upstream_failed"),
    (event(NO_CAPACITY, colon=":"), "upstream_failed"),
    (event(NO_CAPACITY, end="\r\n\r\n"), "upstream_failed"),
    (event(ROLE) + event(NO_CAPACITY), "upstream_failed"),
    (b": keep-alive\n\n" + event(NO_CAPACITY), "upstream_failed"),
    (b"event: error\n" + event({"error": {"message": "overloaded"}}), "upstream_failed"),
    (event({"error": {"message": "busy", "code": 429}}), "overloaded"),
    (event({"error": {"message": "busy", "code": "503"}}), "overloaded"),
    (event({"error": {"message": "bad field", "code": 400}}), "bad_request"),
    (event({"error": {"message": "whose key?", "code": 401}}), "upstream_failed"),
    (event({"error": "a bare string"}), "upstream_failed"),
    (event({"error": {"code": "invalid_thing"}}), "upstream_failed"),
    (event({"error": {"code": 2**70, "message": None}}), "upstream_failed"),
    (event("[DONE]"), "upstream_invalid"),
    (event(ROLE) + event("[DONE]"), "upstream_invalid"),
    (event("<html>502 Bad Gateway</html>"), "upstream_invalid"),
    (event('{"choices": [{"del'), "upstream_invalid"),
    (event("[" * 20_000), "upstream_invalid"),
]


@pytest.mark.parametrize("held", SILENT)
def test_nothing_was_said_yet(held: bytes) -> None:
    assert judge_opening(held) == "wait"
    fault = judge_end(held)
    assert fault is not None and fault.reason == "upstream_invalid"


@pytest.mark.parametrize("held", SAYING)
def test_something_was_said(held: bytes) -> None:
    assert judge_opening(held) == "good"
    assert find_error(held) is None


@pytest.mark.parametrize(("held", "reason"), FAULTY)
def test_str_03_a_first_event_that_is_no_answer(held: bytes, reason: str) -> None:
    fault = judge_opening(held)
    assert isinstance(fault, Fault) and fault.reason == reason
    assert fault.message and len(fault.message) <= 200 and "\n" not in fault.message


@pytest.mark.parametrize("held", SAYING + [h for h, _ in FAULTY])
def test_bytes_may_come_in_any_pieces(held: bytes) -> None:
    whole = judge_opening(held)
    verdicts = [judge_opening(held[:i]) for i in range(1, len(held) + 1) if held[:i].endswith((b"\n", b"\r"))]
    # What is decided early stays decided; until then it is "not yet", never another verdict.
    assert next(v for v in verdicts if v != "wait") == whole


def test_an_opening_without_end_is_not_kept_back_for_ever() -> None:
    assert judge_opening(b"x" * MOST_HELD_BYTES) == "good"


@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda t: f"data: {t}\n\n".encode("utf-8", "replace")))
def test_no_bytes_break_the_judges(data: bytes) -> None:
    judge_opening(data)
    judge_whole(data)
    find_error(data)
    judge_end(data)


WHOLE = {"id": "1", "object": "chat.completion", "choices": [{"index": 0, "message": {"content": "hi"}}]}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"id":"1","object":"chat.completion","choices":[]}', "upstream_invalid"),
        (b'{"choices" : [ ] }', "upstream_invalid"),
        (b"", "upstream_invalid"),
        (b"null", "upstream_invalid"),
        (b"[]", "upstream_invalid"),
        (b"<html>502</html>", "upstream_invalid"),
        (b'{"choices":[', "upstream_invalid"),
        (b'{"choices":[],"x":', "upstream_invalid"),
        (json.dumps({**WHOLE, "choices": [], "error": {"message": "no", "code": 502}}).encode(), "upstream_failed"),
        (json.dumps({"error": {"message": "busy", "code": 429}}).encode(), "overloaded"),
        (json.dumps(WHOLE).encode(), None),
        (json.dumps({**WHOLE, "error": None}).encode(), None),
        (json.dumps({"choices": [{"message": {"content": '{"choices": [], "error": 1}'}}]}).encode(), None),
        (json.dumps({"choices": [{"message": {"tool_calls": [{"choices": []}]}}]}).encode(), None),
    ],
)
def test_req_33_a_whole_answer_that_is_none(body: bytes, reason: str | None) -> None:
    fault = judge_whole(body)
    assert (fault.reason if fault else None) == reason


def test_str_02_an_error_event_is_found_where_it_begins() -> None:
    said = event(delta(content="h")) * 2
    found = find_error(said + event({"error": {"message": "overloaded\n  File x, line 1"}}) + event("[DONE]"))
    assert found == (len(said), Fault("upstream_failed", "overloaded"))
    assert find_error(said) is None
    assert find_error(event(delta(content='{"error": {"message": "quoted"}}'))) is None
    # A part of an event is none yet.
    assert find_error(b'data: {"error": {"mess') is None
