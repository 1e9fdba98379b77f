"""Tenant limits in the region's Redis, which its Routers share; without an answer each Router allows its part."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from serve_app.core.admission import Allowance, Ask, Left, Refused, Spent
from serve_app.edge.limit_scripts import ADMIT, BEAT, SETTLE
from serve_app.edge.limits import LocalLimits
from serve_app.edge.redis_calls import BACKGROUND_LIMIT_S, CALL_LIMIT_S
from serve_app.outcomes import Reason
from serve_app.ports import Grant

log = logging.getLogger("ray.serve")

BEAT_S: Final = 1.0
#: How often a Redis that is down is tried.
TRY_AGAIN_S: Final = 0.25
#: A Router that was silent for longer no longer counts.
ROUTER_COUNTS_S: Final = 5.0
#: A lease outlives its Router by at most this; leases of requests that run are renewed well before.
LEASE_S: Final = 30.0
RENEW_EVERY_BEATS: Final = 10
LAST_PART_S: Final = 0.01
#: What is waiting to be settled; what comes on top is left to expire.
MOST_UNSETTLED: Final = 10_000
CALLS_AT_ONCE: Final = 256
LEASES_AT_ONCE: Final = 1_000

_BUCKETS: Final[dict[str, Reason]] = {"requests": "requests_limit", "tokens": "tokens_limit"}
_DIGESTS: Final = {script: hashlib.sha1(script.encode()).hexdigest() for script in (ADMIT, SETTLE, BEAT)}
#: How often a task of a store that closes is cancelled before it is left alone.
CLOSE_TRIES: Final = 4
_FAILURES: Final = (TimeoutError, RedisError, OSError)


@dataclass(slots=True)
class _Call:
    """One script to run. ``answer`` is ``None`` for a settlement, which nobody waits for."""

    script: str
    keys: list[str]
    args: list[Any]
    answer: asyncio.Future[Any] | None = None


def _release(keys: list[str], grant_id: str) -> _Call:
    """Frees a grant's slots and gives nothing back: right however often it is done."""
    return _Call(SETTLE, keys, ["", "", 0, 0, grant_id])


class SharedLimits:
    """The Limits port over Redis. ``local`` counts this Router's requests, and decides while Redis is down.

    Calls of the same moment travel together over one connection: a burst costs Redis one round trip, not a connection
    for each request. It starts down: the first beat, a moment after the start, brings Redis in.
    """

    def __init__(self, client: Redis, region: str, local: LocalLimits) -> None:
        self._client = client
        self._local = local
        self._prefix = f"grix:{{{region}}}:limits"
        self._router = secrets.token_hex(8)
        self._calls: deque[_Call] = deque()
        self._later: deque[_Call] = deque(maxlen=MOST_UNSETTLED)
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._told_down = False
        self._closing = False
        self.up = False

    def start(self) -> None:
        """Begins to beat; on the loop that serves."""
        self._tasks = [asyncio.create_task(work) for work in (self._beat_on(), self._send_on())]

    async def close(self) -> None:
        """Stops; what is not settled by now expires."""
        self._closing, self.up = True, False
        pending = set(self._tasks)
        for _ in range(CLOSE_TRIES):
            for task in pending:
                task.cancel()
            if pending:
                # A cancellation that falls into a call to Redis may come out as that call's failure, and be lost.
                _, pending = await asyncio.wait(pending, timeout=BACKGROUND_LIMIT_S)
        self._fail(self._calls, ConnectionError("closed"))
        await self._client.aclose()

    def slot_free_s(self) -> float:
        return self._local.slot_free_s()

    async def admit(self, ask: Ask) -> Grant | Refused:
        if not self.up or not ask.is_limited:
            return await self._local.admit(ask)
        grant_id, keys = secrets.token_hex(8), self._keys(ask)
        args = [*_per_minute(ask), ask.tokens, grant_id, LEASE_S, *(s.limit for s in ask.slots)]
        call = _Call(ADMIT, keys, args, asyncio.get_running_loop().create_future())
        self._calls.append(call)
        self._wake.set()
        try:
            why, wait, *levels = await _in_time(call)
        except _FAILURES as error:
            self._lost(error)
            # It may have been done all the same: slots come back, tokens stay taken, which errs on the safe side.
            self._settle_later(_release(keys, grant_id))
            return await self._local.admit(ask)
        except asyncio.CancelledError:
            self._settle_later(_release(keys, grant_id))
            raise
        limits = (ask.requests_per_minute, ask.tokens_per_minute)
        left = Left(*(n and Allowance(n, float(level)) for n, level in zip(limits, levels, strict=True)))
        if why in _BUCKETS:
            return Refused(_BUCKETS[why], float(wait), left)
        if why:
            slot = ask.slots[int(why)]
            return Refused(slot.reason, self._local.slot_free_s() / slot.limit, left)
        return self._local.grant(ask, "region", grant_id, left)

    def settle(self, grant: Grant, spent: Spent) -> None:
        """Counted here at once, in Redis a moment later."""
        ask = grant.ask
        self._local.settle(grant, spent)
        if grant.decided_by == "region":
            back = [spent.requests_back, spent.tokens_back(ask)]
            self._settle_later(_Call(SETTLE, self._keys(ask), [*_per_minute(ask), *back, grant.id]))
        elif ask.slots:
            # Redis may have learnt of it when it came back.
            self._settle_later(_release(self._keys(ask), grant.id))

    def _keys(self, ask: Ask) -> list[str]:
        return [f"{self._prefix}:tenant:{ask.tenant}", *(self._slot_key(s.subject) for s in ask.slots)]

    def _slot_key(self, subject: str) -> str:
        # Sessions are named by callers: any text of any length, and not for whoever reads the keys of a Redis.
        return f"{self._prefix}:slots:{hashlib.sha256(subject.encode('utf-8', 'replace')).hexdigest()[:32]}"

    def _settle_later(self, call: _Call) -> None:
        self._later.append(call)
        self._wake.set()

    def _lost(self, error: BaseException) -> None:
        if self.up or not self._told_down:
            log.warning("Redis does not answer (%s): limits are divided by %d", type(error).__name__, self._local.share)
        self.up, self._told_down = False, True

    def _fail(self, calls: Iterable[_Call], error: BaseException) -> None:
        for call in calls:
            if call.answer is None:
                self._later.append(_release(call.keys, call.args[-1]))
            elif not call.answer.done():
                call.answer.set_exception(error)

    async def _send_on(self) -> None:
        while not self._closing:
            await self._wake.wait()
            self._wake.clear()
            while self.up and (self._calls or self._later):
                some = _taken(self._calls, self._later)
                try:
                    await self._send(some)
                except Exception as error:  # a fault of ours too must not leave requests waiting
                    self._told(error)
                    # A settlement that failed may have arrived: sent again, tokens would come back twice.
                    self._fail(some, error)
            if not self.up:
                self._fail(self._calls, ConnectionError("down"))
                self._calls.clear()

    async def _send(self, some: Sequence[_Call]) -> None:
        async with asyncio.timeout(BACKGROUND_LIMIT_S), self._client.pipeline(transaction=False) as pipe:
            for call in some:
                pipe.evalsha(_DIGESTS[call.script], len(call.keys), *call.keys, *call.args)
            results = await pipe.execute()
        for call, result in zip(some, results, strict=True):
            if call.answer is not None and not call.answer.done():
                call.answer.set_result(result)

    async def _beat_on(self) -> None:
        beats = 0
        while not self._closing:
            try:
                await self._one_beat(renew=beats % RENEW_EVERY_BEATS == 0)
            except Exception as error:  # a fault of ours too must not end the beat: leases would run out
                self._told(error)
            beats += 1
            await asyncio.sleep(BEAT_S if self.up else TRY_AGAIN_S)

    def _told(self, error: Exception) -> None:
        if not isinstance(error, _FAILURES):
            log.error("limits in Redis failed", exc_info=error)
        self._lost(error)

    async def _one_beat(self, *, renew: bool) -> None:
        """Says that this Router lives, learns how many do, and keeps the leases of what runs."""
        if not self.up:
            for script in _DIGESTS:
                async with asyncio.timeout(BACKGROUND_LIMIT_S):
                    await self._client.script_load(script)
        unknown, routers = await self._beat([], "XX")
        if unknown or not self.up:
            await self._beat_leases("")
        elif renew:
            await self._beat_leases("XX")
        # A Redis that is new has not heard of everybody by the first beat.
        self._local.share = max(1, routers, self._local.share if unknown else 1)
        if not self.up and not self._closing:
            self.up = True
            self._wake.set()
            log.info("Redis holds the limits of this region, for %d Routers", routers)

    async def _beat_leases(self, mode: str) -> None:
        leases = [(self._slot_key(s.subject), g.id) for g in self._local.live.values() for s in g.ask.slots]
        for first in range(0, len(leases), LEASES_AT_ONCE):
            await self._beat(leases[first : first + LEASES_AT_ONCE], mode)

    async def _beat(self, leases: Sequence[tuple[str, str]], mode: str) -> tuple[int, int]:
        keys = [f"{self._prefix}:routers", *(key for key, _ in leases)]
        args: list[Any] = [self._router, ROUTER_COUNTS_S, LEASE_S, mode, *(grant_id for _, grant_id in leases)]
        async with asyncio.timeout(BACKGROUND_LIMIT_S):
            unknown, routers = await cast(Any, self._client.evalsha(_DIGESTS[BEAT], len(keys), *keys, *args))
        return unknown, routers


def _per_minute(ask: Ask) -> list[int | str]:
    return [ask.requests_per_minute or "", ask.tokens_per_minute or ""]


def _taken(*queues: deque[_Call]) -> list[_Call]:
    """The next calls to travel together, of the first queue first."""
    return [queue.popleft() for queue in queues for _ in range(min(CALLS_AT_ONCE, len(queue)))]


async def _in_time(call: _Call) -> list[str]:
    """The answer to a call within :data:`CALL_LIMIT_S`.

    The last part of it is waited for apart: where this process itself stood still, the answer may have come meanwhile,
    and is read before Redis is called silent.
    """
    assert call.answer is not None
    for limit_s in (CALL_LIMIT_S - LAST_PART_S, LAST_PART_S):
        done, _ = await asyncio.wait({call.answer}, timeout=limit_s)
        if done:
            result = call.answer.result()
            if isinstance(result, BaseException):
                raise result
            return cast("list[str]", result)
    call.answer.cancel()
    raise TimeoutError
