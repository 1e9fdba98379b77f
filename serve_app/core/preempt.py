"""Who gives way when a replica of a more important agent finds no room: how many replicas each engine may have now.

Serve stops replicas at once when their maximum is lowered, so the maximum is the lever. It only goes down for somebody
more important, and up again when nobody has needed the room for a while: what was lowered is not raised before
:data:`RESTORE_S`, so nothing swings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from serve_app.core.names import agent_of

#: A replica that found no room for so long is pending. Others are sooner there: their process only starts.
PENDING_S: Final = 2.0
#: Who gave way may have its replicas again so long after the room was last needed.
RESTORE_S: Final = 300.0
#: Shares of a core or a GPU are sums of floats.
_HAIR: Final = 1e-6

#: Amounts by resource, as the cluster names them: ``CPU``, ``GPU``, others of its own.
Amounts = Mapping[str, float]
_NOTHING: Final[Amounts] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine's application: its policy's bounds, and its replicas as the cluster has them.

    ``placed`` have a node and stay there, ``pending`` have none and would serve with one. ``needs`` is what each takes.
    """

    app: str
    priority: int
    min_replicas: int
    max_replicas: int
    needs: Amounts
    placed: int = 0
    pending: int = 0

    @property
    def least(self) -> int:
        """What preemption leaves: Serve takes no maximum of 0, so the last replica stays even where none has to."""
        return max(1, self.min_replicas)


class Ceiling(NamedTuple):
    """An engine may have ``most`` replicas for now: ``cause``, the app of a more important one, needs the room."""

    most: int
    cause: str


@dataclass(frozen=True, slots=True)
class Lowered:
    """An engine that gives way; ``needed_s`` is when somebody more important last needed the room."""

    ceiling: Ceiling
    needed_s: float


@dataclass(frozen=True, slots=True)
class Memory:
    """What the next decision has to know. ``missing_s`` has by app since when each replica without room is missing."""

    lowered: Mapping[str, Lowered] = field(default_factory=dict)
    missing_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def ceilings(self) -> dict[str, Ceiling]:
        """Of each engine that gives way."""
        return {app: low.ceiling for app, low in self.lowered.items()}


@dataclass(frozen=True, slots=True)
class Change:
    """The maximum of ``app`` goes from ``before`` to ``after``: down for ``cause`` (an app), up without one."""

    app: str
    before: int
    after: int
    cause: str | None


@dataclass(frozen=True, slots=True)
class Decision:
    """At most one change. ``short`` has by app how many replicas are pending for whom nobody can give way."""

    memory: Memory
    change: Change | None = None
    short: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Unplaced:
    """Replicas of one engine for which there is no room.

    ``lacking`` of them have none with the agent's other engine gone either, and ``lacks`` is what the first of these
    lacks then: while one engine follows another, nobody gives way only because both are there.
    """

    engine: Engine
    count: int
    lacking: int
    lacks: Amounts


def decide(
    engines: Iterable[Engine], free: Amounts, memory: Memory, now_s: float, *, ending: Amounts = _NOTHING
) -> Decision:
    """Whether somebody gives way, or may have its replicas again.

    ``free`` is what no replica on a node takes, ``ending`` what is taken by those that end their calls. The most
    important pending replica comes first. Of those less important the least important gives way, then the one that is
    furthest above its minimum, then by name; nobody does where all together would not make the room.
    """
    order = sorted(engines, key=lambda e: (-e.priority, e.app))
    known = {e.app: e for e in order}
    lowered = {app: low for app, low in memory.lowered.items() if app in known}
    lowered = {app: _at_least(low, known[app].least) for app, low in lowered.items()}
    lowered = {app: low for app, low in lowered.items() if low.ceiling.most < known[app].max_replicas}
    most = {e.app: lowered[e.app].ceiling.most if e.app in lowered else e.max_replicas for e in order}
    lowered = _still_needed(lowered, known, _unplaced(order, most, free), now_s)
    # Who was told to give way needs time to end its calls; its room is counted until somebody else has it.
    coming = dict(free)
    _add(coming, ending, 1)
    for e in order:
        _add(coming, e.needs, max(0, e.placed - most[e.app]))
    unplaced = _unplaced(order, most, coming)
    missing_s = {u.engine.app: _since_s(memory.missing_s.get(u.engine.app, ()), u.count, now_s) for u in unplaced}
    change: Change | None = None
    short = {}
    for u in unplaced:
        ripe = sum(now_s - since_s >= PENDING_S for since_s in missing_s[u.engine.app])
        found = _who_gives_way(u, order, most) if ripe > u.count - u.lacking else None
        if found is not None and change is None:
            change = found
        elif ripe and found is None:
            short[u.engine.app] = ripe
    if change is not None:
        lowered[change.app] = Lowered(Ceiling(change.after, str(change.cause)), now_s)
    else:
        change = _restored(lowered, known, now_s)
        if change is not None:
            del lowered[change.app]
    return Decision(Memory(lowered, missing_s), change, short)


def _at_least(low: Lowered, least: int) -> Lowered:
    """For a policy whose minimum has become larger meanwhile."""
    return low if low.ceiling.most >= least else replace(low, ceiling=low.ceiling._replace(most=least))


def _unplaced(order: Sequence[Engine], most: Mapping[str, int], room: Amounts) -> list[_Unplaced]:
    """Who finds no room when the most important are placed first; what waits for more than the maximum goes away."""
    left, found = dict(room), []
    for e in order:
        count = _without_room(e, min(e.pending, max(0, most[e.app] - e.placed)), left)
        if count:
            alone = dict(left)
            for other in order:
                if other is not e and agent_of(other.app) == agent_of(e.app):
                    _add(alone, other.needs, min(other.placed, most[other.app]))
            lacking = _without_room(e, count, alone)
            lacks = {name: amount - alone.get(name, 0.0) for name, amount in e.needs.items()} if lacking else {}
            lacks = {name: amount for name, amount in lacks.items() if amount > _HAIR}
            found.append(_Unplaced(e, count, lacking, lacks))
    return found


def _without_room(engine: Engine, count: int, room: dict[str, float]) -> int:
    """How many of so many replicas find no room; the others have taken theirs."""
    while count and all(room.get(name, 0.0) + _HAIR >= amount for name, amount in engine.needs.items()):
        _add(room, engine.needs, -1)
        count -= 1
    return count


def _add(room: dict[str, float], needs: Amounts, replicas: int) -> None:
    for name, amount in needs.items():
        room[name] = room.get(name, 0.0) + replicas * amount


def _since_s(before: tuple[float, ...], count: int, now_s: float) -> tuple[float, ...]:
    """Since when each of ``count`` replicas is missing, those that were before them first."""
    return (*before[:count], *[now_s] * (count - len(before)))


def _still_needed(
    lowered: Mapping[str, Lowered], known: Mapping[str, Engine], unplaced: Sequence[_Unplaced], now_s: float
) -> dict[str, Lowered]:
    """With the time of now where somebody more important still waits for what an engine that gave way has."""

    def needed(victim: Engine) -> bool:
        return any(u.engine.priority > victim.priority and _helps(victim, u.lacks) for u in unplaced)

    return {app: replace(low, needed_s=now_s) if needed(known[app]) else low for app, low in lowered.items()}


def _helps(victim: Engine, lacks: Amounts) -> bool:
    return any(amount > _HAIR and victim.needs.get(name, 0.0) > 0 for name, amount in lacks.items())


def _who_gives_way(need: _Unplaced, order: Sequence[Engine], most: Mapping[str, int]) -> Change | None:
    """The first of those that together make room for one replica; ``None`` when they cannot."""

    def now(e: Engine) -> int:
        return min(e.placed, most[e.app])

    lacks, chosen = dict(need.lacks), list[tuple[Engine, int]]()
    less = [e for e in order if e.priority < need.engine.priority and now(e) > e.least]
    for victim in sorted(less, key=lambda e: (e.priority, e.least - now(e), e.app)):
        if _helps(victim, lacks):
            counts = [math.ceil(lacks.get(n, 0.0) / a - _HAIR) for n, a in victim.needs.items() if a > 0]
            count = min(now(victim) - victim.least, max(counts))
            chosen.append((victim, count))
            _add(lacks, victim.needs, -count)
    if any(lacks[name] > _HAIR for name in need.lacks):
        return None
    # Who came later may have brought all that somebody before it was chosen for.
    for victim, count in reversed(chosen[:]):
        if all(lacks[name] + count * victim.needs.get(name, 0.0) <= _HAIR for name in need.lacks):
            chosen.remove((victim, count))
            _add(lacks, victim.needs, count)
    victim, count = chosen[0]
    return Change(victim.app, now(victim), now(victim) - count, need.engine.app)


def _restored(lowered: Mapping[str, Lowered], known: Mapping[str, Engine], now_s: float) -> Change | None:
    """The most important engine whose room nobody has needed for long enough."""
    due = [known[app] for app, low in lowered.items() if now_s - low.needed_s >= RESTORE_S]
    if not due:
        return None
    first = min(due, key=lambda e: (-e.priority, e.app))
    return Change(first.app, lowered[first.app].ceiling.most, first.max_replicas, None)
