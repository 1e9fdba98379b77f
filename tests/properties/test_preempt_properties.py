"""Whatever the agents want and when: nobody important gives way, nobody falls under its minimum, nothing swings."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.core.names import agent_of
from serve_app.core.preempt import PENDING_S, RESTORE_S, Change, Engine, Memory, decide

RESOURCES = ("CPU", "GPU")
LOOK_S = 1.0


@st.composite
def engines(draw: st.DrawFn) -> tuple[Engine, ...]:
    made, beside = [], draw(st.booleans())
    for i in range(draw(st.integers(1, 5))):
        low = draw(st.integers(0, 2))
        made.append(
            Engine(
                # Some have another engine of their agent beside them.
                app=f"e{i // 2}--{i}" if beside else f"e{i}",
                priority=draw(st.sampled_from([10, 50, 100])),
                min_replicas=low,
                max_replicas=draw(st.integers(max(1, low), 5)),
                needs={"CPU": draw(st.sampled_from([0.1, 1.0])), "GPU": draw(st.sampled_from([0.0, 0.5, 1.0, 2.0]))},
            )
        )
    return tuple(made)


@dataclass
class Cluster:
    """A cluster that places replicas in any order, and whose stopped replicas take a few looks to end."""

    engines: dict[str, Engine]
    total: dict[str, float]
    leaving: dict[str, int] = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    now_s: float = 0.0
    changes: list[tuple[float, Change]] = field(default_factory=list)

    def free(self) -> dict[str, float]:
        taken = [(e, e.placed + self.leaving.get(app, 0)) for app, e in self.engines.items()]
        return {name: self.total[name] - sum(e.needs[name] * n for e, n in taken) for name in RESOURCES}

    def step(self, order: list[str]) -> None:
        """Serve and Ray act, then it is looked once. ``order`` is whom Ray hears first."""
        self.now_s += LOOK_S
        most = {app: ceiling.most for app, ceiling in self.memory.ceilings.items()}
        for app, e in self.engines.items():
            target = max(e.min_replicas, min(self.wanted.get(app, 0), most.get(app, e.max_replicas)))
            stopped = max(0, e.placed - target)
            placed = e.placed - stopped
            self.leaving[app] = self.leaving.get(app, 0) // 2 + stopped
            self.engines[app] = replace(e, placed=placed, pending=target - placed)
        for app in order:
            e, free = self.engines[app], self.free()
            fit = min([int((free[n] + 1e-6) / a) for n, a in e.needs.items() if a > 0] + [e.pending])
            self.engines[app] = replace(e, placed=e.placed + max(0, fit), pending=e.pending - max(0, fit))
        self.look()

    def look(self) -> None:
        before = self.memory
        told = tuple(self.engines[app] for app in sorted(self.engines))
        ending = {n: sum(e.needs[n] * self.leaving.get(app, 0) for app, e in self.engines.items()) for n in RESOURCES}
        decision = decide(told, self.free(), before, self.now_s, ending=ending)
        assert decision == decide(told[::-1], self.free(), before, self.now_s, ending=ending)
        self.memory = decision.memory
        for app, ceiling in decision.memory.ceilings.items():
            assert self.engines[app].least <= ceiling.most < self.engines[app].max_replicas
        if decision.change is None:
            assert decision.memory.ceilings == before.ceilings
            return
        change = decision.change
        self.changes.append((self.now_s, change))
        assert decision.memory.ceilings.keys() ^ before.ceilings.keys() <= {change.app}
        if change.cause is not None:
            assert self.engines[change.app].priority < self.engines[change.cause].priority
            assert change.after < change.before and change.after >= self.engines[change.app].least
            assert self.engines[change.cause].pending > 0


@st.composite
def stories(draw: st.DrawFn) -> tuple[Cluster, list[tuple[dict[str, int], list[str]]]]:
    made = draw(engines())
    total = {"CPU": draw(st.sampled_from([2.0, 8.0])), "GPU": draw(st.integers(0, 6)) * 1.0}
    names = [e.app for e in made]
    wishes = st.dictionaries(st.sampled_from(names), st.integers(0, 6))
    parts = st.tuples(wishes, st.permutations(names))
    return Cluster({e.app: e for e in made}, total), draw(st.lists(parts, min_size=1, max_size=6))


@given(stories(), st.integers(1, 40))
def test_only_the_less_important_give_way_and_nothing_swings(
    story: tuple[Cluster, list[tuple[dict[str, int], list[str]]]], looks: int
) -> None:
    cluster, parts = story
    for wishes, order in parts:
        cluster.wanted |= wishes
        for _ in range(looks):
            cluster.step(list(order))
    last: dict[str, float] = {}
    for at_s, change in cluster.changes:
        if change.cause is None:
            assert at_s - last[change.app] >= RESTORE_S
        last[change.app] = at_s


@given(stories())
@settings(max_examples=40)
def test_what_nobody_needs_any_more_is_given_back(
    story: tuple[Cluster, list[tuple[dict[str, int], list[str]]]],
) -> None:
    cluster, parts = story
    for wishes, order in parts:
        cluster.wanted |= wishes
        for _ in range(10):
            cluster.step(list(order))
    # Everything fits from now on.
    cluster.total = dict.fromkeys(RESOURCES, 1000.0)
    order = list(cluster.engines)
    for _ in range(3):
        cluster.step(order)
    cluster.now_s += RESTORE_S
    for _ in range(len(order)):
        cluster.step(order)
    assert cluster.memory.ceilings == {}


@given(engines(), st.integers(0, 4), st.integers(0, 3))
def test_nobody_gives_way_in_vain(made: tuple[Engine, ...], gpus: int, extra: int) -> None:
    """A change is a step to room for who is pending: with all that may be taken of the less important it would fit."""
    told = tuple(replace(e, placed=e.min_replicas + extra, pending=1) for e in made if e.max_replicas > extra + 1)
    free = {"CPU": 0.05, "GPU": gpus * 0.5}
    first = decide(told, free, Memory(), 0.0)
    decision = decide(told, free, first.memory, PENDING_S)
    if decision.change is None:
        return
    known = {e.app: e for e in told}
    cause = known[str(decision.change.cause)]
    less = [e for e in told if e.priority < cause.priority]
    other = [e for e in told if agent_of(e.app) == agent_of(cause.app) and e is not cause]
    alone = {}
    for name, amount in cause.needs.items():
        taken = sum(max(0, min(e.placed, e.max_replicas) - e.least) * e.needs[name] for e in less)
        over = sum(max(0, e.placed - e.max_replicas) * e.needs[name] for e in told)
        alone[name] = free[name] + over + sum(min(e.placed, e.max_replicas) * e.needs[name] for e in other)
        assert alone[name] + taken + 1e-5 >= amount
    # Nor would it have had room, with who else waits, where its agent's other engine was not there.
    waiting = [e for e in told if e.priority >= cause.priority and e.placed < e.max_replicas]
    assert any(alone[name] < sum(e.needs[name] for e in waiting) + 1e-5 for name in RESOURCES)
