"""When a new engine is warm: told from the first tokens of its rounds, and from what is usual for it."""

from __future__ import annotations

import math

import pytest

from serve_app.core.warm_up import IN_A_ROW, PATIENCE_ROUNDS, PATIENCE_S, Norm, Round, WarmUp, judge

NORM = Norm(30_000.0)


def calm(*rounds_ms: float) -> list[Round]:
    """Rounds on a machine that has time for the engine."""
    return [Round(ms, took_s=3 * min(ms, 30_000.0) / 1000, ran_s=min(ms, 30_000.0) / 1000) for ms in rounds_ms]


def full(*rounds_ms: float) -> list[Round]:
    """Rounds in which the engine waited for a processor nine times as long as it had one."""
    took_s = [3 * min(ms, 30_000.0) / 1000 for ms in rounds_ms]
    return [Round(ms, s, ran_s=0.1 * s, waited_s=0.9 * s) for ms, s in zip(rounds_ms, took_s, strict=True)]


def transcript(rounds: list[Round], norm: Norm = NORM, round_s: float = 0.0) -> list[str]:
    """The verdict after each round, until the last or one that ends it."""
    verdicts: list[str] = []
    for i in range(1, len(rounds) + 1):
        verdicts.append(judge(rounds[:i], norm, i * round_s).verdict)
        if verdicts[-1] != "go_on":
            break
    return verdicts


@pytest.mark.parametrize(
    ("rounds_ms", "rounds"),
    [
        ([15.0, 12.0, 16.0], 3),
        # What compiles at its first call, on a CPU and on a GPU.
        ([200.0, 15.0, 14.0, 15.0], 3),
        ([9_000.0, 60.0, 55.0, 61.0], 4),
        ([9_000.0, 4_000.0, 60.0, 55.0, 61.0], 5),
        # One that is late once begins anew.
        ([60.0, 55.0, 700.0, 58.0, 57.0, 61.0], 6),
        # Slow hardware is as steady as any.
        ([8_000.0, 4_000.0, 4_300.0, 4_100.0], 4),
    ],
)
def test_an_engine_is_warm_after_three_rounds_near_its_best(rounds_ms: list[float], rounds: int) -> None:
    assert transcript(calm(*rounds_ms)) == ["go_on"] * (rounds - 1) + ["warm"]


def test_how_near_is_near() -> None:
    assert judge(calm(100.0, 100.0, 400.0), NORM, 1.0).verdict == "warm"
    assert judge(calm(100.0, 100.0, 401.0), NORM, 1.0).verdict == "go_on"


@pytest.mark.parametrize("slow_ms", [30_001.0, math.inf])
def test_first_tokens_that_callers_would_not_wait_for_are_never_warm(slow_ms: float) -> None:
    assert transcript(calm(slow_ms) * 30, round_s=3.0) == ["go_on"] * (PATIENCE_ROUNDS - 1) + ["never"]


def test_slow_is_a_multiple_of_what_earlier_starts_came_to_but_nothing_that_no_region_calls_slow() -> None:
    assert [Norm(30_000.0, usual_ms).slow_ms for usual_ms in (None, 20.0, 300.0, 2_000.0, 9_000.0)] == [
        30_000.0,
        1_500.0,
        1_500.0,
        10_000.0,
        30_000.0,
    ]
    assert Norm(800.0, 20.0).slow_ms == 800.0


def test_a_steady_engine_that_is_slow_for_its_agent_is_never_warm() -> None:
    slow = calm(3_000.0) * 40
    assert transcript(slow, round_s=9.0) == ["go_on", "go_on", "warm"]
    assert transcript(slow, Norm(30_000.0, 20.0), round_s=9.0)[-1] == "never"
    assert judge(slow[:20], Norm(30_000.0, 20.0), 180.0) == WarmUp(
        "never",
        "first tokens after 3000 ms in the last of 20 rounds, more than 1500 ms are slow, usual are 20 ms",
    )


def test_patience_needs_both_rounds_and_time() -> None:
    few, many = calm(math.inf) * (PATIENCE_ROUNDS - 1), calm(math.inf) * PATIENCE_ROUNDS
    verdicts = [judge(r, NORM, s).verdict for r, s in ((few, 1e6), (many, PATIENCE_S - 0.1), (many, PATIENCE_S))]
    assert verdicts == ["go_on", "go_on", "never"]


def test_a_busy_machine_makes_first_tokens_uneven_and_the_engine_is_let_in_all_the_same() -> None:
    uneven = calm(20.0, 900.0, 40.0, 700.0) * 10
    assert transcript(uneven, Norm(30_000.0, 15.0), round_s=4.0) == ["go_on"] * (PATIENCE_ROUNDS - 1) + ["warm"]


@pytest.mark.parametrize(
    ("rounds_ms", "shown"),
    [
        ([15.0], "first tokens after 15 ms in the last of 1 rounds, first tokens after 15 ms in the best"),
        (
            [math.inf, 12.0],
            "no first token in the last of 2 rounds, more than 30000 ms are slow",
        ),
    ],
)
def test_what_rounds_show_can_be_told(rounds_ms: list[float], shown: str) -> None:
    assert judge(calm(*rounds_ms), NORM, 0.0) == WarmUp("go_on", shown)


def test_fewer_rounds_than_have_to_be_normal_are_never_enough() -> None:
    assert [judge(calm(10.0) * n, NORM, 0.0).verdict for n in range(1, IN_A_ROW + 1)] == ["go_on", "go_on", "warm"]


def test_an_engine_that_is_slower_than_usual_on_a_full_machine_is_let_in() -> None:
    norm = Norm(30_000.0, 20.0)
    assert transcript(full(3_000.0) * 30, norm, round_s=9.0) == ["go_on", "go_on", "warm"]
    uneven = full(3_000.0, 9_000.0, 1_600.0, 6_000.0) * 10
    assert transcript(uneven, norm, round_s=9.0) == ["go_on"] * (PATIENCE_ROUNDS - 1) + ["warm"]
    # As slow without that reason, in one round of the last three.
    assert transcript(full(3_000.0) * 30 + calm(3_000.0), norm)[:3] == ["go_on", "go_on", "warm"]
    assert judge(full(1_600.0, 9_000.0) * 15 + calm(1_600.0), norm, 180.0).verdict == "never"


@pytest.mark.parametrize("slow_ms", [30_001.0, math.inf])
def test_no_engine_is_given_up_or_let_in_while_a_full_machine_keeps_its_callers_waiting(slow_ms: float) -> None:
    rounds = full(slow_ms) * 100
    assert transcript(rounds, round_s=90.0) == ["go_on"] * 100
    told = "no first token" if slow_ms == math.inf else "first tokens after 30001 ms"
    shown = f"{told} in the last of 100 rounds, more than 30000 ms are slow, on a machine that is full"
    assert judge(rounds, Norm(30_000.0, 20.0), 9_000.0) == WarmUp("go_on", shown)
    # When the machine is free again the engine shows what it is.
    assert transcript(rounds[:30] + calm(20.0) * 3, round_s=90.0) == ["go_on"] * 32 + ["warm"]
    assert transcript(rounds[:30] + calm(slow_ms), round_s=90.0) == ["go_on"] * 30 + ["never"]


@pytest.mark.parametrize(
    ("took_s", "ran_s", "waited_s", "starved"),
    [
        # Neither runs nor waits: it hangs, or waits for a GPU, whatever little things it does meanwhile.
        (3.0, 0.0, 0.0, False),
        (3.0, 0.001, 0.1, False),
        (3.0, 0.0, 1.5, False),
        (3.0, 0.0, 1.501, True),
        # Two threads that compute, and one that spins between them, on two cores of their own.
        (3.0, 6.0, 2.9, False),
        # The same three on cores that they share with many others.
        (3.0, 0.9, 8.1, True),
        (3.0, 4.0, 4.0, False),
        (3.0, 4.0, 4.001, True),
    ],
)
def test_when_a_machine_is_full(took_s: float, ran_s: float, waited_s: float, starved: bool) -> None:
    assert Round(1.0, took_s, ran_s, waited_s).starved is starved
