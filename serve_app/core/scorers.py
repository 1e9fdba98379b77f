"""What a target scores inside its tier: by how near, free and cheap it is, or by the hash of a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from serve_app.core.snapshots import Target

#: How near another region can be. Going there costs something however short the line is: without that a region that
#: runs one request more than its neighbour would hand on what it has room for.
AWAY: Final = 0.8
_2_TO_64: Final = 2.0**64
_64_BITS: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Scene:
    """What a scorer may look at besides the targets; ``waits_ms`` is each one's queue wait, as far as it is told."""

    region: str
    max_queue_ms: float
    waits_ms: Sequence[float | None]
    in_flight: Mapping[str, int]


def _near(targets: Sequence[Target], scene: Scene) -> list[float]:
    """1 for this region, else falling from :data:`AWAY` with the measured round trip; half of that when it was never
    measured.
    """
    here = scene.region
    return [
        1.0 if t.region == here else AWAY * (0.5 if (rtt := t.load.network_ms) is None else 100.0 / (100.0 + rtt))
        for t in targets
    ]


def _short_queue(_: Sequence[Target], scene: Scene) -> list[float]:
    """1 without waiting, 0.5 at ``maxQueueMs``; a target that reports nothing stands in the middle."""
    limit = scene.max_queue_ms
    return [0.5 if wait is None else limit / (limit + wait) for wait in scene.waits_ms]


def _free_slots(targets: Sequence[Target], scene: Scene) -> list[float]:
    """The share of slots that are free, with what this Router has sent since the report; half when none came."""
    found = [
        0.5 if (running := (load := t.load).running) is None or (waiting := load.waiting) is None
        else 1.0 - (running + waiting) / t.slots if running + waiting < t.slots else 0.0
        for t in targets
    ]  # fmt: skip
    if scene.in_flight:
        # Naming a target takes longer than all the rest: only those of regions to which this Router has sent something.
        regions = {target_id.partition("/")[0] for target_id, calls in scene.in_flight.items() if calls}
        for i, t in enumerate(targets):
            if t.region in regions:
                sent = scene.in_flight.get(t.id, 0) / (t.slots or 1)
                is_told = t.load.running is not None and t.load.waiting is not None
                found[i] = min(1.0, max(0.0, found[i] - (sent if is_told else sent / 2)))
    return found


def _cheap(targets: Sequence[Target], _: Scene) -> list[float]:
    prices = [t.gpu_hour_usd for t in targets]
    dearest = max(prices)
    return [1.0 - price / dearest for price in prices] if dearest > 0 else [1.0] * len(prices)


class Scorer(NamedTuple):
    """One function of all targets at once, each in [0, 1], and its weight where the RouteTable names none."""

    of: Callable[[Sequence[Target], Scene], list[float]]
    weight: float


#: A scorer is its function and one line here. ``scoring.<name>`` weighs it; all weights sum to 1.
SCORERS: Final[dict[str, Scorer]] = {
    "network": Scorer(_near, 0.25),
    "queue": Scorer(_short_queue, 0.45),
    "headroom": Scorer(_free_slots, 0.2),
    "cost": Scorer(_cheap, 0.1),
}


def default_weights() -> dict[str, float]:
    return {name: scorer.weight for name, scorer in SCORERS.items()}


def wait_ms_of(target: Target) -> float | None:
    """The queue wait as far as anything tells: of those that got a slot lately, and of the one that waits longest.

    Where slots are free and nobody waits, the queue that others waited in is over: who was over the limit for as long
    as that is remembered would stay empty meanwhile, and the others would be over it next.
    """
    load = target.load
    if load.waiting == 0 and load.running is not None and load.running < target.slots:
        return load.oldest_wait_ms or 0.0
    served, waits = load.queue_wait_p95_ms, load.oldest_wait_ms
    if served is None or waits is None:
        return waits if served is None else served
    return served if served > waits else waits


def _hash(text: str) -> int:
    """64 bits that are the same in every process."""
    return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")


def lot(*of: object) -> float:
    """A number from [0, 1) that is the same in every process, and for other words another one."""
    return _hash("\0".join(map(str, of))) / _2_TO_64


#: There are few regions.
_region_hash = lru_cache(maxsize=1024)(_hash)


def rendezvous(session: str, targets: Sequence[Target]) -> list[float]:
    """Each in (0, 1]: the larger, the more a target is the session's. Of weight 1 each is largest equally often.

    It does not change when other targets come or go, or when a region changes its release.
    """
    mine, found = _hash(session), []
    for t in targets:
        mixed = ((mine ^ _region_hash(t.region)) * 0x9E3779B97F4A7C15) & _64_BITS
        mixed = ((mixed ^ (mixed >> 32)) * 0xD6E8FEB86659FD93) & _64_BITS
        value = ((mixed ^ (mixed >> 32)) + 1) / _2_TO_64
        found.append(value if t.weight == 1.0 else value ** (1.0 / max(t.weight, 1e-6)))
    return found
