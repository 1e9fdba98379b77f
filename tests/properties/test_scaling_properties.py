"""Whatever is told, the number of replicas stays sane: bounded, never fewer for more load or without proof."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

from autoscale.flow import Flow
from autoscale.load import COMPUTED_MS
from autoscale.queue_latency import LoadSnapshot, Memory, Reason, ReplicaLoad, ScaleParameters, decide
from autoscale.ray_policy import REASONS, SETTING, QueueLatencyPolicy
from tests.unit.autoscale.stage import FakeMeter

anything = st.none() | st.floats(allow_nan=True, allow_infinity=True)
#: A told wait of an idle engine, of a busy one, or of one that is far behind.
waits = st.sampled_from([0.0, 10.0, 49.0, 50.0, 100.0, 250.0, 251.0, 5_000.0, 60_000.0])


def replica_loads(tame: bool) -> st.SearchStrategy[ReplicaLoad]:
    def number(sane: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return sane if tame else anything

    return st.builds(
        ReplicaLoad,
        age_s=st.floats(0, 5) if tame else st.floats(allow_nan=True),
        queue_wait_p50_ms=st.none() | number(waits),
        queue_wait_p95_ms=st.none() | number(waits),
        oldest_wait_ms=number(waits),
        kv_cache_used_ratio=number(st.floats(0, 1)),
        ongoing_requests=number(st.floats(0, 100)),
        started_rps=number(st.floats(0, 50)),
        offered_spilled_rps=st.none() | number(st.floats(0, 20)),
    )


@st.composite
def loads(draw: st.DrawFn, tame: bool = False) -> LoadSnapshot:
    told = draw(st.lists(replica_loads(tame), max_size=4))
    more = 0 if tame else draw(st.integers(0, 2))
    return LoadSnapshot(
        now_s=draw(st.floats(0, 1e6)),
        running_replicas=len(told) + more,
        target_replicas=draw(st.integers(0, 12)),
        ongoing_requests=draw(st.floats(0, 400) if tame else anything),
        queued_requests=draw(st.just(0.0) if tame else anything),
        replicas=tuple(told),
    )


@st.composite
def parameters(draw: st.DrawFn) -> ScaleParameters:
    low = draw(st.integers(0, 4))
    above_ms = draw(st.none() | st.floats(60, 1000))
    below_ms = draw(st.none() | st.floats(1, 59))
    return ScaleParameters(
        min_replicas=low,
        max_replicas=draw(st.integers(max(1, low), 12)),
        slots_per_replica=draw(st.integers(1, 64)),
        queue_above_ms=above_ms,
        queue_below_ms=below_ms,
        kv_above_ratio=draw(st.none() | st.floats(0.5, 1)),
        kv_below_ratio=draw(st.none() | st.floats(0.1, 0.4)),
        headroom_ratio=draw(st.floats(0, 2)),
        step_up_ratio=draw(st.floats(1.01, 4)),
        step_down_ratio=draw(st.floats(0, 0.99)),
    )


flows = st.builds(
    Flow,
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 500)), max_size=3).map(tuple),
    st.none() | st.integers(0, 6),
    st.floats(0, 1e6) | st.just(-math.inf),
    st.none() | st.floats(0.01, 100),
)
memories = st.builds(
    Memory,
    flows,
    st.none() | st.floats(0, 1e6),
    st.none() | st.floats(0, 1e6),
    st.none() | st.integers(0, 12),
    st.integers(0, 12),
)


@given(loads(), parameters(), memories)
def test_any_load_gives_a_number_within_the_bounds_and_a_known_reason(
    load: LoadSnapshot, limits: ScaleParameters, memory: Memory
) -> None:
    decision = decide(load, limits, memory)
    assert limits.min_replicas <= decision.replicas <= limits.max_replicas
    assert decision.reason in get_args(Reason)
    assert decide(load, limits, memory) == decision


@given(loads(tame=True), parameters(), st.data())
def test_more_load_never_means_fewer_replicas(load: LoadSnapshot, limits: ScaleParameters, data: st.DataObject) -> None:
    before = decide(load, limits).replicas
    more = replace(load, ongoing_requests=(load.ongoing_requests or 0.0) + data.draw(st.floats(0, 200)))
    assert decide(more, limits).replicas >= before
    if load.replicas:
        first, *others = load.replicas
        longer = replace(first, oldest_wait_ms=(first.oldest_wait_ms or 0.0) + data.draw(st.floats(0, 60_000)))
        assert decide(replace(load, replicas=(longer, *others)), limits).replicas >= before
        fuller = replace(first, kv_cache_used_ratio=data.draw(st.floats(first.kv_cache_used_ratio or 0.0, 1)))
        assert decide(replace(load, replicas=(fuller, *others)), limits).replicas >= before
        spilled = replace(first, offered_spilled_rps=(first.offered_spilled_rps or 0.0) + data.draw(st.floats(0, 50)))
        assert decide(replace(load, replicas=(spilled, *others)), limits).replicas >= before


@given(loads(), parameters(), memories)
def test_fewer_are_wanted_only_when_every_replica_says_that_all_is_quiet(
    load: LoadSnapshot, limits: ScaleParameters, memory: Memory
) -> None:
    decision = decide(load, limits, memory)
    if decision.replicas >= min(load.target_replicas, limits.max_replicas):
        return
    assert decision.reason == "quiet"
    assert len(load.replicas) >= load.running_replicas > 0
    for one in load.replicas[: load.running_replicas]:
        usual_ms = one.queue_wait_p95_ms if one.queue_wait_p50_ms is None else one.queue_wait_p50_ms
        assert limits.queue_below_ms is None or (usual_ms or 0.0) < limits.queue_below_ms
        assert one.oldest_wait_ms is not None and one.oldest_wait_ms < COMPUTED_MS


@given(loads(tame=True), parameters())
def test_one_step_is_at_most_the_steps_ratio(load: LoadSnapshot, limits: ScaleParameters) -> None:
    wanted, running, target = decide(load, limits).replicas, load.running_replicas, load.target_replicas
    if wanted > max(target, limits.min_replicas):
        assert wanted <= max(running + 1, math.ceil(running * limits.step_up_ratio))
    if 1 < wanted < min(target, limits.max_replicas):
        assert wanted >= math.ceil(target * limits.step_down_ratio) or wanted >= limits.min_replicas


junk = st.none() | st.booleans() | st.floats(allow_nan=True) | st.integers() | st.text(max_size=3)
names = st.sampled_from([
    "oldest_wait_ms", "queue_wait_p50_ms", "queue_wait_p95_ms", "started_rps", "ongoing_requests", "ray_running",
    SETTING + "slots_per_replica", SETTING + "queue_above_ms", SETTING + "step_up_ratio", SETTING + "min_replicas",
])  # fmt: skip
points = st.builds(lambda t, v: SimpleNamespace(timestamp=t, value=v), st.floats(allow_nan=True), junk)


@given(
    st.lists(
        st.tuples(
            st.dictionaries(names, st.dictionaries(st.sampled_from(["a", "b"]), st.lists(points, max_size=2))),
            st.fixed_dictionaries(
                {
                    "current_num_replicas": st.integers(0, 3) | junk,
                    "target_num_replicas": st.integers(0, 3),
                    "total_num_requests": junk,
                    "total_queued_requests": junk,
                    "capacity_adjusted_min_replicas": junk,
                    "capacity_adjusted_max_replicas": junk,
                    "current_time": junk,
                }
            ),
        ),
        max_size=4,
    )
)
def test_the_adapter_never_raises(ticks: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    meter, clock = FakeMeter(), iter(range(10_000))
    policy = QueueLatencyPolicy(meter=meter, now_s=lambda: float(next(clock)))
    for raw, said in ticks:
        context = SimpleNamespace(app_name="a--b", raw_metrics=raw, **said)
        context.config = SimpleNamespace(get_target_ongoing_requests=lambda: 16.0)
        replicas, state = policy(context)
        assert isinstance(replicas, int) and replicas >= 0 and state == {}
        assert sum(meter.values["grix_scale_reason", reason] for reason in REASONS) == 1.0
