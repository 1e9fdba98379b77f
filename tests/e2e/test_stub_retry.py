"""What is tried again, when, how often: a scripted engine with two replicas behind the real Router."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from serve_app.core.retry import RetryBudget
from tests.e2e.test_region import eventually
from tests.e2e.test_stub_streaming import END, OPEN, record_of
from tests.stub_agent import whole
from tests.stub_region import StubRegion

SAVED: list[list[Any]] = [*OPEN, ["say", "saved"], *END]
#: What a worker said, and the jitter that keeps its callers from coming back all at once.
ABOUT_3_S = ("3", "4")
SAVED_WHOLE: list[list[Any]] = [*OPEN, ["json", whole("saved")], ["tail"]]


def busy(retry_after_s: float | None) -> list[list[Any]]:
    return [["accepted"], ["fail", "overloaded", retry_after_s]]


def calls(region: StubRegion, request_id: str) -> list[float]:
    """When each attempt reached a worker."""
    return [line["unix_s"] for line in region.seen(request_id) if line["what"] == "called"]


@pytest.fixture(autouse=True)
def earned(stub_region: StubRegion) -> None:
    """Good requests, so that neither the retry budget nor a breaker is what is tested."""
    eventually(lambda: stub_region.ask()[1].status == 200, 45.0, "no breaker is open")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: stub_region.ask(), range(20)))


def test_rte_21_a_busy_worker_is_asked_again_when_it_said(stub_region: StubRegion) -> None:
    request_id, reply = stub_region.ask(busy(2), busy(2), SAVED)
    assert (reply.status, reply.text) == (200, "saved")
    first, second, third = calls(stub_region, request_id)
    assert second - first >= 2.0 and third - second >= 2.0
    assert [a["result"] for a in record_of(stub_region, request_id)["attempts"]] == [
        "overloaded",
        "overloaded",
        "started",
    ]


def test_rte_21_no_more_than_three_attempts(stub_region: StubRegion) -> None:
    request_id, reply = stub_region.ask(busy(0.1))
    assert (reply.status, len(calls(stub_region, request_id))) == (503, 3)
    request_id, reply = stub_region.ask([["accepted"], ["raise"]])
    assert (reply.status, len(calls(stub_region, request_id))) == (502, 3)


def test_rte_21_the_total_limit_holds_over_waits(stub_region: StubRegion) -> None:
    began_s = time.monotonic()
    request_id, reply = stub_region.ask(busy(3), SAVED, headers={"x-grix-total-timeout": "1s"})
    assert (reply.status, reply.headers["retry-after"] in ABOUT_3_S) == (503, True)
    assert len(calls(stub_region, request_id)) == 1
    # It is not waited for what would be too late.
    assert time.monotonic() - began_s < 3


@pytest.mark.parametrize("stream", [True, False])
def test_rte_22_everybody_cooling_down_is_told_with_a_time(stub_region: StubRegion, stream: bool) -> None:
    _, reply = stub_region.ask(busy(3), stream=stream, headers={"x-grix-queue-timeout": "1s"})
    assert (reply.status, reply.headers["retry-after"] in ABOUT_3_S) == (503, True)
    assert reply.json["error"]["code"] == "overloaded"


# --- More of the kind.


@pytest.mark.parametrize("stream", [True, False])
def test_more_retry_a_worker_that_fails_every_call_though_it_says_it_is_well(
    stub_region: StubRegion, stream: bool
) -> None:
    request_id, reply = stub_region.ask([["raise"]], SAVED if stream else SAVED_WHOLE, stream=stream)
    assert reply.status == 200
    assert len(calls(stub_region, request_id)) == 2


def test_more_retry_busy_without_a_time_is_told_at_once(stub_region: StubRegion) -> None:
    request_id, reply = stub_region.ask(busy(None), SAVED)
    assert (reply.status, len(calls(stub_region, request_id))) == (503, 1)
    assert int(reply.headers["retry-after"]) >= 1


@pytest.mark.parametrize("reason", ["bad_request", "context_length"])
def test_more_retry_what_is_the_callers_fault_is_asked_once(stub_region: StubRegion, reason: str) -> None:
    request_id, reply = stub_region.ask([["accepted"], ["fail", reason]], SAVED)
    assert (reply.status, len(calls(stub_region, request_id))) == (400, 1)
    assert "retry-after" not in reply.headers
    assert record_of(stub_region, request_id)["outcome"] == "rejected"


def test_more_retry_hanging_before_a_first_token_ends_at_its_limit(stub_region: StubRegion) -> None:
    request_id, reply = stub_region.ask([["accepted"], ["hang"]], headers={"x-grix-first-byte-timeout": "500ms"})
    assert (reply.status, reply.json["error"]["code"]) == (504, "first_byte_timeout")
    eventually(lambda: "aborted" in stub_region.whats(request_id), 5.0, "the worker stops")
    assert len(calls(stub_region, request_id)) == 1


def test_more_retry_the_total_limit_in_the_queue_is_its_own_reason(stub_region: StubRegion) -> None:
    request_id, reply = stub_region.ask([["hang"]], headers={"x-grix-total-timeout": "500ms"})
    assert (reply.status, reply.json["error"]["code"]) == (504, "total_timeout")
    assert record_of(stub_region, request_id)["outcome"] == "evicted"


def test_more_retry_a_queue_limit_is_told_as_one(stub_region: StubRegion) -> None:
    _, reply = stub_region.ask([["hang"]], headers={"x-grix-queue-timeout": "500ms"})
    assert (reply.status, reply.json["error"]["code"]) == (503, "queue_timeout")
    assert int(reply.headers["retry-after"]) >= 1


LATE_FAULTS: list[tuple[str, list[list[Any]]]] = [
    ("lost", [["raise"]]),
    ("no-choices", [["json", {"id": "1", "object": "chat.completion", "choices": []}], ["tail"]]),
    ("an-error", [["json", {"error": {"message": "no", "code": 500}}], ["tail"]]),
    ("nothing", [["tail"]]),
    ("cut", [["raw", '{"choices": [{'], ["tail"]]),
    ("html", [["raw", "<html>502</html>"], ["tail"]]),
]


@pytest.mark.parametrize("rest", [r for _, r in LATE_FAULTS], ids=[n for n, _ in LATE_FAULTS])
def test_more_retry_an_unstreamed_answer_lost_after_its_head_is_asked_again(
    stub_region: StubRegion, rest: list[list[Any]]
) -> None:
    """The client has no byte of it, whatever the worker had begun."""
    request_id, reply = stub_region.ask([*OPEN, *rest], SAVED_WHOLE, stream=False)
    assert (reply.status, reply.json["choices"][0]["message"]["content"]) == (200, "saved")
    assert len(record_of(stub_region, request_id)["attempts"]) == 2


def test_req_33_no_choices_from_anybody_is_a_502(stub_region: StubRegion) -> None:
    nothing = {"id": "1", "object": "chat.completion", "choices": []}
    request_id, reply = stub_region.ask([*OPEN, ["json", nothing], ["tail"]], stream=False)
    assert (reply.status, reply.json["error"]["code"]) == (502, "upstream_invalid_response")
    assert record_of(stub_region, request_id)["outcome"] == "failed"
    assert len(calls(stub_region, request_id)) == 3


def test_more_retry_a_client_that_leaves_during_the_wait_is_not_asked_for(stub_region: StubRegion) -> None:
    request_id, connection = stub_region.begin(busy(2), SAVED)
    eventually(lambda: stub_region.whats(request_id)[:1] == ["called"], 10.0, "the worker was busy")
    connection.close()
    assert record_of(stub_region, request_id)["outcome"] == "client_left"
    # The same wait, begun later and sat out: the one that was left would have been over before.
    _, other = stub_region.ask(busy(2), SAVED)
    assert (other.status, other.text) == (200, "saved") and other.took_s >= 2.0
    assert len(calls(stub_region, request_id)) == 1


def test_more_retry_back_off_is_not_back_to_back(stub_region: StubRegion) -> None:
    request_id, _ = stub_region.ask([["raise"]], [["raise"]], SAVED)
    first, second, third = calls(stub_region, request_id)
    assert second - first >= 0.5 and third - second >= 1.5


def test_more_retry_a_full_queue_is_a_503_and_the_next_is_served(stub_region: StubRegion) -> None:
    """The second agent has few places and a short queue: what is more is refused, and waits for nobody."""
    places, queue = stub_region.room("qwen-doc")
    script = [["accepted"], ["hang"]]
    hanging = [stub_region.begin(script, model="qwen-doc") for _ in range(places + queue)]
    taken = f"all {places} places are taken"
    eventually(lambda: sum(stub_region.whats(i) != [] for i, _ in hanging) == places, 10.0, taken)
    for _ in range(4):
        _, reply = stub_region.ask(SAVED, model="qwen-doc", headers={"x-grix-queue-timeout": "1s"})
        assert (reply.status, reply.json["error"]["code"] in ("overloaded", "queue_timeout")) == (503, True)
        assert int(reply.headers["retry-after"]) >= 1
    for _, connection in hanging:
        connection.close()
    _, reply = stub_region.ask(SAVED, model="qwen-doc")
    assert (reply.status, reply.text) == (200, "saved")


def test_zz_rte_21_retries_stay_a_fifth_of_traffic(stub_region: StubRegion) -> None:
    """Every call fails: what may be tried again is what the requests earned, and the bounded savings.

    After ten in a row nobody is asked any more, for a while.
    """
    failing = [["accepted"], ["fail", "upstream_failed", None]]
    with ThreadPoolExecutor(32) as pool:
        done = list(pool.map(lambda _: stub_region.ask(failing), range(300)))
    told = {(reply.status, reply.json["error"]["code"]) for _, reply in done}
    assert told == {(502, "upstream_failed"), (503, "no_target")}
    assert all(1 <= int(reply.headers["retry-after"]) <= 40 for _, reply in done if reply.status == 503)
    attempts = sum(len(calls(stub_region, request_id)) for request_id, _ in done)
    assert attempts <= 32 + RetryBudget().saved and attempts - 300 <= 0.2 * 300 + RetryBudget().burst


def test_zz_more_retry_a_worker_killed_before_its_first_byte_costs_nobody_an_answer(stub_region: StubRegion) -> None:
    before = stub_region.pids()
    request_id, reply = stub_region.ask([["accepted"], ["exit"]], SAVED)
    assert (reply.status, reply.text) == (200, "saved")
    assert stub_region.whats(request_id).count("called") == 2
    assert eventually(lambda: len(stub_region.pids()) == len(before), 60.0, "the worker is replaced")
