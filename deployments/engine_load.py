"""The load of one engine as its replica reports it: what its users wait, and what the scheduler holds."""

from __future__ import annotations

from typing import Any, Protocol

from autoscale.latency_window import LatencyWindow, Reading
from serve_app.core.snapshots import Load
from serve_app.outcomes import STATUS
from serve_app.ports import Packet, Tail


class Call(Protocol):
    """What is seen of a call inside the engine; monotonic seconds, ``None``: not yet.

    ``sent_s`` is when the engine got it, as ``width`` requests of its own. ``begun``: it was seen to be scheduled.
    """

    begun: bool

    @property
    def entered_s(self) -> float: ...
    @property
    def sent_s(self) -> float | None: ...
    @property
    def scheduled_s(self) -> float | None: ...
    @property
    def first_token_s(self) -> float | None: ...
    @property
    def queue_until_s(self) -> float: ...
    @property
    def priority(self) -> int: ...
    @property
    def width(self) -> int: ...
    def give_up(self) -> None:
        """The engine was not free in time."""


class EngineLoad:
    """Fed by the calls of a replica and by its engine's steps."""

    def __init__(self) -> None:
        self._window = LatencyWindow()
        #: Calls that are not over, and those of them without a first token, by identity.
        self._calls: set[int] = set()
        self._early: dict[int, Call] = {}
        self._waiting: int | None = None
        self._running: int | None = None
        self._kv_cache_used_ratio: float | None = None
        self._stepped_s = 0.0

    def stepped(self, scheduler: Any, now_s: float) -> None:
        """The scheduler's numbers, told with each step of the engine."""
        self._give_up_late(scheduler.num_waiting_reqs + scheduler.num_skipped_waiting_reqs, now_s)
        self._waiting, self._running = scheduler.num_waiting_reqs, scheduler.num_running_reqs
        self._kv_cache_used_ratio = scheduler.kv_cache_usage

    def _give_up_late(self, waiting: int, now_s: float) -> None:
        """Ends calls that wait inside the engine for longer than their queue limit.

        When a call was scheduled, the engine tells with its first token, and a long prompt may take long until then.
        With each step it tells how many requests wait, and it takes them by priority, then as they came: of those it
        had before the step, the last ones are those that wait.
        """
        had = [c for c in self._early.values() if c.sent_s is not None and c.sent_s < self._stepped_s and not c.begun]
        self._stepped_s = now_s
        scheduled = sum(call.width for call in had) - waiting
        for call in sorted(had, key=lambda c: (-c.priority, c.sent_s)):
            if scheduled > 0:
                scheduled -= call.width
                call.begun = True
            elif call.scheduled_s is None and now_s > call.queue_until_s:
                self.left(call)
                call.give_up()

    def entered(self, call: Call) -> None:
        self._calls.add(id(call))
        self._early[id(call)] = call

    def heard(self, call: Call, packet: Packet, now_s: float) -> None:
        """What a call's next packet tells: its waits once they are known, and how it ended."""
        if call.first_token_s is not None and self._early.pop(id(call), None) is not None:
            if call.scheduled_s is not None:
                self._window.waited((call.scheduled_s - call.entered_s) * 1000, now_s)
            self._window.first_token((call.first_token_s - call.entered_s) * 1000, now_s)
        last = packet[-1]
        if isinstance(last, Tail):
            failed = last.failure is not None and STATUS[last.failure.reason].outcome == "failed"
            self._window.ended(now_s, failed=failed)

    def left(self, call: Call) -> None:
        """The call is over, however it ended."""
        self._calls.discard(id(call))
        self._early.pop(id(call), None)

    def read(self, now_s: float, *, idle: bool) -> Load:
        """The load now. ``idle``: the engine holds nothing, so that its last step tells no longer how it is."""
        reading = self._reading(now_s)
        return Load(
            queue_wait_p95_ms=reading.queue_wait_p95_ms,
            oldest_wait_ms=reading.oldest_wait_ms,
            waiting=0 if idle else self._waiting,
            running=0 if idle else self._running,
            kv_cache_used_ratio=0.0 if idle else self._kv_cache_used_ratio,
            first_token_p95_ms=reading.first_token_p95_ms,
            error_ratio=reading.error_ratio,
        )

    def for_scaling(self, now_s: float) -> dict[str, float]:
        """What Serve's autoscaler is told: names of ``ReplicaLoad``, and nothing of what is not known.

        Only calls count: an engine that is asked for its health has no work of users.
        """
        reading = self._reading(now_s)
        told = {
            "queue_wait_p50_ms": reading.queue_wait_p50_ms,
            "queue_wait_p95_ms": reading.queue_wait_p95_ms,
            "oldest_wait_ms": reading.oldest_wait_ms,
            "kv_cache_used_ratio": self._kv_cache_used_ratio if self._calls else 0.0,
            "ongoing_requests": float(len(self._calls)),
            "started_rps": reading.started_rps,
        }
        return {name: value for name, value in told.items() if value is not None}

    def _reading(self, now_s: float) -> Reading:
        waiting_since_s = [c.entered_s for c in self._early.values() if c.scheduled_s is None and not c.begun]
        return self._window.read(now_s, waiting_since_s)
