"""Breakers: when they open, for how long, and who may find out whether they can close."""

from __future__ import annotations

import pytest

from serve_app.core.breaker import OPEN_S, RouterBreakers
from serve_app.core.reports import Outcomes, ProbeResult, RouterReport, Trip
from serve_app.core.shared_breakers import LEND_S, PASS_OVER_S, SharedBreakers
from serve_app.outcomes import STATUS, Reason

T = "cloud-b/qwen-chat@abc00000"


def fail(breakers: RouterBreakers, times: int, now_s: float = 100.0, reason: Reason = "upstream_failed") -> list[Trip]:
    trips = [breakers.failed(T, reason, now_s) for _ in range(times)]
    return [trip for trip in trips if trip is not None]


def tripped(now_s: float = 100.0) -> RouterBreakers:
    breakers = RouterBreakers()
    assert len(fail(breakers, 5, now_s)) == 1
    return breakers


def succeed(breakers: RouterBreakers, times: int, now_s: float = 100.0) -> None:
    for _ in range(times):
        breakers.succeeded(T, now_s)


def test_rte_23_ten_failures_in_a_row_open_at_once_and_for_thirty_seconds() -> None:
    breakers = RouterBreakers()
    succeed(breakers, 30)
    assert fail(breakers, 9) == []
    assert not breakers.blocked(T, 100.0)
    assert fail(breakers, 1) == [Trip(T, 30.0, "10 failures in a row, the last: upstream_failed")]
    assert breakers.blocked(T, 100.0) and breakers.blocked(T, 129.999)
    assert not breakers.blocked(T, 130.0)
    assert breakers.all_blocked(100.0) == {T}
    assert breakers.all_blocked(130.0) == frozenset()


def test_a_success_between_them_begins_the_row_anew() -> None:
    breakers = RouterBreakers()
    succeed(breakers, 60)
    assert fail(breakers, 9) == []
    breakers.succeeded(T, 100.0)
    assert fail(breakers, 9) == []
    assert len(fail(breakers, 1)) == 1


def test_rte_23_one_request_each_five_seconds_opens_what_fails_for_all_routers() -> None:
    """Two Routers take turns at a target that is bad from the start: after five failures nobody asks it for a while."""
    routers, shared = [RouterBreakers(), RouterBreakers()], SharedBreakers()
    asked: list[float] = []
    opened_s: float | None = None
    for second in range(100, 155):
        if second % 5 == 0:
            mine = routers[second // 5 % 2]
            if shared.state(T, second) == "closed" and mine.begin(T, second, is_closed=True) is not None:
                asked.append(second)
                mine.failed(T, "upstream_failed", second, began_s=second)
        for i, router in enumerate(routers):
            shared.take(router.report(f"r{i}", second), second)
        if opened_s is None and shared.state(T, second) == "open":
            opened_s = second
    assert (asked, opened_s) == ([100, 105, 110, 115, 120], 120)
    assert (shared.state(T, 149.9), shared.state(T, 150.0)) == ("open", "probing")


def test_rte_23_a_router_alone_opens_it_as_soon() -> None:
    breakers = RouterBreakers()
    trips = [(at, fail(breakers, 1, at)) for at in (100.0, 105.0, 110.0, 115.0, 120.0)]
    assert [at for at, trip in trips if trip] == [120.0]


def test_five_that_take_thirty_seconds_each_to_fail_open_it_however_old_the_first_is() -> None:
    breakers = RouterBreakers()
    found: list[Trip] = []
    for i in range(5):
        found += fail(breakers, 1, 100.0 + 31.0 * i, "first_byte_timeout")
        breakers.report("r", 115.0 + 31.0 * i)
    assert found == [Trip(T, 30.0, "5 failures and no success between them, the last: first_byte_timeout")]


def test_a_success_between_slow_failures_begins_the_row_anew() -> None:
    breakers = RouterBreakers()
    for i in range(20):
        assert fail(breakers, 1, 100.0 + 40.0 * i, "first_byte_timeout") == []
        if i % 4 == 3:
            succeed(breakers, 1, 120.0 + 40.0 * i)


def test_routers_count_a_slow_row_together() -> None:
    shared = SharedBreakers()
    for i in range(5):
        assert shared.state(T, 100.0 + 31.0 * i) == "closed"
        shared.take(RouterReport(f"r{i % 2}", {T: Outcomes(0, 1)}), 100.0 + 31.0 * i)
    assert shared.state(T, 224.0) == "open"


@pytest.mark.parametrize(
    ("good", "bad", "opens"),
    [(6, 4, False), (6, 5, True), (3, 2, False), (2, 3, True), (0, 4, False), (0, 5, True), (60, 9, False)],
)
def test_more_than_two_fifths_of_enough_calls_open(good: int, bad: int, opens: bool) -> None:
    breakers = RouterBreakers()
    succeed(breakers, good)
    assert bool(fail(breakers, bad)) is opens


def test_the_reason_of_a_share_is_told_with_its_numbers() -> None:
    breakers = RouterBreakers()
    succeed(breakers, 6)
    (trip,) = fail(breakers, 5, 101.0, "first_byte_timeout")
    assert trip.reason == "5 of 11 calls failed in 30 s, the last: first_byte_timeout"


@pytest.mark.parametrize("reason", sorted(r for r, s in STATUS.items() if s.outcome != "failed"))
def test_rte_16_rte_24_what_is_not_a_failure_counts_nothing(reason: Reason) -> None:
    breakers = RouterBreakers()
    assert fail(breakers, 100, reason=reason) == []
    assert not breakers.blocked(T, 100.0)
    assert breakers.report("r", 100.0) == RouterReport("r")
    assert len(breakers) == 0


@pytest.mark.parametrize("reason", ["replica_lost", "peer_silent"])
def test_one_loss_is_one_failure_however_many_streams_it_had(reason: Reason) -> None:
    breakers = RouterBreakers()
    assert [breakers.failed(T, reason, 100.0, began_s=99.0) for _ in range(16)] == [None] * 16
    # Nor do others hear of more.
    assert breakers.report("r", 100.0).outcomes == {T: Outcomes(0, 1)}
    # Five losses, a second apart, are five.
    losses = [breakers.failed(T, reason, 100.0 + i, began_s=99.0) for i in range(1, 5) for _ in range(3)]
    assert [trip is not None for trip in losses] == [False] * 9 + [True, False, False]


@pytest.mark.parametrize("reason", ["replica_lost", "peer_silent"])
def test_what_loses_half_of_twenty_calls_a_second_is_opened_within_five(reason: Reason) -> None:
    breakers, now_s = RouterBreakers(), 100.0
    succeed(breakers, 20, 99.0)
    for i in range(100):
        began_s, now_s = 100.0 + i * 0.05, 100.01 + i * 0.05
        if i % 2:
            succeed(breakers, 1, now_s)
        elif breakers.failed(T, reason, now_s, began_s=began_s) is not None:
            break
    assert breakers.blocked(T, now_s) and now_s < 105.0


def test_a_cool_down_that_is_over_leaves_nothing_to_find_out_once_the_region_says_closed() -> None:
    """Another Router's probe has passed meanwhile: one failure opens nothing again."""
    breakers = tripped()
    assert breakers.begin(T, 129.9, is_closed=True) is None
    assert breakers.begin(T, 140.0, is_closed=True) == "call"
    assert fail(breakers, 1, 141.0) == []
    assert breakers.report("r2", 141.0).trips == ()
    assert breakers.begin(T, 142.0, is_closed=True) == "call"
    # A probe of its own that is out stays the only call.
    probing = tripped()
    assert probing.begin(T, 130.0) == "probe"
    assert probing.begin(T, 130.0, is_closed=True) is None


def test_after_the_cool_down_one_call_at_a_time_finds_out() -> None:
    breakers = tripped()
    assert breakers.begin(T, 129.0) is None
    assert breakers.begin(T, 130.0) == "probe"
    assert breakers.begin(T, 130.0) is None
    assert breakers.blocked(T, 130.0)
    breakers.succeeded(T, 131.0, probe=True)
    assert breakers.begin(T, 131.0) == "call"
    assert breakers.report("r", 131.0).probes == (ProbeResult(T, True),)


def test_a_probe_that_fails_opens_again() -> None:
    breakers = tripped()
    assert breakers.begin(T, 130.0) == "probe"
    assert breakers.failed(T, "peer_silent", 135.0, probe=True) == Trip(T, 30.0, "the probe failed: peer_silent")
    assert breakers.blocked(T, 164.9) and not breakers.blocked(T, 165.0)
    told = breakers.report("r", 136.0)
    assert (told.trips, told.probes) == ((Trip(T, 29.0, "still open"),), (ProbeResult(T, False),))


def test_a_probe_that_says_nothing_may_be_tried_again() -> None:
    breakers = tripped()
    assert breakers.begin(T, 130.0) == "probe"
    assert breakers.failed(T, "overloaded", 131.0, probe=True) is None
    assert breakers.begin(T, 131.0) == "probe"
    breakers.rejected(T, probe=True)
    assert breakers.begin(T, 131.0) == "probe"
    assert breakers.report("r", 131.0).probes == ()


def test_what_was_running_when_it_opened_says_nothing_any_more() -> None:
    breakers = tripped()
    breakers.succeeded(T, 105.0)
    assert fail(breakers, 20, 129.0) == []
    assert breakers.blocked(T, 129.9)
    assert not breakers.blocked(T, 130.0)


def test_a_lent_probe_is_one_call_of_a_router_that_never_failed() -> None:
    breakers = RouterBreakers()
    assert breakers.begin(T, 100.0) == "call"
    assert breakers.begin(T, 100.0, half_open=True) == "probe"
    assert breakers.begin(T, 100.0, half_open=True) is None
    breakers.failed(T, "upstream_failed", 101.0, probe=True)
    assert breakers.begin(T, 102.0, half_open=True) is None


def test_a_report_tells_counts_once_and_open_breakers_each_time() -> None:
    breakers = RouterBreakers()
    assert not breakers.is_urgent
    breakers.succeeded("a", 100.0)
    fail(breakers, 10)
    breakers.wanted("qwen-chat", "cloud-b", is_load=True)
    breakers.wanted("qwen-chat", "edge-1", is_load=True)
    breakers.wanted("qwen-chat", "edge-1", is_load=False)
    assert breakers.is_urgent
    first = breakers.report("r1", 101.0)
    assert first == RouterReport(
        "r1",
        {"a": Outcomes(1, 0), T: Outcomes(0, 10)},
        {"qwen-chat": 2},
        {"cloud-b": 1, "edge-1": 2},
        (Trip(T, 29.0, "still open"),),
    )
    assert not breakers.is_urgent
    assert breakers.report("r1", 111.0) == RouterReport("r1", trips=(Trip(T, 19.0, "still open"),))
    assert breakers.report("r1", 130.0) == RouterReport("r1")


def test_what_nobody_asks_any_more_is_forgotten() -> None:
    breakers = tripped()
    breakers.succeeded("a", 100.0)
    assert len(breakers) == 2
    breakers.report("r", 131.0)
    assert len(breakers) == 1
    breakers.report("r", 431.0)
    assert len(breakers) == 0


def test_rte_22_the_soonest_to_come_back_is_known() -> None:
    breakers = tripped()
    assert breakers.recover_s({T, "a"}, 103.0) == 27.0
    assert breakers.recover_s({T}, 140.0) == 0.0
    assert breakers.recover_s({"a"}, 103.0) is None


def opened(now_s: float = 100.0) -> SharedBreakers:
    shared = SharedBreakers()
    shared.take(RouterReport("r1", trips=(Trip(T, OPEN_S, "no"),)), now_s)
    return shared


def test_a_trip_anywhere_holds_for_all() -> None:
    shared = opened()
    assert [shared.state(T, at) for at in (100.0, 129.9, 130.0)] == ["open", "open", "probing"]
    assert shared.state("a", 100.0) == "closed"
    assert (shared.open_for_s(110.0), shared.open_for_s(140.0)) == ({T: 20.0}, {T: 0.0})
    assert SharedBreakers().open_for_s(110.0) == {}


@pytest.mark.parametrize("order", [(1.0, 60.0), (60.0, 1.0)])
def test_rte_20_the_longest_known_cool_down_holds(order: tuple[float, float]) -> None:
    shared = SharedBreakers()
    for at, open_for_s in enumerate(order):
        shared.take(RouterReport(f"r{at}", trips=(Trip(T, open_for_s, "no"),)), 100.0)
    assert (shared.state(T, 159.9), shared.state(T, 160.0)) == ("open", "probing")


@pytest.mark.parametrize("open_for_s", [0.0, -1.0, float("nan")])
def test_a_trip_without_time_is_none(open_for_s: float) -> None:
    shared = SharedBreakers()
    shared.take(RouterReport("r1", trips=(Trip(T, open_for_s, "no"),)), 100.0)
    assert shared.state(T, 100.0) == "closed"


def test_what_no_router_sees_alone_opens_for_all() -> None:
    shared = SharedBreakers()
    for router in range(4):
        shared.take(RouterReport(f"r{router}", {T: Outcomes(1, 2)}), 100.0)
    assert shared.state(T, 100.0) == "open"
    assert SharedBreakers().state(T, 100.0) == "closed"


def test_failures_of_several_routers_are_in_no_row() -> None:
    shared = SharedBreakers()
    shared.take(RouterReport("r1", {T: Outcomes(100, 0)}), 100.0)
    for router in range(4):
        shared.take(RouterReport(f"r{router}", {T: Outcomes(0, 9)}), 101.0)
    assert shared.state(T, 101.0) == "closed"


def test_a_probe_is_lent_to_one_router_and_comes_back_after_its_time() -> None:
    shared = opened()
    assert shared.lend("r1", 129.0) == frozenset()
    assert shared.lend("r1", 130.0) == {T}
    assert shared.lend("r2", 130.0) == frozenset()
    assert shared.lend("r1", 130.0 + LEND_S - 0.1) == {T}
    # It said nothing: the others come first now.
    late_s = 130.0 + LEND_S
    assert shared.lend("r1", late_s) == frozenset()
    assert shared.lend("r2", late_s) == {T}
    assert shared.lend("r1", late_s) == frozenset()


def test_a_lone_router_gets_its_probe_again() -> None:
    shared = opened()
    assert shared.lend("r1", 130.0) == {T}
    assert shared.lend("r1", 130.0 + LEND_S) == frozenset()
    assert shared.lend("r1", 130.0 + LEND_S + PASS_OVER_S) == {T}


def test_a_passed_probe_closes_and_is_told() -> None:
    shared = opened()
    shared.lend("r1", 130.0)
    assert shared.take(RouterReport("r1", probes=(ProbeResult(T, True),)), 131.0) == {T}
    assert shared.state(T, 131.0) == "closed"
    assert shared.lend("r2", 131.0) == frozenset()


def test_nobody_else_closes_it() -> None:
    shared = opened()
    assert shared.take(RouterReport("r1", probes=(ProbeResult(T, True),)), 110.0) == frozenset()
    shared.lend("r1", 130.0)
    assert shared.take(RouterReport("r2", probes=(ProbeResult(T, True),)), 131.0) == frozenset()
    assert shared.state(T, 131.0) == "probing"
    assert shared.take(RouterReport("r2", probes=(ProbeResult("a", True),)), 131.0) == frozenset()


def test_a_failed_probe_opens_again_and_the_probe_is_free_for_all() -> None:
    shared = opened()
    shared.lend("r1", 130.0)
    shared.take(RouterReport("r1", trips=(Trip(T, 30.0, "no"),), probes=(ProbeResult(T, False),)), 131.0)
    assert (shared.state(T, 160.9), shared.state(T, 161.0)) == ("open", "probing")
    assert shared.lend("r2", 161.0) == {T}


def test_a_report_with_a_pass_and_a_trip_is_a_trip() -> None:
    shared = opened()
    shared.lend("r1", 130.0)
    both = RouterReport("r1", trips=(Trip(T, 30.0, "no"),), probes=(ProbeResult(T, True),))
    assert shared.take(both, 131.0) == frozenset()
    assert shared.state(T, 131.0) == "open"


def test_a_target_that_left_keeps_its_cool_down_and_is_forgotten_after_it() -> None:
    shared = opened()
    silent = RouterReport("r1")
    shared.take(RouterReport("r1", {"a": Outcomes(1, 0)}), 100.0)
    shared.retain({"a"})
    shared.take(silent, 129.0)
    assert (shared.state(T, 129.0), len(shared)) == ("open", 2)
    shared.retain({T})
    shared.take(silent, 130.0)
    assert (shared.state(T, 130.0), len(shared)) == ("probing", 1)
    shared.retain(frozenset())
    shared.take(silent, 130.0)
    assert (shared.state(T, 130.0), len(shared)) == ("closed", 0)
