"""How a guard counts time: ticks as long as they are told to be, threads that did what they are told to have done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest

from deployments import guard
from deployments.guard import Threads, Waits, waits


@dataclass
class Machine:
    """What a guard sees of time and of a replica, each tick as it is told: how long it took, and whether a beat came.

    ``thread`` tells after each tick what the thread that beats did: the letter of its state, and how long it ran and
    waited since the tick before.
    """

    ticks: Iterator[tuple[float, bool]]
    thread: tuple[str, float, float] = ("S", 0.0, 0.0)
    time_s: float = 5000.0
    beaten: bool = False
    asked_s: set[float] = field(default_factory=set)
    did: Threads = field(default_factory=lambda: {7: ("S", 10**12, 10**12)})
    killed: list[set[guard.Process]] = field(default_factory=list)

    def select(self, *_: list[int], wait_s: float = 0.0) -> tuple[list[int], list[int], list[int]]:
        assert not self.killed
        self.asked_s.add(wait_s)
        passed_s, self.beaten = next(self.ticks)
        self.time_s += passed_s
        (_, ran_ns, waited_ns), (state, ran_s, waited_s) = self.did[7], self.thread
        self.did = {7: (state, ran_ns + int(ran_s * 1e9), waited_ns + int(waited_s * 1e9))}
        return ([0] if self.beaten else []), [], []


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Callable[..., float]:
    """Runs a guard on a machine until it kills; returns how long that took."""

    def run(machine: Machine, *, settled: bool, start_limit_s: float = 60.0) -> float:
        asked: list[Path] = []
        told = {"read": lambda *_: b".", "write": lambda *_: 1, "getpid": lambda: 1}
        monkeypatch.setattr(guard, "os", SimpleNamespace(**told))
        monkeypatch.setattr(guard, "select", SimpleNamespace(select=lambda *of: machine.select(*of[:3], wait_s=of[3])))
        monkeypatch.setattr(guard, "time", SimpleNamespace(monotonic=lambda: machine.time_s))
        monkeypatch.setattr(guard, "threads", lambda tasks: asked.extend(tasks) or machine.did)
        monkeypatch.setattr(guard, "kill", machine.killed.append)
        monkeypatch.setattr(guard, "descendants", lambda pid: {(pid + 1, "t")})
        monkeypatch.setattr(guard, "started", lambda pid: "t")
        began_s = machine.time_s
        guard.watch(40, 47, settled, start_limit_s, 6.0)
        assert machine.killed == [{(40, "t"), (41, "t"), (42, "t")}] and set(asked) <= {Path("/proc/40/task/47")}
        return machine.time_s - began_s

    return run


def always(passed_s: float, beaten: bool = False) -> Iterator[tuple[float, bool]]:
    while True:
        yield passed_s, beaten


@pytest.mark.parametrize("tick_s", [0.125, 0.5, 0.75])
def test_a_start_has_its_time_however_long_a_look_at_it_takes(guarded: Callable[..., float], tick_s: float) -> None:
    machine = Machine(always(tick_s))
    assert guarded(machine, settled=False) == 60.0
    assert machine.asked_s == {guard.STARTING_TICK_S}


def test_a_machine_that_sleeps_takes_nothing_from_a_start_or_a_silent_replica(guarded: Callable[..., float]) -> None:
    slept = [(0.125, False), (36_000.0, False)]
    assert guarded(Machine(chain(slept, always(0.125))), settled=False) == 36_000.0 + 60.0 - guard.LONGEST_TICK_S
    slept = [(0.5, False), (36_000.0, False)]
    assert guarded(Machine(chain(slept, always(0.5))), settled=True) == 36_000.0 + 6.0 - guard.LONGEST_TICK_S


def test_a_replica_has_its_time_from_its_last_beat(guarded: Callable[..., float]) -> None:
    beats = [(0.25, True), (0.5, False), (0.25, True), *[(0.5, False)] * 11, (0.25, True)]
    machine = Machine(chain(beats, always(0.5)))
    assert guarded(machine, settled=True) == 0.25 + 0.5 + 0.25 + 5.5 + 0.25 + 6.0


@pytest.mark.parametrize(
    ("thread", "killed_after_s"),
    [
        # It hangs, is stopped, or runs for ever in something that never ends.
        (("S", 0.0, 0.0), 6.0),
        (("D", 0.001, 0.001), 6.5),
        (("T", 0.0, 0.0), 6.0),
        (("R", 0.5, 0.0), 6.0),
        # It had a processor for half of the time.
        (("R", 0.25, 0.25), 11.5),
        # It waits for one, and has waited since the tick before. The first tick only shows where it stands.
        (("R", 0.003, 0.497), pytest.approx(55.0, abs=1.0)),
        (("R", 0.0, 0.0), pytest.approx(55.0, abs=1.0)),
    ],
)
def test_a_replica_that_waits_for_a_processor_does_not_hang(
    guarded: Callable[..., float], thread: tuple[str, float, float], killed_after_s: float
) -> None:
    assert guarded(Machine(always(0.5), thread), settled=True) == killed_after_s


@pytest.mark.parametrize(
    ("before", "after", "had"),
    [
        ({}, {}, Waits()),
        # Nothing is known of what a new thread did before, nor of one that ended.
        ({1: ("S", 10, 10)}, {2: ("R", 5, 5)}, Waits()),
        (
            {1: ("R", 10**9, 0), 2: ("S", 10**9, 10**8)},
            {1: ("R", 3 * 10**9, 5 * 10**8), 2: ("S", 2 * 10**9, 10**9)},
            Waits(3.0, 1.4, 0.9),
        ),
        # Ready, and has not run; asleep all the time.
        ({1: ("S", 10**9, 0), 2: ("S", 7, 7)}, {1: ("R", 10**9, 0), 2: ("S", 7, 7)}, Waits(0.0, 2.0, 2.0)),
        # One is stopped, or traced.
        ({1: ("S", 0, 0), 2: ("S", 0, 0)}, {1: ("T", 0, 0), 2: ("R", 10**8, 10**9)}, Waits()),
        ({1: ("S", 0, 0), 2: ("S", 0, 0)}, {1: ("t", 0, 0), 2: ("R", 10**8, 10**9)}, Waits()),
    ],
)
def test_what_threads_had_of_the_processors(before: Threads, after: Threads, had: Waits) -> None:
    assert waits(before, after, 2.0) == had
