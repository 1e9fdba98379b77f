"""A worker between its bus and the work, both played: what is stored in the end, whatever goes wrong on the way."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisAway

from serve_app.edge import task_worker
from serve_app.edge.task_jobs import Job, Nothing
from serve_app.edge.task_worker import NotNow, Result, TaskFailed, TaskWorker, Work


def job(n: int = 0, attempts: int = 1) -> Job:
    return Job(f"acme/t{n}", f"claim{n}", "acme", "light", "normal", "{}", attempts, None)


@dataclass
class PlayedBus:
    """Gives ``jobs`` and notes what is said; ``away`` calls fail first."""

    jobs: deque[Job] = field(default_factory=deque)
    said: list[tuple[Any, ...]] = field(default_factory=list)
    away: int = 0
    lost: set[str] = field(default_factory=set)
    firsts: list[str] = field(default_factory=list)
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    order: list[str] = field(default_factory=list)
    claims: asyncio.Event = field(default_factory=asyncio.Event)
    lets_claim: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.lets_claim.set()

    def _answer(self, *said: Any) -> bool:
        if self.away:
            self.away -= 1
            raise RedisAway
        self.said.append(said)
        return said[1] not in self.lost

    async def claim(self, task_class: str, owner: str, first: str) -> Job | Nothing:
        self._answer("claim", owner)
        self.said.pop()
        self.order.append("claim")
        self.claims.set()
        await self.lets_claim.wait()
        self.firsts.append(first)
        return self.jobs.popleft() if self.jobs else Nothing(None)

    async def wait(self, task_class: str, limit_s: float) -> None:
        self.quiet.set()
        await asyncio.Event().wait()

    async def beat(self, task_class: str, owner: str, slots: int, jobs: list[Job]) -> frozenset[str]:
        self.order.append("beat")
        return frozenset(job.claim for job in jobs if {job.id, job.claim} & self.lost)

    async def tell(self, job: Job, at: str) -> None:
        self._answer("tell", job.id, at)

    async def finish(self, job: Job, result: str, uri: str) -> bool:
        return self._answer("finish", job.id, result, uri)

    async def retry(self, job: Job, after_s: float, reason: str, message: str) -> bool:
        return self._answer("retry", job.id, after_s, reason, message)

    async def put_off(self, job: Job, after_s: float, why: str) -> bool:
        return self._answer("put_off", job.id, after_s, why)

    async def bury(self, job: Job, reason: str, message: str) -> bool:
        return self._answer("bury", job.id, reason, message)

    async def hand_back(self, job: Job) -> bool:
        return self._answer("hand_back", job.id)


def worker(bus: PlayedBus, run: Callable[[Work], Awaitable[Result]], **more: Any) -> TaskWorker:
    told = {"slots": 2, "limit_s": 60.0, "beat_s": 0.01, **more}
    return TaskWorker(bus, "light", "w1", run=run, draw=lambda: 1.0, **told)  # type: ignore[arg-type]


async def said_by(bus: PlayedBus, run: Callable[[Work], Awaitable[Result]], **more: Any) -> list[tuple[Any, ...]]:
    """What a worker says of all jobs of a bus."""
    ends: list[str] = []
    jobs = len(bus.jobs)
    made = worker(bus, run, told=lambda _, how: ends.append(how), **more)
    made.start()
    async with asyncio.timeout(20.0):
        while len(ends) < jobs:
            await asyncio.sleep(0.001)
    await made.stop(0.0)
    return bus.said


async def good(work: Work) -> Result:
    return Result('"ok"')


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What is waited while Redis is away; nothing is, really."""
    seen: list[float] = []
    sleep = asyncio.sleep

    async def at_once(pause_s: float) -> None:
        if pause_s >= 0.1:
            seen.append(pause_s)
        await sleep(0)

    monkeypatch.setattr(task_worker.asyncio, "sleep", at_once)
    return seen


async def test_a_result_is_stored() -> None:
    assert await said_by(PlayedBus(deque([job()])), good) == [("finish", "acme/t0", '"ok"', "")]


@pytest.mark.parametrize(
    ("attempts", "said"),
    [
        (1, ("retry", "acme/t0", 1.0, "failed", "no luck")),
        (2, ("retry", "acme/t0", 5.0, "failed", "no luck")),
        (3, ("retry", "acme/t0", 30.0, "failed", "no luck")),
        (4, ("bury", "acme/t0", "failed", "no luck")),
    ],
)
async def test_a_failure_is_tried_again_and_then_is_a_dead_letter(attempts: int, said: tuple[Any, ...]) -> None:
    async def fails(work: Work) -> Result:
        raise TaskFailed("no luck")

    assert await said_by(PlayedBus(deque([job(0, attempts)])), fails) == [said]


async def test_what_has_no_room_waits_outside_the_watchdog_and_costs_no_attempt(pauses: list[float]) -> None:
    async def full(work: Work) -> Result:
        raise NotNow("waits: batch_limit", 40.0)

    bus = PlayedBus(deque([job(0, 4)]))
    assert await said_by(bus, full, limit_s=1.0) == [("put_off", "acme/t0", 35.0, "waits: batch_limit")]
    assert pauses == [5.0]


async def test_what_would_fail_again_is_a_dead_letter_at_once() -> None:
    async def refused(work: Work) -> Result:
        raise TaskFailed("too long", final=True)

    assert await said_by(PlayedBus(deque([job()])), refused) == [("bury", "acme/t0", "refused", "too long")]


async def test_a_bug_is_told_by_its_name_alone() -> None:
    async def broken(work: Work) -> Result:
        raise KeyError("what the caller wrote")

    assert await said_by(PlayedBus(deque([job()])), broken) == [
        ("retry", "acme/t0", 1.0, "failed", "KeyError at: begun")
    ]


async def test_the_watchdog_ends_what_hangs_and_tells_where_it_was() -> None:
    async def hangs(work: Work) -> Result:
        await work.reached("page 3")
        await asyncio.Event().wait()
        raise AssertionError

    bus = PlayedBus(deque([job(0, 2)]))
    told, (*retry, said) = await said_by(bus, hangs, limit_s=0.05)
    assert told == ("tell", "acme/t0", "page 3")
    # Its snapshot is kept with the task, and the flow begins again.
    assert retry == ["retry", "acme/t0", 5.0, "timeout"]
    assert re.fullmatch(r"not done after 0\.05 s; attempt 2 was at: page 3, for \d+\.\d s", said)


async def test_a_snapshot_says_how_long_the_work_has_been_where_it_is() -> None:
    now_s = 10.0
    work = Work(job(0, 3), PlayedBus(), lambda: now_s)  # type: ignore[arg-type]
    now_s = 12.0
    assert work.snapshot() == "attempt 3 was at: begun, for 2.0 s"
    await work.reached("asked")
    now_s = 13.5
    assert work.snapshot() == "attempt 3 was at: asked, for 1.5 s"


async def test_a_task_that_hangs_does_not_hold_up_the_others() -> None:
    async def some_hang(work: Work) -> Result:
        if work.job.id == "acme/t0":
            await asyncio.Event().wait()
        return Result("1")

    bus = PlayedBus(deque([job(0), job(1), job(2)]))
    made = worker(bus, some_hang)
    made.start()
    async with asyncio.timeout(20.0):
        await bus.quiet.wait()
        while len(bus.said) < 2:
            await asyncio.sleep(0.001)
    assert [said[:2] for said in bus.said] == [("finish", "acme/t1"), ("finish", "acme/t2")]
    await made.stop(0.0)
    assert bus.said[2:] == [("hand_back", "acme/t0")]


async def test_a_worker_that_stops_lets_its_tasks_end_and_stores_them_once() -> None:
    go = asyncio.Event()

    async def waits(work: Work) -> Result:
        await go.wait()
        return Result("1")

    bus = PlayedBus(deque([job()]))
    made = worker(bus, waits)
    made.start()
    async with asyncio.timeout(20.0):
        await bus.quiet.wait()
    asyncio.get_running_loop().call_later(0.02, go.set)
    await made.stop(20.0)
    assert bus.said == [("finish", "acme/t0", "1", "")] and made.running == 0


async def test_work_at_a_task_that_is_no_longer_ours_ends() -> None:
    ended: list[str] = []

    async def hangs(work: Work) -> Result:
        bus.lost.add(work.job.id)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(work.job.id)
        raise AssertionError

    bus = PlayedBus(deque([job()]))
    assert await said_by(bus, hangs) == [] and ended == ["acme/t0"]


async def test_who_has_a_task_again_ends_only_his_first_work_at_it() -> None:
    go = asyncio.Event()

    async def waits(work: Work) -> Result:
        await go.wait()
        return Result(f'"{work.job.claim}"')

    bus, ends = PlayedBus(deque([job(), replace(job(), claim="again")])), []
    made = worker(bus, waits, told=lambda one, how: ends.append((one.claim, how)))
    made.start()
    async with asyncio.timeout(20.0):
        while made.running < 2:
            await asyncio.sleep(0.001)
        bus.lost.add("claim0")
        while not ends:
            await asyncio.sleep(0.001)
    go.set()
    await made.stop(20.0)
    assert ends == [("claim0", "lost"), ("again", "done")] and bus.said == [("finish", "acme/t0", '"again"', "")]


async def test_after_redis_failed_a_worker_beats_before_it_takes_tasks(pauses: list[float]) -> None:
    bus = PlayedBus(deque([job()]), away=1)
    made = worker(bus, good, beat_s=3600.0)
    beats = asyncio.create_task(made._take_on())
    async with asyncio.timeout(20.0):
        await bus.quiet.wait()
    beats.cancel()
    # Once to register, and once more after the claim that failed.
    assert bus.order[:3] == ["beat", "beat", "claim"]


async def test_a_claim_that_is_under_way_when_a_worker_stops_is_handed_back() -> None:
    bus = PlayedBus(deque([job()]))
    bus.lets_claim.clear()
    made = worker(bus, good)
    made.start()
    async with asyncio.timeout(20.0):
        await bus.claims.wait()
        stopping = asyncio.create_task(made.stop(20.0))
        await asyncio.sleep(0)
        bus.lets_claim.set()
        await stopping
    assert bus.said == [("hand_back", "acme/t0")]


async def test_a_worker_ends_though_its_redis_client_swallows_the_cancellation() -> None:
    class Swallowing(PlayedBus):
        async def wait(self, task_class: str, limit_s: float) -> None:
            self.quiet.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

        async def beat(self, *told: Any) -> frozenset[str]:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.001 if not self.quiet.is_set() else 3600.0)
            return frozenset()

    bus = Swallowing()
    made = worker(bus, good, beat_s=0.001)
    made.start()
    async with asyncio.timeout(20.0):
        await bus.quiet.wait()
        await asyncio.sleep(0.01)
        await made.stop(0.0)


async def test_slots_that_are_changed_are_used_at_once() -> None:
    async def hangs(work: Work) -> Result:
        await asyncio.Event().wait()
        raise AssertionError

    bus = PlayedBus(deque(job(n) for n in range(3)))
    made = worker(bus, hangs, slots=1)
    made.start()
    async with asyncio.timeout(20.0):
        while not made.running:
            await asyncio.sleep(0.001)
        made.resize(3)
        while made.running < 3:
            await asyncio.sleep(0.001)
    await made.stop(0.0)


async def test_an_end_is_said_until_redis_has_heard_it(pauses: list[float]) -> None:
    async def fails_while_redis_goes(work: Work) -> Result:
        bus.away = 5
        return Result("1")

    bus = PlayedBus(deque([job()]))
    bus.quiet.clear()
    assert await said_by(bus, fails_while_redis_goes) == [("finish", "acme/t0", "1", "")]
    assert len(pauses) >= 4


async def test_a_redis_that_is_away_is_asked_ever_less_often(pauses: list[float]) -> None:
    bus = PlayedBus(deque([job()]), away=6)
    assert await said_by(bus, good) == [("finish", "acme/t0", '"ok"', "")]
    assert pauses == [0.5, 1.0, 2.0, 2.0, 2.0, 2.0]


async def test_normal_tasks_have_their_turn() -> None:
    bus = PlayedBus(deque(job(n) for n in range(10)))
    await said_by(bus, good)
    assert bus.firsts[:10] == ["high"] * 4 + ["normal"] + ["high"] * 4 + ["normal"]


async def test_a_worker_whose_loop_ended_is_not_well() -> None:
    bus = PlayedBus()
    made = worker(bus, good)
    made.start()
    made.check()
    made._loops[1].cancel()
    await asyncio.wait([made._loops[1]])
    with pytest.raises(RuntimeError, match="has ended: cancelled"):
        made.check()
    await made.stop(0.0)
