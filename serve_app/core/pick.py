"""Which target answers: filters, then tiers from stable facts, then scores inside the tier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from serve_app.core.snapshots import Snapshot, Target
from serve_app.core.table import Agent, Scoring, Tenant
from serve_app.core.tenants import check_residency


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request needs of a target."""

    agent: Agent
    tenant: Tenant
    language: str
    prompt_tokens: int
    preferred_cloud: str | None = None
    pinned_release: str | None = None
    data_class: str | None = None
    region: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One target with what was thought of it: ``dropped`` names the filter that took it out."""

    target: Target
    dropped: str | None
    tier: str
    tier_rank: tuple[int, float]
    score: float | None
    scores: dict[str, float]


@dataclass(frozen=True, slots=True)
class Choice:
    """Targets in the order to try them (empty: nothing can answer), with every candidate and the reason."""

    order: tuple[Target, ...]
    candidates: tuple[Candidate, ...]
    reason: str


def _dropped(target: Target, wish: Wish) -> str | None:
    """The first filter that takes a target out, or ``None``."""
    if target.health in ("ejected", "stale"):
        return f"is {target.health}"
    if wish.pinned_release and not target.release.startswith(wish.pinned_release):
        return f"serves release {target.release[:12]}, not {wish.pinned_release}"
    if wish.prompt_tokens >= target.max_model_len:
        return f"context of {target.max_model_len} tokens is too small for about {wish.prompt_tokens}"
    if not check_residency(wish.tenant, target.residency, wish.data_class):
        zones = ", ".join(sorted(target.residency)) or "no zone"
        return f"residency: data of {wish.tenant.name} may not be in {zones}"
    return None


def _tier(target: Target, wish: Wish) -> tuple[str, tuple[int, float]]:
    """preferredCloud, then languageAffinity, then price."""
    if wish.preferred_cloud is not None and target.cloud == wish.preferred_cloud:
        return "preferred cloud", (0, 0.0)
    if wish.agent.language_affinity.get(wish.language) in (target.cloud, target.region):
        return "language affinity", (1, 0.0)
    return f"price {target.gpu_hour_usd:g} USD/h", (2, target.gpu_hour_usd)


def _near(target: Target, wish: Wish, _: Sequence[Target]) -> float:
    """1 for this region, else falling with the measured round trip; half when it was never measured."""
    if target.region == wish.region:
        return 1.0
    rtt = target.load.network_ms
    return 0.5 if rtt is None else 1.0 / (1.0 + rtt / 100.0)


def _short_queue(target: Target, wish: Wish, _: Sequence[Target]) -> float:
    """1 without waiting, 0.5 at ``maxQueueMs``; a target that reports nothing stands in the middle."""
    wait = target.load.queue_wait_p95_ms
    return 0.5 if wait is None else 1.0 / (1.0 + wait / wish.agent.max_queue_ms)


def _free_slots(target: Target, _: Wish, __: Sequence[Target]) -> float:
    running, waiting = target.load.running, target.load.waiting
    if running is None or waiting is None:
        return 0.5
    return max(0.0, 1.0 - (running + waiting) / max(1, target.slots))


def _cheap(target: Target, _: Wish, peers: Sequence[Target]) -> float:
    dearest = max(p.gpu_hour_usd for p in peers)
    return 1.0 if dearest <= 0 else 1.0 - target.gpu_hour_usd / dearest


Scorer = Callable[[Target, Wish, Sequence[Target]], float]
#: A scorer is one function, in [0, 1], and one line here; its weight is ``scoring.<name>``.
SCORERS: Final[dict[str, Scorer]] = {
    "network": _near,
    "queue": _short_queue,
    "headroom": _free_slots,
    "cost": _cheap,
}


def _over(target: Target, limit_ms: float) -> bool:
    wait = target.load.queue_wait_p95_ms
    return wait is not None and wait >= limit_ms


def choose(snapshot: Snapshot, wish: Wish, scoring: Scoring) -> Choice:
    """The order in which to try targets: the first tier with one under ``maxQueueMs``, best score first.

    Targets over the limit follow in the same order, so that a fleet that is busy everywhere still answers from the
    least loaded.
    """
    present = [t for t in snapshot.targets if t.agent == wish.agent.name]
    candidates = []
    for target in present:
        scores = {name: scorer(target, wish, present) for name, scorer in SCORERS.items()}
        tier, rank = _tier(target, wish)
        dropped = _dropped(target, wish)
        total = None if dropped else sum(scores[name] * getattr(scoring, name) for name in SCORERS)
        candidates.append(Candidate(target, dropped, tier, rank, total, scores))
    usable = [c for c in candidates if c.dropped is None]
    ordered = sorted(
        usable,
        key=lambda c: (
            _over(c.target, wish.agent.max_queue_ms),
            c.tier_rank
            if not _over(c.target, wish.agent.max_queue_ms)
            else (9, c.target.load.queue_wait_p95_ms or 0.0),
            -(c.score or 0.0),
            c.target.id,
        ),
    )
    return Choice(tuple(c.target for c in ordered), tuple(candidates), _reason(candidates, ordered))


def _reason(candidates: Sequence[Candidate], ordered: Sequence[Candidate]) -> str:
    if ordered:
        first = ordered[0]
        return f"{first.target.id}: {first.tier}, score {first.score or 0.0:.2f}"
    if not candidates:
        return "no region serves this agent"
    return "; ".join(f"{c.target.id}: {c.dropped}" for c in candidates)
