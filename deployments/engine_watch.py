"""The end of a replica whose engine is of no more use: its calls fail, its processes die, and Serve starts another."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final, Protocol

from deployments.guard import Process, Threads, kill, waits
from serve_app.core.health import FRESH_S, EngineView, Stillness, judge
from serve_app.outcomes import STATUS, Reason
from serve_app.ports import Failure, Head, Packet, Tail

log = logging.getLogger("ray.serve")

#: How often the engine is looked at, and the guard told that this process runs.
LOOK_S: Final = 0.25
#: What calls have to tell their failure to a Router before the process ends; without it Routers see a dead actor.
LAST_WORDS_S: Final = 0.5
ENGINE_LOST_EXIT: Final = 70
#: Calls that fail one after the other, without a good one in between, until the engine is of no use: one that makes
#: tokens when it is asked for one may still break each call. All of one prompt it is the prompt that is broken, and the
#: next replica would go the same way.
MOST_FAILED_IN_A_ROW: Final = 5
#: What a call gets whose engine died, stands still, or breaks every call.
LOST: Final = Failure("replica_lost", "The engine that ran this request was lost.")


class Engine(Protocol):
    """What is seen and asked of an engine."""

    @property
    def dead(self) -> bool: ...
    @property
    def unfinished(self) -> int: ...
    @property
    def moves(self) -> int: ...
    @property
    def last_token_s(self) -> float: ...
    @property
    def longest_prefill_s(self) -> float: ...
    def fail(self) -> None: ...
    async def probe(self, limit_s: float) -> bool: ...


class Keeper(Protocol):
    """The guard, as far as a watch needs it."""

    def beat(self) -> None: ...
    def engine(self) -> set[Process]: ...
    def threads(self) -> Threads: ...


class EngineWatch:
    """Looks at the engine of a replica. ``exit_process`` ends the process at once, without waiting for anything.

    Serve's own way would be slow: three failed health checks, and then a graceful stop that waits for the running
    calls, which a frozen engine never ends, as long as an answer may take.
    """

    def __init__(
        self, agent: str, engine: Engine, guard: Keeper, exit_process: Callable[[int], object] = os._exit
    ) -> None:
        self._agent, self._engine, self._guard, self._exit = agent, engine, guard, exit_process
        self.stall_after_s = 3.0
        self.fresh_s = FRESH_S
        # An engine that was warmed up has made tokens.
        self._proven = True
        self._proving: asyncio.Task[bool] | None = None
        #: Set when this replica has to end, and has a moment left to say so.
        self.ending = asyncio.Event()
        self._stillness = Stillness(time.monotonic())
        #: The engine's threads at the last look, while it does not move.
        self._threads: Threads = {}
        self._failed_in_a_row = 0
        #: Hashes of what they were asked.
        self._failed_prompts: set[int] = set()

    @property
    def _breaks_calls(self) -> bool:
        return self._failed_in_a_row >= MOST_FAILED_IN_A_ROW and len(self._failed_prompts) > 1

    async def counted(self, packets: AsyncGenerator[Packet, None], prompt: object) -> AsyncGenerator[Packet, None]:
        """The packets of a call, which count how calls end; an engine that broke too many gets no more of them.

        What is the caller's fault, was refused, or was left says nothing of the engine.
        """
        async with aclosing(packets):
            if self._breaks_calls:
                yield Head(failure=LOST), Tail("failed", failure=LOST)
                return
            try:
                async for packet in packets:
                    last = packet[-1]
                    if isinstance(last, Tail):
                        self._ended(last.failure.reason if last.failure is not None else None, prompt)
                    yield packet
            except Exception:
                self._ended("internal", prompt)
                raise

    def _ended(self, reason: Reason | None, prompt: object) -> None:
        if reason is None:
            self._failed_in_a_row = 0
            self._failed_prompts.clear()
        elif STATUS[reason].outcome == "failed":
            was_useless = self._breaks_calls
            self._failed_in_a_row += 1
            self._failed_prompts.add(hash(repr(prompt)))
            if self._breaks_calls and not was_useless:
                log.error("the engine of %s broke %d calls one after the other", self._agent, self._failed_in_a_row)
            elif self._failed_in_a_row == MOST_FAILED_IN_A_ROW:
                log.error("one prompt broke %d calls of %s one after the other", MOST_FAILED_IN_A_ROW, self._agent)

    def _view(self, now_s: float) -> EngineView:
        return EngineView(
            now_s=now_s,
            last_token_s=self._engine.last_token_s,
            still_s=self._stillness.still_s,
            longest_prefill_s=self._engine.longest_prefill_s,
            stall_after_s=self.stall_after_s,
            idle=self._engine.unfinished == 0,
            fresh_s=self.fresh_s,
        )

    def look(self, now_s: float) -> str | None:
        """Why this replica has to end, or ``None``."""
        if self._engine.dead:
            return "died"
        moves, busy = self._engine.moves, self._engine.unfinished > 0
        before, self._threads = self._threads, {}
        if busy and moves == self._stillness.moves:
            self._threads = self._guard.threads()
        waited_s = waits(before, self._threads, now_s - self._stillness.looked_s).longest_s
        self._stillness.look(now_s, moves, busy=busy, waited_s=waited_s)
        if judge(self._view(now_s)) == "stalled":
            return f"has {self._engine.unfinished} requests and gave no token for {self._stillness.still_s:.1f} s"
        return None

    async def run(self) -> None:
        """Looks until the replica has to end, then ends it."""
        while (why := self.look(time.monotonic())) is None:
            self._guard.beat()
            await asyncio.sleep(LOOK_S)
        log.error("the engine of %s %s; this replica ends", self._agent, why)
        self._engine.fail()
        self.ending.set()
        kill(self._guard.engine())
        await asyncio.sleep(LAST_WORDS_S)
        self._exit(ENGINE_LOST_EXIT)

    async def proof(self) -> bool:
        """Whether the engine makes tokens: recent ones, else one asked for now. Tokens of broken calls are none.

        Of an idle engine tokens are recent for longer, so one that froze without work may still be proven for 10 s.
        One that is full of work may have no place for what is asked, and one on a busy machine no processor: what is
        late has not failed, unless the engine stands still.
        """
        if self._breaks_calls:
            return False
        view = self._view(time.monotonic())
        verdict = "stalled" if self._engine.dead else judge(view)
        if verdict == "ask" and not await self._engine.probe(view.stall_limit_s):
            verdict = "stalled" if self._engine.dead else judge(self._view(time.monotonic()))
        return verdict != "stalled"

    async def proven(self, wait_s: float) -> bool:
        """How the last proof went, where the next one takes longer than ``wait_s``: what is late has not failed."""
        if self.ending.is_set():
            return False
        if self._proving is None:
            self._proving = asyncio.create_task(self.proof())
        # Whoever else waits for the same proof may end before this one.
        proving = self._proving
        done, _ = await asyncio.wait({proving}, timeout=wait_s)
        if done and proving is self._proving:
            self._proven, self._proving = proving.exception() is None and proving.result(), None
        return self._proven
