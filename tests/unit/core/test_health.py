"""An engine's life, judged by its tokens."""

from __future__ import annotations

import pytest

from serve_app.core.health import LONGEST_LOOK_S, WAITING_RATIO, EngineView, Stillness, judge


@pytest.mark.parametrize(
    ("token_age_s", "still_s", "prefill_s", "verdict"),
    [
        (0.0, 0.0, 0.0, "alive"),
        (2.0, 0.0, 0.0, "alive"),
        (2.001, 0.0, 0.0, "ask"),
        (3.0, 3.0, 0.0, "ask"),
        (3.001, 3.001, 0.0, "stalled"),
        (8.0, 8.0, 5.0, "ask"),
        (8.001, 8.001, 5.0, "stalled"),
        # Idle for ever, and a long idle time before the first work of the day: neither is a stall.
        (1e9, 0.0, 0.0, "ask"),
        (1e9, 0.25, 0.0, "ask"),
        (-1.0, 0.0, 0.0, "alive"),
    ],
)
def test_the_verdict(token_age_s: float, still_s: float, prefill_s: float, verdict: str) -> None:
    assert judge(EngineView(0.0, -token_age_s, still_s, prefill_s, 3.0)) == verdict


@pytest.mark.parametrize(("token_age_s", "verdict"), [(10.0, "alive"), (10.001, "ask")])
def test_an_idle_engine_is_asked_seldom(token_age_s: float, verdict: str) -> None:
    assert judge(EngineView(0.0, -token_age_s, 0.0, 0.0, 3.0, idle=True)) == verdict


def test_how_fresh_a_token_has_to_be_is_told_to_the_judge_at_work_and_idle_engines_are_asked_no_more_often() -> None:
    def verdict(token_age_s: float, *, idle: bool) -> str:
        return judge(EngineView(0.0, -token_age_s, 0.0, 0.0, 3.0, idle=idle, fresh_s=0.5))

    assert [verdict(0.5, idle=False), verdict(0.6, idle=False), verdict(10.0, idle=True)] == ["alive", "ask", "alive"]


def test_the_limit_is_the_floor_and_the_longest_prefill() -> None:
    assert EngineView(0.0, 0.0, 0.0, 4.5, 3.0).stall_limit_s == 7.5


def looks(*seen: tuple[float, int, bool]) -> list[float]:
    stillness = Stillness(looked_s=0.0)
    return [stillness.look(now_s, moves, busy=busy) for now_s, moves, busy in seen]


def test_work_that_does_not_move_is_still() -> None:
    assert looks((0.25, 0, True), (0.5, 0, True), (0.75, 0, True)) == [0.25, 0.5, 0.75]


def test_a_move_or_the_end_of_work_begins_anew() -> None:
    assert looks((0.5, 0, True), (1.0, 1, True), (1.25, 1, True), (1.5, 1, False), (1.75, 1, True)) == [
        0.5,
        0.0,
        0.25,
        0.0,
        0.25,
    ]


def test_time_in_which_the_watcher_did_not_run_is_not_held_against_the_engine() -> None:
    assert looks((100.0, 0, True), (200.0, 0, True)) == [LONGEST_LOOK_S, 2 * LONGEST_LOOK_S]


def test_time_in_which_the_engine_waited_for_a_processor_hardly_counts() -> None:
    stillness = Stillness(looked_s=0.0)
    waits = (0.0, 0.125, 0.25, 5.0)
    assert [stillness.look(0.25 * (i + 1), 0, busy=True, waited_s=s) for i, s in enumerate(waits)] == pytest.approx(
        [0.25, 0.375, 0.4, 0.425]
    )


def test_an_engine_that_only_ever_waits_is_of_no_use_in_the_end() -> None:
    stillness, now_s = Stillness(looked_s=0.0), 0.0
    while judge(EngineView(now_s, 0.0, stillness.still_s, 0.0, 3.0)) != "stalled":
        now_s += 0.25
        stillness.look(now_s, 0, busy=True, waited_s=0.25)
    assert now_s == pytest.approx(3.0 / WAITING_RATIO, abs=0.25)


def test_a_clock_that_steps_back_takes_nothing_away() -> None:
    assert looks((0.5, 0, True), (0.25, 0, True), (0.5, 0, True)) == [0.5, 0.5, 0.75]
