"""The start of an engine: its rounds, its limit, its turn, and who is told when it fails. Time is moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from deployments import engine_start
from deployments.engine_start import EngineStart, StartFailed, speed_key
from deployments.guard import Threads
from deployments.region_handle import RegionAway
from serve_app.core.reports import FailedStart
from serve_app.edge.start_turns import StartTurns
from serve_app.ports import Accepted, AgentCall, Body, Failure, Head, Kind, Packet, Tail

SPEED = "0123456789abcdef"
APP = "qwen-chat--01234567"


@dataclass
class Clock:
    time_s: float = 100.0

    def now_s(self) -> float:
        return self.time_s


@dataclass
class FakeEngine:
    """Takes so long for each first token, the last one for all later; ``fails`` is what it answers instead."""

    clock: Clock
    first_token_s: list[float] = field(default_factory=lambda: [0.015])
    kind: Kind = "chat"
    max_model_len: int = 4096
    fails: Failure | None = None
    calls: list[AgentCall] = field(default_factory=list)
    closed: int = 0

    async def call(self, call: AgentCall) -> AsyncGenerator[Packet, None]:
        self.calls.append(call)
        try:
            yield (Accepted("t", "r"),)
            took_s = self.first_token_s[min(len(self.calls), len(self.first_token_s)) - 1]
            if took_s == float("inf"):
                await asyncio.Event().wait()
            self.clock.time_s += took_s
            if self.fails is not None:
                yield Head(failure=self.fails), Tail("failed", failure=self.fails)
                return
            yield (Head(), Body(b"x"))
            self.clock.time_s += 5.0
            yield (Tail("success"),)
        finally:
            self.closed += 1


@dataclass
class FakeRegion:
    away: bool = False
    told: list[tuple[str, FailedStart]] = field(default_factory=list)

    async def ask(self, method: str, *args: Any, limit_s: float) -> None:
        self.told.append((method, *args))
        if self.away:
            raise RegionAway("no RegionAgent")


class Stage:
    def __init__(self, folder: Path, *, limit_s: float = 1800.0, first_token_s: float = 30.0) -> None:
        self.clock, self.region = Clock(), FakeRegion()
        self.turns = StartTurns(folder / "turns", folder / "known", 1)
        self.limit_s, self.first_token_s = limit_s, first_token_s
        self.waited_ratio = 0.0

    def start(self) -> EngineStart:
        return EngineStart(
            FailedStart(APP, "r1", "fetch", ""),
            SPEED,
            limit_s=self.limit_s,
            first_token_s=self.first_token_s,
            turns=self.turns,
            region=self.region,
            now_s=self.clock.now_s,
        )

    def engine(self, *first_token_s: float, **more: Any) -> FakeEngine:
        return FakeEngine(self.clock, list(first_token_s) or [0.015], **more)

    async def started(self, engine: FakeEngine) -> EngineStart:
        start = self.start()
        async with start.told(), start.turn():
            await start.warm_up(engine, self.threads)
        return start

    def threads(self) -> Threads:
        """One thread, which has waited for a processor in ``waited_ratio`` of all the time, and run in none of it."""
        return {7: ("S", 0, int(self.waited_ratio * self.clock.time_s * 1e9))}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


async def test_three_rounds_of_three_small_calls_and_each_prompt_is_new(stage: Stage) -> None:
    engine = stage.engine()
    start = await stage.started(engine)
    texts = [call.body["messages"][0]["content"] for call in engine.calls]
    assert texts[:2] == ["0. Hello", "0. Where is my order?"] and texts[2] == "0. " + "word " * 256
    assert len(set(texts)) == len(texts) == 9 and engine.closed == 9
    assert all((call.stream, call.max_tokens, call.kind) == (True, 2, "chat") for call in engine.calls)
    assert start.warmth == "first tokens after 15 ms in the last of 3 rounds, first tokens after 15 ms in the best"
    assert stage.region.told == []


async def test_a_model_without_chat_is_asked_to_go_on_with_a_text_that_its_context_holds(stage: Stage) -> None:
    engine = stage.engine(kind="completion", max_model_len=64)
    await stage.started(engine)
    assert [call.body["prompt"] for call in engine.calls[:3]] == [
        "0. Hello",
        "0. Where is my order?",
        "0. " + "word " * 8,
    ]


async def test_a_slow_start_goes_on_until_its_first_tokens_are_normal(stage: Stage) -> None:
    engine = stage.engine(9.0, 4.0, 0.5, *[0.06] * 20)
    await stage.started(engine)
    # The first round with what is slow at first, then three.
    assert len(engine.calls) == 12
    assert stage.turns.usual_ms(SPEED) == pytest.approx(60.0)


async def test_only_the_first_token_counts_and_not_the_answer_after_it(stage: Stage) -> None:
    await stage.started(stage.engine())
    assert stage.turns.usual_ms(SPEED) == pytest.approx(15.0)


async def test_one_that_stays_slow_fails_with_what_is_usual_and_the_region_is_told(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.started(stage.engine())
    why = (
        "the engine does not get warm: first tokens after 3000 ms in the last of 20 rounds, more than 1500 ms are "
        "slow, usual are 15 ms"
    )
    with pytest.raises(StartFailed, match=f"^{APP} cannot start a replica: {why}$"):
        await stage.started(stage.engine(3.0))
    assert stage.region.told == [("push_failed_start", FailedStart(APP, "r1", "warm_up", why))]
    assert caplog.messages == [f"replica r1 of {APP} cannot start: {why}"]
    # What failed says nothing of what is usual, and has given its turn back.
    assert stage.turns.usual_ms(SPEED) == pytest.approx(15.0)
    await stage.started(stage.engine())


async def test_a_start_among_many_others_is_late_and_does_not_fail(stage: Stage) -> None:
    await stage.started(stage.engine())
    stage.waited_ratio = 0.9
    start = await stage.started(stage.engine(3.0))
    assert start.warmth == "first tokens after 3000 ms in the last of 3 rounds, first tokens after 3000 ms in the best"
    assert stage.region.told == [] and stage.turns.usual_ms(SPEED) == pytest.approx(15.0)


async def test_on_a_full_machine_a_start_has_all_its_time_to_be_what_callers_wait_for(stage: Stage) -> None:
    stage.waited_ratio = 0.9
    engine = stage.engine(*[31.0] * 90, 0.015)
    await stage.started(engine)
    assert len(engine.calls) == 99


async def test_a_first_token_that_does_not_come_in_its_time_is_none_and_its_call_is_ended(tmp_path: Path) -> None:
    stage = Stage(tmp_path, first_token_s=0.2)
    engine = stage.engine(float("inf"), 0.015)
    await stage.started(engine)
    assert engine.closed == len(engine.calls) >= 12


async def test_an_engine_that_fails_a_call_does_not_start(stage: Stage) -> None:
    engine = stage.engine(fails=Failure("replica_lost", "The engine that ran this request was lost."))
    with pytest.raises(StartFailed, match="the engine fails a small call: The engine that ran this request was lost"):
        await stage.started(engine)
    assert (len(engine.calls), engine.closed) == (1, 1)


async def test_the_limit_ends_a_warm_up_and_says_what_it_showed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, limit_s=0.5, first_token_s=0.01)
    with pytest.raises(StartFailed):
        await stage.started(stage.engine(float("inf")))
    ((_, failed),) = stage.region.told
    assert failed.stage == "warm_up"
    assert failed.why.startswith("not ready after 0.5 s, still warming up: no first token in the last of")


async def test_the_wait_for_a_turn_counts_in_the_limit(tmp_path: Path) -> None:
    stage = Stage(tmp_path, limit_s=0.02)
    async with stage.turns.held("another"):
        with pytest.raises(StartFailed):
            await stage.started(stage.engine())
    why = "not ready after 0.02 s, still waiting for another engine's start on this machine"
    assert stage.region.told == [("push_failed_start", FailedStart(APP, "r1", "turn", why))]


async def test_what_fails_before_or_while_it_loads_is_told_by_its_last_line(stage: Stage) -> None:
    fetching, loading = stage.start(), stage.start()
    with pytest.raises(StartFailed):
        async with fetching.told():
            raise FileNotFoundError("no model here")
    with pytest.raises(StartFailed):
        async with loading.told(), loading.turn():
            raise RuntimeError("traceback\n  of another process\nEngine core initialization failed.\n")
    assert [(failed.stage, failed.why) for _, failed in stage.region.told] == [
        ("fetch", "no model here"),
        ("load", "Engine core initialization failed."),
    ]


async def test_a_region_that_is_away_hides_no_reason(stage: Stage) -> None:
    stage.region.away = True
    with pytest.raises(StartFailed, match="MemoryError"):
        async with stage.start().told():
            raise MemoryError


async def test_a_start_that_is_called_off_tells_nobody(stage: Stage) -> None:
    async def hangs() -> None:
        async with stage.start().told():
            await asyncio.Event().wait()

    starting = asyncio.create_task(hangs())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert stage.region.told == []


def test_the_time_that_is_left(stage: Stage) -> None:
    start = stage.start()
    stage.clock.time_s += 300.0
    assert start.left_s == 1500.0
    stage.clock.time_s += 3000.0
    assert start.left_s == 0.0


@pytest.mark.parametrize(
    ("settings", "limits"),
    [
        ({"start_limit_s": 600.0, "first_token_limit_s": 20.0}, (600.0, 20.0)),
        # Those of a config that an earlier Grix wrote.
        ({"log_level": "INFO", "stall_after_s": 3.0}, (1800.0, 30.0)),
        ({"start_limit_s": 600}, (600.0, 30.0)),
    ],
)
def test_a_replica_starts_with_its_own_settings(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], limits: tuple[float, float]
) -> None:
    monkeypatch.setattr(engine_start, "own_settings", lambda: (APP, "r7", settings))
    start = EngineStart.of_this_replica(SPEED)
    assert (start.limit_s, start._first_token_s) == limits
    assert (start._report, start._speed) == (FailedStart(APP, "r7", "fetch", ""), SPEED)


def test_engines_are_as_fast_as_each_other_with_the_same_model_options_and_device() -> None:
    options = {"GRIX_ENGINE_RESOURCES": '{"max_num_seqs": 2}'}
    cpu = {**options, "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "2"}
    gpu = {**options, "OMP_NUM_THREADS": "1"}
    others = [
        speed_key("b", cpu),
        speed_key("a", {**cpu, "OMP_NUM_THREADS": "4"}),
        speed_key("a", {**cpu, "GRIX_ENGINE_RESOURCES": '{"max_num_seqs": 4}'}),
        speed_key("a", gpu),
        speed_key("a", {**gpu, "GRIX_ENGINE_RESOURCES": '{"max_num_seqs": 2, "tensor_parallel_size": 2}'}),
        speed_key("a", {}),
    ]
    assert speed_key("a", {**cpu, "HOME": "/root"}) == speed_key("a", cpu)
    # Of an engine on GPUs, Ray sets the number of threads.
    assert speed_key("a", {**gpu, "OMP_NUM_THREADS": "8"}) == speed_key("a", gpu)
    assert len({speed_key("a", cpu), *others}) == 1 + len(others)
