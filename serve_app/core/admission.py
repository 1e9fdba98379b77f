"""Whether a tenant may use what it asks for now: a minute's requests and tokens, and slots held at once.

Allowances are token buckets that hold one minute: they start full and refill evenly. The region's store runs the same
arithmetic as a script (``serve_app.edge.limits``); a test holds both together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from serve_app.core.table import AdmissionRules, Agent, Tenant
from serve_app.outcomes import Reason

MINUTE_S: Final = 60.0
#: The intent that says "nobody waits for this".
BATCH_INTENT: Final = "batch"
#: Batch work is no more important to an engine than this, whoever asks: people who wait go before it.
BATCH_PRIORITY: Final = 10
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Slot:
    """One place among those of ``subject``, which holds at most ``limit`` at once; ``reason`` if all are taken."""

    subject: str
    limit: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request wants. ``tokens`` is prompt and answer together, the most it can come to.

    A limit of ``None`` is no limit of that kind.
    """

    tenant: str
    tokens: int
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    slots: tuple[Slot, ...] = ()

    @property
    def is_limited(self) -> bool:
        return self.requests_per_minute is not None or self.tokens_per_minute is not None or bool(self.slots)


@dataclass(frozen=True, slots=True)
class Bucket:
    """What is left of an allowance. Below zero after an ask above all of it, or more use than was reserved."""

    level: float
    at_s: float


@dataclass(frozen=True, slots=True)
class State:
    """What is known when a request asks. ``None`` is a bucket nobody has touched: full."""

    requests: Bucket | None = None
    tokens: Bucket | None = None
    held: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a bucket holds after a decision, of how much at most. A level below 0 is owed."""

    per_minute: float
    level: float


@dataclass(frozen=True, slots=True)
class Left:
    """What a tenant has left; ``None`` where there is no limit."""

    requests: Allowance | None = None
    tokens: Allowance | None = None


NO_LIMITS: Final = Left()


@dataclass(frozen=True, slots=True)
class Admitted:
    """The buckets after the request has taken its part; ``None`` where there is no limit."""

    requests: Bucket | None
    tokens: Bucket | None
    left: Left = field(default=NO_LIMITS, compare=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why not, and after how many seconds there is enough if nobody else takes it. What is ``left`` explains it."""

    reason: Reason
    retry_after_s: float
    left: Left = field(default=NO_LIMITS, compare=False)


@dataclass(frozen=True, slots=True)
class Spent:
    """What became of an admitted request. ``tokens`` is ``None`` when nobody counted: its end was not seen."""

    started: bool
    tokens: int | None
    held_s: float

    def tokens_back(self, ask: Ask) -> int:
        """Reserved and not used; negative for use above the reservation.

        Uncounted use is taken as the whole reservation: leaving early must not be a way around the limit.
        """
        if not self.started:
            return ask.tokens
        return 0 if self.tokens is None else ask.tokens - self.tokens

    @property
    def requests_back(self) -> int:
        """A request that never started is not counted."""
        return 0 if self.started else 1


def level_at(bucket: Bucket | None, per_minute: float, now_s: float) -> float:
    """What a bucket holds now: never more than a minute's worth, whatever the limit was before."""
    if bucket is None:
        return per_minute
    elapsed_s = max(0.0, now_s - bucket.at_s)
    return min(per_minute, bucket.level + per_minute * elapsed_s / MINUTE_S)


def wait_s(level: float, cost: float, per_minute: float) -> float:
    """Seconds until ``cost`` may be taken; 0: now.

    More than a whole bucket is taken when the bucket is full, and leaves a debt: a large request is late, never
    impossible, and the rate holds over time.
    """
    missing = min(cost, per_minute) - level
    return 0.0 if missing <= 0 else missing * MINUTE_S / per_minute


def next_s(left: Left) -> float:
    """Seconds until the allowance of requests has one more; 0: now, or without such a limit."""
    return 0.0 if left.requests is None else wait_s(left.requests.level, 1, left.requests.per_minute)


def decide(ask: Ask, state: State, now_s: float, *, slot_free_s: float, share: int = 1) -> Admitted | Refused:
    """Takes everything an ask needs, or nothing.

    Args:
        slot_free_s: how long a slot is held on average: with ``n`` slots one comes free each ``slot_free_s / n``.
        share: among how many Routers each limit is divided that do not see each other.
    """
    left: list[Bucket | None] = []
    before: list[Allowance | None] = []
    late: tuple[Reason, float] | None = None
    kinds: tuple[tuple[int | None, Bucket | None, float, Reason], ...] = (
        (ask.requests_per_minute, state.requests, 1, "requests_limit"),
        (ask.tokens_per_minute, state.tokens, ask.tokens, "tokens_limit"),
    )
    for limit, bucket, cost, reason in kinds:
        if limit is None:
            left.append(None)
            before.append(None)
            continue
        per_minute = limit / share
        level = level_at(bucket, per_minute, now_s)
        late_s = wait_s(level, cost, per_minute)
        if late_s > 0 and (late is None or late_s > late[1]):
            late = reason, late_s
        left.append(Bucket(level - cost, now_s))
        before.append(Allowance(per_minute, level))
    if late is not None:
        return Refused(*late, Left(*before))
    for slot in ask.slots:
        most = max(1, slot.limit // share)
        if state.held.get(slot.subject, 0) >= most:
            return Refused(slot.reason, slot_free_s / most, Left(*before))
    after = (
        None if a is None or b is None else Allowance(a.per_minute, b.level) for a, b in zip(before, left, strict=True)
    )
    return Admitted(left[0], left[1], Left(*after))


def give_back(bucket: Bucket | None, amount: float, per_minute: float, now_s: float) -> Bucket | None:
    """The bucket with an unused part put back; a negative ``amount`` is use above the reservation."""
    if bucket is None:
        return None
    return Bucket(min(per_minute, level_at(bucket, per_minute, now_s) + amount), now_s)


def left_after(left: Left, ask: Ask, spent: Spent) -> Left:
    """What a tenant has left once an admitted request has given back what it did not use."""

    def after(known: Allowance | None, back: float) -> Allowance | None:
        return None if known is None else Allowance(known.per_minute, min(known.per_minute, known.level + back))

    return Left(after(left.requests, spent.requests_back), after(left.tokens, spent.tokens_back(ask)))


def trace_root(traceparent: str | None) -> str | None:
    """The trace id of a W3C ``traceparent``; ``None`` for none and for one that is not well formed."""
    found = _TRACEPARENT.fullmatch(traceparent or "")
    return found[1] if found is not None and found[1].strip("0") else None


def is_batch(tenant: Tenant, intent: str | None, admission: AdmissionRules) -> bool:
    """Whether nobody waits for the answer: said by the request, or by the tenant's low priority."""
    return intent == BATCH_INTENT or tenant.priority < admission.batch_priority_below


def priority_of(tenant: Tenant, intent: str | None) -> int:
    """How important a call is to an engine."""
    return min(tenant.priority, BATCH_PRIORITY) if intent == BATCH_INTENT else tenant.priority


def slots_of(
    admission: AdmissionRules,
    tenant: Tenant,
    agent: Agent,
    *,
    intent: str | None,
    traceparent: str | None,
    session_id: str | None,
) -> tuple[Slot, ...]:
    """The slots a request takes: its tenant's, its engine's for batch work, and its roots'.

    Batch work is bounded engine by engine, so that people find free slots at every agent; then it is bounded for the
    region too. One slot is always left to it, or it would never end.
    """
    slots = []
    if tenant.limits.concurrent is not None:
        slots.append(Slot(f"tenant/{tenant.name}", tenant.limits.concurrent, "concurrency_limit"))
    if is_batch(tenant, intent, admission):
        total = agent.slots * max(1, agent.min_replicas)
        slots.append(Slot(f"batch/{agent.app}", max(1, int(admission.batch_share * total)), "batch_limit"))
    for kind, root in (("trace", trace_root(traceparent)), ("session", session_id)):
        if root is not None:
            slots.append(Slot(f"{kind}/{tenant.name}/{root}", admission.slots_per_root, "root_limit"))
    return tuple(slots)
