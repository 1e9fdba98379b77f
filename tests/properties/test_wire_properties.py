"""What crosses between regions comes out as it went in, and what a stranger writes becomes safe or is refused."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.core import reports, trial
from serve_app.core.snapshots import Health, Load
from serve_app.edge.protos import grix_pb2 as pb
from serve_app.edge.wire import Beat, WireError, beat_message, beat_of, state_of
from serve_app.edge.wire_calls import call_message, call_of, packet_message, packet_of
from serve_app.edge.wire_link import Up, plan_message, plan_of, up_message, up_of
from serve_app.outcomes import STATUS, Outcome
from serve_app.ports import Accepted, AgentCall, Body, Failure, Head, Origin, Tail, Usage

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.text("abc-1", min_size=1, max_size=6)
COUNTS = st.integers(0, 2**32 - 1)
BIG = st.integers(0, 2**63)
NUMBERS = st.floats(0, 1e9)
HEALTH = st.sampled_from(get_args(Health))
MAYBE_TEXT = st.none() | st.text("xyz", min_size=1, max_size=4)
LOADS = st.builds(
    Load,
    *[st.none() | NUMBERS] * 2,
    *[st.none() | COUNTS] * 2,
    *[st.none() | NUMBERS] * 3,
)
TARGETS = st.builds(
    reports.TargetReport, NAMES, NAMES, TEXT, TEXT, HEALTH, TEXT, COUNTS, COUNTS, COUNTS, LOADS, COUNTS, st.booleans()
)
RELEASE_COUNTS = st.builds(
    trial.ReleaseCount, NAMES, TEXT, *[BIG] * 6, st.lists(BIG, max_size=len(trial.FIRST_TOKEN_MS)).map(tuple)
)
TRIAL_REPORTS = st.builds(
    trial.TrialReport,
    TEXT,
    BIG,
    COUNTS,
    st.sampled_from(get_args(trial.Smoke)),
    TEXT,
    st.lists(RELEASE_COUNTS, max_size=2).map(tuple),
)
EXPECTED = st.dictionaries(st.tuples(NAMES, NAMES), TEXT, max_size=3)
TRIALS = st.builds(
    trial.Trial,
    TEXT,
    BIG,
    TEXT,
    st.dictionaries(NAMES, st.builds(trial.Stage, st.integers(0, 100), st.booleans()), max_size=3),
    EXPECTED,
)
STATES = st.builds(
    reports.RegionState,
    NAMES,
    HEALTH,
    TEXT,
    st.lists(TARGETS, max_size=3).map(tuple),
    TEXT,
    NUMBERS,
    st.dictionaries(NAMES, NUMBERS, max_size=3),
    TEXT,
    st.dictionaries(NAMES, TEXT, max_size=3),
    TRIAL_REPORTS,
)
NODES = st.builds(
    reports.Node,
    NAMES,
    TEXT,
    TEXT,
    TEXT,
    st.booleans(),
    NUMBERS,
    BIG,
    MAYBE_TEXT,
    MAYBE_TEXT,
    COUNTS,
    BIG,
    st.dictionaries(NAMES, TEXT, max_size=3),
)
PEERS = st.builds(reports.PeerView, NAMES, st.none() | NUMBERS, st.none() | NUMBERS, st.none(), TEXT)
FLEET = st.builds(
    reports.FleetRegion,
    NAMES,
    st.sampled_from(get_args(reports.RegionPhase)),
    TEXT,
    st.booleans(),
    st.booleans(),
    st.none() | STATES,
)
ORDERS = st.tuples(st.integers(0, 5), st.integers(0, 5))
PLANS = st.builds(
    lambda order, regions, *rest: reports.Plan(*order, tuple(regions), *rest),
    ORDERS,
    st.lists(FLEET, max_size=4, unique_by=lambda region: region.name),
    TEXT,
    TEXT,
    EXPECTED,
    st.none() | TRIALS,
)
FAILURES = st.builds(Failure, st.sampled_from(list(STATUS)), TEXT, MAYBE_TEXT, st.none() | NUMBERS)
FRAMES = st.one_of(
    st.builds(Accepted, TEXT, TEXT),
    st.builds(Head, st.none() | COUNTS, st.none() | FAILURES, st.booleans()),
    st.builds(Body, st.binary(max_size=20)),
    st.builds(
        Tail,
        st.sampled_from(get_args(Outcome)),
        st.none() | TEXT,
        st.none() | st.builds(Usage, COUNTS, COUNTS),
        st.none() | NUMBERS,
        st.none() | NUMBERS,
        st.none() | FAILURES,
    ),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ORIGINS = st.builds(
    Origin,
    NAMES,
    st.frozensets(NAMES, max_size=3),
    MAYBE_TEXT,
    MAYBE_TEXT,
    MAYBE_TEXT,
    st.booleans(),
    COUNTS,
    NUMBERS,
    NUMBERS,
    st.integers(0, 3),
    st.binary(max_size=9),
)
CALLS = st.builds(
    AgentCall,
    TEXT,
    st.sampled_from(["chat", "completion"]),
    NAMES,
    st.dictionaries(TEXT, JSON, max_size=3),
    st.booleans(),
    COUNTS,
    st.integers(-(2**31), 2**31 - 1),
    release=TEXT,
    origin=ORIGINS,
)


def over(message: Any) -> Any:
    """The message as its bytes are read at the other end."""
    return type(message).FromString(message.SerializeToString())


@given(CALLS)
@settings(max_examples=30)
def test_a_call_arrives_as_it_was_sent(call: AgentCall) -> None:
    assert call_of(over(call_message(call))) == call


@given(st.lists(FRAMES, max_size=4).map(tuple))
@settings(max_examples=30)
def test_frames_arrive_as_they_were_sent(packet: tuple[Any, ...]) -> None:
    assert packet_of(over(packet_message(packet))) == packet


@given(st.builds(Beat, BIG, BIG, NUMBERS, st.none() | STATES))
@settings(max_examples=30)
def test_a_beat_arrives_as_it_was_sent(beat: Beat) -> None:
    assert beat_of(over(beat_message(beat))) == beat


@given(
    st.builds(
        Up,
        NAMES,
        BIG,
        st.none() | STATES,
        st.none() | st.lists(NODES, max_size=3).map(tuple),
        st.lists(PEERS, max_size=3).map(tuple),
        st.tuples(BIG, BIG),
    )
)
@settings(max_examples=30)
def test_a_report_to_the_coordinator_arrives_as_it_was_sent(up: Up) -> None:
    assert up_of(over(up_message(up))) == up


@given(st.lists(PLANS, min_size=1, max_size=4))
@settings(max_examples=30)
def test_plans_told_as_changes_are_whole_at_the_other_end(plans: list[reports.Plan]) -> None:
    told = got = None
    for plan in sorted(plans, key=lambda p: p.order):
        got, told = plan_of(over(plan_message(plan, told)), got), plan
        assert got == plan


@given(FLEET, st.lists(FLEET, min_size=1, max_size=4, unique_by=lambda region: region.name))
@settings(max_examples=30)
def test_only_the_region_that_changed_is_told_again(change: reports.FleetRegion, regions: list[Any]) -> None:
    before = reports.Plan(1, 1, tuple(regions), "r", "documents")
    changed = replace(change, name=regions[0].name)
    after = replace(before, generation=2, regions=(changed, *regions[1:]))
    message = plan_message(after, before)
    assert [r.name for r in message.regions] == ([] if changed == regions[0] else [changed.name])
    assert (message.full, message.HasField("documents")) == (False, False)


@given(st.sampled_from([pb.CallRequest, pb.BeatMessage, pb.RegionUp, pb.RegionDown]), st.binary(max_size=200))
@settings(max_examples=30)
def test_any_bytes_are_read_or_refused_by_field(kind: Any, raw: bytes) -> None:
    read = {pb.CallRequest: call_of, pb.BeatMessage: beat_of, pb.RegionUp: up_of, pb.RegionDown: plan_of}[kind]
    try:
        message = kind.FromString(raw)
    except Exception:  # gRPC refuses these before us
        return
    try:
        read(message)
    except WireError as error:
        assert error.field in str(error)


@given(STATES, st.text(max_size=8))
@settings(max_examples=30)
def test_no_word_of_a_newer_protocol_is_taken_for_good_health(state: reports.RegionState, said: str) -> None:
    message = pb.RegionState(region=state.region, health=said.encode("utf-8", "replace").decode())
    health = state_of(message).health
    assert health == (said if said in get_args(Health) else "unknown")


def test_every_field_of_a_load_travels_but_the_readers_own_measurement() -> None:
    travels = {f.name for f in pb.Load.DESCRIPTOR.fields}
    assert travels | {"network_ms"} == {f.name for f in fields(Load)}
