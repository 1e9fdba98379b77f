"""The start of a replica's engine: limited in time, in its turn on this machine, warm at its end, told when it fails.

Serve sends a replica nothing before its ``__init__`` has ended, and starts another one when that raises. So all of
this happens there.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, Protocol

from deployments.guard import Threads, waits
from deployments.region_handle import RegionAway, RegionHandle
from deployments.replicas import own_settings
from serve_app.core.reports import FRESH_S, FailedStart, StartStage
from serve_app.core.warm_up import Norm, Round, judge
from serve_app.edge.agent_app import RESOURCES_VARIABLE, THREADS_VARIABLE, start_limits
from serve_app.edge.start_turns import StartTurns, starts_at_once, starts_folder, turns_folder
from serve_app.ports import AgentCall, Head, Kind, Packet, Tail

log = logging.getLogger("ray.serve")

#: What a round asks: two short questions and a longer text.
SHORT: Final = ("Hello", "Where is my order?")
LONG_WORDS: Final = 256
#: The longer text leaves most of a small context free.
CONTEXT_PER_WORD: Final = 8
ANSWER_TOKENS: Final = 2
#: A start that hangs where nothing can interrupt it is killed so much later than one that can say why it failed.
LAST_WORDS_S: Final = 10.0
_DOING: Final[dict[StartStage, str]] = {
    "fetch": "fetching the model",
    "turn": "waiting for another engine's start on this machine",
    "load": "loading",
    "warm_up": "warming up",
}


class StartFailed(Exception):
    """This replica cannot serve; the message says why, on one line."""


class Region(Protocol):
    """Who is told."""

    async def ask(self, method: str, *args: Any, limit_s: float) -> Any: ...


class Engine(Protocol):
    """What is called, as users' calls are; ``kind`` is what it takes, whatever its model is."""

    @property
    def kind(self) -> Kind: ...
    @property
    def max_model_len(self) -> int: ...
    def call(self, call: AgentCall) -> AsyncGenerator[Packet, None]: ...


def speed_key(engine_digest: str, environment: Mapping[str, str]) -> str:
    """The same for engines of one machine that are as fast as each other.

    That is what they run, on how many threads or on GPUs, and what else they are given: slots, tensor parallelism, ...
    """
    on = f"{environment.get('OMP_NUM_THREADS')} threads" if THREADS_VARIABLE in environment else "GPUs"
    told = f"{engine_digest} {on} {environment.get(RESOURCES_VARIABLE, '')}"
    return hashlib.sha256(told.encode()).hexdigest()


class EngineStart:
    """One start. ``limit_s`` is for all of it, ``first_token_s`` what callers may wait for a first token."""

    def __init__(
        self,
        report: FailedStart,
        speed: str,
        *,
        limit_s: float,
        first_token_s: float,
        turns: StartTurns,
        region: Region,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``report`` has the names of what would fail, ``speed`` is a :func:`speed_key`."""
        self._report, self._speed = report, speed
        self.limit_s, self._first_token_s = limit_s, first_token_s
        self._turns, self._region, self._now_s = turns, region, now_s
        self._began_s = now_s()
        self._stage: StartStage = "fetch"
        #: What the last round of the warm-up showed.
        self.warmth = ""

    @classmethod
    def of_this_replica(cls, speed: str) -> EngineStart:
        """The start of the replica that this process is, with its settings."""
        app, replica, settings = own_settings()
        limit_s, first_token_s = start_limits(settings)
        return cls(
            FailedStart(app, replica, "fetch", ""),
            speed,
            limit_s=limit_s,
            first_token_s=first_token_s,
            turns=StartTurns(turns_folder(), starts_folder(), starts_at_once()),
            region=RegionHandle(),
        )

    @property
    def left_s(self) -> float:
        """Seconds until the limit."""
        return max(0.0, self._began_s + self.limit_s - self._now_s())

    @asynccontextmanager
    async def told(self) -> AsyncIterator[None]:
        """The whole start. What fails in it is told to the log and the RegionAgent.

        Raises:
            StartFailed: with the reason; Serve shows it, and starts another replica.
        """
        try:
            async with asyncio.timeout(self.left_s) as limit:
                yield
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            why = lines[-1][-500:]
            if isinstance(error, TimeoutError) and limit.expired():
                said = f": {self.warmth}" if self.warmth else ""
                why = f"not ready after {self.limit_s:g} s, still {_DOING[self._stage]}{said}"
            log.error("replica %s of %s cannot start: %s", self._report.replica, self._report.app, why)
            failed = FailedStart(self._report.app, self._report.replica, self._stage, why)
            with contextlib.suppress(RegionAway):
                await self._region.ask("push_failed_start", failed, limit_s=FRESH_S)
            raise StartFailed(f"{self._report.app} cannot start a replica: {why}") from error

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Its turn to load the engine and to warm it up."""
        self._stage = "turn"
        async with self._turns.held(f"replica {self._report.replica} of {self._report.app}"):
            self._stage = "load"
            yield

    async def warm_up(self, engine: Engine, threads: Callable[[], Threads]) -> None:
        """Sends rounds of small calls until the engine is warm. ``threads`` are the engine's, as they are now.

        Raises:
            StartFailed: it never gets so, or answers with an error.
        """
        self._stage = "warm_up"
        norm = Norm(self._first_token_s * 1000, self._turns.usual_ms(self._speed))
        began_s, rounds, seen = self._now_s(), list[Round](), threads()
        while True:
            round_s, before = self._now_s(), seen
            slowest_ms = await self._round_ms(engine, len(rounds))
            took_s, seen = self._now_s() - round_s, threads()
            had = waits(before, seen, took_s)
            rounds.append(Round(slowest_ms, took_s, had.ran_s, had.waited_s))
            warm_up = judge(rounds, norm, self._now_s() - began_s)
            self.warmth = warm_up.shown
            if warm_up.verdict == "never":
                raise StartFailed(f"the engine does not get warm: {warm_up.shown}")
            if warm_up.verdict == "warm":
                break
        self._turns.keep_usual_ms(self._speed, min(one.slowest_ms for one in rounds))

    async def _round_ms(self, engine: Engine, number: int) -> float:
        """The slowest first token of a round; a prompt begins anew in each, or the prefix cache would answer."""
        long = "word " * min(LONG_WORDS, engine.max_model_len // CONTEXT_PER_WORD)
        texts = [f"{number}. {text}" for text in (*SHORT, long)]
        return max([await self._first_token_ms(engine, text) for text in texts])

    async def _first_token_ms(self, engine: Engine, text: str) -> float:
        """``inf`` where none came in the time that callers have."""
        body = {"messages": [{"role": "user", "content": text}]} if engine.kind == "chat" else {"prompt": text}
        body |= {"temperature": 0}
        name = f"warm-up-{time.monotonic_ns()}"
        call = AgentCall(name, engine.kind, self._report.app, body, True, ANSWER_TOKENS, priority=0)
        began_s, first_s = self._now_s(), math.inf
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._first_token_s), aclosing(engine.call(call)) as packets:
                async for packet in packets:
                    if any(isinstance(frame, Head) for frame in packet):
                        first_s = self._now_s()
                    last = packet[-1]
                    if isinstance(last, Tail) and last.failure is not None:
                        raise StartFailed(f"the engine fails a small call: {last.failure.message}")
        return (first_s - began_s) * 1000
