"""One replica of the autoscaling benchmark: what it is, what runs in it, and what it tells."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from math import ceil
from typing import Final

from autoscale.latency_window import WINDOW_S

#: Of the queue waits that are compared with the target, as in the trigger itself.
PERCENTILE: Final = 0.95
NEVER_S: Final = float("inf")

Job = tuple[float, float, float]  # sent at, seconds of prompt, seconds of answer


@dataclass(frozen=True, slots=True)
class Engine:
    """A replica of a model with 14.8 B parameters in 8 bits on one GPU of 48 GB, by data sheet, not as measured.

    14.8 GB of weights and the cache of 16 conversations, read at 0.86 TB/s, and 5 ms of overhead are 27 ms a token;
    733 TFLOPS, used by four tenths, are 10,000 tokens of prompts a second.
    """

    slots: int = 16
    admitted: int = 64
    prefill_tokens_s: float = 10_000.0
    decode_tokens_s: float = 37.0
    start_s: float = 60.0
    give_up_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Report:
    """What one replica told, by the names that production tells it by."""

    queue_wait_p50_ms: float | None
    queue_wait_p95_ms: float | None
    oldest_wait_ms: float
    started_rps: float
    ongoing_requests: float


class Waits:
    """The window of queue waits that :class:`LatencyWindow` is, kept in order: a day reads it a million times."""

    __slots__ = ("_by_time", "_ordered", "_untold")

    def __init__(self) -> None:
        #: Waits are known with the first token; (when, ms).
        self._untold: deque[tuple[float, float]] = deque()
        self._by_time: deque[tuple[float, float]] = deque()
        self._ordered: list[float] = []

    def waited(self, ms: float, told_s: float) -> None:
        """Told later, in the order of ``told_s``."""
        self._untold.append((told_s, ms))

    def read(self, now_s: float) -> tuple[float | None, float | None, int]:
        """Median, 95th percentile and number of the waits of the window that ends now."""
        untold, by_time, ordered = self._untold, self._by_time, self._ordered
        while untold and untold[0][0] <= now_s:
            by_time.append(untold[0])
            insort(ordered, untold.popleft()[1])
        while by_time and now_s - by_time[0][0] > WINDOW_S:
            del ordered[bisect_left(ordered, by_time.popleft()[1])]
        many = len(ordered)
        if not many:
            return None, None, 0
        return ordered[ceil(0.5 * many) - 1], ordered[ceil(PERCENTILE * many) - 1], many


class Replica:
    """One engine. An answer ends when answering time reaches its mark; it stands still while a prompt is computed."""

    __slots__ = (
        *("admitted", "began_s", "busy_until_s", "ends", "is_draining", "prompt_sent_s", "prompts_s", "queue"),
        *("waits", "wake_s"),
    )

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.is_draining = False
        self.admitted = 0
        self.queue: deque[Job] = deque()
        #: Of running answers, the answering time at which each ends.
        self.ends: list[float] = []
        #: Seconds of prompts so far: answering time is the clock's without them.
        self.prompts_s = began_s
        self.busy_until_s = began_s
        self.wake_s = NEVER_S
        self.prompt_sent_s = began_s
        self.waits = Waits()

    def report(self, now_s: float) -> Report:
        p50_ms, p95_ms, started = self.waits.read(now_s)
        oldest_s = self.queue[0][0] if self.queue else now_s
        if now_s < self.busy_until_s:
            # Until its first token nobody knows that a request was scheduled.
            oldest_s = min(oldest_s, self.prompt_sent_s)
        return Report(p50_ms, p95_ms, (now_s - oldest_s) * 1000.0, started / WINDOW_S, float(self.admitted))
