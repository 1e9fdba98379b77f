"""Whether the turns of a session come where their prefix is cached."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Final

from benchmarks.simulate import measure, traffic
from benchmarks.simulate.engine import Speed
from benchmarks.simulate.result import Promise, Result
from benchmarks.simulate.setup import Setup, fleet_for, steady_load, uneven
from benchmarks.simulate.traffic import Request, Shape
from benchmarks.simulate.world import WARM_S, Fleet, World, parts_of

TRACE: Final = "mooncake_conversation_sessions_derived.csv.gz"
#: The trace is as long as it is: fewer regions, so that its hour is simulated in minutes.
MOST_REGIONS: Final = 10
DURATION_S: Final = 240.0
LOAD: Final = 0.6
LEAST_HITS: Final = 0.95
#: Whether turns are chosen for by their session, and whether its pick is kept.
VARIANTS: Final = (("picks kept", True, True), ("rendezvous alone", True, False), ("no sessions", False, False))


def affinity(setup: Setup) -> Result:
    """Sessions by rendezvous with their pick kept, without Redis, and turns chosen for as if they were alone."""
    name = "built-in sessions" if setup.data is None else TRACE
    rows, promises = {}, []
    for variant, use, keep in VARIANTS:
        fleet, load, end_s = _load(setup)
        fleet = replace(fleet, use_sessions=use, keep_picks=keep, replicas=1)
        world = setup.world(f"affinity, {variant}", fleet)
        world.tally.turns = {}
        world.run(((r.at_s, r) for r in load), end_s)
        rows[variant] = _figures(world)
        if use:
            hits = rows[variant]["same region"]
            promises.append(Promise(f"turns answered where the last one was, {variant}", hits, "at least", LEAST_HITS))
    notes = (f"load: {name}", "one prefix cache a region: which replica inside a region has a prefix is not simulated")
    return Result("affinity", len(fleet.parts), world.tally.requests, end_s, rows, promises, notes)


def _figures(world: World) -> dict[str, float | int | None]:
    follow = same = 0
    for turns in (world.tally.turns or {}).values():
        follow += len(turns) - 1
        same += sum(a[1] == b[1] for a, b in pairwise(turns))
    shared = sum(r.engine.shared_tokens for r in world.regions.values())
    return {
        "turns": follow,
        "same region": same / follow if follow else None,
        "tokens from cache": sum(r.engine.hit_tokens for r in world.regions.values()) / shared if shared else None,
        "wait p95 ms": measure.wait_p95_ms(world.tally),
        "failed": measure.failed(world.tally),
    }


def _load(setup: Setup) -> tuple[Fleet, list[Request], float]:
    if setup.data is None:
        shape = Shape(in_sessions=1.0, turns=6.0)
        fleet = fleet_for(setup, DURATION_S, LOAD, shape)
        made = steady_load(setup, uneven(setup, fleet.parts), setup.requests, WARM_S, DURATION_S, shape)
        return fleet, [r for _, r in made], WARM_S + DURATION_S
    regions = min(MOST_REGIONS, setup.regions)
    parts, speed = parts_of(regions), Speed()
    load = traffic.mooncake(setup.data / TRACE, uneven(setup, parts), setup.draw("load"), setup.requests)
    for request in load:
        request.at_s += WARM_S
    end_s = load[-1].at_s if load else WARM_S
    work_s = sum(speed.busy_s(r.prompt_tokens - r.shared_tokens, r.output_tokens) for r in load)
    slots = max(2, round(work_s / max(1.0, end_s - WARM_S) / LOAD / regions))
    clouds = [f"cloud-{part}" for part in parts]
    return Fleet(parts=parts, slots=slots, prices=[1.0] * regions, clouds=clouds), load, end_s
