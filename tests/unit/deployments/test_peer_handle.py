"""Calls to other regions over a handle: no gateway, a silent one, a lost one, and who leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from deployments import peer_handle
from deployments.peer_handle import PeerAgents
from serve_app import attempts
from serve_app.core.snapshots import Target
from serve_app.edge import peer_client
from serve_app.outcomes import GrixError
from serve_app.ports import Accepted, AgentCall, Body, Failure, Frame, Head, Packet, Tail
from serve_app.task_forward import TaskCall, TaskPart
from tests.fakes import two_regions
from tests.unit.deployments.test_handles import FakePackets

TARGET: Target = two_regions().targets[-1]
CALL = AgentCall("r1", "chat", "qwen-chat", {}, True, 10, 100)
TASK = TaskCall("get", "acme", frozenset(), "t1")
FRAMES: tuple[Packet, ...] = ((Accepted("t", "r"),), (Head(max_tokens=9), Body(b"1")), (Tail("success"),))


class Stage:
    """A gateway behind a handle that plays ``steps``; ``None`` hangs. ``running`` is what the handle knows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *steps: Packet | Exception | None) -> None:
        self.packets, self.asked = FakePackets(steps), []
        self.running: int | None = 1
        self.agents = PeerAgents()
        self.there = True
        monkeypatch.setattr(peer_handle, "running_replicas", lambda _: self.running)
        monkeypatch.setattr(peer_handle.serve, "get_deployment_handle", self.look)
        monkeypatch.setattr(peer_handle, "FIRST_LIMIT_S", 0.02)
        monkeypatch.setattr(peer_handle, "TASK_FIRST_LIMIT_S", 0.02)

    def look(self, deployment: str, app: str) -> Stage:
        if not self.there:
            raise KeyError(app)
        assert (deployment, app) == ("RegionGateway", "grix-region")
        return self

    def options(self, **_: Any) -> Stage:
        return self

    def remote(self, region: str, call: AgentCall) -> FakePackets:
        self.asked.append((region, call))
        return self.packets

    async def ask(self) -> list[TaskPart] | str:
        """What is told of a task."""
        await self.agents.keep()
        try:
            return [part async for part in self.agents.ask("cloud-b", TASK)]
        except GrixError as error:
            return error.reason

    async def run(self) -> list[Frame] | str:
        await self.agents.keep()
        try:
            return [frame async for frame in self.agents.call(TARGET, CALL)]
        except GrixError as error:
            return error.reason


async def test_frames_come_as_the_peer_sent_them_and_an_ended_call_is_not_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, *FRAMES)
    assert await stage.run() == [frame for packet in FRAMES for frame in packet]
    assert stage.asked == [("cloud-b", CALL)] and stage.packets.cancelled == 0


async def test_without_a_gateway_there_is_no_target_at_once_and_it_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, *FRAMES)
    stage.there = False
    assert (await stage.run(), stage.asked) == ("no_target", [])
    stage.there, stage.running = True, 0
    assert (await stage.run(), stage.asked) == ("no_target", [])
    stage.running = 1
    assert len(await stage.run()) == 4


async def test_a_gateway_that_is_silent_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, None)
    assert (await stage.run(), stage.packets.cancelled) == ("no_target", 1)


async def test_a_gateway_that_dies_under_a_call_is_a_lost_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, FRAMES[0], ActorDiedError())
    assert await stage.run() == "replica_lost"


async def test_a_refusal_is_a_head_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = Failure("no_target", "Region cloud-b cannot be reached.")
    stage = Stage(monkeypatch, (Head(failure=failure), Tail("rejected", failure=failure)))
    assert await stage.run() == [Head(failure=failure), Tail("rejected", failure=failure)]


async def test_who_leaves_cancels_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, *FRAMES[:2], None)
    await stage.agents.keep()
    frames = stage.agents.call(TARGET, CALL)
    assert [await anext(frames) for _ in range(3)] == [FRAMES[0][0], *FRAMES[1]]
    waiting = asyncio.ensure_future(anext(frames))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert stage.packets.cancelled == 1


def test_whoever_is_nearer_to_a_silent_peer_tells_of_it_first() -> None:
    assert peer_client.ACCEPT_LIMIT_S < peer_handle.FIRST_LIMIT_S < attempts.GATEWAY_LIMIT_S


async def test_a_task_is_asked_about_over_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    head, data = TaskPart(200), TaskPart(data=b"1")
    stage = Stage(monkeypatch, head, data)  # type: ignore[arg-type]
    assert await stage.ask() == [head, data]
    assert stage.asked == [("cloud-b", TASK)] and stage.packets.cancelled == 0


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((TaskPart(failure=Failure("no_target", "away")),), "no_target"),
        ((TaskPart(200), TaskPart(failure=Failure("peer_silent", "silent"))), "peer_silent"),
        ((None,), "peer_silent"),
        ((ActorDiedError(),), "replica_lost"),
    ],
)
async def test_who_could_not_ask_about_a_task_says_why(
    monkeypatch: pytest.MonkeyPatch, steps: tuple[Any, ...], said: str
) -> None:
    stage = Stage(monkeypatch, *steps)
    assert await stage.ask() == said and stage.packets.cancelled == 1


async def test_without_a_gateway_no_region_is_asked_about_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.running = 0
    assert (await stage.ask(), stage.asked) == ("no_target", [])
