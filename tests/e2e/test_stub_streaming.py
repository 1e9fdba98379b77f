"""Streams that go wrong on purpose: a scripted engine behind the real Router, in a real cluster."""

from __future__ import annotations

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.test_region import eventually
from tests.stub_agent import said
from tests.stub_region import REPLICAS, StubRegion

OPEN: list[list[Any]] = [["accepted"], ["head"]]
END: list[list[Any]] = [["raw", "data: [DONE]\n\n"], ["tail"]]
GLOBE = "你好🌏 ¿qué tal? 한국어 ไทย"
NO_CAPACITY = {"choices": [], "error": {"code": 502, "message": "no capacity"}}
ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
#: The case's own limit: what nobody waits for is not worked on.
CANCEL_LIMIT_S = 1.0


@pytest.fixture(autouse=True)
def mostly_good(stub_region: StubRegion) -> None:
    """Good requests, so that one broken stream after the other does not open the breaker of the only target."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: stub_region.ask(), range(8)))


def leave(connection: http.client.HTTPConnection) -> float:
    """Hangs up; the wall time at which it did."""
    connection.close()
    return time.time()


def aborted_after_s(region: StubRegion, request_id: str, left_unix_s: float) -> float:
    """How long after the client left its worker was told."""
    line = eventually(
        lambda: next((s for s in region.seen(request_id) if s["what"] == "aborted"), None), 10.0, "the call is aborted"
    )
    return float(line["unix_s"]) - left_unix_s


def record_of(region: StubRegion, request_id: str) -> dict[str, Any]:
    return dict(eventually(lambda: region.record(request_id), 5.0, "the request is recorded as ended"))


def error_of(event: str) -> dict[str, Any]:
    return dict(json.loads(event)["error"])


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_says_that_its_request_waited_for_capacity(stub_region: StubRegion, stream: bool) -> None:
    request_id, waited = stub_region.ask([["accepted"], ["head", "queued"], ["say", "one two"], ["end"]], stream=stream)
    _, other = stub_region.ask(stream=stream)
    assert (waited.status, waited.headers.get("x-grix-queued")) == (200, "1")
    assert (other.status, other.headers.get("x-grix-queued")) == (200, None)
    assert record_of(stub_region, request_id)["queued"] is True


def test_a_good_stream_comes_as_it_was_said(stub_region: StubRegion) -> None:
    request_id, reply = stub_region.ask()
    assert (reply.status, reply.text, reply.events[-1]) == (200, "one two", "[DONE]")
    assert stub_region.whats(request_id) == ["called", "finished"]
    found = record_of(stub_region, request_id)
    assert (found["outcome"], found["prompt_tokens"], found["completion_tokens"]) == ("success", 5, 2)


BREAKS: list[tuple[str, list[list[Any]]]] = [
    ("raise", [["raise"]]),
    ("end", []),
    ("tail", [["broken", "upstream_failed"]]),
    ("out-of-order", [["accepted"]]),
]


@pytest.mark.parametrize("rest", [rest for _, rest in BREAKS], ids=[name for name, _ in BREAKS])
def test_str_01_a_stream_that_breaks_ends_in_band(stub_region: StubRegion, rest: list[list[Any]]) -> None:
    request_id, reply = stub_region.ask([*OPEN, ["say", "a"], ["say", "b"], ["say", "c"], *rest])
    *chunks, last = reply.events
    assert reply.status == 200
    assert [json.loads(c)["choices"][0]["delta"]["content"] for c in chunks] == ["a", "b", "c"]
    assert [json.loads(c)["choices"][0]["finish_reason"] for c in chunks] == [None] * 3
    assert error_of(last)["code"] in ("upstream_failed", "upstream_invalid_response")
    found = record_of(stub_region, request_id)
    assert (found["outcome"], len(found["attempts"]), found["status"]) == ("failed", 1, 200)
    assert stub_region.whats(request_id).count("called") == 1


def test_str_02_an_error_event_ends_the_stream_and_is_not_text(stub_region: StubRegion) -> None:
    error = {"error": {"message": "overloaded"}}
    request_id, reply = stub_region.ask([*OPEN, ["say", "a"], ["say", "b"], ["chunk", error]])
    *chunks, last = reply.events
    assert "".join(c["choices"][0]["delta"]["content"] for c in map(json.loads, chunks)) == "ab"
    assert set(error_of(last)) == {"message", "type", "param", "code"}
    found = record_of(stub_region, request_id)
    assert (found["outcome"], found["error"]) == ("failed", "upstream_failed")


@pytest.mark.parametrize("bad", [[["chunk", NO_CAPACITY]], [["chunk", ROLE], ["chunk", NO_CAPACITY]], []])
@pytest.mark.parametrize("end", [END, [["tail"]]], ids=["done", "eof"])
def test_str_03_a_stream_that_says_nothing_is_asked_elsewhere(
    stub_region: StubRegion, bad: list[list[Any]], end: list[list[Any]]
) -> None:
    for _ in range(5):
        # A retry is paid for by the requests before it; other tests may have spent what was saved.
        stub_region.ask()
    request_id, reply = stub_region.ask([*OPEN, *bad, *end], [*OPEN, ["say", "saved"], *END])
    assert (reply.status, reply.text) == (200, "saved")
    found = record_of(stub_region, request_id)
    assert (found["outcome"], len(found["attempts"])) == ("success", 2)


@pytest.mark.parametrize("stream", [True, False])
def test_str_03_where_nobody_has_capacity_the_status_says_so(stub_region: StubRegion, stream: bool) -> None:
    _, reply = stub_region.ask([*OPEN, ["chunk", NO_CAPACITY], *END], stream=stream)
    assert reply.status == 502
    assert reply.json["error"]["type"] == "upstream_error"
    assert "data:" not in reply.raw.decode()


@pytest.mark.parametrize("stream", [True, False])
def test_str_05_nothing_is_flushed_before_a_worker_is_found(stub_region: StubRegion, stream: bool) -> None:
    _, reply = stub_region.ask([["accepted"], ["fail", "no_target", 5]], stream=stream)
    assert (reply.status, reply.headers["content-type"]) == (503, "application/json")
    assert int(reply.headers["retry-after"]) >= 1
    assert set(reply.json["error"]) == {"message", "type", "param", "code"}


def test_str_06_usage_is_known_here_though_nobody_asked(stub_region: StubRegion) -> None:
    request_id, reply = stub_region.ask(stream_options={"include_usage": False})
    assert not [e for e in reply.events if '"usage"' in e]
    found = record_of(stub_region, request_id)
    assert (found["prompt_tokens"], found["completion_tokens"]) == (5, 2)


def test_str_07_stream_options_are_never_put_in_by_us(stub_region: StubRegion) -> None:
    refuses = [["accepted"], ["refuse", "stream_options"], ["head"], ["say", "a"], *END]
    request_id, reply = stub_region.ask(refuses)
    assert (reply.status, reply.text) == (200, "a")
    assert "stream_options" not in stub_region.whats(request_id)


def test_str_08_usage_on_odd_chunks_goes_through(stub_region: StubRegion) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    each = [["chunk", said(t, usage=usage)] for t in ("a", "b")]
    last = {"choices": [{"index": 0, "delta": {}}], "usage": usage}
    request_id, reply = stub_region.ask([*OPEN, *each, ["chunk", last], *END])
    assert reply.text == "ab" and json.loads(reply.events[-2])["usage"] == usage
    found = record_of(stub_region, request_id)
    assert (found["prompt_tokens"], found["completion_tokens"]) == (5, 2)


@pytest.mark.parametrize("script", [[], [[*OPEN, ["say", "a"], ["raise"]]]], ids=["good", "broken"])
def test_str_10_every_stream_says_do_not_buffer(stub_region: StubRegion, script: list[Any]) -> None:
    _, reply = stub_region.ask(*script)
    assert reply.headers["x-accel-buffering"] == "no"
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("line_end", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("colon", [": ", ":"])
def test_str_11_bytes_one_by_one_arrive_as_they_were(stub_region: StubRegion, line_end: str, colon: str) -> None:
    chunk = json.dumps(said(GLOBE), ensure_ascii=False)
    sent = f"data{colon}{chunk}{line_end}{line_end}data{colon}[DONE]{line_end}{line_end}"
    request_id, reply = stub_region.ask([*OPEN, ["bytes", sent], ["tail"]])
    assert reply.raw == sent.encode()
    assert record_of(stub_region, request_id)["outcome"] == "success"


def test_str_14_finished_streams_are_never_aborted(stub_region: StubRegion) -> None:
    with ThreadPoolExecutor(16) as pool:
        done = list(pool.map(lambda _: stub_region.ask(), range(1000)))
    assert {reply.status for _, reply in done} == {200}
    assert {reply.text for _, reply in done} == {"one two"}
    seen = [stub_region.whats(request_id) for request_id, _ in done]
    assert [s for s in seen if s != ["called", "finished"]] == []


def test_str_15_stop_and_ask_again_at_once(stub_region: StubRegion) -> None:
    session = {"x-session-id": "stop-and-ask"}
    first, connection = stub_region.begin([*OPEN, ["say", "old words"], ["hang"]], headers=session)
    assert connection.getresponse().read(6) == b"data: "
    left_unix_s = leave(connection)
    time.sleep(0.05)
    second, reply = stub_region.ask(headers=session)
    assert (reply.status, reply.text) == (200, "one two")
    assert aborted_after_s(stub_region, first, left_unix_s) <= CANCEL_LIMIT_S
    assert record_of(stub_region, first)["target"] == record_of(stub_region, second)["target"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prefix", [[], [["accepted"]], OPEN], ids=["queued", "prefill", "first-token"])
def test_str_16_leaving_before_a_byte_reaches_the_worker(
    stub_region: StubRegion, prefix: list[list[Any]], stream: bool
) -> None:
    request_id, connection = stub_region.begin([*prefix, ["wait", 20]], stream=stream)
    eventually(lambda: stub_region.whats(request_id) == ["called"], 10.0, "the worker has the call")
    assert aborted_after_s(stub_region, request_id, leave(connection)) <= CANCEL_LIMIT_S
    assert record_of(stub_region, request_id)["outcome"] == "client_left"


def settled(region: StubRegion, ids: list[str]) -> bool:
    """Whether no worker still runs any of the calls."""
    return all(seen == [] or seen[-1] != "called" for seen in map(region.whats, ids))


def test_str_18_no_call_outlives_the_client(stub_region: StubRegion) -> None:
    """Four calls at once and their client gone at every stage of them, two hundred times."""
    ids = []
    for i in range(200):
        four = [stub_region.begin([*OPEN, ["say", "a"], ["hang"]]) for _ in range(4)]
        time.sleep(i % 20 / 250)
        for request_id, connection in four:
            connection.close()
            ids.append(request_id)
    # Answered behind them: what the Router takes of the 800 it has taken by now. Who left before has no call.
    assert [stub_region.ask()[1].status for _ in range(8)] == [200] * 8
    eventually(lambda: settled(stub_region, ids), 2.0, "none of 800 calls is still running")
    # Most did reach a worker, or this would prove nothing.
    assert sum(stub_region.whats(i) != [] for i in ids) > 200


def test_str_20_two_hundred_leave_at_once(stub_region: StubRegion) -> None:
    before = stub_region.pids()
    staying, other = stub_region.begin([*OPEN, ["say", "a"], ["wait", 3], ["say", "b"], *END])
    open_streams = [stub_region.begin([*OPEN, ["say", "a"], ["hang"]]) for _ in range(200)]
    eventually(lambda: all(stub_region.whats(i) for i, _ in open_streams), 30.0, "all streams are open")
    for _, connection in open_streams:
        connection.close()
    with ThreadPoolExecutor(8) as pool:
        after = list(pool.map(lambda _: stub_region.ask(), range(40)))
    assert {(reply.status, reply.text) for _, reply in after} == {(200, "one two")}
    answer = other.getresponse()
    assert answer.read().endswith(b"data: [DONE]\n\n")
    eventually(lambda: settled(stub_region, [i for i, _ in open_streams]), 10.0, "all calls have ended")
    assert record_of(stub_region, staying)["outcome"] == "success"
    assert stub_region.pids() == before and len(before) == REPLICAS + 1


# --- More of the kind: what broke users of other gateways, and what could.


def test_more_stream_keep_alive_comments_go_through_and_commit_nothing(stub_region: StubRegion) -> None:
    comment = ": keep-alive\n\n"
    _, reply = stub_region.ask([*OPEN, ["raw", comment], ["say", "a"], ["raw", comment], *END])
    assert reply.raw.startswith(comment.encode()) and reply.raw.count(comment.encode()) == 2
    _, failed = stub_region.ask([*OPEN, ["raw", comment], ["broken", "upstream_failed"]])
    assert failed.status == 502


def test_more_stream_a_first_chunk_without_choices_is_no_end(stub_region: StubRegion) -> None:
    filters = {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}
    _, reply = stub_region.ask([*OPEN, ["chunk", filters], ["say", "a"], *END])
    assert (reply.text, json.loads(reply.events[0])["choices"], len(reply.events)) == ("a", [], 3)


def test_more_stream_an_empty_answer_with_its_end_is_an_answer(stub_region: StubRegion) -> None:
    stop = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    request_id, reply = stub_region.ask([*OPEN, ["chunk", ROLE], ["chunk", stop], *END])
    assert (reply.status, reply.text) == (200, "")
    assert len(record_of(stub_region, request_id)["attempts"]) == 1


def test_more_stream_a_tool_call_counts_as_content(stub_region: StubRegion) -> None:
    call = {"index": 0, "id": "c9", "type": "function", "function": {"name": "add", "arguments": ""}}
    chunk = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None, "tool_calls": [call]}}]}
    _, reply = stub_region.ask([*OPEN, ["chunk", chunk], ["raise"]])
    assert reply.status == 200
    assert json.loads(reply.events[0])["choices"][0]["delta"]["tool_calls"][0]["id"] == "c9"
    assert error_of(reply.events[-1])["code"] == "upstream_failed"


def test_more_stream_text_about_errors_is_only_text(stub_region: StubRegion) -> None:
    text = 'data: {"error": {"message": "not mine"}}\n\ndata: [DONE]\n\n'
    request_id, reply = stub_region.ask([*OPEN, ["say", text], ["say", text], *END])
    assert reply.text == text * 2
    assert record_of(stub_region, request_id)["outcome"] == "success"


def test_more_stream_an_error_in_the_frame_of_the_last_words_keeps_the_words(stub_region: StubRegion) -> None:
    words, error = json.dumps(said("b")), json.dumps({"error": {"message": "gone", "code": 500}})
    _, reply = stub_region.ask([*OPEN, ["say", "a"], ["raw", f"data: {words}\n\ndata: {error}\n\n"], *END])
    *chunks, last = reply.events
    assert [json.loads(c)["choices"][0]["delta"]["content"] for c in chunks] == ["a", "b"]
    assert error_of(last)["code"] == "upstream_failed"


def test_more_stream_a_hang_between_chunks_ends_at_the_total_limit(stub_region: StubRegion) -> None:
    request_id, reply = stub_region.ask([*OPEN, ["say", "a"], ["hang"]], headers={"x-grix-total-timeout": "1s"})
    assert error_of(reply.events[-1])["code"] == "total_timeout"
    eventually(lambda: "aborted" in stub_region.whats(request_id), 5.0, "the worker stops")
    assert record_of(stub_region, request_id)["outcome"] == "evicted"


def test_more_stream_a_hang_after_the_role_has_a_true_status(stub_region: StubRegion) -> None:
    request_id, reply = stub_region.ask([*OPEN, ["chunk", ROLE], ["hang"]], headers={"x-grix-total-timeout": "1s"})
    assert (reply.status, reply.json["error"]["code"]) == (504, "total_timeout")
    eventually(lambda: "aborted" in stub_region.whats(request_id), 5.0, "the worker stops")


def test_more_stream_a_large_event_in_many_pieces_is_whole(stub_region: StubRegion) -> None:
    text = GLOBE * 3000
    raw = "data: " + json.dumps(said(text), ensure_ascii=False) + "\n\n"
    pieces = [["raw", raw[i : i + 1000]] for i in range(0, len(raw), 1000)]
    _, reply = stub_region.ask([*OPEN, *pieces, *END])
    assert reply.text == text


def test_more_stream_a_slow_reader_gets_everything(stub_region: StubRegion) -> None:
    text = "x" * 10_000
    _, connection = stub_region.begin([*OPEN, *([["say", text]] * 300), *END])
    answer = connection.getresponse()
    first = answer.read(10)
    time.sleep(1.0)
    rest = answer.read()
    assert (first + rest).count(text.encode()) == 300 and rest.endswith(b"data: [DONE]\n\n")


def test_more_stream_two_requests_with_one_id_are_two_streams(stub_region: StubRegion) -> None:
    headers = {"x-request-id": stub_region.new_id("twice")}
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: stub_region.ask(headers=headers), range(2)))
    assert [reply.text for _, reply in both] == ["one two"] * 2


def test_zz_str_01_a_worker_that_dies_mid_stream(stub_region: StubRegion) -> None:
    before = stub_region.pids()
    request_id, reply = stub_region.ask([*OPEN, ["say", "a"], ["say", "b"], ["say", "c"], ["exit"]])
    *chunks, last = reply.events
    assert [json.loads(c)["choices"][0]["delta"]["content"] for c in chunks] == ["a", "b", "c"]
    assert error_of(last)["code"] == "replica_lost"
    assert stub_region.whats(request_id).count("called") == 1
    back = eventually(lambda: len(stub_region.pids() - before) == 1, 60.0, "the worker is replaced")
    assert back
