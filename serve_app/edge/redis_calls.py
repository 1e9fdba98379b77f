"""Commands to a region's Redis that travel together, within a time limit; a Redis that is away is asked by nobody."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from serve_app.edge.redis_client import WAIT_LIMIT_S

log = logging.getLogger("ray.serve")

#: A request waits this long for Redis; without an answer it is away until a ping comes through.
CALL_LIMIT_S: Final = 0.05
#: The same for calls that no request waits for: a process that stood still for a moment has not lost its Redis.
BACKGROUND_LIMIT_S: Final = WAIT_LIMIT_S
#: How often a Redis that is away is tried.
TRY_AGAIN_S: Final = 0.25
LAST_PART_S: Final = 0.01
CALLS_AT_ONCE: Final = 256
#: How often the task of calls that end is cancelled before it is left alone.
CLOSE_TRIES: Final = 4
FAILURES: Final = (TimeoutError, RedisError, OSError)

Command = tuple[str | bytes | float, ...]


@dataclass(slots=True)
class _Call:
    commands: Sequence[Command]
    answer: asyncio.Future[list[Any]]


class RedisCalls:
    """Calls of the same moment go over one connection: a burst costs Redis one round trip.

    It starts down: the first ping, a moment after the start, brings Redis in. ``what`` is what the log says is kept in
    this Redis.
    """

    def __init__(self, client: Redis, what: str) -> None:
        self._client = client
        self._what = what
        self._calls: deque[_Call] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._told_down = False
        self._closing = False
        self.up = False

    def start(self) -> None:
        """Begins; on the loop that serves."""
        self._task = asyncio.create_task(self._send_on())

    async def close(self) -> None:
        self._closing, self.up = True, False
        for _ in range(CLOSE_TRIES):
            if self._task is not None and not self._task.done():
                self._task.cancel()
                # A cancellation that falls into a call to Redis may come out as that call's failure, and be lost.
                await asyncio.wait({self._task}, timeout=BACKGROUND_LIMIT_S)
        self._fail(self._calls, ConnectionError("closed"))
        await self._client.aclose()

    async def ask(self, commands: Sequence[Command], limit_s: float | None = None) -> list[Any]:
        """The answers to some commands, each a value.

        Args:
            limit_s: :data:`CALL_LIMIT_S` unless nobody waits.

        Raises:
            ResponseError: what Redis says to a command it does not do.
            OSError, TimeoutError, RedisError: Redis is away.
        """
        if not self.up:
            raise ConnectionError("down")
        call = _Call(commands, asyncio.get_running_loop().create_future())
        self._calls.append(call)
        self._wake.set()
        try:
            answers = await _in_time(call.answer, CALL_LIMIT_S if limit_s is None else limit_s)
        except FAILURES as error:
            self._lost(error)
            raise
        for answer in answers:
            if isinstance(answer, ResponseError):
                raise answer
        return answers

    def _lost(self, error: BaseException) -> None:
        if self.up or not self._told_down:
            log.warning("Redis does not answer (%s): no %s", type(error).__name__, self._what)
        self.up, self._told_down = False, True
        self._wake.set()

    def _fail(self, calls: deque[_Call] | list[_Call], error: BaseException) -> None:
        for call in calls:
            if not call.answer.done():
                call.answer.set_exception(error)

    async def _send_on(self) -> None:
        while not self._closing:
            if not self.up:
                self._fail(self._calls, ConnectionError("down"))
                self._calls.clear()
                if self._told_down:
                    await asyncio.sleep(TRY_AGAIN_S)
                await self._come_back()
                continue
            await self._wake.wait()
            self._wake.clear()
            while self.up and self._calls:
                some = [self._calls.popleft() for _ in range(min(CALLS_AT_ONCE, len(self._calls)))]
                try:
                    await self._send(some)
                except Exception as error:  # a fault of ours too must not leave requests waiting
                    self._told(error)
                    self._fail(some, error)

    async def _send(self, some: list[_Call]) -> None:
        async with asyncio.timeout(BACKGROUND_LIMIT_S), self._client.pipeline(transaction=False) as pipe:
            for call in some:
                for command in call.commands:
                    pipe.execute_command(*command)
            results = iter(await pipe.execute(raise_on_error=False))
        for call in some:
            answers = [next(results) for _ in call.commands]
            if not call.answer.done():
                call.answer.set_result(answers)

    async def _come_back(self) -> None:
        try:
            async with asyncio.timeout(BACKGROUND_LIMIT_S):
                await cast(Any, self._client.ping())
        except Exception as error:  # a fault of ours too must not end the trying
            self._told(error)
            return
        if not self._closing:
            self.up = True
            log.info("Redis holds the %s of this region", self._what)

    def _told(self, error: Exception) -> None:
        if not isinstance(error, FAILURES):
            log.error("a call to Redis failed", exc_info=error)
        self._lost(error)


async def _in_time(answer: asyncio.Future[list[Any]], limit_s: float) -> list[Any]:
    """An answer within a limit.

    The last part of it is waited for apart: where this process itself stood still, the answer may have come meanwhile,
    and is read before Redis is called silent.
    """
    try:
        for part_s in (limit_s - LAST_PART_S, LAST_PART_S):
            done, _ = await asyncio.wait({answer}, timeout=part_s)
            if done:
                return answer.result()
        raise TimeoutError
    finally:
        answer.cancel()
