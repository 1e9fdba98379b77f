"""How many replicas an agent should have, from what its users wait. Pure: load in, decision out.

Serve applies delays, factors and bounds around a policy, so nothing here waits: a wish for fewer replicas is told at each
step for as long as it holds, and Serve acts on it after its quiet period.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reason = Literal[
    "queue_wait",  # up: users waited, or wait, longer than the trigger allows
    "handle_queue",  # up: calls stand before full replicas, so that nobody measures their wait
    "kv_cache",  # up: the KV cache is nearly full
    "spilled",  # up: requests were wanted here and went to other regions
    "headroom",  # up: less room than the headroom that slow starts need
    "wake",  # up from zero: somebody waits
    "at_max",  # more are wanted than are allowed
    "starting",  # no replica runs yet, the wanted ones start
    "asleep",  # zero, and nobody waits
    "steady",  # neither more nor fewer
    "no_data",  # a replica tells nothing, so that nobody knows whether all is quiet
    "quiet",  # down: fewer carry the load
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """What one running replica told last. ``None``, NaN, infinite and negative values are "no data".

    ``age_s`` counts from local receipt. ``offered_spilled_rps`` is of the whole agent, told by each of its replicas.
    """

    age_s: float
    queue_wait_p95_ms: float | None = None
    oldest_wait_ms: float | None = None
    kv_cache_used_ratio: float | None = None
    started_rps: float | None = None
    offered_spilled_rps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSnapshot:
    """One agent's load at ``now_s`` (monotonic). Replicas without any metrics are not among ``replicas``.

    ``ongoing_requests`` counts all that are not answered, ``queued_requests`` those of them that no replica has taken.
    """

    now_s: float
    running_replicas: int
    target_replicas: int
    ongoing_requests: float
    queued_requests: float
    replicas: tuple[ReplicaLoad, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleParameters:
    """An agent's triggers and steps. ``None``: there is no such trigger."""

    min_replicas: int
    max_replicas: int
    slots_per_replica: int
    queue_above_ms: float | None = 250.0
    queue_below_ms: float | None = 50.0
    kv_above_ratio: float | None = 0.85
    kv_below_ratio: float | None = None
    headroom_ratio: float = 0.0
    step_up_ratio: float = 2.0
    step_down_ratio: float = 0.5


@dataclass(frozen=True, slots=True)
class Memory:
    """What the next decision has to know of the last one. The caller keeps it; ``Memory()`` is a fresh start."""

    running_replicas: int = 0
    grown_s: float | None = None
    queued_since_s: float | None = None
    quiet_target: int | None = None
    quiet_peak: int = 0


@dataclass(frozen=True, slots=True)
class ScaleDecision:
    """Replicas that are wanted now, why, and what to hand to the next call."""

    replicas: int
    reason: Reason
    memory: Memory = Memory()


def decide(load: LoadSnapshot, parameters: ScaleParameters, memory: Memory = Memory()) -> ScaleDecision:
    """The replicas this load wants, within the bounds."""
    raise NotImplementedError
