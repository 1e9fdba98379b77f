"""A call that has said something: its frames as bytes for the client, to the end or to an error in their midst."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from serve_app.core.openings import Fault, find_error
from serve_app.core.snapshots import Target
from serve_app.outcomes import GrixError, Reason
from serve_app.ports import Body, Clock, Failure, Frame, Head, RequestRecord, Tail, Targets

Stream = AsyncGenerator[Frame, None]
#: How long closing an abandoned call may take before it is left to its own cancellation.
CLOSE_LIMIT_S: Final = 1.0


@dataclass(slots=True)
class Started:
    """A call that has said something: the target that answers, its head, and what is still to come.

    ``held`` is what was read to be sure of that: the opening of a stream, or an unstreamed answer whole, then with its
    ``tail``. ``began_s`` is when the call began, ``head_s`` when the head came.
    """

    target: Target
    head: Head
    frames: Stream
    began_s: float = 0.0
    head_s: float = 0.0
    held: bytes = b""
    tail: Tail | None = None


def raise_failure(failure: Failure | Fault) -> None:
    """The failure as the error it is."""
    if isinstance(failure, Fault):
        raise GrixError(failure.reason, failure.message)
    raise GrixError(failure.reason, failure.message, param=failure.param, retry_after_s=failure.retry_after_s)


async def next_frame(frames: Stream, limit_s: float, late: Reason, message: str) -> Frame:
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
    started: Started, deadline_s: float, clock: Clock, record: RequestRecord, targets: Targets
) -> AsyncGenerator[bytes, None]:
    """The bytes of a started call until its tail; the target hears of a failure, and that the call has ended.

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
                late = "The answer took longer than its limit."
                frame = await next_frame(started.frames, left_s, "total_timeout", late)
            if isinstance(frame, Body):
                found = find_error(frame.data)
                if found is not None:
                    where, fault = found
                    if where:
                        yield frame.data[:where]
                    raise_failure(fault)
                yield frame.data
            elif isinstance(frame, Tail):
                read_tail(frame, record)
                if frame.failure is not None:
                    raise_failure(frame.failure)
                return
            else:
                raise GrixError("upstream_invalid", "The engine sent a frame out of order.")
    except GrixError as error:
        if targets.failed(started.target, "call", error.reason, started.began_s, clock.now_s()) is not None:
            record.tripped.append(started.target.region)
        raise
    finally:
        targets.ended(started.target)
        await close(started.frames)
