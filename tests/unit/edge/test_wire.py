"""What is refused at the wire, by the name of its field, and what of a newer protocol is made safe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serve_app.core.reports import FleetRegion, Plan, RegionState, TargetReport
from serve_app.core.snapshots import Load
from serve_app.edge.protos import grix_pb2 as pb
from serve_app.edge.wire import (
    MOST_STATE_BYTES,
    MOST_TARGETS,
    WireError,
    beat_of,
    check_protocol,
    state_message,
    state_of,
)
from serve_app.edge.wire_calls import call_message, call_of, packet_of
from serve_app.edge.wire_link import plan_message, plan_of, up_of
from serve_app.ports import AgentCall, Failure, Head, Origin, Tail

TARGET = TargetReport("qwen-chat", "qwen-chat--1", "r", "d", "healthy", "", 1, 16, 4096, Load(waiting=2))
STATE = RegionState("cloud-a", "healthy", "", (TARGET,))
ORIGIN = Origin("acme", frozenset({"eu"}), None, None, None, False, 100, 600.0, 10.0)
CALL = AgentCall("r1", "chat", "qwen-chat", {"messages": []}, True, 64, 100, origin=ORIGIN)


def test_an_oversized_report_is_refused_by_its_largest_field() -> None:
    large = replace(STATE, why="w" * MOST_STATE_BYTES)
    with pytest.raises(
        WireError, match=rf"^state\.why: makes state \d+ bytes; at most {MOST_STATE_BYTES} are allowed$"
    ):
        state_of(state_message(large))
    with pytest.raises(WireError, match=r"^state\.targets: "):
        state_of(state_message(replace(STATE, targets=(replace(TARGET, why="w" * MOST_STATE_BYTES),))))


def test_too_many_targets_are_refused() -> None:
    with pytest.raises(WireError, match=r"^state\.targets: has 1001 entries; at most 1000 are allowed$"):
        state_of(pb.RegionState(targets=[pb.TargetReport()] * (MOST_TARGETS + 1)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_a_load_that_is_no_number_is_no_data(bad: float) -> None:
    message = state_message(STATE)
    message.targets[0].load.kv_cache_used_ratio = bad
    assert state_of(message).targets[0].load == Load(waiting=2)


def test_a_field_that_is_no_more_is_passed_over_and_its_number_is_not_used_again() -> None:
    root = b"\xa2\x01\x04root"  # number 20, as a region of before sends it
    raw = call_message(CALL).SerializeToString()
    assert call_of(pb.CallRequest.FromString(raw + root)) == call_of(pb.CallRequest.FromString(raw))
    assert 20 not in pb.CallRequest.DESCRIPTOR.fields_by_number


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_a_time_that_is_none_is_refused(bad: float) -> None:
    message = call_message(CALL)
    message.deadline_s = bad
    with pytest.raises(WireError, match=r"^deadline_s: "):
        call_of(message)


def test_words_of_a_newer_protocol_become_safe_values() -> None:
    message = state_message(STATE)
    message.health = message.targets[0].health = "excellent"
    state = state_of(message)
    assert (state.health, state.targets[0].health) == ("unknown", "unknown")
    tail = pb.Tail(outcome="glorious", failure=pb.Failure(reason="sunspots", message="m"))
    frames = [pb.Frame(tail=tail), pb.Frame(), pb.Frame(head=pb.Head())]
    assert packet_of(pb.Packet(frames=frames)) == (Tail("failed", failure=Failure("upstream_failed", "m")), Head())
    plan = plan_message(Plan(1, 1, (FleetRegion("cloud-a", "ready", ""),)))
    plan.regions[0].phase = "ascended"
    assert plan_of(plan).regions[0].phase == "joining"


@pytest.mark.parametrize(
    ("theirs", "ours", "fine"), [(1, 1, True), (2, 1, True), (1, 2, True), (3, 1, False), (0, 1, False)]
)
def test_neighbouring_protocols_interoperate(theirs: int, ours: int, fine: bool) -> None:
    if fine:
        check_protocol(theirs, ours)
        return
    with pytest.raises(WireError, match=rf"^protocol: {theirs} is not understood here; allowed: 1 to 2$"):
        check_protocol(theirs, ours)


def test_every_message_says_its_protocol() -> None:
    for read, empty in ((beat_of, pb.BeatMessage()), (up_of, pb.RegionUp()), (plan_of, pb.RegionDown())):
        with pytest.raises(WireError, match=r"^protocol: 0 "):
            read(empty)


@pytest.mark.parametrize("raw", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_refused(raw: bytes) -> None:
    message = call_message(CALL)
    message.body = raw
    with pytest.raises(WireError, match=r"^body: "):
        call_of(message)


def test_an_unknown_kind_is_refused_with_what_is_allowed() -> None:
    message = call_message(CALL)
    message.kind = "seance"
    with pytest.raises(WireError, match=r"^kind: 'seance' is not understood here; allowed: chat, completion$"):
        call_of(message)


def test_a_name_without_end_is_refused() -> None:
    with pytest.raises(WireError, match=r"^session: is longer than 512 characters$"):
        call_message(replace(CALL, origin=replace(ORIGIN, session="s" * 513)))


def test_a_replayed_plan_is_refused() -> None:
    now = Plan(7, 9, revision="r")
    with pytest.raises(WireError, match=r"^generation: 7\.8 is older than 7\.9$"):
        plan_of(plan_message(replace(now, generation=8)), now)


def test_a_change_without_its_plan_is_refused() -> None:
    told = Plan(1, 1, (FleetRegion("cloud-a", "ready", ""),))
    change = plan_message(replace(told, generation=2), told)
    with pytest.raises(WireError, match=r"^full: "):
        plan_of(change)
    change.regions.add(name="cloud-z")
    with pytest.raises(WireError, match=r"^regions: 'cloud-z' has changed but was never in the plan"):
        plan_of(change, told)


def test_expected_releases_travel_when_they_change() -> None:
    told = Plan(1, 1, expected={("cloud-a", "chat"): "r1"})
    same = plan_message(replace(told, generation=2), told)
    assert (len(same.expected), same.has_expected) == (0, False)
    assert plan_of(same, told).expected == told.expected
    gone = plan_message(replace(told, generation=2, expected={}), told)
    assert plan_of(gone, told).expected == {}
