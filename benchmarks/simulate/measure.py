"""Figures from the rows of a simulation: shares over time, turns of a curve, waits, moves, money."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from autoscale.latency_window import percentile
from benchmarks.simulate.world import Tally, World


def local_share(tally: Tally) -> float | None:
    """How many were answered where they came in."""
    if not len(tally.entry):
        return None
    return sum(a == b for a, b in zip(tally.entry, tally.region, strict=True)) / len(tally.entry)


def wait_p95_ms(tally: Tally, since_s: float = 0.0) -> float | None:
    return percentile((w for at_s, w in zip(tally.at_s, tally.wait_ms, strict=True) if at_s >= since_s), 0.95)


def failed(tally: Tally) -> int:
    """Requests without a first byte that a living entry could not have answered anywhere."""
    return sum(n for why, n in tally.lost.items() if why not in ("entry", "entry mid-stream", "mid-stream"))


def shares(
    tally: Tally, region: int, begin_s: float, end_s: float, bin_s: float, *, spilled: bool = False
) -> list[float]:
    """The region's share of all answers, bin by bin; ``spilled``: only of those that came in elsewhere."""
    bins = int((end_s - begin_s) / bin_s)
    mine, every = [0] * bins, [0] * bins
    for at_s, entry, where in zip(tally.at_s, tally.entry, tally.region, strict=True):
        i = int((at_s - begin_s) / bin_s)
        if at_s >= begin_s and i < bins:
            every[i] += 1
            mine[i] += where == region and not (spilled and entry == region)
    return [a / b if b else 0.0 for a, b in zip(mine, every, strict=True)]


def turns(values: Sequence[float], least: float) -> int:
    """How often a curve changes its direction: it goes the other way by more than ``least`` from where it was."""
    found, direction, furthest = 0, 0, values[0] if values else 0.0
    for value in values:
        if direction == 0:
            if abs(value - furthest) > least:
                direction, furthest = (1 if value > furthest else -1), value
        elif (value - furthest) * direction >= 0:
            furthest = value
        elif abs(value - furthest) > least:
            found, direction, furthest = found + 1, -direction, value
    return found


def moved(tally: Tally, at_s: float, window_s: float, lost: int) -> Mapping[str, int]:
    """Sessions with turns on both sides of a moment: how many, how many are elsewhere after it, and how many of these
    were not in the region that was lost."""
    found: Counter[str] = Counter(sessions=0, moved=0, needless=0)
    for turns_of in (tally.turns or {}).values():
        before = [r for t, r in turns_of if at_s - window_s <= t < at_s]
        after = [r for t, r in turns_of if at_s <= t < at_s + window_s]
        if before and after:
            found["sessions"] += 1
            found["moved"] += before[-1] != after[0]
            found["needless"] += before[-1] not in (after[0], lost)
    return found


def usd(world: World, price_of: Mapping[str, float]) -> float:
    """What the slot-seconds that were used cost."""
    slots = world.fleet.slots
    return sum(r.engine.busy_s / slots / 3600.0 * price_of[r.name] for r in world.regions.values())
