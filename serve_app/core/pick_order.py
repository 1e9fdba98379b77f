"""In which order targets are tried: places in columns, one column for each thing that was thought of a target."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, Literal, NamedTuple

from serve_app.core.scorers import SCORERS
from serve_app.core.snapshots import Target

#: No target of a tier takes new sessions above this multiple of its share of what runs and waits in the tier.
BOUND: Final = 1.25
#: What is special about a candidate: the session's own, the one that finds out whether a breaker may close, one that
#: is asked only when nobody has a short queue, one only when nobody else is there at all.
Mark = Literal["", "kept", "probe", "over limit", "handover", "backup"]
#: A target without free slots is drawn this seldom against one that is all free: its report may be old.
LEAST_FREE: Final = 0.02
TierRank = tuple[int, float]
PREFERRED: Final[TierRank] = (0, 0.0)
LOVED: Final[TierRank] = (1, 0.0)
_HEADROOM: Final = tuple(SCORERS).index("headroom")


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


def order_of(
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
            keys.append((0, PREFERRED, False, -score, target.region, target.release, i))
        elif mark == "backup":
            keys.append((3, rank, False, -score, target.region, target.release, i))
        else:
            keys.append((2, wait_ms or 0.0, rank, -score, target.region, target.release, i))
    keys.sort()
    return [key[-1] for key in keys]


def drawn(look: Look, home: str, waits_ms: Sequence[float | None], max_queue_ms: float, draw: float) -> int:
    """The place of the target that goes first, drawn among those that stand where the best one stands.

    All regions see the same best target until it reports again, and each knows only what it has sent itself: if all
    took it, its queue would be full before anybody heard of it. So each takes a target as often as it has free slots
    to give and scores well, or, where everybody is over the limit, as it is quick. What is best at home is left alone;
    where it is not, home still counts as much as all others together: who has room need not hand on.
    """
    best = look.order[0]
    mark, rank, usable = look.marks[best], look.ranks[best], look.usable
    if mark == "":
        free = look.parts[_HEADROOM]
        peers = [i for i in look.order if look.marks[i] == "" and look.ranks[i] == rank]
        shares = [look.scores[i] * (usable[i].slots or 1) * max(LEAST_FREE, free[i]) for i in peers]
    elif mark == "over limit":
        peers = [i for i in look.order if look.marks[i] == mark]
        shares = [usable[i].weight * (usable[i].slots or 1) / (1 + (waits_ms[i] or 0.0) / max_queue_ms) for i in peers]
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


def late_of(usable: Sequence[Target], ranks: Sequence[TierRank], marks: Sequence[Mark]) -> frozenset[int]:
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
