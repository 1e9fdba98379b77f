"""What the autoscaling benchmark tells: points of curves, the comparison at equal GPU-hours, tables, and the JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from benchmarks.autoscale_policies import CONTENDERS
from benchmarks.autoscale_seen import Outcome
from benchmarks.autoscale_traces import DAY_LONG_S, DAY_S, HOUR_S

#: What the production policy is held to, on day-long traces: its share of another policy's time over target.
MOST_OF_QPS: Final = 0.25
#: A real peak rises and falls by at least so many replicas' work.
PEAK_REPLICAS: Final = 1.0
BEATEN: Final = "qps"
OURS: Final = "queue_latency"


@dataclass(frozen=True, slots=True)
class Point:
    """One run: a policy at one setting of its knob. ``late_ratio`` is the share of requests over target."""

    knob: float
    over_ratio: float
    late_ratio: float
    left: int
    gpu_hours: float
    turns_per_day: float
    ups_and_downs: int
    steps: Sequence[tuple[float, int, int]] = field(repr=False, default=())

    @classmethod
    def of(cls, knob: float, outcome: Outcome, span_s: float) -> Point:
        targets = [target for _, target, _ in outcome.steps]
        directions = [b > a for a, b in pairwise(targets) if a != b]
        turns = list(pairwise(directions))
        return cls(
            knob,
            outcome.over_ratio,
            outcome.late_ratio,
            outcome.left,
            outcome.gpu_s / HOUR_S,
            sum(a != b for a, b in turns) / (span_s / DAY_S),
            sum(a and not b for a, b in turns),
            tuple(outcome.steps),
        )


@dataclass(frozen=True, slots=True)
class Curves:
    """One trace: the points of each policy. ``need`` is the work that came, in replicas, in steps of ten minutes."""

    trace: str
    span_s: float
    requests: int
    capacity_rps: float
    need: Sequence[float]
    points: Mapping[str, Sequence[Point]]

    @property
    def is_day_long(self) -> bool:
        return self.span_s >= DAY_LONG_S

    @property
    def real_peaks(self) -> int:
        return peaks(self.need, PEAK_REPLICAS)


def peaks(values: Sequence[float], least: float) -> int:
    """How often a curve rises by at least ``least`` and then falls by as much."""
    found, is_rising, low, high = 0, False, float("inf"), float("-inf")
    for value in values:
        if is_rising:
            high = max(high, value)
            if value <= high - least:
                found, is_rising, low = found + 1, False, value
        else:
            low = min(low, value)
            if value >= low + least:
                is_rising, high = True, value
    return found


def over_at(points: Sequence[Point], gpu_hours: float) -> float | None:
    """Time over target at these GPU-hours, linear between two points of the curve; ``None`` outside of it."""
    ordered = sorted(points, key=lambda p: p.gpu_hours)
    for a, b in pairwise(ordered):
        if a.gpu_hours <= gpu_hours <= b.gpu_hours:
            if a.gpu_hours == b.gpu_hours:
                return min(a.over_ratio, b.over_ratio)
            way = (gpu_hours - a.gpu_hours) / (b.gpu_hours - a.gpu_hours)
            return a.over_ratio + way * (b.over_ratio - a.over_ratio)
    return None


@dataclass(frozen=True, slots=True)
class Compared:
    """One point of ours beside theirs at the same GPU-hours; ``None``: their curve does not go there."""

    ours: Point
    theirs: float | None

    @property
    def ratio(self) -> float | None:
        """``None`` also where neither is ever over target."""
        if self.theirs is None or (self.theirs == 0.0 and self.ours.over_ratio == 0.0):
            return None
        return self.ours.over_ratio / self.theirs if self.theirs else float("inf")

    @property
    def is_kept(self) -> bool | None:
        if self.theirs is None:
            return None
        return self.ours.over_ratio <= MOST_OF_QPS * self.theirs


def compared(curves: Curves) -> list[Compared]:
    return [Compared(ours, over_at(curves.points[BEATEN], ours.gpu_hours)) for ours in curves.points[OURS]]


def as_json(found: Sequence[Curves]) -> dict[str, Any]:
    """The curves, and nothing else."""
    return {
        "traces": {
            curves.trace: {
                "span_h": round(curves.span_s / HOUR_S, 3),
                **{name: [_plain(p) for p in curves.points[name]] for name in CONTENDERS},
            }
            for curves in found
        }
    }


def _plain(point: Point) -> dict[str, float]:
    return {
        "knob": point.knob,
        "over_target_ratio": round(point.over_ratio, 5),
        "gpu_hours": round(point.gpu_hours, 3),
        "direction_changes_per_day": round(point.turns_per_day, 2),
    }


COLUMNS: Final = "  {:<22} {:>12} {:>6} {:>11} {:>9} {:>7} {:>9} {:>13} {:>9}"
HEADER: Final = COLUMNS.format(
    "policy", "knob", "", "over target", "late", "left", "GPU-hours", "turns per day", "up-downs"
)


def table(curves: Curves) -> str:
    """Every point of one trace."""
    span = f"{curves.span_s / HOUR_S:.4g} h"
    mean = sum(curves.need) / len(curves.need)
    out = [
        f"{curves.trace}: {span}, {curves.requests:,} requests, {curves.capacity_rps:.2f} requests/s a full replica, "
        f"work for {mean:.2f} replicas (in ten minutes at most {max(curves.need):.2f}), {curves.real_peaks} real peaks",
        HEADER,
    ]
    for name, contender in CONTENDERS.items():
        for place, p in enumerate(curves.points[name]):
            out.append(
                COLUMNS.format(
                    "" if place else contender.title,
                    "" if place else contender.knob,
                    f"{p.knob:g}",
                    f"{p.over_ratio:.2%}",
                    f"{p.late_ratio:.2%}",
                    f"{p.left:,}",
                    f"{p.gpu_hours:.1f}",
                    f"{p.turns_per_day:.1f}",
                    f"{p.ups_and_downs}",
                )
            )
    return "\n".join(out)


def verdicts(found: Sequence[Curves]) -> str:
    """Ours against requests a second at equal GPU-hours, and turns against real peaks."""
    line = "  {:<18} {:>9} {:>10} {:>12} {:>12} {:>8}  {}"
    out = [line.format("trace", "headroom", "GPU-hours", "ours over", "qps over", "ratio", "")]
    for curves in found:
        for place, one in enumerate(compared(curves)):
            theirs = "-" if one.theirs is None else f"{one.theirs:.2%}"
            ratio = "-" if one.ratio is None else f"{one.ratio:.2f}"
            figures = (f"{one.ours.knob:g}", f"{one.ours.gpu_hours:.1f}", f"{one.ours.over_ratio:.2%}", theirs, ratio)
            out.append(line.format("" if place else curves.trace, *figures, _word(curves, one)).rstrip())
    days = [curves for curves in found if curves.is_day_long]
    kept = [one.is_kept for curves in days for one in compared(curves) if one.is_kept is not None]
    out.append("")
    out.append(
        f"at most {MOST_OF_QPS:g} of the time over target of requests a second, day-long traces: "
        f"{sum(kept)} of {len(kept)} points that both curves reach"
    )
    for curves in days:
        pairs = ", ".join(f"{p.knob:g}: {p.ups_and_downs}" for p in curves.points[OURS])
        word = _pairs_word(curves)
        out.append(f"up-down pairs by headroom, {curves.trace}: {pairs}; real peaks: {curves.real_peaks}: {word}")
    return "\n".join(out)


def _pairs_word(curves: Curves) -> str:
    ours, real = curves.points[OURS], curves.real_peaks
    if any(p.ups_and_downs > real for p in ours):
        return "MISSED"
    # Few pairs are no merit of one that would not go down at all.
    return "kept" if not real or any(p.ups_and_downs for p in ours) else "MISSED, it never goes down"


def _word(curves: Curves, one: Compared) -> str:
    if not curves.is_day_long:
        return "(an hour)"
    return {None: "outside of its curve", True: "kept", False: "MISSED"}[one.is_kept]
