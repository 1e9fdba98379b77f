"""One request at one target after the other, until one says something."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from typing import Final

from serve_app.core.breaker import Entry
from serve_app.core.openings import MOST_HELD_BYTES, Fault, judge_end, judge_opening, judge_whole
from serve_app.core.retry import REFUSED_THERE, RetryBudget, next_attempt
from serve_app.core.snapshots import Target
from serve_app.core.table import Timeouts
from serve_app.outcomes import GrixError, Reason
from serve_app.ports import (
    Accepted,
    AgentCall,
    Agents,
    Body,
    Clock,
    Frame,
    Head,
    Origin,
    RequestRecord,
    Tail,
    Targets,
)
from serve_app.relay import Started, Stream, close, next_frame, raise_failure, relay

#: This region's gateway keeps the second that a peer has for admitting a call. Who waits for longer waits for the
#: gateway itself, and that is no fault of the peer.
GATEWAY_LIMIT_S: Final = 2.0
#: Of the time for a first byte, what a request gives a target that has to prove itself, if another could answer it.
PROBE_SHARE: Final = 1 / 3


async def _until(frames: Stream, limit_s: float, left_s: float, late: Reason, message: str) -> Frame:
    """The next frame within a limit of its own, or the request's whole one where that ends first."""
    if left_s < limit_s:
        said = "The request reached its total limit before an answer."
        return await next_frame(frames, left_s, "total_timeout", said)
    return await next_frame(frames, limit_s, late, message)


@dataclass(frozen=True, slots=True)
class _Patience:
    """How long one attempt may take to be accepted, then to its head, and what it is when it is not accepted.

    ``queue_s`` is what the engine gets until it schedules the call: what waits inside it is no failure of its.
    """

    queue_s: float
    accepted_s: float
    head_s: float
    late: Reason
    said: str


def _patience(target: Target, here: str | None, limits: Timeouts, *, is_spared: bool) -> _Patience:
    """A peer accepts when it has admitted the call, and keeps the limit of its queue itself.

    ``is_spared``: the target has to prove itself, and another one could answer.
    """
    queue_s = limits.queue_s
    share = PROBE_SHARE if is_spared else 1.0
    byte_s, engine_s = limits.first_byte_s * share, queue_s * share
    if target.region == here:
        return _Patience(engine_s, queue_s, byte_s, "queue_timeout", f"No engine was free within {queue_s:g} s.")
    said = f"Region {target.region} cannot be reached: this region's gateway said nothing for {GATEWAY_LIMIT_S:g} s."
    return _Patience(engine_s, GATEWAY_LIMIT_S, byte_s if is_spared else queue_s + byte_s, "no_target", said)


async def _begin(
    agents: Agents, target: Target, call: AgentCall, patience: _Patience, deadline_s: float, clock: Clock
) -> Started:
    """The call as far as its head."""
    began_s, frames = clock.now_s(), agents.call(target, call)
    try:
        left_s = deadline_s - clock.now_s()
        frame = await _until(frames, patience.accepted_s, left_s, patience.late, patience.said)
        if isinstance(frame, Accepted):
            left_s = deadline_s - clock.now_s()
            message = f"No first token within {patience.head_s:g} s."
            frame = await _until(frames, patience.head_s, left_s, "first_byte_timeout", message)
        if not isinstance(frame, Head):
            raise GrixError("upstream_invalid", "The engine sent an answer without a head.")
        if frame.failure is not None:
            raise_failure(frame.failure)
        return Started(target, frame, frames, began_s, clock.now_s())
    except BaseException:
        await close(frames)
        raise


async def _hear(started: Started, stream: bool, deadline_s: float, clock: Clock) -> None:
    """Reads until the answer has said something: a stream its first event with content, another its end.

    A head alone is no answer: what follows may be an error, no choices, or nothing. The client has no byte yet, so
    another target may still answer it. A role alone is not content; it waits for the event after it.
    """
    try:
        await _opened(started, stream, deadline_s, clock)
    except BaseException:
        await close(started.frames)
        raise


async def _opened(started: Started, stream: bool, deadline_s: float, clock: Clock) -> None:
    parts: list[bytes] = []
    while True:
        left_s = deadline_s - clock.now_s()
        frame = await next_frame(started.frames, left_s, "total_timeout", "The answer took longer than its limit.")
        if isinstance(frame, Tail):
            if frame.failure is not None:
                raise_failure(frame.failure)
            started.held, started.tail = b"".join(parts), frame
            fault = judge_end(started.held) if stream else judge_whole(started.held)
            if fault is not None:
                raise_failure(fault)
            return
        if not isinstance(frame, Body):
            raise GrixError("upstream_invalid", "The engine sent a frame out of order.")
        parts.append(frame.data)
        # An event ends with a line end: bytes that come one by one are not judged one by one.
        if stream and (b"\n" in frame.data or b"\r" in frame.data or len(frame.data) >= MOST_HELD_BYTES):
            verdict = judge_opening(b"".join(parts))
            if isinstance(verdict, Fault):
                raise_failure(verdict)
            if verdict == "good":
                started.held = b"".join(parts)
                return


@dataclass(frozen=True, slots=True)
class _Errand:
    """What all attempts of one request share. ``failed`` are the ids of targets that it has failed at."""

    call: AgentCall
    origin: Origin | None
    limits: Timeouts
    deadline_s: float
    record: RequestRecord
    failed: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Attempts:
    """Tries targets in order, within limits and the retry budget. ``jitter`` draws from [0, 1)."""

    agents: Agents
    clock: Clock
    budget: RetryBudget
    jitter: Callable[[], float]
    targets: Targets

    async def start(
        self,
        order: tuple[Target, ...],
        call: AgentCall,
        limits: Timeouts,
        deadline_s: float,
        record: RequestRecord,
        origin: Origin | None = None,
    ) -> Started:
        """The first call that said something. ``origin`` goes along to other regions than the record's.

        A target that told when to come back is asked again then, as long as that is within the time a request may
        wait for an engine.

        Raises:
            GrixError: of the last attempt, when no further one is allowed, with the soonest time to come back.
        """
        self.budget.earn()
        errand = _Errand(call, origin, limits, deadline_s, record)
        index, count = 0, 0
        queue_until_s = self.clock.now_s() + limits.queue_s
        hints: list[float] = []
        last: GrixError | None = None
        while True:
            entry = self.targets.begin(order[index], self.clock.now_s())
            if entry is None and index + 1 < len(order):
                index += 1
                continue
            if entry is None:
                raise last or self._left_alone(order)
            count += 1
            spared = entry == "probe" and index + 1 < len(order)
            patience = _patience(order[index], record.region, limits, is_spared=spared)
            try:
                return await self._attempt(order[index], entry, patience, errand)
            except GrixError as error:
                if error.retry_after_s is not None:
                    hints.append(error.retry_after_s)
                away = order[index].region != record.region
                again = next_attempt(error.reason, count, index, len(order), error.retry_after_s, is_away=away)
                wait_s = again.backoff_s * (1.0 + 0.2 * self.jitter()) if again is not None else 0.0
                until_s = deadline_s if error.reason != "overloaded" else min(deadline_s, queue_until_s)
                late = self.clock.now_s() + wait_s >= until_s
                # What another region alone refuses is not what this request failed of.
                last = last if last is not None and error.reason in REFUSED_THERE else error
                last.retry_after_s = min(hints, default=None)
                if again is None or late or not (again.is_free or self.budget.spend()):
                    raise last from None
                if wait_s:
                    await self.clock.sleep(wait_s)
                index = again.index

    async def _attempt(self, target: Target, entry: Entry, patience: _Patience, errand: _Errand) -> Started:
        """One call, and what it says about its target."""
        record, origin = errand.record, errand.origin
        began_s = self.clock.now_s()
        if origin is not None:
            left_s = max(0.0, errand.deadline_s - began_s)
            origin = replace(origin, deadline_s=left_s, queue_s=min(patience.queue_s, left_s))
        if target.region == record.region:
            origin = None
        stamped = replace(
            errand.call,
            target=target.id,
            release=target.release,
            enqueued_unix_s=self.clock.unix_s(),
            queue_s=patience.queue_s,
            origin=origin,
        )
        try:
            started = await _begin(self.agents, target, stamped, patience, errand.deadline_s, self.clock)
            if entry == "probe" and not errand.call.stream:
                # With its first token it has proven itself; the others need not wait for the whole answer.
                self.targets.succeeded(target, entry, self.clock.now_s())
                entry = "call"
            await _hear(started, errand.call.stream, errand.deadline_s, self.clock)
        except GrixError as error:
            # One request that is tried again and again says no more about a target than one failure does.
            if entry == "probe" or target.id not in errand.failed:
                errand.failed.add(target.id)
                if self.targets.failed(target, entry, error.reason, began_s, self.clock.now_s()) is not None:
                    record.tripped.append(target.region)
            self.targets.ended(target)
            self._note(record, target, began_s, error.reason)
            raise
        except BaseException:
            self.targets.left(target, entry)
            self.targets.ended(target)
            raise
        self.targets.succeeded(target, entry, self.clock.now_s())
        self._note(record, target, began_s, "started")
        return started

    def relay(self, started: Started, deadline_s: float, record: RequestRecord) -> AsyncGenerator[bytes, None]:
        """The bytes of a started call until its tail, which has to be read or closed. Raises as :func:`relay`."""
        return relay(started, deadline_s, self.clock, record, self.targets)

    def _left_alone(self, order: tuple[Target, ...]) -> GrixError:
        wait_s = self.targets.recover_s(order, self.clock.now_s())
        message = "Whoever could answer has failed too often, and is left alone for a while."
        return GrixError("no_target", message, retry_after_s=wait_s)

    def _note(self, record: RequestRecord, target: Target, began_s: float, result: str) -> None:
        took_ms = round((self.clock.now_s() - began_s) * 1000, 1)
        record.attempts.append({"target": target.id, "result": result, "ms": took_ms})
