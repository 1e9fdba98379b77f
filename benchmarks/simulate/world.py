"""A fleet to measure: regions, coordinator, users, and what became of each request."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.simulate.clock import Clock
from benchmarks.simulate.coordinator import SimCoordinator
from benchmarks.simulate.engine import Engine, Job, Speed
from benchmarks.simulate.links import Links, places
from benchmarks.simulate.region import Rules, SimRegion
from benchmarks.simulate.traffic import Request
from serve_app.core.region_facts import FleetFacts, RegionFacts
from serve_app.core.scorers import default_weights
from serve_app.core.table import Agent, Tenant, Timeouts

#: Before the first request regions have heard of each other.
WARM_S: Final = 3.0
SLOTS_OF_REPLICA: Final = 16
CACHE_TOKENS_OF_SLOT: Final = 8192
PARTS: Final = ("asia", "europe", "americas")


def parts_of(regions: int) -> list[str]:
    """The part of the world of each region, in turns."""
    return [PARTS[i % 3] for i in range(regions)]


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is simulated. ``slots`` are of each region; prices are US dollars an hour for all of a region's GPUs."""

    parts: Sequence[str]
    slots: int
    prices: Sequence[float]
    clouds: Sequence[str]
    scoring: Mapping[str, float] = field(default_factory=default_weights)
    affinity: dict[str, str] = field(default_factory=dict)
    preferred_cloud: str | None = None
    use_sessions: bool = True
    keep_picks: bool = True
    replicas: int | None = None
    cache_tokens: int | None = None
    speed: Speed = field(default_factory=Speed)

    @property
    def names(self) -> list[str]:
        return [f"{part}-{i}" for i, part in enumerate(self.parts)]


class Tally:
    """One row a request that got a first token, as columns: a million are 20 MB. ``lost`` counts the others by why."""

    def __init__(self, names: Sequence[str]) -> None:
        self._number = {name: i for i, name in enumerate(names)}
        self.entry, self.region = array("h"), array("h")
        self.at_s, self.wait_ms = array("d"), array("f")
        self.lost: Counter[str] = Counter()
        self.attempts = self.requests = self.moved_entry = 0
        #: When each attempt was sent to a region in the dark.
        self.into_dark: list[tuple[float, str]] = []
        self.dark: set[str] = set()
        #: Region that answered each turn of a session, while somebody asks for it.
        self.turns: dict[str, list[tuple[float, int]]] | None = None

    def sent(self, job: Job, entry: str) -> None:
        self.attempts += 1
        if job.target.region in self.dark:
            self.into_dark.append((job.sent_s, job.target.region))

    def began(self, job: Job, entry: str) -> None:
        region = self._number[job.target.region]
        self.entry.append(self._number[entry])
        self.region.append(region)
        self.at_s.append(job.sent_s)
        self.wait_ms.append(job.wait_ms)
        if self.turns is not None and job.request.session is not None:
            self.turns.setdefault(job.request.session, []).append((job.sent_s, region))

    def lose(self, why: str) -> None:
        self.lost[why] += 1


class World:
    """Everything together. ``progress`` is told how many requests have come in."""

    def __init__(self, fleet: Fleet, seed: int, progress: Callable[[int, float], None]) -> None:
        self.fleet, self.clock = fleet, Clock()
        self.links = Links(fleet.names, places(fleet.parts))
        self.tally = Tally(fleet.names)
        self.tally.dark = self.links.dark
        self._progress = progress
        self._names = fleet.names
        agent = agent_of(fleet)
        rules = Rules(
            agent=agent,
            tenant=Tenant("acme", (), frozenset({"any"})),
            scoring=fleet.scoring,
            preferred_cloud=fleet.preferred_cloud,
            use_sessions=fleet.use_sessions,
            keep_picks=fleet.keep_picks,
        )
        facts = {
            name: RegionFacts(name, cloud, frozenset(), price)
            for name, cloud, price in zip(fleet.names, fleet.clouds, fleet.prices, strict=True)
        }
        self.regions: dict[str, SimRegion] = {}
        draw = random.Random(f"{seed}/draw").random
        for name in fleet.names:
            told = FleetFacts(name, facts, {agent.name: agent})
            self.regions[name] = SimRegion(
                name, self.clock, self.links, rules, told, self._engine, self.tally, self.regions, draw
            )
        self.coordinator = SimCoordinator(self.clock, self.regions)
        phases = random.Random(f"{seed}/phases")
        for region in self.regions.values():
            region.begin(lambda period_s: phases.uniform(0.0, period_s))
        self.coordinator.begin()
        self.clock.run(WARM_S)

    def _engine(self) -> Engine:
        fleet = self.fleet
        replicas = fleet.replicas or max(1, fleet.slots // SLOTS_OF_REPLICA)
        cache = fleet.cache_tokens or fleet.slots * CACHE_TOKENS_OF_SLOT
        return Engine(self.clock, fleet.slots, replicas, fleet.speed, cache, agent_of(fleet).timeouts.queue_s)

    def run(self, requests: Iterator[tuple[float, Request]], until_s: float) -> None:
        self.clock.feed(requests, self._ask)
        self.clock.run(until_s)

    def _ask(self, request: Request) -> None:
        self.tally.requests += 1
        if self.tally.requests % 1000 == 0:
            self._progress(self.tally.requests, self.clock.now_s)
        name = self._names[request.entry]
        if name in self.links.dark:
            # The client tries the next entry.
            self.tally.moved_entry += 1
            found = self.links.nearest(name)
            if found is None:
                self.tally.lose("entry")
                return
            name = found
        self.regions[name].arrive(Job(request))


def agent_of(fleet: Fleet) -> Agent:
    """One agent with the shipped limits."""
    replicas = fleet.replicas or max(1, fleet.slots // SLOTS_OF_REPLICA)
    return Agent(
        name="qwen-chat",
        engine_agent="qwen-chat",
        app="qwen-chat--0000",
        engine_digest="0" * 64,
        release="0" * 64,
        duty="chat",
        max_model_len=131_072,
        slots=max(1, fleet.slots // replicas),
        min_replicas=1,
        max_queue_ms=250.0,
        priority=100,
        max_tokens_default=1024,
        timeouts=Timeouts(),
        language_affinity=fleet.affinity,
    )
