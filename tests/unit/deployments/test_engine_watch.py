"""The end of a replica with a dead or frozen engine, against an engine that is told how to be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import pytest

from deployments import engine_watch
from deployments.engine_watch import ENGINE_LOST_EXIT, LOOK_S, LOST, MOST_FAILED_IN_A_ROW, EngineWatch
from deployments.guard import Process, Threads
from serve_app.outcomes import Reason
from serve_app.ports import Body, Failure, Head, Packet, Tail


@dataclass
class FakeEngine:
    dead: bool = False
    unfinished: int = 0
    moves: int = 0
    last_token_s: float = 0.0
    longest_prefill_s: float = 0.0
    answers: bool = True
    failed: int = 0
    probed_s: list[float] = field(default_factory=list)

    def fail(self) -> None:
        self.failed += 1
        self.dead = True

    async def probe(self, limit_s: float) -> bool:
        self.probed_s.append(limit_s)
        return self.answers


@dataclass
class FakeGuard:
    beats: int = 0
    threads_now: Threads = field(default_factory=dict)
    looked_at: int = 0

    def beat(self) -> None:
        self.beats += 1

    def engine(self) -> set[Process]:
        return {(7, "seven")}

    def threads(self) -> Threads:
        self.looked_at += 1
        return dict(self.threads_now)

    def passes(self, thread: int, state: str, ran_s: float, waited_s: float) -> None:
        """What a thread of the engine did meanwhile."""
        _, ran_ns, waited_ns = self.threads_now.get(thread, ("S", 0, 0))
        self.threads_now[thread] = (state, ran_ns + int(ran_s * 1e9), waited_ns + int(waited_s * 1e9))


class Stage:
    def __init__(self, **engine: object) -> None:
        self.engine, self.guard = FakeEngine(**engine), FakeGuard()  # type: ignore[arg-type]
        self.exits: list[int] = []
        self.watch = EngineWatch("qwen-chat", self.engine, self.guard, self.exits.append)
        self.now_s = self.watch._stillness.looked_s

    def looks_for(self, seconds: float, **threads: tuple[str, float, float]) -> str | None:
        """What the last of the looks in a stretch of time says, or the first that says something.

        Between two of them each thread ends in a state, ran for so many seconds, and waited for so many.
        """
        for _ in range(int(seconds / LOOK_S)):
            self.now_s += LOOK_S
            for i, did in enumerate(threads.values()):
                self.guard.passes(i, *did)
            why = self.watch.look(self.now_s)
            if why is not None:
                return why
        return None


def test_work_without_a_move_ends_the_replica_after_the_limit_and_not_before() -> None:
    stage = Stage(unfinished=2, longest_prefill_s=1.0)
    assert stage.looks_for(4.0) is None
    assert stage.looks_for(LOOK_S) == "has 2 requests and gave no token for 4.2 s"


def test_an_idle_engine_may_be_still_for_ever_and_the_first_work_then_has_its_time() -> None:
    stage = Stage()
    assert stage.looks_for(3600.0) is None
    stage.engine.unfinished = 1
    assert stage.looks_for(3.0) is None
    assert stage.looks_for(LOOK_S) is not None


def test_a_long_prefill_that_moves_is_no_stall() -> None:
    stage = Stage(unfinished=1)
    for _ in range(10):
        assert stage.looks_for(2.5) is None
        stage.engine.moves += 1


@pytest.mark.parametrize(
    "worker",
    [
        # It got a little, and waited for the rest; or it waits on, which the kernel counts when that is over.
        ("R", 0.003, 0.247),
        ("S", 0.003, 0.247),
        ("R", 0.0, 0.0),
    ],
)
def test_an_engine_that_waits_for_a_processor_is_not_still(worker: tuple[str, float, float]) -> None:
    stage = Stage(unfinished=2)
    assert stage.looks_for(25.0, worker=worker, core=("S", 0.0, 0.0)) is None
    # Nobody's callers wait for ever.
    why = stage.looks_for(10.0, worker=worker, core=("S", 0.0, 0.0))
    assert why is not None and why.startswith("has 2 requests and gave no token for 3.0")


@pytest.mark.parametrize(
    "threads",
    [
        # Stopped, while what asks it for work spins and does not even get a processor.
        {"worker": ("T", 0.0, 0.0), "core": ("R", 0.01, 0.24)},
        # It hangs in a lock, or in a system call.
        {"worker": ("S", 0.0, 0.0), "core": ("S", 0.001, 0.001)},
        {"worker": ("D", 0.0, 0.0)},
        # It spins, and has all the processors that it wants.
        {"worker": ("R", 0.25, 0.0), "core": ("S", 0.0, 0.0)},
        {},
    ],
)
def test_an_engine_that_stands_still_on_a_busy_machine_is_found_all_the_same(
    threads: dict[str, tuple[str, float, float]],
) -> None:
    stage = Stage(unfinished=1)
    assert stage.looks_for(3.0, **threads) is None
    assert stage.looks_for(LOOK_S, **threads) is not None


def test_of_the_time_that_an_engine_has_a_share_of_the_processor_that_share_counts() -> None:
    stage = Stage(unfinished=1)
    # Once to see where it stands, then half of each look.
    assert stage.looks_for(LOOK_S + 5.5, worker=("R", 0.125, 0.125)) is None
    assert stage.looks_for(LOOK_S, worker=("R", 0.125, 0.125)) is not None


def test_threads_are_looked_at_only_while_work_does_not_move() -> None:
    stage = Stage()
    stage.looks_for(10.0)
    stage.engine.unfinished = 1
    for _ in range(10):
        stage.engine.moves += 1
        stage.looks_for(LOOK_S)
    assert stage.guard.looked_at == 0
    stage.looks_for(1.0)
    assert stage.guard.looked_at == 4


def test_an_engine_that_died_is_told_at_the_next_look() -> None:
    assert Stage(dead=True).watch.look(0.0) == "died"


async def test_the_end_fails_the_calls_kills_the_engine_and_then_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(dead=True)
    order: list[object] = []
    monkeypatch.setattr(stage.engine, "fail", lambda: order.append("fail"))
    monkeypatch.setattr(engine_watch, "kill", order.append)
    monkeypatch.setattr(engine_watch, "LAST_WORDS_S", 0.0)
    await stage.watch.run()
    assert order == ["fail", {(7, "seven")}]
    assert (stage.exits, stage.guard.beats) == ([ENGINE_LOST_EXIT], 0)
    assert stage.watch.ending.is_set()
    # What the last report says, without asking an engine that is gone.
    assert await stage.watch.proven(0.0) is False and stage.engine.probed_s == []


async def test_while_all_is_well_the_guard_hears_a_beat_at_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_watch, "LOOK_S", 0.0)
    stage = Stage()
    watching = asyncio.create_task(stage.watch.run())
    for _ in range(5):
        await asyncio.sleep(0)
    watching.cancel()
    assert stage.guard.beats >= 4 and stage.exits == []


@pytest.mark.parametrize("answers", [True, False])
async def test_without_fresh_tokens_the_engine_is_asked_for_one_within_its_limit(answers: bool) -> None:
    stage = Stage(last_token_s=-1e9, longest_prefill_s=1.5, answers=answers)
    assert await stage.watch.proof() is True
    assert stage.engine.probed_s == [4.5]


@pytest.mark.parametrize(
    ("does", "worker", "proven"),
    [
        ("hangs", ("S", 0.0, 0.0), False),
        ("dies", ("S", 0.0, 0.0), False),
        # All its places are taken by answers that go on slowly.
        ("moves", ("S", 0.0, 0.0), True),
        # It has not had a processor for as long as that takes.
        ("waits", ("R", 0.003, 0.247), True),
    ],
)
async def test_an_engine_that_does_not_answer_has_failed_when_it_stands_still(
    does: str, worker: tuple[str, float, float], proven: bool
) -> None:
    stage = Stage(last_token_s=-1e9)

    async def unanswered(limit_s: float) -> bool:
        stage.engine.unfinished, stage.engine.dead = 1, does == "dies"
        for _ in range(int(limit_s / LOOK_S) + 1):
            stage.engine.moves += does == "moves"
            stage.looks_for(LOOK_S, worker=worker)
        return False

    stage.engine.probe = unanswered  # type: ignore[method-assign]
    assert await stage.watch.proof() is proven


async def test_fresh_tokens_are_proof_enough_but_not_of_a_dead_engine() -> None:
    stage = Stage(last_token_s=1e18)
    assert await stage.watch.proof() is True
    stage.engine.dead = True
    assert await stage.watch.proof() is False
    assert stage.engine.probed_s == []


async def test_how_fresh_a_token_has_to_be_is_a_setting() -> None:
    stage = Stage(unfinished=1, last_token_s=time.monotonic() - 1.0)
    assert (await stage.watch.proof(), stage.engine.probed_s) == (True, [])
    stage.watch.fresh_s = 0.5
    assert (await stage.watch.proof(), len(stage.engine.probed_s)) == (True, 1)


async def test_a_report_says_how_the_last_proof_went() -> None:
    stage = Stage(last_token_s=1e18)
    assert await stage.watch.proven(1.0) is True
    await heard(stage, *["upstream_failed"] * MOST_FAILED_IN_A_ROW)
    assert await stage.watch.proven(1.0) is False
    stage.watch._ended(None, "a good call")
    assert await stage.watch.proven(1.0) is True


def slow_probe(stage: Stage) -> asyncio.Event:
    """The engine's probe fails, and it is dead, once the event is set."""
    go = asyncio.Event()

    async def slow(limit_s: float) -> bool:
        stage.engine.probed_s.append(limit_s)
        await go.wait()
        stage.engine.dead = True
        return False

    stage.engine.probe = slow  # type: ignore[method-assign]
    return go


async def test_a_report_and_a_health_check_may_wait_for_the_same_proof() -> None:
    stage = Stage()
    go = slow_probe(stage)
    both = [asyncio.create_task(stage.watch.proven(60.0)) for _ in range(2)]
    assert await stage.watch.proven(0.0) is True
    go.set()
    assert await asyncio.gather(*both) == [False, False]
    assert len(stage.engine.probed_s) == 1


async def test_a_proof_that_breaks_has_failed() -> None:
    stage = Stage()

    async def broken(limit_s: float) -> bool:
        raise RuntimeError("no such engine")

    stage.engine.probe = broken  # type: ignore[method-assign]
    assert await stage.watch.proven(1.0) is False


async def test_a_proof_that_is_late_has_not_failed_until_it_has() -> None:
    stage = Stage()
    go = slow_probe(stage)
    assert [await stage.watch.proven(0.0), await stage.watch.proven(0.0)] == [True, True]
    go.set()
    assert await stage.watch.proven(1.0) is False
    assert len(stage.engine.probed_s) == 1


#: How a call of the engine ends: well, with a failure, or with an exception.
End = Reason | Exception | None
GOOD: list[Packet] = [(Head(max_tokens=4), Body(b"x")), (Tail("success"),)]


async def ends(end: End) -> AsyncGenerator[Packet, None]:
    yield (Head(max_tokens=4), Body(b"x"))
    if isinstance(end, Exception):
        raise end
    failure = None if end is None else Failure(end, "said")
    yield (Tail("success" if failure is None else "failed", failure=failure),)


async def heard(stage: Stage, *calls: End, prompts: int = 3) -> list[Packet]:
    """The packets of the last of some calls, which ask in turn for so many prompts."""
    packets: list[Packet] = []
    for n, end in enumerate(calls):
        packets = []
        try:
            async for packet in stage.watch.counted(ends(end), f"prompt {n % prompts}"):
                packets.append(packet)
        except RuntimeError as error:
            assert error is end
    return packets


@pytest.mark.parametrize("end", ["upstream_failed", "upstream_invalid", RuntimeError("broken")])
async def test_an_engine_that_makes_tokens_but_breaks_each_call_is_of_no_more_use(end: End) -> None:
    stage = Stage(last_token_s=1e18)
    await heard(stage, *[end] * (MOST_FAILED_IN_A_ROW - 1))
    assert await stage.watch.proof() is True
    assert await heard(stage, None, *[end] * (MOST_FAILED_IN_A_ROW - 1), None) == GOOD
    await heard(stage, *[end] * MOST_FAILED_IN_A_ROW)
    assert (await stage.watch.proof(), await stage.watch.proven(1.0)) == (False, False)
    assert await heard(stage, None) == [(Head(failure=LOST), Tail("failed", failure=LOST))]


async def test_one_prompt_that_breaks_its_calls_costs_no_replica(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(last_token_s=1e18)
    await heard(stage, *["upstream_failed"] * 3 * MOST_FAILED_IN_A_ROW, prompts=1)
    assert await stage.watch.proof() is True
    assert caplog.messages == ["one prompt broke 5 calls of qwen-chat one after the other"]
    # A good call between: whatever broke the others, the engine works.
    assert await heard(stage, None, *["upstream_failed"] * (MOST_FAILED_IN_A_ROW - 1), None) == GOOD
    # Another prompt is broken as well, and none is good: it is the engine.
    await heard(stage, *["upstream_failed"] * 3 * MOST_FAILED_IN_A_ROW, prompts=1)
    assert await stage.watch.proof() is True
    await heard(stage, "upstream_failed", "upstream_failed", prompts=2)
    assert await stage.watch.proof() is False


@pytest.mark.parametrize("end", ["bad_request", "context_length", "overloaded", "queue_timeout"])
async def test_what_a_caller_did_wrong_and_what_is_refused_says_nothing_of_the_engine(end: Reason) -> None:
    stage = Stage(last_token_s=1e18)
    await heard(stage, *[end] * 20)
    assert await stage.watch.proof() is True
    assert await heard(stage, *["upstream_failed", end] * (MOST_FAILED_IN_A_ROW - 1), None) == GOOD
    await heard(stage, *["upstream_failed", end] * MOST_FAILED_IN_A_ROW)
    assert await stage.watch.proof() is False


async def test_a_call_that_is_left_says_nothing_of_the_engine() -> None:
    stage = Stage(last_token_s=1e18)
    for n in range(20):
        packets = stage.watch.counted(ends("upstream_failed"), n)
        await anext(packets)
        await packets.aclose()
    assert await stage.watch.proof() is True
