"""A Router and its RegionAgent: what is asked, what becomes of answers and of silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from deployments import fleet_watch
from deployments.fleet_watch import FleetWatch
from deployments.region_handle import RegionAway
from serve_app.core.reports import RouterReport
from serve_app.core.snapshots import Snapshot, Target

TARGET = Target("cloud-a", "a", "qwen-chat", "app", "r" * 64, 1000, 4, frozenset(), 1.0, "healthy")


def picture(generation: int, epoch: int = 7) -> Snapshot:
    return Snapshot(epoch, generation, (TARGET,))


class Agent:
    """Answers what it is told to, and notes what it was asked."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Any, ...]] = []
        self.limits_s: list[float] = []
        self.now_s = 100.0
        self.seen: list[Snapshot] = []
        self.arrived = asyncio.Event()

    async def ask(self, method: str, *args: Any, limit_s: float) -> Any:
        self.asked.append((method, *args))
        self.limits_s.append(limit_s)
        self.arrived.set()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def watch(self) -> FleetWatch:
        return FleetWatch(
            ask=self.ask,
            router="router-1",
            region=lambda: "cloud-a",
            report=lambda router, now_s: RouterReport(router),
            on_snapshot=self.seen.append,
            now_s=lambda: self.now_s,
        )


async def test_each_poll_names_what_was_seen() -> None:
    agent = Agent(picture(1), None, picture(2))
    watch = agent.watch()
    assert [await watch.watch_once() for _ in range(3)] == [True, True, True]
    assert agent.asked == [
        ("watch", "router-1", (0, 0)),
        ("watch", "router-1", (7, 1)),
        ("watch", "router-1", (7, 1)),
    ]
    assert agent.seen == [picture(1), picture(2)]


async def test_a_picture_is_aged_from_when_it_came() -> None:
    agent = Agent(replace(picture(1), open_for_s={TARGET.id: 28.0}))
    agent.now_s = 500.0
    await agent.watch().watch_once()
    (seen,) = agent.seen
    assert [seen.recover_s(TARGET.id, at_s) for at_s in (500.0, 520.0, 600.0)] == [28.0, 8.0, 0.0]
    assert seen.recover_s("other", 500.0) is None


async def test_an_older_picture_changes_nothing() -> None:
    agent = Agent(picture(5), picture(4), picture(1, epoch=6), picture(1, epoch=8))
    watch = agent.watch()
    for _ in range(4):
        await watch.watch_once()
    assert agent.seen == [picture(5), picture(1, epoch=8)]


async def test_a_region_without_an_agent_is_left_as_it_is() -> None:
    agent = Agent(*[RegionAway("no RegionAgent")] * 3)
    watch = agent.watch()
    for _ in range(3):
        assert await watch.watch_once() is False
        agent.now_s += 10.0
    assert agent.seen == []


async def test_after_five_seconds_of_silence_the_last_picture_is_trusted_less_once() -> None:
    agent = Agent(picture(1), *[RegionAway("no answer")] * 3)
    watch = agent.watch()
    await watch.watch_once()
    agent.now_s += 5.0
    await watch.watch_once()
    assert len(agent.seen) == 1
    agent.now_s += 0.1
    await watch.watch_once()
    await watch.watch_once()
    assert [s.targets[0].health for s in agent.seen] == ["healthy", "unknown"]


async def test_an_agent_that_is_back_is_believed_again_even_without_news() -> None:
    agent = Agent(picture(3), RegionAway("x"), picture(3))
    watch = agent.watch()
    await watch.watch_once()
    agent.now_s += 6.0
    await watch.watch_once()
    await watch.watch_once()
    assert agent.asked[-1] == ("watch", "router-1", (7, 0))
    assert [s.targets[0].health for s in agent.seen] == ["healthy", "unknown", "healthy"]


async def test_of_an_agent_that_begins_anew_engines_serve_on_until_it_has_heard_them() -> None:
    new = [replace(picture(n, 8), targets=(replace(TARGET, health="unknown"),)) for n in (1, 2, 2)]
    agent = Agent(picture(3), RegionAway("died"), new[0], new[1], RegionAway("slow"), new[2], None)
    watch = agent.watch()
    for _ in range(4):
        await watch.watch_once()
        agent.now_s += 2.0
    assert [s.targets[0].health for s in agent.seen] == ["healthy", "healthy", "healthy"]
    # It has until 109.0 to hear all replicas, and nobody waits for news for longer.
    await watch.watch_once(4.0)
    assert (agent.asked[-1], agent.limits_s[-1]) == (("watch", "router-1", (8, 2)), 1.0)
    agent.now_s += 1.0
    await watch.watch_once(4.0)
    assert (agent.asked[-1], agent.limits_s[-1]) == (("watch", "router-1", (8, 0)), 4.0)
    assert agent.seen[3:] == [new[2]]
    await watch.watch_once(4.0)
    assert agent.asked[-1] == ("watch", "router-1", (8, 2))


async def test_an_agent_that_begins_anew_and_falls_silent_is_trusted_less_too() -> None:
    agent = Agent(picture(3), picture(1, 8), *[RegionAway("died")] * 2)
    watch = agent.watch()
    for _ in range(4):
        await watch.watch_once()
        agent.now_s += 6.0
    assert [s.targets[0].health for s in agent.seen] == ["healthy", "healthy", "unknown"]


async def test_the_plans_age_goes_on_while_nobody_tells_it() -> None:
    agent = Agent(None, 2.5, RegionAway("x"), 0.5)
    watch = agent.watch()
    ages = []
    for _ in range(4):
        await watch.push_once()
        agent.now_s += 1.0
        ages.append(watch.plan_age_s)
    assert ages == [None, 3.5, 4.5, 1.5]


async def test_a_report_goes_at_once_when_hurried(monkeypatch: Any) -> None:
    monkeypatch.setattr(fleet_watch, "PUSH_S", 3600.0)
    agent = Agent(None)
    watch = agent.watch()
    task = asyncio.create_task(watch.push_on())
    try:
        await turns(lambda: task.done(), 5)
        assert agent.asked == []
        watch.hurry()
        async with asyncio.timeout(1.0):
            await agent.arrived.wait()
        assert agent.asked == [("push_router", RouterReport("router-1"))]
    finally:
        task.cancel()


async def test_a_report_that_does_not_arrive_is_no_error() -> None:
    agent = Agent(RegionAway("no answer"), None)
    watch = agent.watch()
    assert [await watch.push_once(), await watch.push_once()] == [False, True]


async def turns(until: Callable[[], bool], most: int) -> None:
    """Gives other tasks a few turns."""
    for _ in range(most):
        if until():
            return
        await asyncio.sleep(0)
