"""Calls over handles: an app that lost all its replicas, and replicas lost under a call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, WorkerCrashedError
from ray.serve.exceptions import RayServeException

from deployments import handles
from deployments.handles import HandleAgents
from deployments.replicas import Finder
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
        self.now_s, self.accepted_after_s = 100.0, 0.0
        self.agents = HandleAgents(lambda: self.now_s)
        self.agents._handles[TARGET.app] = self  # type: ignore[assignment]
        monkeypatch.setattr(handles, "running_replicas", lambda _: self.running)

    def remote(self, call: AgentCall) -> FakePackets:
        self.asked += 1
        self.now_s += self.accepted_after_s
        return self.packets

    async def keep(self, min_replicas: int = 1) -> None:
        await self.agents.keep({TARGET.app: min_replicas})

    async def run(self, target: Target = TARGET) -> list[Frame] | str:
        try:
            return [frame async for frame in self.agents.call(target, CALL)]
        except GrixError as error:
            self.retry_after_s = error.retry_after_s
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
    ("running", "min_replicas", "after_s", "queued"),
    [
        (0, 0, 0.0, True),
        (1, 0, 0.0, False),
        # Of none it has heard yet: one runs and takes the call at once, or none does and the call waits for its start.
        (None, 0, 0.9, False),
        (None, 0, 1.1, True),
        (None, 1, 1.1, False),
    ],
)
async def test_a_call_that_wakes_an_agent_has_waited(
    monkeypatch: pytest.MonkeyPatch, running: int | None, min_replicas: int, after_s: float, queued: bool
) -> None:
    stage = Stage(monkeypatch, *FRAMES)
    await stage.keep(min_replicas)
    stage.running, stage.accepted_after_s = running, after_s
    frames = await stage.run()
    assert [frame.queued for frame in frames if isinstance(frame, Head)] == [queued]


async def test_who_meets_an_engine_that_starts_is_told_when_it_is_usually_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, known = Stage(monkeypatch, *FRAMES), replace(TARGET, start_s=60.0)
    await stage.keep()
    stage.running = 0
    told = []
    for target, after_s in ((known, 0.0), (known, 45.0), (TARGET, 0.0), (known, 30.0)):
        stage.now_s += after_s
        await stage.keep()
        told.append((await stage.run(target), stage.retry_after_s))
    assert told == [("no_target", 60.0), ("no_target", 15.0), ("no_target", 5.0), ("no_target", 5.0)]
    # The next start is another one.
    stage.running = 1
    await stage.keep()
    stage.running = 0
    assert (await stage.run(known), stage.retry_after_s) == ("no_target", 60.0)


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


class Controller:
    """Names handles as Serve's controller does; of those in ``hangs`` when it is told to. Runs in threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *hangs: str) -> None:
        self.asked: list[str] = []
        self.hangs = {name: threading.Event() for name in hangs}
        monkeypatch.setattr(handles.serve, "get_app_handle", self.find)
        monkeypatch.setattr(handles, "running_replicas", lambda _: 1)

    def find(self, name: str) -> Any:
        self.asked.append(name)
        if name in self.hangs:
            assert self.hangs[name].wait(20.0)
        if name == "none":
            raise RayServeException("no such app")
        return Named(name)


class Named:
    def __init__(self, name: str) -> None:
        self.name = name

    def options(self, **_: Any) -> Named:
        return self


async def test_handles_are_there_for_apps_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, agents = Controller(monkeypatch), HandleAgents()
    await agents.keep({"a": 1, "none": 1})
    assert (sorted(agents.running()), sorted(controller.asked)) == (["a"], ["a", "none"])
    await agents.keep({"b": 1, "none": 1})
    assert (sorted(agents.running()), sorted(controller.asked)) == (["b"], ["a", "b", "none", "none"])


async def test_of_two_tables_at_once_the_last_one_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, agents = Controller(monkeypatch, "old"), HandleAgents()
    first = asyncio.create_task(agents.keep({"old": 1, "both": 1}))
    while sorted(controller.asked) != ["both", "old"]:
        await asyncio.sleep(0.001)
    second = asyncio.create_task(agents.keep({"new": 1, "both": 1}))
    await asyncio.sleep(0)
    controller.hangs["old"].set()
    await asyncio.gather(first, second)
    assert (sorted(agents.running()), sorted(controller.asked)) == (["both", "new"], ["both", "new", "old"])


async def test_a_controller_that_hangs_holds_up_nobody_and_takes_one_thread_for_each_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controller, agents = Controller(monkeypatch, "stuck"), HandleAgents()
    agents._finder = Finder(controller.find, limit_s=0.05)
    for _ in range(3):
        await agents.keep({"stuck": 1, "fine": 1})
        assert agents.running() == {"fine"}
    assert sorted(controller.asked) == ["fine", "stuck"]
    controller.hangs["stuck"].set()
    async with asyncio.timeout(20.0):
        while "stuck" not in agents.running():
            await asyncio.sleep(0.001)
            await agents.keep({"stuck": 1, "fine": 1})
    assert sorted(controller.asked) == ["fine", "stuck"]
