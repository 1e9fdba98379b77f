"""The scenarios: what happens, what is measured, what is promised."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from benchmarks.simulate import measure
from benchmarks.simulate.affinity import affinity
from benchmarks.simulate.day import day
from benchmarks.simulate.result import Promise, Result
from benchmarks.simulate.setup import Setup, fleet_for, run_steady, uneven
from benchmarks.simulate.traffic import Shape
from benchmarks.simulate.world import WARM_S
from serve_app.core.scorers import default_weights
from serve_app.core.target_health import RAMP_FROM, RAMP_S

#: A peer's silence, one beat, one look at the snapshot, and the way there.
DETECT_S: Final = 2.0
MAX_QUEUE_MS: Final = 250.0
#: Shares over time are of bins so long.
BIN_S: Final = 4.0


def recovery(setup: Setup) -> Result:
    """A region goes dark for a minute and comes back. Users are spread unevenly, half of them talk in sessions."""
    shape, dies_s, back_s, end_s = Shape(), WARM_S + 60.0, WARM_S + 120.0, WARM_S + 240.0
    fleet = fleet_for(setup, 240.0, 0.65, shape)
    world = setup.world("recovery", fleet)
    name = fleet.names[0]
    seen_s: list[float] = []

    def look() -> None:
        """When the first of its peers may send it requests again."""
        others = [] if seen_s else [r for r in world.regions.values() if r.name != name]
        targets = [t for r in others for t in r.snapshot.targets if t.region == name]
        if any(t.health in ("healthy", "slow") for t in targets):
            seen_s.append(world.clock.now_s)

    world.clock.at(dies_s, world.regions[name].die)
    world.clock.at(back_s, world.regions[name].come_back)
    world.clock.every(0.1, back_s, look)
    run_steady(world, setup, uneven(setup, fleet.parts), 240.0, shape)
    tally = world.tally
    into_dark = max((at_s - dies_s for at_s, _ in tally.into_dark), default=0.0)
    first_s = seen_s[0] if seen_s else end_s
    full = measure.shares(tally, 0, end_s - 60.0, end_s, 60.0)[0]
    after = measure.shares(tally, 0, first_s, end_s, BIN_S)
    spilled = measure.shares(tally, 0, first_s, end_s, BIN_S, spilled=True)
    most = max(spilled, default=0.0)
    ramp = [
        share / most / (RAMP_FROM + (1.0 - RAMP_FROM) * min(1.0, (i + 1) * BIN_S / RAMP_S))
        for i, share in enumerate(spilled)
        if most and i * BIN_S < RAMP_S
    ]
    # What chance does to a bin is no change of direction.
    noise = math.sqrt(full * (1.0 - full) / max(1.0, tally.requests / 240.0 * BIN_S))
    turns = measure.turns(after, max(full / 3, 4.0 * noise))
    later_ms = measure.wait_p95_ms(tally, end_s - 60.0)
    figures = {
        "local": measure.local_share(tally),
        "wait p95 ms": measure.wait_p95_ms(tally),
        "later p95 ms": later_ms,
        "seen after s": first_s - back_s,
        "share": full,
        "lost entry": tally.lost["entry"] + tally.lost["entry mid-stream"],
        "next entry": tally.moved_entry,
        "mid-stream": tally.lost["mid-stream"],
        "failed": measure.failed(tally),
        "plans": world.coordinator.plans,
    }
    promises = [
        Promise("last request sent to the dead region, s after its death", into_dark, "at most", DETECT_S),
        Promise("direction changes of its share after it is back", turns, "at most", 3),
        Promise("spill to it while it ramps, against its weight", max(ramp, default=None), "at most", 1.5),
        Promise("requests without a first byte that failed", measure.failed(tally), "at most", 0),
        Promise("queue wait p95 in the last minute, ms", later_ms, "at most", MAX_QUEUE_MS),
    ]
    return Result("recovery", len(fleet.parts), tally.requests, end_s, {"": figures}, promises)


def loss(setup: Setup) -> Result:
    """One of N regions is lost while people talk: who has to move, with picks kept in Redis and by rendezvous alone."""
    shape, dies_s, window_s = Shape(in_sessions=1.0, turns=6.0), WARM_S + 40.0, 40.0
    rows, promises = {}, []
    for variant, keep in (("picks kept", True), ("rendezvous alone", False)):
        fleet = fleet_for(setup, 80.0, 0.5, shape, keep_picks=keep)
        world = setup.world(f"loss, {variant}", fleet)
        world.tally.turns = {}
        world.clock.at(dies_s, world.regions[fleet.names[0]].die)
        run_steady(world, setup, [(1.0, part) for part in fleet.parts], 80.0, shape)
        found = measure.moved(world.tally, dies_s, window_s, 0)
        share = found["moved"] / found["sessions"] if found["sessions"] else None
        rows[variant] = {**found, "moved share": share, "failed": measure.failed(world.tally)}
        promises.append(Promise(f"share of sessions moved, {variant}", share, "at most", 1.0 / len(fleet.parts) + 0.03))
    return Result("loss", len(fleet.parts), setup.requests, WARM_S + 80.0, rows, promises)


def cost(setup: Setup) -> Result:
    """Regions of one preferred cloud at prices from 0.8 to 1.6 US dollars an hour: what the cost weight saves."""
    shape, shipped = Shape(in_sessions=0.0), default_weights()
    rest = 1.0 - shipped["cost"]
    without = {name: 0.0 if name == "cost" else weight / rest for name, weight in shipped.items()}
    rows, paid, waits = {}, {}, {}
    for variant, scoring in (("with the cost weight", shipped), ("without", without)):
        fleet = fleet_for(setup, 120.0, 0.5, shape, scoring=scoring, preferred_cloud="one")
        count = len(fleet.parts)
        prices = [0.8 + 0.8 * i / max(1, count - 1) for i in range(count)]
        setup.draw("prices").shuffle(prices)
        fleet = replace(fleet, prices=prices, clouds=["one"] * count)
        world = setup.world(f"cost, {variant}", fleet)
        run_steady(world, setup, [(1.0, part) for part in fleet.parts], 120.0, shape)
        price_of = dict(zip(fleet.names, prices, strict=True))
        paid[variant] = measure.usd(world, price_of) / max(1, len(world.tally.region)) * 1e6
        waits[variant] = measure.wait_p95_ms(world.tally)
        rows[variant] = {
            "USD per million": paid[variant],
            "local": measure.local_share(world.tally),
            "wait p95 ms": waits[variant],
            "failed": measure.failed(world.tally),
        }
    ratio = paid["with the cost weight"] / paid["without"] if paid["without"] else None
    promises = [Promise("cost with the weight, against without", ratio, "at most", 1.0)]
    promises += [Promise(f"queue wait p95, {v}, ms", wait, "at most", MAX_QUEUE_MS) for v, wait in waits.items()]
    return Result("cost", count, setup.requests, WARM_S + 120.0, rows, promises)


#: A scenario is one function and one line here.
SCENARIOS: Final[dict[str, Callable[[Setup], Result]]] = {
    "recovery": recovery,
    "loss": loss,
    "cost": cost,
    "affinity": affinity,
    "day": day,
}
