"""Sessions in the region's Redis, which its Routers share: language, picks, agents, and turns of those that ask for it.

Two keys a session, named by a digest: a hash (``language``, ``held`` with an agent and a number of turns, and
``pick:<agent>`` with a region) and, for server-side history, a hash of the packed turns and their number. Both live for
:data:`TTL_S` after the last request.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, Literal

from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError, ResponseError

from serve_app.core.sessions import TTL_S, Held, History, Store, Turn, add_turn, merge, pack, unpack
from serve_app.edge.local_sessions import LocalSessions
from serve_app.edge.redis_calls import BACKGROUND_LIMIT_S, FAILURES, Command, RedisCalls
from serve_app.ports import Opened

log = logging.getLogger("ray.serve")

Op = Literal["open", "pick", "write"]
#: ``gone``: no answer in time. ``full``: refused for want of memory. ``late``: too much waits to be written.
Why = Literal["gone", "full", "late", "refused"]

#: Writes that wait; what comes on top is not written.
MOST_WRITES: Final = 10_000
#: How often a write is made again on what came in between: more than requests of one session run at once.
WRITE_TRIES: Final = 20

#: KEYS: the session. ARGV: field, the value the caller saw ('' is none), its wish, TTL in seconds. Answers what stands.
_KEEP_PICK: Final = """
local stands = redis.call('HGET', KEYS[1], ARGV[1])
if stands and stands ~= ARGV[2] then return stands end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
return ARGV[3]
"""

#: KEYS: the session, its turns. ARGV: TTL in seconds, HSET or HSETNX, a language and what is held ('' is none). A full
#: Redis lengthens lives all the same; these come first, as a script that has written once is no longer refused.
_TOUCH: Final = """
local done = 0
if ARGV[3] ~= '' then done = redis.pcall(ARGV[2], KEYS[1], 'language', ARGV[3]) end
if ARGV[4] ~= '' then done = redis.pcall('HSET', KEYS[1], 'held', ARGV[4]) end
redis.call('EXPIRE', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[1])
return done
"""

#: KEYS: the turns. ARGV: their number that the caller saw, then what to write: number, packed, TTL in seconds. Answers
#: nothing, or number and packed turns that stand instead.
_WRITE_TURNS: Final = """
local stands = redis.call('HMGET', KEYS[1], 'count', 'packed')
if (stands[1] or '0') ~= ARGV[1] then return stands end
redis.call('HSET', KEYS[1], 'count', ARGV[2], 'packed', ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
return false
"""


class RedisSessions:
    """The Sessions port over Redis. ``local`` keeps languages for the time when Redis is away.

    ``failed`` is told of each operation that Redis did not do. A Redis that is full can be read: sessions that are
    there go on, and answers say ``degraded`` until something new is written again.
    """

    def __init__(self, client: Redis, region: str, local: LocalSessions, failed: Callable[[Op, Why], None]) -> None:
        self._calls = RedisCalls(client, "sessions")
        self._prefix = f"grix:{{{region}}}:session"
        self._local = local
        self._failed = failed
        self._writes: set[asyncio.Task[None]] = set()
        self._full = False

    @property
    def up(self) -> bool:
        return self._calls.up

    def start(self) -> None:
        """Begins; on the loop that serves."""
        self._calls.start()

    async def close(self) -> None:
        """Stops; what is not written by now is lost."""
        await self._calls.close()
        for task in self._writes:
            task.cancel()

    async def open(self, key: str, *, history: bool) -> Opened:
        session, turns = self._keys(key)
        commands: list[Command] = [("HGETALL", session)]
        if history:
            commands.append(("HMGET", turns, "count", "packed"))
        try:
            plain, *more = await self._calls.ask(commands)
        except FAILURES as error:
            self._count("open", error)
            return self._local.opened(key)
        picks = {name.removeprefix("pick:"): region for name, region in plain.items() if name.startswith("pick:")}
        language = plain.get("language") or self._local.opened(key).language
        history = _history(*more[0]) if more else History()
        return Opened(key, language, picks, history, self._store(), _held(plain.get("held", "")))

    async def keep_pick(self, opened: Opened, agent: str, region: str) -> Opened:
        if opened.store == "off":
            return opened
        session, _ = self._keys(opened.key)
        wish = ("EVAL", _KEEP_PICK, 1, session, f"pick:{agent}", opened.picks.get(agent, ""), region, int(TTL_S))
        try:
            (stands,) = await self._calls.ask([wish])
        except FAILURES as error:
            self._count("pick", error)
            return replace(opened, store="degraded" if isinstance(error, ResponseError) else "off")
        self._full = self._full and stands != region
        return replace(opened, picks={**opened.picks, agent: stands}, store=self._store())

    def remember(
        self, opened: Opened, language: str | None, turn: Turn | None = None, held: Held | None = None
    ) -> None:
        self._local.remember(opened, language)
        is_new = language != opened.language or opened.store == "off"
        is_other = held is not None and held != opened.held
        self._later(self._touch(opened.key, language if is_new else None, "HSET", held if is_other else None))
        if turn is not None:
            self._later(self._write_turns(opened.key, opened.history, lambda h: add_turn(h, turn.user, turn.answer)))

    def take_over(self, key: str, packed: bytes) -> None:
        """Keeps what another region carried over, unless this one has heard more. What is no carry is left out."""
        carried = unpack(packed)
        if carried is None:
            log.warning("a session's carry of %d bytes cannot be read; it is left out", len(packed))
            return
        self._later(self._touch(key, carried.language, "HSETNX"))
        if carried.history.count:
            self._later(self._write_turns(key, History(), lambda own: merge(own, carried.history)))

    def _keys(self, key: str) -> tuple[str, str]:
        # Sessions are named by callers: any text of any length, and not for whoever reads the keys of a Redis.
        digest = hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:32]
        return f"{self._prefix}:{digest}", f"{self._prefix}:{digest}:turns"

    def _store(self) -> Store:
        return "degraded" if self._full else "kept"

    def _count(self, op: Op, error: BaseException) -> None:
        why: Why = "gone"
        if isinstance(error, OutOfMemoryError):
            why, self._full = "full", True
        elif isinstance(error, ResponseError):
            why = "refused"
            log.error("Redis refused to %s a session: %s", op, error)
        self._failed(op, why)

    def _later(self, write: Coroutine[Any, Any, None]) -> None:
        """Makes a write that nobody waits for."""
        if len(self._writes) >= MOST_WRITES:
            write.close()
            self._failed("write", "late")
            return
        task = asyncio.create_task(self._written(write))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _written(self, write: Coroutine[Any, Any, None]) -> None:
        try:
            await write
        except FAILURES as error:
            self._count("write", error)

    async def _touch(
        self, key: str, language: str | None, how: Literal["HSET", "HSETNX"], held: Held | None = None
    ) -> None:
        """Lengthens a session's life, and writes its language and what it holds where that is new."""
        told = "" if held is None else f"{held.agent} {held.weaker_turns}"
        touch = ("EVAL", _TOUCH, 2, *self._keys(key), int(TTL_S), how, language or "", told)
        await self._calls.ask([touch], BACKGROUND_LIMIT_S)
        self._full = self._full and language is None and held is None

    async def _write_turns(self, key: str, seen: History, change: Callable[[History], History]) -> None:
        """Writes a changed history over the one that was seen; where another request was first, over that one."""
        _, turns = self._keys(key)
        for _ in range(WRITE_TRIES):
            new = change(seen)
            if new == seen:
                return
            write = ("EVAL", _WRITE_TURNS, 1, turns, str(seen.count), str(new.count), pack(new), int(TTL_S))
            (stands,) = await self._calls.ask([write], BACKGROUND_LIMIT_S)
            if stands is None:
                self._full = False
                return
            seen = _history(*stands)
        self._failed("write", "late")


def _history(count: str | None, packed: str | None) -> History:
    """The turns that Redis holds. What this version cannot read counts, so that it is written over."""
    found = unpack(packed.encode()) if packed is not None else None
    return History(int(count or 0)) if found is None else found.history


def _held(told: str) -> Held | None:
    """What Redis holds of a session's agent; what this version cannot read is nothing."""
    agent, _, turns = told.partition(" ")
    return Held(agent, int(turns)) if agent and turns.isascii() and turns.isdigit() else None
