"""A crew does everything once, begins nothing it has no thread for, and ends with the first fault."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from serve_app.edge.crew import run_all


def test_everything_is_done_once_however_much_there_is() -> None:
    done: list[int] = []
    run_all(range(10_000), done.append, lambda: None, threads=4, every_s=1.0)
    assert sorted(done) == list(range(10_000))


def test_an_item_is_made_when_a_thread_is_free_for_it() -> None:
    made, go, most = [0], threading.Event(), list[int]()

    def items() -> Iterator[int]:
        for i in range(100):
            made[0] += 1
            yield i

    def work(item: int) -> None:
        if item == 2:
            # Three are made, and the other two wait.
            most.append(made[0])
            go.set()
        assert go.wait(30)

    run_all(items(), work, lambda: None, threads=3, every_s=1.0)
    assert most == [3] and made == [100]


def test_the_first_fault_ends_it() -> None:
    begun, stop = list[int](), threading.Event()

    def work(item: int) -> None:
        begun.append(item)
        if item == 5:
            raise ValueError("the fault")

    with pytest.raises(ValueError, match=r"^the fault$"):
        run_all(range(1000), work, lambda: None, threads=1, every_s=1.0, stop=stop)
    assert begun == list(range(6))


def test_a_fault_of_whoever_makes_or_watches_ends_it_too() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise OSError("no more")

    with pytest.raises(OSError, match=r"^no more$"):
        run_all(items(), lambda item: None, lambda: None, threads=2, every_s=1.0)
    stop = threading.Event()

    def watch() -> None:
        raise TimeoutError("long enough")

    with pytest.raises(TimeoutError, match=r"^long enough$"):
        run_all([1], lambda item: stop.wait(30), watch, threads=1, every_s=0.01, stop=stop)
    assert stop.is_set()
