"""One request at one target after the other until one gives a first token; then its frames as bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from typing import Final

from serve_app.core.openings import MOST_HELD_BYTES, Fault, find_error, judge_end, judge_opening, judge_whole
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
    """A call that has said something: the target that answers, its head, and what is still to come.

    ``held`` is what was read to be sure of that: the opening of a stream, or an unstreamed answer whole, then with its
    ``tail``. ``head_s`` is when the head came.
    """

    target: Target
    head: Head
    frames: Stream
    head_s: float = 0.0
    held: bytes = b""
    tail: Tail | None = None


def _raise(failure: Failure | Fault) -> None:
    if isinstance(failure, Fault):
        raise GrixError(failure.reason, failure.message)
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


async def _until(frames: Stream, limit_s: float, left_s: float, late: Reason, message: str) -> Frame:
    """The next frame within a limit of its own, or the request's whole one where that ends first."""
    if left_s < limit_s:
        return await _next(frames, left_s, "total_timeout", "The request reached its total limit before an answer.")
    return await _next(frames, limit_s, late, message)


async def _begin(
    agents: Agents, target: Target, call: AgentCall, limits: Timeouts, deadline_s: float, clock: Clock
) -> Started:
    frames = agents.call(target, call)
    try:
        queue_s, byte_s = limits.queue_s, limits.first_byte_s
        left_s = deadline_s - clock.now_s()
        frame = await _until(frames, queue_s, left_s, "queue_timeout", f"No engine was free within {queue_s:g} s.")
        if isinstance(frame, Accepted):
            left_s = deadline_s - clock.now_s()
            message = f"No first token within {byte_s:g} s."
            frame = await _until(frames, byte_s, left_s, "first_byte_timeout", message)
        if not isinstance(frame, Head):
            raise GrixError("upstream_invalid", "The engine sent an answer without a head.")
        if frame.failure is not None:
            _raise(frame.failure)
        started = Started(target, frame, frames, clock.now_s())
        await _hear(started, call.stream, deadline_s, clock)
        return started
    except BaseException:
        await close(frames)
        raise


async def _hear(started: Started, stream: bool, deadline_s: float, clock: Clock) -> None:
    """Reads until the answer has said something: a stream its first event with content, another its end.

    A head alone proves nothing: what follows may be an error, no choices, or nothing. The client has no byte yet, so
    another target may still answer it. A role alone is not content; it waits for the event after it.
    """
    parts: list[bytes] = []
    while True:
        left_s = deadline_s - clock.now_s()
        frame = await _next(started.frames, left_s, "total_timeout", "The answer took longer than its limit.")
        if isinstance(frame, Tail):
            if frame.failure is not None:
                _raise(frame.failure)
            started.held, started.tail = b"".join(parts), frame
            fault = judge_end(started.held) if stream else judge_whole(started.held)
            if fault is not None:
                _raise(fault)
            return
        if not isinstance(frame, Body):
            raise GrixError("upstream_invalid", "The engine sent a frame out of order.")
        parts.append(frame.data)
        # An event ends with a line end: bytes that come one by one are not judged one by one.
        if stream and (b"\n" in frame.data or b"\r" in frame.data or len(frame.data) >= MOST_HELD_BYTES):
            verdict = judge_opening(b"".join(parts))
            if isinstance(verdict, Fault):
                _raise(verdict)
            if verdict == "good":
                started.held = b"".join(parts)
                return


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
        """The first call that said something.

        A target that told when to come back is asked again then, as long as that is within the time a request may
        wait for an engine.

        Raises:
            GrixError: of the last attempt, when no further one is allowed, with the soonest time to come back.
        """
        self.budget.earn()
        index, count = 0, 0
        queue_until_s = self.clock.now_s() + limits.queue_s
        hints: list[float] = []
        while True:
            target, count = order[index], count + 1
            began_s = self.clock.now_s()
            stamped = replace(call, target=target.id, release=target.release, enqueued_unix_s=self.clock.unix_s())
            try:
                started = await _begin(self.agents, target, stamped, limits, deadline_s, self.clock)
            except GrixError as error:
                self._note(record, target, began_s, error.reason)
                if error.retry_after_s is not None:
                    hints.append(error.retry_after_s)
                again = next_attempt(error.reason, count, index, len(order), error.retry_after_s)
                wait_s = again.backoff_s * (1.0 + 0.2 * self.jitter()) if again is not None else 0.0
                until_s = deadline_s if error.reason != "overloaded" else min(deadline_s, queue_until_s)
                late = self.clock.now_s() + wait_s >= until_s
                if again is None or late or not self.budget.spend():
                    error.retry_after_s = min(hints, default=None)
                    raise
                if wait_s:
                    await self.clock.sleep(wait_s)
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
        ahead: list[Frame] = [Body(started.held)] if started.held else []
        if started.tail is not None:
            ahead.append(started.tail)
        while True:
            if ahead:
                frame = ahead.pop(0)
            else:
                left_s = deadline_s - clock.now_s()
                frame = await _next(started.frames, left_s, "total_timeout", "The answer took longer than its limit.")
            if isinstance(frame, Body):
                found = find_error(frame.data)
                if found is not None:
                    where, fault = found
                    if where:
                        yield frame.data[:where]
                    _raise(fault)
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
