"""A federation for drills that is made up: a clock, what is seen and asked, and a fault behind its port."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from serve_app.cli.drill_faults import Fault
from serve_app.cli.drill_stream import RATE_RPS, Entry
from serve_app.core.drill_verdict import Asked, Ending, Sight

STEP_S = 0.1


@dataclass
class World:
    """A federation on a clock that only sleeping moves: what the survivor sees, what clients get, and the fault in it.

    Peers notice 1.9 s after the fault; a region that is back has its full share 20 s later, unless it ``stays_away``.
    """

    now_s: float = 1000.0
    struck_s: float | None = None
    restored_s: float | None = None
    ending: Ending = "whole"
    stays_away: bool = False
    #: Called with each step of the clock; may raise what interrupts the command.
    meanwhile: Callable[[World], None] = lambda _: None
    sights: list[Sight] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    did: list[str] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s - 1e-9:
            self.now_s = round(min(until_s, self.now_s + STEP_S), 3)
            self._look()
            self.meanwhile(self)

    @property
    def is_faulty(self) -> bool:
        return self.struck_s is not None and self.restored_s is None

    def _look(self) -> None:
        weight, out = 1.0, False
        if self.struck_s is not None:
            if self.restored_s is None:
                out = self.now_s - self.struck_s > 1.85
            else:
                weight, out = min(1.0, 0.1 + 0.9 * (self.now_s - self.restored_s) / 20), self.stays_away
        self.sights.append(Sight(self.now_s, out, weight=weight, detector="peer"))
        if round(self.now_s * 10) % 5 == 0:
            ending: Ending = self.ending if self.is_faulty else "whole"
            first_s = self.now_s if ending == "whole" else None
            self.asked.append(Asked("b", self.now_s - 0.1, self.now_s, ending, first_s, told=f"it was {ending}"))


class FakeStream:
    """The stream of requests; a test has one at a time."""

    world: World

    def __init__(self, entries: list[Entry]) -> None:
        self.rate_rps, self.gone = RATE_RPS, frozenset[str]()
        self.entries = [e.name for e in entries]

    def start(self) -> None:
        self.world.did.append(f"stream to {self.entries}")

    def stop(self) -> None:
        self.world.did.append(f"stream ends at {self.rate_rps:g}/s, gone {sorted(self.gone)}")

    def asked(self) -> list[Asked]:
        return self.world.asked

    def ids(self) -> list[tuple[str, Asked]]:
        return [(f"r{i}", asked) for i, asked in enumerate(self.world.asked)]


class FakeWatch:
    world: World

    def __init__(self, entry: Entry, region: str, agent: str) -> None:
        self.world.did.append(f"watch {region}/{agent} from {entry.name}")

    @property
    def sights(self) -> list[Sight]:
        return self.world.sights

    def start(self) -> None:
        pass

    def stop(self) -> None:
        self.world.did.append("watch ends")


@dataclass(slots=True)
class FakeFault(Fault):
    """A fault of the fake world; like a killed region it takes an entry along."""

    world: ClassVar[World]
    hold_s: float = 6.0
    entry_goes: bool = True

    def prepare(self) -> None:
        self.world.did.append("prepare")

    def strike(self) -> None:
        self.world.did.append("strike")
        self.world.struck_s, self.world.restored_s = self.world.now_s, None

    def restore(self) -> None:
        self.world.did.append("restore")
        self.world.restored_s = self.world.now_s


@dataclass(slots=True)
class HalfMade(FakeFault):
    """One that breaks in the middle of striking."""

    def strike(self) -> None:
        FakeFault.strike(self)
        raise OSError("no such process")
