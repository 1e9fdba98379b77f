"""How many replicas an agent should have, from what its users wait. Pure: load in, decision out.

Serve applies delays and bounds around every policy, so nothing here waits: a wish for fewer replicas is told at each
step for as long as it holds, and Serve acts on it after its quiet period.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from autoscale.flow import Flow
from autoscale.load import Fleet, LoadSnapshot, ReplicaLoad, number

__all__ = [
    "LoadSnapshot",
    "Memory",
    "Reason",
    "ReplicaLoad",
    "ScaleDecision",
    "ScaleParameters",
    "decide",
]

#: While nobody knows what comes, who waits so long is reason for twice the replicas; less is for fewer more.
DOUBLE_MS: Final = 30_000.0
#: Load is averaged over so long: before, the average still tells of what was there when it became quiet.
FORGET_S: Final = 10.0

Reason = Literal[
    "queue_wait",  # up: somebody waited, or waits, longer than the trigger allows
    "handle_queue",  # up: calls stand before full replicas, where nobody measures their wait
    "kv_cache",  # up: the KV cache is nearly full
    "spilled",  # up: requests were wanted here and went to other regions
    "headroom",  # up: less is free than slow starts need
    "wake",  # up from zero: somebody waits
    "at_max",  # more are wanted than are allowed
    "starting",  # none runs yet, the wanted ones start
    "draining",  # users wait, but there are enough now, or it is too early to tell
    "uneven",  # users wait, or waited, but a replica is free: one more would be free too
    "asleep",  # zero, and nobody waits
    "steady",  # neither more nor fewer
    "no_data",  # a replica tells nothing, so that nobody knows whether all is quiet
    "quiet",  # down: fewer carry the load
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleParameters:
    """An agent's triggers and steps. ``None``: there is no such trigger.

    One step goes up to ``step_up_ratio`` times the running replicas at most (and to one more at least), and down to
    ``step_down_ratio`` of them. ``headroom_ratio`` is what shall be free, as a share of what is taken; ``spare_ratio``
    is the same for what a step down leaves, where it is more.

    Raises:
        ValueError: when a value contradicts another one or makes no sense.
    """

    min_replicas: int
    max_replicas: int
    slots_per_replica: int
    queue_above_ms: float | None = 250.0
    queue_below_ms: float | None = 50.0
    kv_above_ratio: float | None = 0.85
    kv_below_ratio: float | None = None
    headroom_ratio: float = 0.0
    spare_ratio: float = 0.25
    step_up_ratio: float = 2.0
    step_down_ratio: float = 0.0

    def __post_init__(self) -> None:
        rules = (
            (0 <= self.min_replicas <= self.max_replicas >= 1, "0 <= min_replicas <= max_replicas, which is 1 or more"),
            (self.slots_per_replica >= 1, "slots_per_replica is 1 or more"),
            (_under(self.queue_below_ms, self.queue_above_ms), "0 < queue_below_ms < queue_above_ms"),
            (_under(self.kv_below_ratio, self.kv_above_ratio), "0 < kv_below_ratio < kv_above_ratio"),
            (0 <= self.headroom_ratio < math.inf, "headroom_ratio is 0 or more"),
            (0 <= self.spare_ratio < math.inf, "spare_ratio is 0 or more"),
            (1 < self.step_up_ratio < math.inf, "step_up_ratio is more than 1"),
            (0 <= self.step_down_ratio < 1, "step_down_ratio is 0 or more and less than 1"),
        )
        broken = [text for holds, text in rules if not holds]
        if broken:
            raise ValueError(f"allowed: {'; '.join(broken)}; got {self}")


def _under(below: float | None, above: float | None) -> bool:
    """Whether both thresholds are numbers in this order, as far as they are there."""
    there = [value for value in (below, above) if value is not None]
    return all(0 < value < math.inf for value in there) and (len(there) < 2 or there[0] < there[1])


@dataclass(frozen=True, slots=True)
class Memory:
    """What the next decision has to know of the last ones. The caller keeps it; ``Memory()`` is a fresh start.

    ``quiet_peak`` is the most replicas that the load needed since all is quiet at ``quiet_target``: the quiet period
    ends with what its busiest moment needed, not with what its last one does.
    """

    flow: Flow = field(default_factory=Flow)
    queued_since_s: float | None = None
    quiet_since_s: float | None = None
    quiet_target: int | None = None
    quiet_peak: int = 0


@dataclass(frozen=True, slots=True)
class ScaleDecision:
    """Replicas that are wanted now, why, and what to hand to the next call."""

    replicas: int
    reason: Reason
    memory: Memory = field(default_factory=Memory)


def decide(load: LoadSnapshot, parameters: ScaleParameters, memory: Memory | None = None) -> ScaleDecision:
    """The replicas this load wants, within the bounds. Any trigger is enough to go up, all have to hold to go down."""
    fleet = Fleet.of(load, parameters.slots_per_replica)
    memory = _noted(load, fleet, memory or Memory())
    if load.running_replicas <= 0:
        return _from_zero(load, parameters, memory)
    target = max(0, load.target_replicas)
    pressure = _pressure(load, parameters, fleet, memory)
    if pressure is None or pressure[0] == 0:
        calm = _calm(load, parameters, fleet, memory)
        return calm if pressure is None or calm.reason != "steady" else replace(calm, reason=pressure[1])
    wanted, reason = max(target, pressure[0]), pressure[1]
    if wanted > parameters.max_replicas:
        reason = "at_max"
    return _decision(wanted, reason, parameters, replace(memory, quiet_target=None))


def _decision(wanted: int, reason: Reason, parameters: ScaleParameters, memory: Memory) -> ScaleDecision:
    return ScaleDecision(max(parameters.min_replicas, min(parameters.max_replicas, wanted)), reason, memory)


def _since_s(then_s: float | None, now_s: float) -> float | None:
    """Seconds since; ``None`` where there was nothing, or the clock says that it is still to come."""
    return now_s - then_s if then_s is not None and now_s >= then_s else None


def _noted(load: LoadSnapshot, fleet: Fleet, memory: Memory) -> Memory:
    """The memory with what this load shows: what comes, and a queue that stands there."""
    since_s = memory.queued_since_s if _since_s(memory.queued_since_s, load.now_s) is not None else load.now_s
    return replace(
        memory,
        flow=memory.flow.seen(load.now_s, load.running_replicas, fleet.waiting, fleet.started_rps),
        # An average of less is what is left of a queue that is gone.
        queued_since_s=since_s if (number(load.queued_requests) or 0.0) >= 0.5 else None,
    )


def _from_zero(load: LoadSnapshot, parameters: ScaleParameters, memory: Memory) -> ScaleDecision:
    target = max(0, load.target_replicas)
    memory = replace(memory, quiet_target=None)
    if target > 0:
        return _decision(target, "starting", parameters, memory)
    waits = max(number(load.ongoing_requests) or 0.0, number(load.queued_requests) or 0.0) > 0
    return _decision(int(waits), "wake" if waits else "asleep", parameters, memory)


def _pressure(
    load: LoadSnapshot, parameters: ScaleParameters, fleet: Fleet, memory: Memory
) -> tuple[int, Reason] | None:
    """How many are wanted by the strongest trigger, and which that is; ``None`` when none holds, 0 when it only waits.

    Counted from the replicas that run, not from those that are wanted: they are looked at ten times a second, and what
    was ordered a moment ago must not be multiplied.
    """
    running = fleet.running
    most = max(running + 1, math.ceil(running * parameters.step_up_ratio))
    wishes = (*_for_waits(load, parameters, fleet, memory), *_for_room(parameters, fleet))
    found = [(math.ceil(min(most, max(running + 1.0, n))) if n else 0, reason) for n, reason in wishes]
    return max(found, key=lambda one: one[0], default=None)


def _for_waits(
    load: LoadSnapshot, parameters: ScaleParameters, fleet: Fleet, memory: Memory
) -> Iterator[tuple[float, Reason]]:
    stood_s = _since_s(memory.queued_since_s, load.now_s)
    # Without somebody who measures, a queue is as old as it was seen; where a replica is free its callers have left.
    stood_ms = None if stood_s is None or fleet.free else stood_s * 1000.0
    waits: tuple[tuple[float | None, Reason], ...] = ((fleet.wait_ms, "queue_wait"), (stood_ms, "handle_queue"))
    for wait_ms, reason in waits:
        if parameters.queue_above_ms is None or wait_ms is None or wait_ms <= parameters.queue_above_ms:
            continue
        need = memory.flow.needed(fleet.waiting, fleet.started_rps)
        if fleet.free:
            yield 0, "uneven"
        elif need is None and not memory.flow.grown_lately(load.now_s):
            yield fleet.running * (1.0 + wait_ms / DOUBLE_MS), reason
        elif need is not None and need > fleet.running:
            yield need, reason
        else:
            yield 0, "draining"


def _for_room(parameters: ScaleParameters, fleet: Fleet) -> Iterator[tuple[float, Reason]]:
    running, slots = fleet.running, parameters.slots_per_replica
    kv_ratio = fleet.kv_ratio or 0.0
    if parameters.kv_above_ratio is not None and kv_ratio > parameters.kv_above_ratio:
        yield running * kv_ratio / parameters.kv_above_ratio, "kv_cache"
    if fleet.spills:
        yield running * (fleet.offered_rps / fleet.started_rps if fleet.started_rps else math.inf), "spilled"
    if parameters.headroom_ratio > 0 and fleet.ongoing is not None:
        # What waits is no load of its own: it is served by the same slots later.
        need = _carrying(min(fleet.ongoing, running * slots), parameters.headroom_ratio, slots)
        if need > running:
            yield need, "headroom"


def _carrying(ongoing: float, free_ratio: float, slots: int) -> int:
    """Replicas that carry so many requests at once and have a share of it free."""
    # Averages are sums of many floats: a hair above a whole number is that number.
    return math.ceil(ongoing * (1.0 + free_ratio) / slots - 1e-9)


def _calm(load: LoadSnapshot, parameters: ScaleParameters, fleet: Fleet, memory: Memory) -> ScaleDecision:
    """No trigger asks for more: fewer where all is quiet, else as many as there are."""
    need, target = _needed(parameters, fleet), max(0, load.target_replicas)
    loud = replace(memory, quiet_target=None)
    if need is None or not fleet.complete:
        return _decision(target, "no_data", parameters, loud)
    quiet_s = _since_s(memory.quiet_since_s, load.now_s) if memory.quiet_target == target else None
    peak = max(need, memory.quiet_peak) if quiet_s is not None and quiet_s > FORGET_S else need
    # From one replica the next step is none; from more it is at least one, which is Serve's own floor too.
    least = max(1, math.ceil(target * parameters.step_down_ratio)) if target > 1 else 0
    wanted = max(peak, least, parameters.min_replicas)
    if wanted >= target or not _is_quiet(parameters, fleet, memory):
        return _decision(target, "steady", parameters, loud)
    since_s = load.now_s if quiet_s is None else memory.quiet_since_s
    memory = replace(memory, quiet_since_s=since_s, quiet_target=target, quiet_peak=peak)
    return _decision(wanted, "quiet", parameters, memory)


def _is_quiet(parameters: ScaleParameters, fleet: Fleet, memory: Memory) -> bool:
    below_ms, below_ratio = parameters.queue_below_ms, parameters.kv_below_ratio
    return (
        (below_ms is not None or below_ratio is not None)
        and (below_ms is None or (fleet.usual_wait_ms or 0.0) < below_ms)
        and (below_ratio is None or (fleet.kv_ratio or 0.0) < below_ratio)
        and not fleet.spills
        and memory.queued_since_s is None
    )


def _needed(parameters: ScaleParameters, fleet: Fleet) -> int | None:
    """Replicas that carry what is there now with some to spare; 0 when nothing is there, ``None`` when nobody knows."""
    if fleet.ongoing is None:
        return None
    free_ratio = max(parameters.headroom_ratio, parameters.spare_ratio)
    slots = _carrying(fleet.ongoing, free_ratio, parameters.slots_per_replica)
    cache = 0
    if parameters.kv_above_ratio is not None and fleet.kv_ratio is not None:
        cache = math.ceil(fleet.running * fleet.kv_ratio * (1.0 + free_ratio) / parameters.kv_above_ratio - 1e-9)
    need = max(slots, cache)
    if need <= 1 and fleet.calls is not None:
        # Whether anybody is there at all: a short call is in no average but leaves a start, and who asks for health is
        # in the average but no user.
        return int(fleet.calls > 0 or bool(fleet.started_rps))
    return need
