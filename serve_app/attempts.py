"""One request at one target after the other until one gives a first token; then its frames as bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from typing import Final

from serve_app.core.retry import RetryBudget, next_attempt
from serve_app.core.snapshots import Target
from serve_app.core.table import Timeouts
from serve_app.outcomes import GrixError, Reason
from serve_app.ports import Accepted, AgentCall, Agents, Body, Clock, Failure, Frame, Head, RequestRecord, Tail

Stream = AsyncGenerator[Frame, None]
#: How long closing an abandoned call may take before it is left to its own cancellation.
CLOSE_LIMIT_S: Final = 1.0


@dataclass(slots=True)
class Started:
    """A call past its first token: the target that answers, its head, and the rest of its frames."""

    target: Target
    head: Head
    frames: Stream


def _raise(failure: Failure) -> None:
    raise GrixError(failure.reason, failure.message, param=failure.param, retry_after_s=failure.retry_after_s)


async def _next(frames: Stream, limit_s: float, late: Reason, message: str) -> Frame:
    """The next frame within ``limit_s``; the end of the stream here is a broken promise of the target."""
    try:
        async with asyncio.timeout(max(0.0, limit_s)):
            return await anext(frames)
    except TimeoutError:
        raise GrixError(late, message) from None
    except StopAsyncIteration:
        raise GrixError("upstream_failed", "The engine closed the call before it ended.") from None


async def close(frames: Stream) -> None:
    """Cancels a call; never waits longer than :data:`CLOSE_LIMIT_S` and never raises."""
    try:
        async with asyncio.timeout(CLOSE_LIMIT_S):
            await frames.aclose()
    except (TimeoutError, RuntimeError, GrixError):
        return


async def _begin(agents: Agents, target: Target, call: AgentCall, limits: Timeouts, left_s: float) -> Started:
    frames = agents.call(target, call)
    try:
        queue_s = min(limits.queue_s, left_s)
        frame = await _next(frames, queue_s, "queue_timeout", f"No engine was free within {queue_s:g} s.")
        if isinstance(frame, Accepted):
            byte_s = min(limits.first_byte_s, left_s)
            frame = await _next(frames, byte_s, "first_byte_timeout", f"No first token within {byte_s:g} s.")
        if not isinstance(frame, Head):
            raise GrixError("upstream_invalid", "The engine sent an answer without a head.")
        if frame.failure is not None:
            _raise(frame.failure)
        return Started(target, frame, frames)
    except BaseException:
        await close(frames)
        raise


@dataclass(slots=True)
class Attempts:
    """Tries targets in order, within limits and the retry budget. ``jitter`` draws from [0, 1)."""

    agents: Agents
    clock: Clock
    budget: RetryBudget
    jitter: Callable[[], float]

    async def start(
        self, order: tuple[Target, ...], call: AgentCall, limits: Timeouts, deadline_s: float, record: RequestRecord
    ) -> Started:
        """The first call that got to its first token.

        Raises:
            GrixError: of the last attempt, when no further one is allowed.
        """
        self.budget.earn()
        index, count = 0, 0
        while True:
            target, count = order[index], count + 1
            began_s = self.clock.now_s()
            left_s = deadline_s - began_s
            stamped = replace(call, target=target.id, release=target.release, enqueued_unix_s=self.clock.unix_s())
            try:
                started = await _begin(self.agents, target, stamped, limits, left_s)
            except GrixError as error:
                self._note(record, target, began_s, error.reason)
                again = next_attempt(error.reason, count, index, len(order))
                late = again is not None and self.clock.now_s() + again.backoff_s >= deadline_s
                if again is None or late or not self.budget.spend():
                    raise
                if again.backoff_s:
                    await self.clock.sleep(again.backoff_s * (1.0 + 0.2 * self.jitter()))
                index = again.index
            else:
                self._note(record, target, began_s, "started")
                return started

    def _note(self, record: RequestRecord, target: Target, began_s: float, result: str) -> None:
        took_ms = round((self.clock.now_s() - began_s) * 1000, 1)
        record.attempts.append({"target": target.id, "result": result, "ms": took_ms})


def error_json(error: GrixError) -> bytes:
    """The error envelope as a whole body."""
    return json.dumps(error.envelope(), ensure_ascii=False).encode()


def error_event(error: GrixError) -> bytes:
    """An in-band error: the last event of a stream that broke after its first token."""
    return b"data: " + error_json(error) + b"\n\n"


def read_tail(tail: Tail, record: RequestRecord) -> None:
    """Copies what the engine measured into the record."""
    record.outcome = tail.outcome
    record.finish_reason = tail.finish_reason
    record.queue_wait_ms = tail.queue_wait_ms
    record.first_token_ms = tail.first_token_ms
    if tail.usage is not None:
        record.prompt_tokens = tail.usage.prompt_tokens
        record.completion_tokens = tail.usage.completion_tokens


async def relay(
    started: Started, deadline_s: float, clock: Clock, record: RequestRecord
) -> AsyncGenerator[bytes, None]:
    """The bytes of a started call until its tail.

    Raises:
        GrixError: when the call ends without a tail, fails, or passes ``deadline_s``.
    """
    try:
        while True:
            left_s = deadline_s - clock.now_s()
            frame = await _next(started.frames, left_s, "total_timeout", "The answer took longer than its limit.")
            if isinstance(frame, Body):
                yield frame.data
            elif isinstance(frame, Tail):
                read_tail(frame, record)
                if frame.failure is not None:
                    _raise(frame.failure)
                return
            else:
                raise GrixError("upstream_invalid", "The engine sent a frame out of order.")
    finally:
        await close(started.frames)
