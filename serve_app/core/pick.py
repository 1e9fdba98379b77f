"""Which target answers: filters, then tiers from stable facts, then sessions and scores inside the tier.

The order of thought is fixed (DESIGN, section 5): what may answer at all; which tier is preferred; the first tier with
a target that is not over ``maxQueueMs``; inside it a session's own target, else the best score. Targets that nobody
reports on any more come after all others, and are never lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from serve_app.core.scorers import SCORERS, Scene, rendezvous, wait_ms_of
from serve_app.core.snapshots import Snapshot, Target
from serve_app.core.table import Agent, Scoring, Tenant
from serve_app.core.tenants import check_residency
from serve_app.outcomes import Reason

#: No target of a tier takes new sessions above this multiple of its share of what runs and waits in the tier.
BOUND: Final = 1.25
_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
#: What is special about a candidate: the session's own, the one that finds out whether a breaker may close, one that
#: is asked only when nobody has a short queue, one only when nobody else is there at all.
Mark = Literal["", "kept", "probe", "over limit", "handover", "backup"]
TierRank = tuple[int, float]
_PREFERRED: Final[TierRank] = (0, 0.0)
_LOVED: Final[TierRank] = (1, 0.0)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request needs of a target.

    ``session`` is the key that its turns share, ``kept`` the region that answered it before. ``hops`` counts regions
    that handed the request on already.
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
    hops: int = 0


class Candidate(NamedTuple):
    """One target with what was thought of it: ``dropped`` names the filter that took it out.

    ``parts`` is what the score is made of: what each scorer said, or what the session's hash says.
    """

    target: Target
    dropped: str | None
    tier_rank: TierRank
    score: float | None
    parts: tuple[float, ...]
    mark: Mark

    @property
    def tier(self) -> str:
        place, usd = self.tier_rank
        return ("preferred cloud", "language affinity", f"price {usd:g} USD/h")[place]

    @property
    def scores(self) -> dict[str, float]:
        """The parts by name."""
        names = ("rendezvous",) if len(self.parts) == 1 else tuple(SCORERS)
        return dict(zip(names, self.parts, strict=False))


@dataclass(frozen=True, slots=True)
class Look:
    """What was thought of each target, in columns, and ``order``, places in them; ``out`` are those dropped."""

    usable: Sequence[Target]
    ranks: Sequence[TierRank]
    scores: Sequence[float]
    parts: Sequence[Sequence[float]]
    marks: Sequence[Mark]
    order: Sequence[int]
    out: Sequence[tuple[Target, str, TierRank]]

    def candidate(self, i: int) -> Candidate:
        parts = tuple(column[i] for column in self.parts)
        return Candidate(self.usable[i], None, self.ranks[i], self.scores[i], parts, self.marks[i])


@dataclass(frozen=True, slots=True)
class Choice:
    """Targets in the order to try them (empty: nothing can answer), and the reason.

    ``preferred`` are the regions that stable facts alone would have: an answer from elsewhere is a spill. ``refused``
    is why nothing can answer.
    """

    order: tuple[Target, ...]
    reason: str
    look: Look
    preferred: frozenset[str] = frozenset()
    refused: Reason | None = None

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every target that was thought of: in the order to try them, then those that were dropped, by name."""
        dropped = sorted(self.look.out, key=_by_name)
        return (
            *(self.look.candidate(i) for i in self.look.order),
            *(Candidate(target, why, rank, None, (), "") for target, why, rank in dropped),
        )


def _out(target: Target, wish: Wish, snapshot: Snapshot, blocked: Collection[str]) -> str | None:
    """Why a target is out for now, or ``None``."""
    away = target.region != wish.region
    if target.health == "ejected" or (away and target.health == "unknown"):
        return f"is {target.health}: {target.why}" if target.why else f"is {target.health}"
    if away and target.drained:
        return "its region is drained"
    if target.breaker == "open":
        return "its breaker is open"
    if target.breaker == "probing" and target.id not in snapshot.lent:
        return "its breaker is half-open and the probe is lent to another Router"
    if blocked and target.id in blocked:
        return "its breaker is open in this Router"
    return None


def _unfit(target: Target, wish: Wish) -> str | None:
    """Why a target can never answer this request, or ``None``."""
    needed = wish.agent.vram_required_bytes
    if needed is not None and target.vram_bytes is not None and target.vram_bytes < needed:
        return f"VRAM of {target.vram_bytes / 2**30:.1f} GiB is less than the {needed / 2**30:.1f} GiB it needs"
    if wish.pinned_release and not target.release.startswith(wish.pinned_release):
        return f"serves release {target.release[:12]}, not {wish.pinned_release}"
    if wish.prompt_tokens >= target.max_model_len:
        return f"context of {target.max_model_len} tokens is too small for about {wish.prompt_tokens}"
    if not check_residency(wish.tenant, target.residency, wish.data_class):
        zones = ", ".join(sorted(target.residency)) or "no zone"
        return f"residency: data of {wish.tenant.name} may not be in {zones}"
    if target.drifted:
        return f"drifted: serves release {target.release[:12]}, which its plan does not name"
    if target.region != wish.region:
        if not target.accepts_spill:
            return "its region takes no requests of others"
        if wish.hops:
            return "another region has handed the request on already"
    return None


def _tier(target: Target, preferred: str | None, loved: str | None) -> TierRank:
    """preferredCloud, then languageAffinity, then price."""
    if preferred is not None and target.cloud == preferred:
        return _PREFERRED
    if loved is not None and loved in (target.cloud, target.region):
        return _LOVED
    return (2, target.gpu_hour_usd)


def _scores(
    targets: Sequence[Target], wish: Wish, scoring: Scoring, waits_ms: Sequence[float | None], sent: Mapping[str, int]
) -> tuple[list[float], list[list[float]]]:
    """Of each target its score, and the columns it is made of: its session's hash, else the weighted scorers."""
    if not targets:
        return [], []
    if wish.session is not None:
        values = rendezvous(wish.session, targets)
        return values, [values]
    scene = Scene(wish.region, wish.agent.max_queue_ms, waits_ms, sent)
    totals, columns = [0.0] * len(targets), []
    for name, scorer in SCORERS.items():
        weight, column = getattr(scoring, name), scorer(targets, scene)
        totals = [total + weight * part for total, part in zip(totals, column, strict=True)]
        columns.append(column)
    return [total * t.weight for total, t in zip(totals, targets, strict=True)], columns


def _mark(target: Target, wish: Wish, wait_ms: float | None) -> Mark:
    if target.health == "stale" or target.drained:
        return "backup"
    if wish.kept == target.region:
        waiting = target.load.waiting
        return "handover" if waiting is not None and waiting > wish.agent.handover_queue else "kept"
    if wait_ms is not None and wait_ms >= wish.agent.max_queue_ms:
        return "over limit"
    return "probe" if target.breaker == "probing" else ""


def choose(
    snapshot: Snapshot,
    wish: Wish,
    scoring: Scoring,
    *,
    blocked: Collection[str] = (),
    in_flight: Mapping[str, int] = _NOTHING,
) -> Choice:
    """The order in which to try targets.

    Args:
        blocked: ids of targets that this Router's own breakers are open for.
        in_flight: by target id, the calls that this Router has begun since the target's last report, less those that
            ended. Only for requests without a session: they would all go to one target until the next report.
    """
    loved, cloud = wish.agent.language_affinity.get(wish.language), wish.preferred_cloud
    usable: list[Target] = []
    out: list[tuple[Target, str, TierRank]] = []
    for target in snapshot.targets:
        if target.agent == wish.agent.name:
            why = _out(target, wish, snapshot, blocked) or _unfit(target, wish)
            if why is None:
                usable.append(target)
            else:
                out.append((target, why, _tier(target, cloud, loved)))
    waits_ms = [wait_ms_of(t) for t in usable]
    marks = [_mark(t, wish, wait_ms) for t, wait_ms in zip(usable, waits_ms, strict=True)]
    ranks = [_tier(t, cloud, loved) for t in usable]
    scores, parts = _scores(usable, wish, scoring, waits_ms, in_flight)
    late = _late(usable, ranks, marks) if wish.session is not None else None
    look = Look(usable, ranks, scores, parts, marks, _order(usable, ranks, scores, marks, waits_ms, late), out)
    # Of those that are out only for now stable facts speak too, whatever their load and health are.
    away = [(t, rank) for t, _, rank in out if _unfit(t, wish) is None]
    best = min([*ranks, *[rank for _, rank in away]], default=None)
    preferred = [t.region for t, rank in zip(usable, ranks, strict=True) if rank == best]
    return Choice(
        order=tuple([usable[i] for i in look.order]),
        reason=_reason(look),
        look=look,
        preferred=frozenset([*preferred, *[t.region for t, rank in away if rank == best]]),
        refused=None if usable else _refused([t for t, _, _ in out], wish),
    )


def _by_name(found: tuple[Target, str, TierRank]) -> str:
    return found[0].id


def _order(
    usable: Sequence[Target],
    ranks: Sequence[TierRank],
    scores: Sequence[float],
    marks: Sequence[Mark],
    waits_ms: Sequence[float | None],
    late: Collection[int] | None,
) -> list[int]:
    """Places in ``usable``: the session's own target; tier by tier those with a short queue; the least loaded of the
    others; those that nobody reports on. Inside a tier whoever is ``late`` comes last, and without sessions (``None``)
    a probe first: one request has to find out.
    """
    keys: list[tuple[int, object, object, float, str, str, int]] = []
    columns = zip(usable, ranks, scores, marks, waits_ms, strict=True)
    for i, (target, rank, score, mark, wait_ms) in enumerate(columns):
        if mark == "":
            keys.append((1, rank, late is None or i in late, -score, target.region, target.release, i))
        elif mark == "probe":
            keys.append((1, rank, late is not None and i in late, -score, target.region, target.release, i))
        elif mark == "kept":
            keys.append((0, _PREFERRED, False, -score, target.region, target.release, i))
        elif mark == "backup":
            keys.append((3, rank, False, -score, target.region, target.release, i))
        else:
            keys.append((2, wait_ms or 0.0, rank, -score, target.region, target.release, i))
    keys.sort()
    return [key[-1] for key in keys]


def _late(usable: Sequence[Target], ranks: Sequence[TierRank], marks: Sequence[Mark]) -> frozenset[int]:
    """Places in the first tier of those that have their share of it already: sessions go to others of the tier."""
    here = [i for i, mark in enumerate(marks) if mark in ("", "probe")]
    best = min([ranks[i] for i in here], default=None)
    told: list[tuple[int, int, float]] = []
    for i in here:
        target = usable[i]
        running, waiting = target.load.running, target.load.waiting
        if ranks[i] == best and running is not None and waiting is not None:
            told.append((i, running + waiting, (target.slots or 1) * max(target.weight, 1e-6)))
    if len(told) < 2:
        return frozenset()
    most = BOUND * (1 + sum([busy for _, busy, _ in told])) / sum([room for _, _, room in told])
    return frozenset([i for i, busy, room in told if busy + 1 > ceil(most * room)])


def _refused(out: Sequence[Target], wish: Wish) -> Reason:
    """``residency`` only where it alone is to blame: then no wait helps."""
    if out and not any(check_residency(wish.tenant, t.residency, wish.data_class) for t in out):
        return "residency"
    return "no_target"


def _reason(look: Look) -> str:
    if look.order:
        first = look.candidate(look.order[0])
        mark = f", {first.mark}" if first.mark else ""
        return f"{first.target.id}: {first.tier}, score {first.score or 0.0:.2f}{mark}"
    if not look.out:
        return "no region serves this agent"
    return "; ".join(f"{t.id}: {why}" for t, why, _ in sorted(look.out, key=_by_name))
