"""How many replicas an agent should have, from what its users wait. Pure: load in, decision out.

Serve applies delays and bounds around every policy, so nothing here waits: a wish for fewer replicas is told at each
step for as long as it holds, and Serve acts on it after its quiet period.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final, Literal

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

#: A queue that takes so long to drain needs twice the replicas; a shorter one needs the fewer more.
DRAIN_MS: Final = 30_000.0
#: For so long after replicas were added, waits count only while no replica is free: those of before are not over yet.
SETTLE_S: Final = 60.0
#: One request that went elsewhere is chance; from this share on of all that were wanted here they are load.
SPILLED_SHARE: Final = 0.05

Reason = Literal[
    "queue_wait",  # up: somebody waited, or waits, longer than the trigger allows
    "handle_queue",  # up: calls stand before full replicas, where nobody measures their wait
    "kv_cache",  # up: the KV cache is nearly full
    "spilled",  # up: requests were wanted here and went to other regions
    "headroom",  # up: less is free than slow starts need
    "wake",  # up from zero: somebody waits
    "at_max",  # more are wanted than are allowed
    "starting",  # none runs yet, the wanted ones start
    "settling",  # users wait, but a replica that was just added is free
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
    step_down_ratio: float = 0.5

    def __post_init__(self) -> None:
        rules = (
            (0 <= self.min_replicas <= self.max_replicas >= 1, "0 <= min_replicas <= max_replicas, which is 1 or more"),
            (self.slots_per_replica >= 1, "slots_per_replica is 1 or more"),
            (_under(self.queue_below_ms, self.queue_above_ms), "0 < queue_below_ms < queue_above_ms"),
            (_under(self.kv_below_ratio, self.kv_above_ratio), "0 < kv_below_ratio < kv_above_ratio"),
            (0 <= self.headroom_ratio < math.inf, "headroom_ratio is 0 or more"),
            (0 <= self.spare_ratio < math.inf, "spare_ratio is 0 or more"),
            (1 < self.step_up_ratio < math.inf, "step_up_ratio is more than 1"),
            (0 < self.step_down_ratio < 1, "step_down_ratio is between 0 and 1"),
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

    running_replicas: int | None = None
    grown_s: float | None = None
    queued_since_s: float | None = None
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
    memory = _noted(load, memory or Memory())
    running, target = max(0, load.running_replicas), max(0, load.target_replicas)
    if running == 0:
        return _from_zero(load, parameters, memory)
    fleet = Fleet.of(load, parameters.slots_per_replica)
    pressure = _pressure(load, parameters, fleet, memory)
    if pressure is not None:
        wanted, reason = pressure
        wanted = max(target, wanted)
        if wanted > parameters.max_replicas:
            reason = "at_max"
        return _decision(wanted, reason, parameters, replace(memory, quiet_target=None))
    return _calm(target, parameters, fleet, memory)


def _decision(wanted: int, reason: Reason, parameters: ScaleParameters, memory: Memory) -> ScaleDecision:
    return ScaleDecision(max(parameters.min_replicas, min(parameters.max_replicas, wanted)), reason, memory)


def _since_s(then_s: float | None, now_s: float) -> float | None:
    """Seconds since; ``None`` where there was nothing, or the clock says that it is still to come."""
    return now_s - then_s if then_s is not None and now_s >= then_s else None


def _noted(load: LoadSnapshot, memory: Memory) -> Memory:
    """The memory with what this load shows: replicas that were added, a queue that is there."""
    known = memory.running_replicas
    grown_s = load.now_s if known is not None and load.running_replicas > known else memory.grown_s
    since_s = memory.queued_since_s if _since_s(memory.queued_since_s, load.now_s) is not None else load.now_s
    return replace(
        memory,
        running_replicas=load.running_replicas,
        grown_s=grown_s,
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
    """Why more are wanted and how many, by the strongest trigger; ``None`` when none holds.

    Counted from the replicas that run, not from those that are wanted: they are looked at ten times a second, and what
    was ordered a moment ago must not be multiplied.
    """
    running = fleet.running
    most = max(running + 1, math.ceil(running * parameters.step_up_ratio))
    found: list[tuple[int, Reason]] = []

    def step(ratio: float, reason: Reason) -> None:
        found.append((min(most, max(running + 1, math.ceil(running * ratio))), reason))

    above_ms = parameters.queue_above_ms
    if above_ms is not None:
        grown_s = _since_s(memory.grown_s, load.now_s)
        if fleet.wait_ms is not None and fleet.wait_ms > above_ms:
            if fleet.free and grown_s is not None and grown_s < SETTLE_S:
                found.append((0, "settling"))
            else:
                step(1.0 + fleet.wait_ms / DRAIN_MS, "queue_wait")
        stood_s = _since_s(memory.queued_since_s, load.now_s)
        if stood_s is not None and stood_s * 1000.0 > above_ms and not fleet.free:
            step(1.0 + stood_s * 1000.0 / DRAIN_MS, "handle_queue")
    if parameters.kv_above_ratio is not None and (fleet.kv_ratio or 0.0) > parameters.kv_above_ratio:
        step((fleet.kv_ratio or 0.0) / parameters.kv_above_ratio, "kv_cache")
    offered_rps = (fleet.started_rps or 0.0) + fleet.spilled_rps
    if fleet.spilled_rps > SPILLED_SHARE * offered_rps:
        step(offered_rps / fleet.started_rps if fleet.started_rps else parameters.step_up_ratio, "spilled")
    if parameters.headroom_ratio > 0 and fleet.ongoing is not None:
        # What waits is no load of its own: it is served by the same slots later.
        taken = min(fleet.ongoing, running * parameters.slots_per_replica)
        need = _carrying(taken, parameters.headroom_ratio, parameters.slots_per_replica)
        if need > running:
            found.append((min(most, need), "headroom"))
    return max(found, key=lambda one: one[0], default=None)


def _carrying(ongoing: float, free_ratio: float, slots: int) -> int:
    """Replicas that carry so many requests at once and have a share of it free."""
    # Averages are sums of many floats: a hair above a whole number is that number.
    return math.ceil(ongoing * (1.0 + free_ratio) / slots - 1e-9)


def _calm(target: int, parameters: ScaleParameters, fleet: Fleet, memory: Memory) -> ScaleDecision:
    """No trigger asks for more: fewer where all is quiet, else as many as there are."""
    need = _needed(parameters, fleet)
    if need is None or not fleet.complete:
        return _decision(target, "no_data", parameters, replace(memory, quiet_target=None))
    below_ms, below_ratio = parameters.queue_below_ms, parameters.kv_below_ratio
    quiet = (
        (below_ms is not None or below_ratio is not None)
        and (below_ms is None or (fleet.wait_ms or 0.0) < below_ms)
        and (below_ratio is None or (fleet.kv_ratio or 0.0) < below_ratio)
        and fleet.spilled_rps == 0
        and memory.queued_since_s is None
    )
    peak = max(need, memory.quiet_peak) if memory.quiet_target == target else need
    # From one replica the next step is none; from more it is at least one, which is Serve's own floor too.
    peak = max(peak, math.ceil(target * parameters.step_down_ratio)) if target > 1 else peak
    if not quiet or max(peak, parameters.min_replicas) >= target:
        return _decision(target, "steady", parameters, replace(memory, quiet_target=None))
    return _decision(peak, "quiet", parameters, replace(memory, quiet_target=target, quiet_peak=peak))


def _needed(parameters: ScaleParameters, fleet: Fleet) -> int | None:
    """Replicas that carry what is there now with some to spare; 0 when nothing is there, ``None`` when nobody knows."""
    if fleet.ongoing is None:
        return None
    free_ratio = max(parameters.headroom_ratio, parameters.spare_ratio)
    slots = _carrying(fleet.ongoing, free_ratio, parameters.slots_per_replica)
    cache = 0
    if parameters.kv_above_ratio is not None and fleet.kv_ratio is not None:
        cache = math.ceil(fleet.running * fleet.kv_ratio * (1.0 + free_ratio) / parameters.kv_above_ratio - 1e-9)
    # Short requests are in no average, but each of them leaves a start.
    return max(slots, cache, int(bool(fleet.started_rps)))
