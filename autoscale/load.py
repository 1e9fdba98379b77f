"""What an agent's replicas tell of their load, one by one and all together. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: What a replica told longer ago is no data any more; it tells once a second.
STALE_S: Final = 5.0
#: Where a slot is free, who waits no longer has a prompt that is computed: it is told as waiting until that step ends.
COMPUTED_MS: Final = 2_000.0
#: From this share on of all that were wanted here, those that went elsewhere are load.
SPILLED_SHARE: Final = 0.05
#: No count, rate or wait is more; sums and products of what is less stay numbers.
MOST: Final = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """What one running replica told last; ``None`` is "no data". One value that cannot be makes all of it no data.

    ``age_s`` counts from local receipt. ``ongoing_requests`` are its users' calls, without those that ask for health.
    ``started_rps`` are those that got their first token lately. ``offered_spilled_rps`` is of the whole agent, told by
    each of its replicas.
    """

    age_s: float
    queue_wait_p50_ms: float | None = None
    queue_wait_p95_ms: float | None = None
    oldest_wait_ms: float | None = None
    kv_cache_used_ratio: float | None = None
    ongoing_requests: float | None = None
    started_rps: float | None = None
    offered_spilled_rps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSnapshot:
    """One agent's load at ``now_s`` (monotonic). Replicas without any metrics are not among ``replicas``.

    ``ongoing_requests`` are all that are not answered, ``queued_requests`` those of them that no replica has taken,
    both averaged over the last seconds.
    """

    now_s: float
    running_replicas: int
    target_replicas: int
    ongoing_requests: float | None
    queued_requests: float | None
    replicas: tuple[ReplicaLoad, ...] = ()


def number(value: float | None) -> float | None:
    """The value where it is one that can be: not negative, and not beyond all measure."""
    return value if value is not None and 0 <= value <= MOST else None


@dataclass(frozen=True, slots=True)
class Fleet:
    """All replicas together; ``None`` is "no data". ``complete``: each running one has told what it has to."""

    running: int
    complete: bool
    #: The longest wait of users of the last seconds, or of one who waits still: one long prompt makes it.
    wait_ms: float | None
    #: What half of the users waited less than, at the replica where it is most, or the wait of one who waits still.
    usual_wait_ms: float | None
    kv_ratio: float | None
    started_rps: float | None
    spilled_rps: float
    #: As Serve counts it, calls that ask for health included.
    ongoing: float | None
    #: As replicas tell it; ``None`` where one does not.
    calls: float | None
    #: Of these, and of those that no replica has taken, the ones that have no slot.
    waiting: float | None
    #: Whether a replica has a slot that nobody waits for.
    free: bool

    @property
    def offered_rps(self) -> float:
        """What was started here, and what was wanted here and went to other regions."""
        return (self.started_rps or 0.0) + self.spilled_rps

    @property
    def spills(self) -> bool:
        """Whether so much went to other regions that it is load: one request that did is chance."""
        return self.spilled_rps > SPILLED_SHARE * self.offered_rps

    @classmethod
    def of(cls, load: LoadSnapshot, slots: int) -> Fleet:
        """``slots`` are those of one replica. What is older than :data:`STALE_S`, or cannot be, is not looked at."""
        fresh = [r for r in load.replicas if 0 <= r.age_s <= STALE_S and _makes_sense(r)]
        kv = [r.kv_cache_used_ratio for r in fresh if r.kv_cache_used_ratio is not None]
        started = [r.started_rps for r in fresh if r.started_rps is not None]
        queued = number(load.queued_requests)
        calls = [r.ongoing_requests for r in fresh if r.ongoing_requests is not None]
        still = [_still_ms(r, slots) for r in fresh]
        return cls(
            running=load.running_replicas,
            complete=sum(r.oldest_wait_ms is not None and r.started_rps is not None for r in fresh)
            >= load.running_replicas,
            wait_ms=_most(*(r.queue_wait_p95_ms for r in fresh), *still),
            usual_wait_ms=_most(*(_usual_ms(r) for r in fresh), *still),
            kv_ratio=sum(kv) / len(kv) if kv else None,
            started_rps=sum(started) if started else None,
            spilled_rps=max((r.offered_spilled_rps or 0.0 for r in fresh), default=0.0),
            ongoing=number(load.ongoing_requests),
            calls=sum(calls) if len(calls) == len(fresh) else None,
            waiting=None
            if queued is None or len(calls) < load.running_replicas
            else queued + sum(max(0.0, c - slots) for c in calls),
            free=any(
                r.ongoing_requests is not None and r.ongoing_requests < slots and _still_ms(r, slots) == 0
                for r in fresh
            ),
        )


def _usual_ms(one: ReplicaLoad) -> float | None:
    """What half of its users waited less than; who does not tell it is judged by what nearly all did."""
    return one.queue_wait_p95_ms if one.queue_wait_p50_ms is None else one.queue_wait_p50_ms


def _still_ms(one: ReplicaLoad, slots: int) -> float | None:
    """How long its oldest call waits for a slot; 0 where one is free, so that the oldest is just being computed."""
    if one.oldest_wait_ms is None or one.ongoing_requests is None:
        return one.oldest_wait_ms
    return one.oldest_wait_ms if one.ongoing_requests >= slots or one.oldest_wait_ms >= COMPUTED_MS else 0.0


def _most(*values: float | None) -> float | None:
    """The largest of those that are known."""
    return max((value for value in values if value is not None), default=None)


def _makes_sense(one: ReplicaLoad) -> bool:
    """A replica that tells one thing that cannot be is not believed in the others either."""
    told = (
        one.queue_wait_p50_ms,
        one.queue_wait_p95_ms,
        one.oldest_wait_ms,
        one.kv_cache_used_ratio,
        one.ongoing_requests,
        one.started_rps,
        one.offered_spilled_rps,
    )
    return all(v is None or number(v) is not None for v in told) and (one.kv_cache_used_ratio or 0.0) <= 1.0
