"""In which order targets are tried: places in columns, one column for each thing that was thought of a target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Final, Literal, NamedTuple

from serve_app.core.scorers import SCORERS, lot
from serve_app.core.snapshots import Target

#: No target of a tier takes new sessions above this multiple of its share of what runs and waits in the tier.
BOUND: Final = 1.25
#: What is special about a candidate: the session's own, the one that finds out whether a breaker may close, one of a
#: tier that takes only its share and has it, one that is asked only when nobody has a short queue, one only when nobody
#: else is there at all.
Mark = Literal["", "kept", "probe", "easing", "over limit", "handover", "backup"]
#: A target without free slots is drawn this seldom against one that is all free: its report may be old.
LEAST_FREE: Final = 0.02
TierRank = tuple[int, float]
PREFERRED: Final[TierRank] = (0, 0.0)
LOVED: Final[TierRank] = (1, 0.0)
_HEADROOM: Final = tuple(SCORERS).index("headroom")


def tier_of(target: Target, preferred: str | None, loved: str | None) -> TierRank:
    """preferredCloud, then languageAffinity, then price."""
    if preferred is not None and target.cloud == preferred:
        return PREFERRED
    if loved is not None and loved in (target.cloud, target.region):
        return LOVED
    return (2, target.gpu_hour_usd)


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
    """What was thought of each target, in columns, and ``order``, places in them; ``out`` are those dropped.

    ``scored`` has by place the score and its parts, of those that were compared.
    """

    usable: Sequence[Target]
    ranks: Sequence[TierRank]
    marks: Sequence[Mark]
    waits_ms: Sequence[float | None]
    order: list[int]
    scored: Mapping[int, tuple[float, tuple[float, ...]]]
    out: Sequence[tuple[Target, str, TierRank]]

    def candidate(self, i: int) -> Candidate:
        score, parts = self.scored.get(i, (None, ()))
        return Candidate(self.usable[i], None, self.ranks[i], score, parts, self.marks[i])


def groups_of(
    ranks: Sequence[TierRank], marks: Sequence[Mark], waits_ms: Sequence[float | None]
) -> Iterator[list[int]]:
    """Places of targets that stand alike: the session's own; tier by tier those with a short queue, then those that are
    easing; the least loaded of the others; tier by tier those that nobody reports on.
    """
    groups: dict[tuple[int, int, float], list[int]] = {}
    for i, ((place, usd), mark) in enumerate(zip(ranks, marks, strict=True)):
        if mark == "" or mark == "probe":
            key = (1, place, usd)
        elif mark == "kept":
            key = (0, 0, 0.0)
        elif mark == "easing":
            key = (2, place, usd)
        elif mark == "backup":
            key = (4, place, usd)
        else:
            wait_ms = waits_ms[i]
            key = (3, 0, inf if wait_ms is None else wait_ms)
        groups.setdefault(key, []).append(i)
    return (groups[key] for key in sorted(groups))


def ease(
    targets: Sequence[Target], ranks: Sequence[TierRank], marks: list[Mark], session: str | None, draw: float | None
) -> None:
    """Marks the tiers in which everybody who has a short queue is slow or comes back: they take their share of
    requests, and the others go on to the next tier. Inside a tier scores and hashes see to it.

    A session is always on the same side for the same weight, and one that was in stays in while the weight grows.
    Without a session it is drawn; who only looks sees what most requests get.
    """
    if all(target.weight >= 1.0 for target in targets):
        return
    able: dict[TierRank, float] = {}
    for target, rank, mark in zip(targets, ranks, marks, strict=True):
        if mark == "":
            able[rank] = max(able.get(rank, 0.0), target.weight)
    key = draw if session is None else session
    full = {rank for rank, most in able.items() if most < 1.0 and (0.5 if key is None else lot(key, rank)) >= most}
    for i, (rank, mark) in enumerate(zip(ranks, marks, strict=True)):
        if mark == "" and rank in full:
            marks[i] = "easing"


def drawn(look: Look, home: str, max_queue_ms: float, draw: float) -> int:
    """The place of the target that goes first, drawn among those that stand where the best one stands.

    All regions see the same best target until it reports again, and each knows only what it has sent itself: if all
    took it, its queue would be full before anybody heard of it. So each takes a target as often as it has free slots
    to give and scores well, or, where everybody is over the limit, as it is quick. What is best at home is left alone;
    where it is not, home still counts as much as all others together: who has room need not hand on.
    """
    best = look.order[0]
    mark, rank, usable = look.marks[best], look.ranks[best], look.usable
    if mark in ("", "easing"):
        peers = [i for i in look.order if look.marks[i] == mark and look.ranks[i] == rank]
        shares = []
        for i in peers:
            score, parts = look.scored[i]
            shares.append(score * (usable[i].slots or 1) * max(LEAST_FREE, parts[_HEADROOM]))
    elif mark == "over limit":
        peers = [i for i in look.order if look.marks[i] == mark]
        waits = [1 + (look.waits_ms[i] or 0.0) / max_queue_ms for i in peers]
        shares = [usable[i].weight * (usable[i].slots or 1) / wait for i, wait in zip(peers, waits, strict=True)]
    else:
        return best
    shares = [
        share * max(1, len(peers) - 1) if usable[i].region == home else share
        for i, share in zip(peers, shares, strict=True)
    ]
    left = draw * sum(shares)
    for i, share in zip(peers, shares, strict=True):
        left -= share
        if left < 0:
            return i
    return best


def late_of(targets: Sequence[Target]) -> list[bool]:
    """Of the targets of a tier, which have their share of it already: new sessions go to the others."""
    loads = [(t.load.running, t.load.waiting) for t in targets]
    busy = [None if running is None or waiting is None else running + waiting for running, waiting in loads]
    room = [(t.slots or 1) * max(t.weight, 1e-6) for t in targets]
    told = [i for i, calls in enumerate(busy) if calls is not None]
    if len(told) < 2:
        return [False] * len(targets)
    most = BOUND * (1 + sum([busy[i] or 0 for i in told])) / sum([room[i] for i in told])
    return [calls is not None and calls + 1 > ceil(most * may) for calls, may in zip(busy, room, strict=True)]
