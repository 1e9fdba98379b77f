"""Virtual time: what is to happen, in order. Nothing here waits."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any


class Clock:
    """Seconds since the start of the simulation. Events of the same moment happen in the order they were planned."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = count()

    def at(self, when_s: float, act: Callable[..., None], *args: Any) -> None:
        """Plans ``act(*args)``; what should have happened already happens next."""
        heapq.heappush(self._events, (max(when_s, self.now_s), next(self._number), act, args))

    def every(self, period_s: float, first_s: float, act: Callable[[], None]) -> None:
        """Plans ``act`` again and again."""

        def again() -> None:
            act()
            self.at(self.now_s + period_s, again)

        self.at(first_s, again)

    def feed(self, times: Iterator[tuple[float, Any]], act: Callable[[Any], None]) -> None:
        """Plans ``act`` for each (time, thing); of a million only the next one is held."""

        def happen(thing: Any) -> None:
            follow()
            act(thing)

        def follow() -> None:
            ahead = next(times, None)
            if ahead is not None:
                self.at(ahead[0], happen, ahead[1])

        follow()

    def run(self, until_s: float) -> None:
        """Lets everything happen up to ``until_s``, which is the time then."""
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, act, args = heapq.heappop(self._events)
            act(*args)
        self.now_s = until_s
