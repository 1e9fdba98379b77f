"""What every scenario is told, and fleets of the size that a load needs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.simulate import traffic
from benchmarks.simulate.engine import Speed
from benchmarks.simulate.traffic import Request, Shape
from benchmarks.simulate.world import WARM_S, Fleet, World, parts_of

#: From how many requests the mean work of one is estimated.
SAMPLE = 2000


@dataclass(frozen=True, slots=True)
class Setup:
    """``progress`` is told a name, requests so far, requests in all, and the virtual time."""

    regions: int
    requests: int
    seed: int
    data: Path | None
    progress: Callable[[str, int, int, float], None]

    def draw(self, what: str) -> random.Random:
        """Chance of its own for each purpose, the same in each run."""
        return random.Random(f"{self.seed}/{what}")

    def world(self, name: str, fleet: Fleet) -> World:
        return World(fleet, self.seed, lambda done, now_s: self.progress(name, done, self.requests, now_s))


def fleet_for(setup: Setup, duration_s: float, load: float, shape: Shape, **more: Any) -> Fleet:
    """Equal regions that a load of ``requests`` over ``duration_s`` fills to ``load``, at one price."""
    count = setup.regions
    parts, speed = parts_of(count), Speed()
    sample = steady_load(setup, [(1.0, part) for part in parts], SAMPLE, 0.0, 100.0, shape)
    work_s = sum(speed.busy_s(r.prompt_tokens - r.shared_tokens, r.output_tokens) for _, r in sample) / SAMPLE
    slots = max(2, round(setup.requests / duration_s * work_s / load / count))
    fleet = Fleet(parts=parts, slots=slots, prices=[1.0] * count, clouds=[f"cloud-{part}" for part in parts])
    return replace(fleet, **more)


def steady_load(
    setup: Setup, entries: Sequence[tuple[float, str]], requests: int, begin_s: float, duration_s: float, shape: Shape
) -> Iterator[tuple[float, Request]]:
    return traffic.steady(setup.draw("load"), entries, requests, begin_s, duration_s, shape)


def uneven(setup: Setup, parts: Sequence[str]) -> list[tuple[float, str]]:
    """Users of each region: some have half of the mean, some one and a half."""
    draw = setup.draw("users")
    return [(draw.uniform(0.5, 1.5), part) for part in parts]


def run_steady(
    world: World, setup: Setup, entries: Sequence[tuple[float, str]], duration_s: float, shape: Shape
) -> None:
    load = steady_load(setup, entries, setup.requests, WARM_S, duration_s, shape)
    world.run(load, WARM_S + duration_s)
