"""One worker of one class of tasks: takes them one by one into its slots, keeps its claims, and stores what comes out.

Whatever becomes of the work, and of Redis meanwhile, the worker goes on: what Redis did not take is said again until it
does, or until the claim is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from serve_app.core.tasks import DeadReason, TaskClass, looks_first_at, retry_after_s
from serve_app.edge.task_bus import BEAT_S, TaskBus
from serve_app.edge.task_jobs import Job, Nothing, NotRegistered
from serve_app.edge.task_store import FAILURES

log = logging.getLogger("ray.serve")

#: A worker that sleeps looks so often: a token of the bell may go to one that dies.
LOOK_S: Final = 1.0
FIRST_PAUSE_S: Final = 0.5
MOST_PAUSE_S: Final = 2.0
#: Work that is cancelled has so long to end, and a claim that is under way when the worker stops.
CANCEL_S: Final = 5.0
#: Who is told to come back keeps his slot for so long at most: a worker asks a region that is full no faster than that.
SLOT_WAITS_S: Final = 5.0
MESSAGE_CHARS: Final = 500


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, NotRegistered) else f"Redis does not answer ({type(error).__name__})"


class TaskFailed(Exception):
    """The work at a task failed. ``final``: another attempt would too."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message[:MESSAGE_CHARS])
        self.final = final


class NotNow(Exception):
    """There is no room for the work now. It is no attempt, and may be asked for again in ``after_s``."""

    def __init__(self, why: str, after_s: float) -> None:
        super().__init__(why)
        self.after_s = after_s


@dataclass(frozen=True, slots=True)
class Result:
    """What a task gave: JSON, or where it lies when it is large."""

    text: str
    uri: str = ""


@dataclass(slots=True)
class Work:
    """What a handler gets: the task, and a way to say how far it is."""

    job: Job
    _bus: TaskBus
    now_s: Callable[[], float] = time.monotonic
    #: Where the work is now, and since when: what is told of it when it takes too long.
    at: str = "begun"
    _since_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._since_s = self.now_s()

    def snapshot(self) -> str:
        """Where the work is, and how long it has been there."""
        return f"attempt {self.job.attempts} was at: {self.at}, for {self.now_s() - self._since_s:.1f} s"

    async def reached(self, at: str) -> None:
        """Says how far the work is, to those who watch it; not at any price."""
        self.at, self._since_s = at, self.now_s()
        try:
            await self._bus.tell(self.job, at)
        except FAILURES:
            log.info("task %s: its progress is not told, Redis is away", self.job.id)


@dataclass(slots=True)
class TaskWorker:
    """``run`` does the work. ``limit_s`` bounds it; ``draw`` is from [0, 1); ``told`` hears how each attempt ended.

    What ``run`` raises counts as a failed attempt, if it is no :class:`TaskFailed` with ``final``.
    """

    bus: TaskBus
    task_class: TaskClass
    owner: str
    slots: int
    run: Callable[[Work], Awaitable[Result]]
    limit_s: float
    draw: Callable[[], float]
    told: Callable[[Job, str], None] = lambda job, how: None
    beat_s: float = BEAT_S
    _jobs: dict[str, tuple[Job, asyncio.Task[str]]] = field(default_factory=dict)
    _free: asyncio.Event = field(default_factory=asyncio.Event)
    _loops: list[asyncio.Task[None]] = field(default_factory=list)
    _stopping: bool = False
    _beaten_last: bool = False
    _claiming: asyncio.Task[Job | Nothing] | None = None
    #: There was no beat yet, or Redis failed since the last one.
    _unheard: bool = True

    @property
    def running(self) -> int:
        return len(self._jobs)

    def start(self) -> None:
        """Begins; on the loop that works."""
        self._loops = [asyncio.create_task(self._take_on()), asyncio.create_task(self._beat_on())]

    def resize(self, slots: int) -> None:
        """Takes as many tasks at once from now on; what runs goes on."""
        self.slots = slots
        self._free.set()

    def check(self) -> None:
        """Raises RuntimeError when it works no more."""
        for loop in self._loops:
            if loop.done() and not self._stopping:
                why = "cancelled" if loop.cancelled() else repr(loop.exception())
                raise RuntimeError(f"a task worker has ended: {why}")

    async def stop(self, grace_s: float) -> None:
        """Takes nothing more, lets what runs end for ``grace_s``, and hands the rest back. It beats until then."""
        self._stopping = True
        self._loops[0].cancel()
        await self._let_claim_end()
        running = [task for _, task in self._jobs.values()]
        if running:
            await asyncio.wait(running, timeout=grace_s)
        left = [(job, task) for job, task in self._jobs.values() if not task.done()]
        for _, task in left:
            task.cancel()
        if left:
            await asyncio.wait([task for _, task in left], timeout=CANCEL_S)
        self._beaten_last = True
        self._loops[1].cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        for job, _ in left:
            try:
                await self.bus.hand_back(job)
            except FAILURES as error:
                log.warning("task %s is not handed back (%s): it is taken over", job.id, type(error).__name__)

    async def _let_claim_end(self) -> None:
        """What Redis gives away just now is handed back, instead of being taken over when the claim holds no more."""
        if self._claiming is None:
            return
        with contextlib.suppress(*FAILURES):
            async with asyncio.timeout(CANCEL_S):
                got = await self._claiming
                if isinstance(got, Job):
                    await self.bus.hand_back(got)

    async def _take_on(self) -> None:
        turn, pause_s = 0, 0.0
        # A client of Redis may swallow the cancellation.
        while not self._stopping:
            while len(self._jobs) >= self.slots:
                self._free.clear()
                await self._free.wait()
            try:
                if self._unheard:
                    # Who claims has registered. What this worker holds may have been silent for too long: nobody
                    # takes over from himself.
                    await self._beat()
                claiming = self._claiming = asyncio.create_task(
                    self.bus.claim(self.task_class, self.owner, looks_first_at(turn))
                )
                got = await asyncio.shield(claiming)
                self._claiming = None
                if isinstance(got, Nothing):
                    due_s = LOOK_S if got.due_s is None else got.due_s
                    await self.bus.wait(self.task_class, min(LOOK_S, max(0.01, due_s)))
            except FAILURES as error:
                self._claiming, self._unheard = None, True
                if not pause_s:
                    log.warning("no tasks are taken: %s", _why(error))
                pause_s = await self._pause(pause_s)
                continue
            pause_s = 0.0
            if isinstance(got, Job):
                turn += 1
                work = asyncio.create_task(self._attempt(got))
                self._jobs[got.claim] = (got, work)
                work.add_done_callback(functools.partial(self._ended, got))

    async def _beat_on(self) -> None:
        while not self._beaten_last:
            try:
                await self._beat()
            except FAILURES as error:
                self._unheard = True
                log.info("claims are not renewed: %s", _why(error))
            await asyncio.sleep(self.beat_s)

    async def _beat(self) -> None:
        gone = await self.bus.beat(self.task_class, self.owner, self.slots, [job for job, _ in self._jobs.values()])
        self._unheard = False
        for claim, (_, task) in list(self._jobs.items()):
            if claim in gone:
                task.cancel()

    def _ended(self, job: Job, work: asyncio.Task[str]) -> None:
        del self._jobs[job.claim]
        self._free.set()
        self.told(job, "lost" if work.cancelled() else work.result())

    async def _attempt(self, job: Job) -> str:
        work = Work(job, self.bus)
        try:
            async with asyncio.timeout(self.limit_s):
                result = await self.run(work)
        except NotNow as wait:
            return await self._put_off(job, str(wait), wait.after_s)
        except TaskFailed as error:
            return await self._failed(job, "refused" if error.final else "failed", str(error), final=error.final)
        except TimeoutError:
            said = f"not done after {self.limit_s:g} s; {work.snapshot()}"
            log.warning("task %s is begun again: %s", job.id, said)
            return await self._failed(job, "timeout", said)
        except Exception as error:
            log.exception("task %s failed", job.id)
            return await self._failed(job, "failed", f"{type(error).__name__} at: {work.at}")
        kept = await self._insist(lambda: self.bus.finish(job, result.text, result.uri))
        return "done" if kept else "lost"

    async def _put_off(self, job: Job, why: str, after_s: float) -> str:
        """Waits outside the watchdog, first in the slot, then among those that are tried again."""
        here_s = min(after_s, SLOT_WAITS_S)
        await asyncio.sleep(here_s)
        kept = await self._insist(lambda: self.bus.put_off(job, after_s - here_s, why))
        return "put_off" if kept else "lost"

    async def _failed(self, job: Job, reason: DeadReason, message: str, *, final: bool = False) -> str:
        after_s = None if final else retry_after_s(job.attempts)
        if after_s is None:
            kept = await self._insist(lambda: self.bus.bury(job, reason, message))
            return reason if kept else "lost"
        kept = await self._insist(lambda: self.bus.retry(job, after_s, reason, message))
        return "retried" if kept else "lost"

    async def _insist(self, say: Callable[[], Awaitable[bool]]) -> Any:
        """Says it until Redis has heard it."""
        pause_s = 0.0
        while True:
            try:
                return await say()
            except FAILURES as error:
                if not pause_s:
                    log.warning("the end of a task is not stored yet: %s", type(error).__name__)
                pause_s = await self._pause(pause_s)

    async def _pause(self, before_s: float) -> float:
        """Waits twice as long as before; workers that lost their Redis together do not come back together."""
        pause_s = min(MOST_PAUSE_S, 2 * before_s) or FIRST_PAUSE_S
        await asyncio.sleep(pause_s * (0.5 + self.draw() / 2))
        return pause_s
