"""Which target answers: filters, then tiers from stable facts, then sessions and scores inside the tier.

The order of thought is fixed (DESIGN, section 5): what may answer at all; which tier is preferred; the first tier with
a target that is not over ``maxQueueMs``; inside it a session's own target, else the best score. Targets that nobody
reports on any more come after all others, and are never lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from serve_app.core.pick_order import Candidate, Look, Mark, TierRank, drawn, ease, groups_of, late_of, tier_of
from serve_app.core.retry import MAX_ATTEMPTS
from serve_app.core.scorers import SCORERS, Scene, rendezvous, wait_ms_of
from serve_app.core.snapshots import Snapshot, Target
from serve_app.core.table import Agent, Tenant
from serve_app.core.tenants import allowed_zones
from serve_app.outcomes import Reason

#: Of ``maxQueueMs``: where no replica can come to help, others are asked as soon as more than this is waited; it is
#: what by default counts as quiet, so that a region which is short keeps what it carries.
SHORT_RATIO: Final = 0.2
_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request needs of a target. It has ``prompt_tokens`` at least.

    ``session`` is the key that its turns share, ``kept`` the region that answered it before; ``keeps``: whether the
    choice will be the next turn's ``kept``. ``hops`` counts regions that handed the request on already. ``release`` is
    the one that is tried and that this user is on; ``None``: the one in force.
    """

    agent: Agent
    tenant: Tenant
    language: str
    prompt_tokens: int
    preferred_cloud: str | None = None
    pinned_release: str | None = None
    data_class: str | None = None
    region: str = ""
    session: str | None = None
    kept: str | None = None
    keeps: bool = True
    hops: int = 0
    release: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Targets in the order to try them (empty: nothing can answer), and the reason.

    ``preferred`` are the regions that stable facts alone would have: an answer from elsewhere is a spill. ``away``
    could answer this request, and are out for now. ``refused`` is why nothing can answer.
    """

    order: tuple[Target, ...]
    reason: str
    look: Look
    preferred: frozenset[str] = frozenset()
    away: tuple[Target, ...] = ()
    refused: Reason | None = None

    def has_room(self, region: str, asked: Collection[str]) -> bool:
        """Whether ``region`` could have answered and was not ``asked`` (ids of targets): it comes back slowly, or is
        drained, or the session stays elsewhere. More replicas would have changed nothing."""
        return any(
            t.region == region
            and t.id not in asked
            and (t.drained or mark in ("", "kept") or (mark == "easing" and t.health == "healthy"))
            for t, mark in zip(self.look.usable, self.look.marks, strict=True)
        )

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every target that was thought of: in the order to try them, then those that were dropped, by name."""
        dropped = sorted(self.look.out, key=_by_name)
        return (
            *(self.look.candidate(i) for i in self.look.order),
            *(Candidate(target, why, rank, None, (), "") for target, why, rank in dropped),
        )


def _out(target: Target, wish: Wish, lent: Collection[str], blocked: Collection[str]) -> str | None:
    """Why a target is out for now, or ``None``."""
    health = target.health
    if health == "ejected" or (health == "unknown" and target.region != wish.region):
        return f"is {health}: {target.why}" if target.why else f"is {health}"
    if target.drained and target.region != wish.region:
        return "its region is drained"
    if target.breaker != "closed":
        if target.breaker == "open":
            return "its breaker is open"
        if target.id not in lent:
            return "its breaker is half-open and the probe is lent to another Router"
    if blocked and target.id in blocked:
        return "its breaker is open in this Router"
    return None


def _unfit(target: Target, wish: Wish, zones: frozenset[str] | None) -> str | None:
    """Why a target can never answer this request, or ``None``. ``zones`` may see it, ``None``: any.

    VRAM is asked for when a region starts and when a policy is applied (``core.nodes``): unmet, there is no target.
    """
    if wish.pinned_release and not target.release.startswith(wish.pinned_release):
        return f"serves release {target.release[:12]}, not {wish.pinned_release}"
    if target.release != wish.release if wish.release is not None else target.canary:
        return f"serves release {target.release[:12]}, which this user is not on"
    if zones is not None and zones.isdisjoint(target.residency):
        lies = ", ".join(sorted(target.residency)) or "no zone"
        return f"residency: data of {wish.tenant.name} may not be in {lies}"
    if target.drifted:
        return f"drifted: serves release {target.release[:12]}, which its plan does not name"
    if target.region != wish.region:
        if not target.accepts_spill:
            return "its region takes no requests of others"
        if wish.hops:
            return "another region has handed the request on already"
    return None


def _scores(
    targets: Sequence[Target],
    wish: Wish,
    scoring: Mapping[str, float],
    waits_ms: Sequence[float | None],
    sent: Mapping[str, int],
) -> list[tuple[float, tuple[float, ...]]]:
    """Of each target its score, and what it is made of: its session's hash, else what the weighted scorers say."""
    if wish.session is not None:
        return [(value, (value,)) for value in rendezvous(wish.session, targets)]
    scene = Scene(wish.region, wish.agent.max_queue_ms, waits_ms, sent)
    totals, columns = [0.0] * len(targets), []
    for name, scorer in SCORERS.items():
        weight, column = scoring[name], scorer.of(targets, scene)
        totals = [total + weight * part for total, part in zip(totals, column, strict=True)]
        columns.append(column)
    totals = [total * t.weight for total, t in zip(totals, targets, strict=True)]
    return list(zip(totals, zip(*columns, strict=True), strict=True))


def _marks(
    targets: Sequence[Target], wish: Wish, waits_ms: Sequence[float | None], in_flight: Mapping[str, int]
) -> list[Mark]:
    limit_ms, found = wish.agent.max_queue_ms, []
    # An engine of this region that has not reported yet and is not known to run is starting: others go first, if any is
    # known to be well. Nobody is without a RegionAgent. What sleeps at zero is woken by one call; others need not wait.
    is_backed = any(t.health in ("healthy", "slow") for t in targets)
    for target, wait_ms in zip(targets, waits_ms, strict=True):
        mark: Mark = ""
        is_starting = is_backed and target.health == "unknown" and not target.runs
        if is_starting and wish.agent.min_replicas == 0:
            is_starting = in_flight.get(target.id, 0) > 0
        if target.health == "stale" or target.drained or is_starting:
            mark = "backup"
        elif target.region == wish.kept:
            mark = "handover" if (target.load.waiting or 0) > wish.agent.handover_queue else "kept"
        elif wait_ms is not None and wait_ms >= limit_ms * (SHORT_RATIO if target.short else 1.0):
            mark = "over limit"
        elif target.breaker == "probing":
            mark = "probe"
        found.append(mark)
    return found


def _sifted(
    snapshot: Snapshot, wish: Wish, zones: frozenset[str] | None, blocked: Collection[str]
) -> tuple[list[Target], list[tuple[Target, str]], list[Target]]:
    """Who may answer; the others with the reason; and of these who could if they were not out for now.

    A prompt that is too long for everybody goes to a longest context: the engine counts exactly and says so.
    """
    usable: list[Target] = []
    tight: list[Target] = []
    away: list[Target] = []
    dropped: list[tuple[Target, str]] = []
    for target in snapshot.targets:
        if target.agent != wish.agent.name:
            continue
        out, fits = _out(target, wish, snapshot.lent, blocked), wish.prompt_tokens < target.max_model_len
        why = out or _unfit(target, wish, zones)
        if why is not None:
            dropped.append((target, why))
            if out is not None and fits and _unfit(target, wish, zones) is None:
                away.append(target)
        else:
            (usable if fits else tight).append(target)
    if not usable and not away and tight:
        longest = max(t.max_model_len for t in tight)
        usable = [t for t in tight if t.max_model_len == longest]
        tight = [t for t in tight if t.max_model_len < longest]
    said = f"tokens is too small for about {wish.prompt_tokens}"
    dropped.extend((t, f"context of {t.max_model_len} {said}") for t in tight)
    return usable, dropped, away


def choose(
    snapshot: Snapshot,
    wish: Wish,
    scoring: Mapping[str, float],
    *,
    blocked: Collection[str] = (),
    in_flight: Mapping[str, int] = _NOTHING,
    draw: float | None = None,
) -> Choice:
    """The order in which to try targets.

    Args:
        blocked: ids of targets that this Router's own breakers are open for.
        in_flight: by target id, the calls that this Router has begun since the target's last report, less those that
            ended. Scores count it for requests without a session only: they would all go to one target until the next
            report.
        draw: from [0, 1); see :func:`drawn`. ``None``: for somebody who looks. The best score is first, and all have
            scores; else only so many are compared as all attempts can need, and the rest stays as it came.
    """
    loved, cloud = wish.agent.language_affinity.get(wish.language), wish.preferred_cloud
    zones = allowed_zones(wish.tenant, wish.data_class)
    usable, dropped, away_now = _sifted(snapshot, wish, zones, blocked)
    out = [(t, why, tier_of(t, cloud, loved)) for t, why in dropped]
    waits_ms = [wait_ms_of(t) for t in usable]
    marks = _marks(usable, wish, waits_ms, in_flight)
    ranks = [tier_of(t, cloud, loved) for t in usable]
    ease(usable, ranks, marks, wish.session, draw)
    scored: dict[int, tuple[float, tuple[float, ...]]] = {}
    order: list[int] = []
    for group in groups_of(ranks, marks, waits_ms):
        if draw is not None and len(order) >= MAX_ATTEMPTS:
            order.extend(group)
            continue
        targets = [usable[i] for i in group]
        scored.update(zip(group, _scores(targets, wish, scoring, [waits_ms[i] for i in group], in_flight), strict=True))
        order.extend(_sorted(group, targets, scored, marks, wish))
    look = Look(usable, ranks, marks, waits_ms, order, scored, out)
    if draw is not None and wish.session is None and len(order) > 1 and usable[order[0]].region != wish.region:
        first = drawn(look, wish.region, wish.agent.max_queue_ms, draw)
        order.remove(first)
        order.insert(0, first)
    # Of those that are out only for now stable facts speak too, whatever their load and health are.
    away = [(t, tier_of(t, cloud, loved)) for t in away_now]
    best = min([*ranks, *[rank for _, rank in away]], default=None)
    preferred = [t.region for t, rank in zip(usable, ranks, strict=True) if rank == best]
    return Choice(
        order=tuple([usable[i] for i in look.order]),
        reason=_reason(look),
        look=look,
        preferred=frozenset([*preferred, *[t.region for t, rank in away if rank == best]]),
        away=tuple(away_now),
        refused=None if usable else _refused([t for t, _, _ in out], zones),
    )


def _sorted(
    group: Sequence[int],
    targets: Sequence[Target],
    scored: Mapping[int, tuple[float, tuple[float, ...]]],
    marks: Sequence[Mark],
    wish: Wish,
) -> list[int]:
    """A group by score. Sessions come last where they are above a target's share; of other requests one has to find
    out about a target that is to be probed: it is first.

    Where nothing keeps a session's pick its hash alone decides: loads are others at its next turn.
    """
    if wish.session is None:
        last = [marks[i] != "probe" for i in group]
    else:
        last = late_of(targets) if wish.keeps else [False] * len(targets)
    keys = [(later, -scored[i][0], t.region, t.release, i) for i, t, later in zip(group, targets, last, strict=True)]
    keys.sort()
    return [key[-1] for key in keys]


def _by_name(found: tuple[Target, str, TierRank]) -> str:
    return found[0].id


def _refused(out: Sequence[Target], zones: frozenset[str] | None) -> Reason:
    """``residency`` only where it alone is to blame: then no wait helps."""
    is_alone = bool(out) and zones is not None and all(zones.isdisjoint(t.residency) for t in out)
    return "residency" if is_alone else "no_target"


def _reason(look: Look) -> str:
    if look.order:
        first = look.candidate(look.order[0])
        score = f", score {first.score:.2f}" if first.score is not None else ""
        mark = f", {first.mark}" if first.mark else ""
        return f"{first.target.id}: {first.tier}{score}{mark}"
    if not look.out:
        return "no region serves this agent"
    return "; ".join(f"{t.id}: {why}" for t, why, _ in sorted(look.out, key=_by_name))
