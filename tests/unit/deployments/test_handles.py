"""Calls over handles: an app that lost all its replicas, and replicas lost under a call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, WorkerCrashedError
from ray.serve.exceptions import RayServeException

from deployments import handles
from deployments.handles import HandleAgents
from serve_app.core.snapshots import Target
from serve_app.outcomes import GrixError
from serve_app.ports import Accepted, AgentCall, Body, Frame, Head, Packet, Tail
from tests.fakes import two_regions

TARGET: Target = two_regions().targets[0]
CALL = AgentCall("r1", "chat", "qwen-chat", {}, True, 10, 100)
FRAMES: tuple[Packet, ...] = ((Accepted("t", "r"),), (Head(max_tokens=9), Body(b"1")), (Tail("success"),))


class FakePackets:
    def __init__(self, steps: tuple[Packet | Exception | None, ...]) -> None:
        self._packets = self._play(steps)
        self.cancelled = 0

    async def _play(self, steps: tuple[Packet | Exception | None, ...]) -> AsyncGenerator[Packet, None]:
        for step in steps:
            if step is None:
                await asyncio.Event().wait()
            elif isinstance(step, Exception):
                raise step
            else:
                yield step

    def __aiter__(self) -> FakePackets:
        return self

    async def __anext__(self) -> Packet:
        return await anext(self._packets)

    def cancel(self) -> None:
        self.cancelled += 1


class Stage:
    """One app behind a handle that plays ``steps``; ``None`` among them hangs. ``running`` is what the handle knows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *steps: Packet | Exception | None) -> None:
        self.packets, self.asked = FakePackets(steps), 0
        self.running: int | None = 1
        self.agents = HandleAgents()
        self.agents._handles[TARGET.app] = self  # type: ignore[assignment]
        monkeypatch.setattr(handles, "running_replicas", lambda _: self.running)

    def remote(self, call: AgentCall) -> FakePackets:
        self.asked += 1
        return self.packets

    async def keep(self, min_replicas: int = 1) -> None:
        await self.agents.keep({TARGET.app: min_replicas})

    async def run(self) -> list[Frame] | str:
        try:
            return [frame async for frame in self.agents.call(TARGET, CALL)]
        except GrixError as error:
            return error.reason


async def test_all_frames_come_in_order_and_an_ended_call_is_not_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, *FRAMES)
    assert await stage.run() == [frame for packet in FRAMES for frame in packet]
    assert stage.packets.cancelled == 0


async def test_an_app_that_lost_all_replicas_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, *FRAMES)
    await stage.keep()
    stage.running = 0
    assert (await stage.run(), stage.asked) == ("no_target", 0)
    assert (stage.agents.bereft(), stage.agents.running()) == ({TARGET.app}, frozenset())


@pytest.mark.parametrize(("running", "min_replicas"), [(0, 0), (None, 1), (1, 1)])
async def test_an_app_at_zero_one_that_starts_and_one_that_runs_are_asked(
    monkeypatch: pytest.MonkeyPatch, running: int | None, min_replicas: int
) -> None:
    stage = Stage(monkeypatch, *FRAMES)
    await stage.keep(min_replicas)
    stage.running = running
    assert stage.agents.bereft() == frozenset()
    assert stage.agents.running() == ({TARGET.app} if running else frozenset())
    assert (len(await stage.run()), stage.asked) == (4, 1)


@pytest.mark.parametrize(
    ("running", "min_replicas", "queued"), [(0, 0, True), (None, 0, True), (1, 0, False), (None, 1, False)]
)
async def test_a_call_that_wakes_an_agent_has_waited(
    monkeypatch: pytest.MonkeyPatch, running: int | None, min_replicas: int, queued: bool
) -> None:
    stage = Stage(monkeypatch, *FRAMES)
    await stage.keep(min_replicas)
    stage.running = running
    frames = await stage.run()
    assert [frame.queued for frame in frames if isinstance(frame, Head)] == [queued]


async def test_a_call_that_waits_ends_when_the_last_replica_died(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, None)
    waiting = asyncio.create_task(stage.run())
    await asyncio.sleep(0)
    await stage.keep()
    await asyncio.sleep(0)
    assert not waiting.done()
    stage.running = 0
    await stage.keep()
    assert await waiting == "no_target"
    assert stage.packets.cancelled == 1
    await stage.keep()
    # An app that will be gone one day leaves nothing behind.
    assert stage.agents._waiting == {}


async def test_a_call_that_is_just_ending_is_not_ended_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, None)
    waiting = asyncio.create_task(stage.run())
    await asyncio.sleep(0)
    await stage.keep()
    stage.running = 0
    await stage.keep()
    # Between the end of its time and the end of its wait.
    await asyncio.create_task(stage.keep())
    assert await waiting == "no_target"


async def test_a_call_that_was_accepted_is_left_to_its_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, FRAMES[0], None)
    frames = stage.agents.call(TARGET, CALL)
    assert await anext(frames) == FRAMES[0][0]
    running = asyncio.create_task(anext(frames))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    stage.running = 0
    await stage.keep()
    await asyncio.sleep(0)
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert stage.packets.cancelled == 1


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ActorDiedError(), "replica_lost"),
        (ActorUnavailableError("gone", None), "replica_lost"),
        (WorkerCrashedError(), "replica_lost"),
        (RayError("a bug"), "upstream_failed"),
        (RayServeException("a bug"), "upstream_failed"),
        # Between replicas that speak gRPC an exception comes out as itself.
        (RuntimeError("a bug"), "upstream_failed"),
    ],
)
async def test_a_lost_replica_is_told_from_a_fault_in_one(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str, before: int
) -> None:
    assert await Stage(monkeypatch, *FRAMES[:before], error).run() == reason


async def test_a_call_without_any_frame_ends_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await Stage(monkeypatch).run() == []


@pytest.mark.parametrize("packets", [FRAMES, ((FRAMES[0] + FRAMES[1] + FRAMES[2]),), ((*FRAMES[1], *FRAMES[2]),)])
async def test_str_14_closing_a_call_after_its_tail_aborts_nothing(
    monkeypatch: pytest.MonkeyPatch, packets: tuple[Packet, ...]
) -> None:
    stage = Stage(monkeypatch, *packets)
    frames = stage.agents.call(TARGET, CALL)
    while not isinstance(await anext(frames), Tail):
        continue
    await frames.aclose()
    assert stage.packets.cancelled == 0


async def test_closing_a_call_before_its_tail_aborts_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, *FRAMES)
    frames = stage.agents.call(TARGET, CALL)
    while not isinstance(await anext(frames), Body):
        continue
    await frames.aclose()
    assert stage.packets.cancelled == 1
