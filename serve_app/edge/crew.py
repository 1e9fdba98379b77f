"""A bounded number of threads over an endless number of items."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def run_all(
    items: Iterable[T],
    work: Callable[[T], None],
    watch: Callable[[], None],
    *,
    threads: int,
    every_s: float,
    stop: threading.Event | None = None,
) -> None:
    """Does ``work`` for every item, in order of their beginning; each is made when a thread is free for it.

    ``watch`` is called here every ``every_s``. The first exception of either ends it: ``stop`` is set, and what it was
    is raised. A thread that waits for a socket then is left to itself; it is of the kind that ends with the process.
    """
    stop = stop or threading.Event()
    changed = threading.Condition()
    left, faults = iter(items), list[BaseException]()
    busy = threads

    def one() -> None:
        nonlocal busy
        try:
            while not stop.is_set():
                with changed:
                    try:
                        item = next(left)
                    except StopIteration:
                        return
                work(item)
        except BaseException as error:
            with changed:
                faults.append(error)
        finally:
            with changed:
                busy -= 1
                changed.notify()

    try:
        for _ in range(threads):
            threading.Thread(target=one, daemon=True).start()
        with changed:
            watch_s = time.monotonic() + every_s
            while busy and not faults:
                changed.wait(watch_s - time.monotonic())
                if time.monotonic() >= watch_s:
                    watch()
                    watch_s = time.monotonic() + every_s
        if faults:
            raise faults[0]
    finally:
        if busy:
            stop.set()
