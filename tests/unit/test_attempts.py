"""Attempts at targets: which, when, how many, and that each call is closed."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from serve_app.attempts import Attempts
from serve_app.core.breaker import RouterBreakers
from serve_app.core.known_targets import KnownTargets
from serve_app.core.retry import GONE, RetryBudget
from serve_app.core.snapshots import Target
from serve_app.core.table import Timeouts
from serve_app.outcomes import GrixError
from serve_app.ports import Accepted, AgentCall, Body, Head, RequestRecord, Tail
from serve_app.relay import close, error_event
from tests.fakes import GOOD, STREAMED, FakeAgents, FakeClock, Step, failed, refused, two_regions

A, B = (t for t in two_regions().targets if t.agent == "qwen-chat")
CALL = AgentCall("r1", "chat", "qwen-chat", {}, False, 10, 100)
STREAM = AgentCall("r1", "chat", "qwen-chat", {}, True, 10, 100)


class Run:
    """One start against scripts, with everything there is to look at."""

    def __init__(self, *scripts: tuple[Step, ...], saved: float = 10.0, jitter: float = 0.0) -> None:
        self.agents = FakeAgents(list(scripts))
        self.clock = FakeClock()
        self.record = RequestRecord("r1", "chat", region="cloud-a")
        self.budget = RetryBudget(saved=saved)
        self.breakers = RouterBreakers()
        self.targets = KnownTargets(self.breakers, lambda: None)
        self.attempts = Attempts(self.agents, self.clock, self.budget, lambda: jitter, self.targets)

    async def start(self, *order: Target, limits: Timeouts | None = None, left_s: float = 600.0) -> str:
        """The region that answers, or the reason of the error."""
        deadline_s = self.clock.now_s() + left_s
        try:
            started = await self.attempts.start(order, CALL, limits or Timeouts(), deadline_s, self.record)
        except GrixError as error:
            return error.reason
        await close(started.frames)
        return started.target.region

    @property
    def asked(self) -> list[str]:
        return [target.region for target, _ in self.agents.calls]


async def test_each_attempt_is_stamped_anew() -> None:
    run = Run(refused("upstream_failed"), GOOD)
    assert await run.start(A) == "cloud-a"
    first, second = (call for _, call in run.agents.calls)
    assert (first.target, first.release, first.enqueued_unix_s) == (A.id, A.release, 1_800_000_100.0)
    assert second.enqueued_unix_s == 1_800_000_100.5
    assert {first.queue_s, second.queue_s} == {Timeouts().queue_s}
    assert run.record.attempts == [
        {"target": A.id, "result": "upstream_failed", "ms": 0.0},
        {"target": A.id, "result": "started", "ms": 0.0},
    ]
    assert run.agents.closed == 2


async def test_jitter_lengthens_back_off_by_at_most_a_fifth() -> None:
    run = Run(refused("upstream_failed"), jitter=0.5)
    assert await run.start(A) == "upstream_failed"
    assert run.clock.slept_s == pytest.approx([0.55, 1.65])
    assert run.asked == ["cloud-a"] * 3


@pytest.mark.parametrize("reason", ["upstream_failed", "upstream_invalid", "overloaded", "queue_timeout", "no_target"])
async def test_another_target_is_tried_at_once(reason: str) -> None:
    run = Run(refused(reason), GOOD)
    assert await run.start(A, B) == "cloud-b"
    assert (run.asked, run.clock.slept_s) == (["cloud-a", "cloud-b"], [])


async def test_str_03_an_error_in_place_of_a_first_token_fails_over() -> None:
    run = Run((Accepted("t", "r"), failed("upstream_invalid")), GOOD)
    assert await run.start(A, B) == "cloud-b"


@pytest.mark.parametrize("reason", ["context_length", "bad_request", "residency", "total_timeout", "internal"])
async def test_what_would_end_alike_elsewhere_is_not_tried_again(reason: str) -> None:
    run = Run(refused(reason), GOOD)
    assert await run.start(A, B) == reason
    assert run.asked == ["cloud-a"]


@pytest.mark.parametrize("reason", ["overloaded", "queue_timeout", "first_byte_timeout"])
async def test_back_pressure_of_the_last_target_is_final(reason: str) -> None:
    run = Run(refused(reason), GOOD)
    assert await run.start(A) == reason
    assert (run.asked, run.clock.slept_s) == (["cloud-a"], [])


def busy(retry_after_s: float | None) -> tuple[Step, ...]:
    return refused("overloaded", retry_after_s=retry_after_s)


async def test_rte_21_a_busy_target_is_asked_again_when_it_said() -> None:
    run = Run(busy(2.0), busy(2.0), GOOD, jitter=0.5)
    assert await run.start(A) == "cloud-a"
    assert run.clock.slept_s == pytest.approx([2.2, 2.2])


async def test_rte_21_another_target_is_not_kept_waiting_for_what_the_first_said() -> None:
    run = Run(busy(2.0), GOOD)
    assert await run.start(A, B) == "cloud-b"
    assert run.clock.slept_s == []


@pytest.mark.parametrize(("limits", "left_s"), [(Timeouts(queue_s=3.0), 600.0), (Timeouts(), 3.0)])
async def test_rte_22_a_wait_that_is_too_long_is_left_to_the_client(limits: Timeouts, left_s: float) -> None:
    run = Run(busy(3.0), GOOD)
    assert await run.start(A, limits=limits, left_s=left_s) == "overloaded"
    assert run.clock.slept_s == []


async def test_rte_22_the_soonest_time_to_come_back_is_told() -> None:
    run = Run(busy(30.0), busy(40.0))
    with pytest.raises(GrixError) as error:
        await run.attempts.start((B, A), CALL, Timeouts(), 1e9, run.record)
    assert error.value.retry_after_s == 30.0


@pytest.mark.parametrize("script", [("hang",), (Accepted("t", "r"), "hang"), (Accepted("t", "r"), Head(), "hang")])
async def test_the_total_limit_is_its_own_reason_wherever_it_ends(script: tuple[Step, ...]) -> None:
    assert await Run(script, GOOD).start(A, B, left_s=0.0) == "total_timeout"


@pytest.mark.parametrize(
    "rest",
    [
        (failed("upstream_failed"),),
        (Body(b'{"choices":[]}'), Tail("success")),
        (Body(b'{"error":{"message":"no","code":500}}'), Tail("success")),
        (Tail("success"),),
        (),
        refused("upstream_failed")[2:],
    ],
)
async def test_req_33_an_unstreamed_answer_lost_after_its_head_is_asked_elsewhere(rest: tuple[Step, ...]) -> None:
    run = Run((Accepted("t", "r"), Head(), *rest), GOOD)
    assert await run.start(A, B) == "cloud-b"


@pytest.mark.parametrize(
    "rest",
    [
        (Body(b'data: {"choices":[],"error":{"code":502,"message":"no capacity"}}\n\n'), Tail("success")),
        (Body(b"data: [DONE]\n\n"), Tail("success")),
        (Body(b": hello\n\n"), failed("upstream_failed")),
        (Tail("success"),),
        (),
    ],
)
async def test_str_03_a_stream_that_says_nothing_is_asked_elsewhere(rest: tuple[Step, ...]) -> None:
    run = Run((Accepted("t", "r"), Head(), *rest), STREAMED)
    started = await run.attempts.start((A, B), STREAM, Timeouts(), 1e9, run.record)
    assert started.target.region == "cloud-b"
    await close(started.frames)


async def test_str_02_an_error_event_inside_a_stream_ends_it_with_what_was_said_before() -> None:
    said, error = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', b'data: {"error":{"message":"no"}}\n\n'
    one = Body(said)
    for frames in ((one, Body(said + error)), (Body(said + said + error),), (one, one, Body(error))):
        got, reason, _, closed = await parts((Head(max_tokens=1), *frames, Tail("success")))
        assert (b"".join(got), reason, closed) == (said + said, "upstream_failed", 1)


async def test_the_third_attempt_is_the_last_one_over_targets_too() -> None:
    run = Run(refused("upstream_failed"))
    assert await run.start(A, B) == "upstream_failed"
    assert run.asked == ["cloud-a", "cloud-b", "cloud-b"]
    # The second wait: it is the third attempt, whichever target that is at.
    assert run.clock.slept_s == [1.5]


async def test_without_budget_there_is_one_attempt_and_a_request_earns_a_fifth() -> None:
    run = Run(refused("upstream_failed"), saved=0.0)
    assert [await run.start(A, B) for _ in range(4)] == ["upstream_failed"] * 4
    assert run.asked == ["cloud-a"] * 4
    assert run.budget.saved == pytest.approx(0.8)
    await run.start(A, B)
    assert run.asked == ["cloud-a"] * 5 + ["cloud-b"]


@pytest.mark.parametrize("reason", sorted(GONE))
async def test_leaving_who_is_gone_costs_no_budget_and_ends_with_the_third_attempt(reason: str) -> None:
    run = Run(refused(reason), saved=0.0)
    others = [replace(B, region=f"cloud-{name}") for name in "bcdef"]
    assert await run.start(A, *others) == reason
    assert run.asked == ["cloud-a", "cloud-b", "cloud-c"]
    assert run.budget.saved == pytest.approx(0.2)


async def test_no_attempt_is_waited_for_that_would_begin_after_the_deadline() -> None:
    run = Run(refused("upstream_failed"))
    assert await run.start(A, left_s=0.5) == "upstream_failed"
    assert (run.asked, run.clock.slept_s, run.budget.saved) == (["cloud-a"], [], 10.0)


@pytest.mark.parametrize(
    ("script", "limits", "reason"),
    [
        (("hang",), Timeouts(queue_s=0.0), "queue_timeout"),
        ((Accepted("t", "r"), "hang"), Timeouts(first_byte_s=0.0), "first_byte_timeout"),
    ],
)
async def test_each_phase_has_its_own_limit(script: tuple[Step, ...], limits: Timeouts, reason: str) -> None:
    run = Run(script)
    assert await run.start(A, limits=limits) == reason


@pytest.mark.parametrize("script", [(Accepted("t", "r"), Body(b"x")), (Tail("success"),), (Accepted("t", "r"),) * 2])
async def test_an_answer_without_a_head_is_invalid(script: tuple[Step, ...]) -> None:
    run = Run(script)
    assert await run.start(A) == "upstream_invalid"
    assert run.agents.closed == 3


async def test_a_call_that_ends_before_its_head_is_lost() -> None:
    run = Run((Accepted("t", "r"),), GOOD)
    assert await run.start(A, B) == "cloud-b"


async def test_cancelling_closes_the_call() -> None:
    run = Run((Accepted("t", "r"), "hang"))
    task = asyncio.ensure_future(run.start(A))
    for _ in range(10):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (run.asked, run.agents.closed) == (["cloud-a"], 1)


async def parts(script: tuple[Step, ...], left_s: float = 60.0) -> tuple[list[bytes], str | None, RequestRecord, int]:
    run = Run(script)
    started = await run.attempts.start((A,), STREAM, Timeouts(), 1e9, run.record)
    got: list[bytes] = []
    reason = None
    try:
        async for data in run.attempts.relay(started, run.clock.now_s() + left_s, run.record):
            got.append(data)
    except GrixError as error:
        reason = error.reason
    return got, reason, run.record, run.agents.closed


async def test_relay_hands_on_bytes_and_reads_the_tail() -> None:
    got, reason, record, closed = await parts(STREAMED)
    assert (got, reason, closed) == ([b"data: 1\n\n", b"data: [DONE]\n\n"], None, 1)
    assert (record.outcome, record.finish_reason, record.prompt_tokens, record.completion_tokens) == (
        "success",
        "stop",
        7,
        3,
    )


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ((), "upstream_failed"),
        ((Head(max_tokens=1),), "upstream_invalid"),
        ((failed("upstream_failed"),), "upstream_failed"),
        (refused("overloaded")[2:], "overloaded"),
    ],
)
async def test_relay_ends_in_an_error_and_closes(rest: tuple[Step, ...], reason: str) -> None:
    got, ended, _, closed = await parts((Head(max_tokens=1), Body(b"data: 1\n\n"), *rest))
    assert (got, ended, closed) == ([b"data: 1\n\n"], reason, 1)


async def test_an_answer_past_its_deadline_is_cut_and_closed() -> None:
    got, reason, _, closed = await parts((Head(max_tokens=1), Body(b"data: 1\n\n"), "hang"), left_s=-1.0)
    assert (got, reason, closed) == ([b"data: 1\n\n"], "total_timeout", 1)


def test_an_in_band_error_is_one_event_with_the_envelope() -> None:
    event = error_event(GrixError("upstream_failed", "途中で切れた"))
    assert event.startswith(b"data: ") and event.endswith(b"\n\n") and event.count(b"\n") == 2
    assert json.loads(event[6:]) == {
        "error": {"message": "途中で切れた", "type": "upstream_error", "param": None, "code": "upstream_failed"}
    }
