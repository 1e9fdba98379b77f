"""What goes between the world of the autoscaling benchmark and an autoscaler, and what a run came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Literal

from benchmarks.autoscale_replica import PERCENTILE, Report
from benchmarks.autoscale_traces import MINUTE_S, Trace


@dataclass(frozen=True, slots=True)
class Seen:
    """What an autoscaler knows at one tick. All of it is as old as one interval: the worst that pushing does."""

    now_s: float
    age_s: float
    running: int
    target: int
    ongoing: float
    queued: float
    arrivals_rps: float
    reports: tuple[Report, ...]


Scale = Callable[[Seen], int]


@dataclass(frozen=True, slots=True)
class Metrics:
    """How Serve gathers: an interval, and the window and function that totals are aggregated over."""

    interval_s: float
    look_back_s: float
    function: Literal["mean", "max", "min"] = "mean"
    #: The window of the request rate, which Serve does not have.
    rate_s: float = 60.0
    with_reports: bool = True


@dataclass(slots=True)
class Outcome:
    """What a run came to. ``over`` counts, by minute of sending, requests that waited longer than the target or left;
    ``steps`` are (seconds, target, running) where one of them changed."""

    sent: list[int]
    over: list[int]
    left: int = 0
    gpu_s: float = 0.0
    steps: list[tuple[float, int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, trace: Trace) -> Outcome:
        minutes = Counter(int(at_s / MINUTE_S) for at_s in trace.at_s)
        whole = ceil(trace.span_s / MINUTE_S)
        return cls([minutes[m] for m in range(whole)], [0] * whole)

    @property
    def over_ratio(self) -> float:
        """The share of time over target: of minutes whose 95th percentile of queue waits is above it."""
        over = sum(late > (1.0 - PERCENTILE) * sent for late, sent in zip(self.over, self.sent, strict=True))
        return over / len(self.sent)

    @property
    def late_ratio(self) -> float:
        """The share of requests that waited longer than the target."""
        return sum(self.over) / max(1, sum(self.sent))
