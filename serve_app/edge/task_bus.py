"""The task bus of a region, in its Redis. Every step is one script, so that it happens whole or not at all.

All keys begin with ``grix:{REGION}:tasks``:

* ``:t:ID`` hash, a task: what was asked, its state, who works at it (``owner``) under which ``claim``, its result;
* ``:q:CLASS:PRIORITY`` stream, tasks that wait or run, an entry each with its id, removed when it ends; read by one
  consumer group, whose pending entries are what runs: renewing a claim resets an entry's idle time, and an entry that
  is idle for :data:`CLAIM_HOLDS_S` is taken over;
* ``:later`` sorted set, tasks that are tried again, by when (ms of Redis's clock);
* ``:parts:ID`` list, of a task in parts, their ids in the order of their results;
* ``:live`` sorted set, tasks that have not ended, by when they came;
* ``:done`` and ``:dead`` sorted sets, tasks that ended and dead letters, by when; the oldest are forgotten;
* ``:held`` hash, counters: ``live``, ``live/TENANT``, ``live_bytes``, ``live_bytes/TENANT``, ``done_bytes``,
  ``dead_bytes``;
* ``:buried`` hash, dead letters so far by ``CLASS/REASON``;
* ``:e:ID`` stream, what happened to a task, the last 256 events;
* ``:bell:CLASS`` list, one token a task that came, for workers that sleep;
* ``:workers:CLASS`` sorted set, workers by their last beat, and ``:w:OWNER`` hash, what each one carries;
* ``:gate`` string, what a worker's token has to hash to;
* ``:at:ID`` string, the region that a task was sent to and a nonce; ``:sent:TENANT`` sorted set, a tenant's of them.

A result is stored in the step that takes the task out of its stream. A worker whose claim was lost, because it was
silent or its task was cancelled, can store nothing. So a task may run more than once, and has one result.

A task without the seal of :mod:`serve_app.edge.task_seals` is a dead letter instead of being run.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Sequence
from typing import Any, Final, cast

from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError

from serve_app.core.tasks import (
    MOST_ATTEMPTS,
    DeadReason,
    NewParts,
    NewTask,
    Priority,
    Sent,
    State,
    Submitted,
    TaskClass,
)
from serve_app.edge import task_scripts, task_side_scripts
from serve_app.edge.task_jobs import Bounds, Job, Nothing
from serve_app.edge.task_seals import Seals
from serve_app.edge.task_store import READ_LIMIT_S, WORKER_COUNTS_S, TaskStore

log = logging.getLogger("ray.serve")

#: A worker that was silent for so long has lost its tasks; it beats every :data:`BEAT_S`.
CLAIM_HOLDS_S: Final = 30.0
BEAT_S: Final = 5.0

_SCRIPTS: Final = {
    "SUBMIT": task_scripts.SUBMIT,
    "CLAIM": task_scripts.CLAIM,
    "END": task_scripts.END,
    "FAN_OUT": task_side_scripts.FAN_OUT,
    "BEAT": task_side_scripts.BEAT,
    "TELL": task_side_scripts.TELL,
    "CANCEL": task_side_scripts.CANCEL,
    "DEAD": task_side_scripts.DEAD,
    "STATS": task_side_scripts.STATS,
    "SEND": task_side_scripts.SEND,
    "UNSEND": task_side_scripts.UNSEND,
}


def _sealed(task: NewTask | Job) -> tuple[str, str, str, str, str]:
    """What of a task its seal is of."""
    return task.id, task.tenant, task.task_class, task.priority, task.input


def _digest(*texts: str) -> str:
    """What tells one task from another that has its id."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


class TaskBus(TaskStore):
    """One region's tasks. Every method raises one of :data:`FAILURES` while Redis is away."""

    def __init__(
        self,
        client: Redis,
        region: str,
        seals: Seals,
        *,
        bounds: Bounds | None = None,
        claim_holds_s: float = CLAIM_HOLDS_S,
        read_limit_s: float = READ_LIMIT_S,
    ) -> None:
        super().__init__(client, region, _SCRIPTS, read_limit_s)
        self._seals = seals
        self._bounds = bounds or Bounds()
        self._holds_ms = int(claim_holds_s * 1000)

    async def submit(self, task: NewTask) -> Submitted:
        asked = _sealed(task)
        marks = self._seals.of(*asked), self._seals.gate
        return await self._submitted("SUBMIT", *asked, _digest(task.priority, task.input), *self._limits(), *marks)

    async def fan_out(self, task: NewParts) -> Submitted:
        """Submits a task in parts: all of them, or none."""
        digest = _digest(task.priority, *(text for part in task.parts for text in (part.id, part.input)))
        seals = [self._seals.of(*_sealed(part)) for part in task.parts]
        sealed = zip(task.parts, seals, strict=True)
        parts = [text for part, seal in sealed for text in (part.id, part.task_class, part.input, seal)]
        asked = (task.id, task.tenant, task.priority, digest, *self._limits(), self._seals.gate)
        return await self._submitted("FAN_OUT", *asked, *parts)

    def _limits(self) -> tuple[int, int, int]:
        return self._bounds.tasks, self._bounds.tasks_of_tenant, self._bounds.input_bytes

    async def _submitted(self, script: str, *args: str | int) -> Submitted:
        try:
            how, state = await self._run(script, *args)
        except OutOfMemoryError:
            return Submitted("full", None)
        return Submitted("elsewhere", None, state) if how == "elsewhere" else Submitted(how, state or None)

    async def send(self, task_id: str, tenant: str, region: str) -> Sent:
        """Notes that a task goes to another region; where it is, if it was noted before or is here.

        A tenant's oldest notes make room for its new ones. One is kept as long as a dead letter.
        """
        nonce, bounds = secrets.token_hex(8), self._bounds
        kept = int(bounds.dead_ttl_s * 1000), bounds.results
        how, at = await self._run("SEND", task_id, tenant, region, nonce, *kept)
        return Sent(at or None, how == "new", nonce)

    async def unsend(self, task_id: str, tenant: str, sent: Sent) -> None:
        """Takes a note back, unless the task was sent again meanwhile."""
        await self._run("UNSEND", task_id, tenant, sent.nonce)

    async def claim(self, task_class: TaskClass, owner: str, first: Priority) -> Job | Nothing:
        """A task to work at: one whose worker was lost, else the next of ``first``, else of the other priority.

        Raises:
            NotRegistered: for a worker that has not beaten lately, or is not of this region.
        """
        bounds, claim = self._bounds, secrets.token_hex(8)
        kept = (bounds.results, int(bounds.result_ttl_s * 1000), bounds.result_bytes)
        dead = (bounds.dead, int(bounds.dead_ttl_s * 1000), bounds.dead_bytes)
        second: Priority = "normal" if first == "high" else "high"
        order = (first, second, MOST_ATTEMPTS, *kept, *dead, self._seals.worker_token)
        while True:
            got, seal = await self._claimed(task_class, owner, claim, order)
            if isinstance(got, Nothing) or self._seals.fits(seal, *_sealed(got)):
                return got
            log.error("task %a is not run: its seal is not of this region", got.id[:80])
            await self.bury(got, "bad_payload", "its seal is not of this region: whoever put it there has no secret")

    async def _claimed(
        self, task_class: TaskClass, owner: str, claim: str, order: Sequence[str | int]
    ) -> tuple[Job | Nothing, str]:
        """The next task and its seal, whoever put it there."""
        task_id, ms, *flat = await self._run("CLAIM", task_class, owner, claim, self._holds_ms, *order)
        if not task_id:
            return Nothing(None if ms < 0 else ms / 1000), ""
        row = dict(zip(flat[::2], flat[1::2], strict=True))
        silent_s = None if ms < 0 else ms / 1000
        attempts = int(row["attempts"])
        job = Job(task_id, claim, row["tenant"], task_class, row["priority"], row["input"], attempts, silent_s)
        return job, row.get("seal", "")

    async def wait(self, task_class: TaskClass, limit_s: float) -> None:
        """Returns when a task may have come, at the latest after ``limit_s``."""
        await cast(Any, self._client.blpop([f"{self._prefix}:bell:{task_class}"], timeout=limit_s))

    async def finish(self, job: Job, result: str, uri: str = "") -> bool:
        """Stores the result, and takes the task from its stream; ``False``: the claim was lost, nothing is stored."""
        return bool(await self._run("END", job.id, job.claim, "done", result, uri) != "lost")

    async def retry(self, job: Job, after_s: float, reason: DeadReason, message: str) -> bool:
        told = (int(after_s * 1000), reason, message)
        return bool(await self._run("END", job.id, job.claim, "later", *told) != "lost")

    async def put_off(self, job: Job, after_s: float, why: str) -> bool:
        """Tries it again, as if this had been no attempt."""
        return bool(await self._run("END", job.id, job.claim, "later", int(after_s * 1000), "", why) != "lost")

    async def bury(self, job: Job, reason: DeadReason, message: str) -> bool:
        """Makes it a dead letter."""
        return bool(await self._run("END", job.id, job.claim, "dead", reason, message) != "lost")

    async def hand_back(self, job: Job) -> bool:
        """Gives a task to the next worker, as if it had not been taken."""
        return bool(await self._run("END", job.id, job.claim, "back", self._holds_ms) != "lost")

    async def beat(self, task_class: TaskClass, owner: str, slots: int, jobs: Sequence[Job]) -> frozenset[str]:
        """Registers a worker for a while, and renews its claims; the claims that it has lost.

        Raises:
            NotRegistered: when it has not the token of this region.
        """
        claims = [part for job in jobs for part in (job.id, job.claim)]
        told = (task_class, owner, len(jobs), slots, int(WORKER_COUNTS_S), self._seals.worker_token)
        return frozenset(await self._run("BEAT", *told, *claims))

    async def tell(self, job: Job, progress: str) -> None:
        """Tells those who watch the task."""
        await self._run("TELL", job.id, job.claim, progress)

    async def cancel(self, task_id: str) -> State | None:
        """The state it has then; ``None``: there is no such task. Work at it is lost at its next beat."""
        state: State | None = await self._run("CANCEL", task_id)
        return state

    async def replay(self, task_id: str) -> bool:
        """Makes a dead letter a task again; not what never was one."""
        return bool(await self._run("DEAD", task_id, "replay"))

    async def drop(self, task_id: str) -> bool:
        return bool(await self._run("DEAD", task_id, "drop"))
