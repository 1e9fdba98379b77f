"""Whose turn it is, when a task is tried again, and which workers may take it."""

from __future__ import annotations

import pytest

from serve_app.core.tasks import MOST_ATTEMPTS, TaskClass, Wanted, Workers, looks_first_at, place, retry_after_s


def test_three_more_attempts_and_then_none() -> None:
    assert [retry_after_s(n) for n in range(1, MOST_ATTEMPTS + 1)] == [1.0, 5.0, 30.0, None]


@pytest.mark.parametrize(("share", "normal"), [(0.2, 20), (0.5, 50), (0.25, 25), (1.0, 100)])
def test_normal_tasks_have_their_share_of_the_turns(share: float, normal: int) -> None:
    turns = [looks_first_at(turn, share) for turn in range(100)]
    assert turns.count("normal") == normal
    # Evenly: never more of the others in a row than the share allows.
    longest = max(len(run) for run in "".join(t[0] for t in turns).split("n"))
    assert longest <= 1 / share


SMALL_AND_LARGE = {"light": Workers(4096, 1), "heavy": Workers(32768, 1)}


@pytest.mark.parametrize(
    ("wanted", "tokens", "workers", "placed"),
    [
        ("auto", 100, SMALL_AND_LARGE, "light"),
        ("auto", 4097, SMALL_AND_LARGE, "heavy"),
        ("light", 100, SMALL_AND_LARGE, "light"),
        ("light", 4097, SMALL_AND_LARGE, "heavy"),
        ("heavy", 100, SMALL_AND_LARGE, "heavy"),
        ("auto", 32769, SMALL_AND_LARGE, None),
        ("heavy", 32769, SMALL_AND_LARGE, None),
        # Of two that could, the one that is there; without any the task waits for the first.
        ("auto", 100, {"light": Workers(4096), "heavy": Workers(32768, 1)}, "heavy"),
        ("auto", 100, {"light": Workers(4096), "heavy": Workers(32768)}, "light"),
        ("light", 100, {"light": Workers(4096), "heavy": Workers(32768, 1)}, "light"),
        ("light", 100, {"heavy": Workers(32768, 1)}, "heavy"),
        ("heavy", 100, {"light": Workers(4096, 1)}, None),
    ],
)
def test_a_task_goes_to_workers_that_can_hold_it(
    wanted: Wanted, tokens: int, workers: dict[TaskClass, Workers], placed: TaskClass | None
) -> None:
    assert place(wanted, tokens, workers) == placed
