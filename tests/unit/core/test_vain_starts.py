"""When nobody waits any more for an engine whose replicas never get ready, and when it is tried anew."""

from __future__ import annotations

from typing import Any

from serve_app.core.vain_starts import FAILED_STARTS, OVERDUE_RATIO, VainStarts

APP, LIMIT_S = "chat--1", 60.0


class Starts:
    """One engine, looked at each second."""

    def __init__(self) -> None:
        self.starts, self.now_s = VainStarts(), 100.0

    def look(self, *ready: str, starting: bool = False, runs: Any = "options", after_s: float = 1.0) -> bool:
        self.now_s += after_s
        return self.starts.looked(APP, runs, frozenset(ready), starting, LIMIT_S, self.now_s)

    def failed(self, count: int) -> None:
        for i in range(count):
            self.starts.failed(APP, f"f{i}")


def test_some_failed_starts_one_after_the_other_are_no_accident() -> None:
    one = Starts()
    assert not one.look("r1")
    one.failed(FAILED_STARTS - 1)
    # The same replica told twice is one.
    one.failed(FAILED_STARTS - 1)
    assert not one.look("r1")
    one.failed(FAILED_STARTS)
    assert one.look("r1")
    # That one goes which had been ready makes nothing better; that another gets ready does.
    assert one.look()
    assert not one.look("r2")
    assert not one.look("r2")


def test_a_start_that_never_ends_is_in_vain_after_twice_its_limit() -> None:
    one = Starts()
    one.look("r1")
    seconds = 0
    while not one.look("r1", starting=True):
        seconds += 1
    assert seconds == OVERDUE_RATIO * LIMIT_S
    assert not one.look("r1", "r2")


def test_who_waits_for_room_does_not_start_in_vain_however_long_it_takes() -> None:
    one = Starts()
    assert not any(one.look() for _ in range(10_000))
    # Nor does it where nobody looked for a while.
    assert not any(one.look(starting=True, after_s=3600.0) for _ in range(5))


def test_with_something_else_to_start_it_is_tried_anew() -> None:
    one = Starts()
    one.look()
    one.failed(FAILED_STARTS)
    assert one.look()
    assert not one.look(runs="other options")
    one.failed(FAILED_STARTS)
    assert one.look(runs="other options")


def test_an_engine_that_is_gone_is_forgotten() -> None:
    one = Starts()
    one.look()
    one.failed(FAILED_STARTS)
    one.starts.retain({"doc--1"})
    assert not one.look()
