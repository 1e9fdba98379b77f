"""A day of three regions whose users wake and sleep at other hours."""

from __future__ import annotations

from typing import Final

from benchmarks.simulate import measure, traffic
from benchmarks.simulate.engine import Speed
from benchmarks.simulate.region import BEAT_S, REPORT_S, WATCH_S
from benchmarks.simulate.result import Promise, Result
from benchmarks.simulate.setup import Setup
from benchmarks.simulate.traffic import Request, Shape
from benchmarks.simulate.world import PARTS, WARM_S, Fleet

TRACE: Final = "composed_3region_day.csv.gz"
#: A day in an hour: load changes 24 times as fast as it does.
DURATION_S: Final = 3600.0
#: Of all slots over the day; at its peak a region alone would be over-full.
LOAD: Final = 0.5
PRICES: Final = (1.00, 1.15, 1.30)
MAX_QUEUE_MS: Final = 250.0
#: Everybody goes to the cheapest region until it is told that its queue is too long: a report, a beat and a look later.
TOLD_MS: Final = 1000.0 * (REPORT_S + BEAT_S + WATCH_S)


def day(setup: Setup) -> Result:
    """The same load at one price, where scores decide, and at three: then the cheapest tier comes first."""
    rows, promises = {}, []
    for variant, prices, most_ms in (
        ("one price", (1.15,) * 3, MAX_QUEUE_MS),
        ("three prices", PRICES, MAX_QUEUE_MS + TOLD_MS),
    ):
        load = _load(setup)
        speed = Speed()
        work_s = sum(speed.busy_s(r.prompt_tokens - r.shared_tokens, r.output_tokens) for r in load)
        slots = max(2, round(work_s / DURATION_S / LOAD / len(PARTS)))
        fleet = Fleet(parts=PARTS, slots=slots, prices=prices, clouds=[f"cloud-{part}" for part in PARTS])
        world = setup.world(f"day, {variant}", fleet)
        world.run(((r.at_s + WARM_S, r) for r in load), WARM_S + DURATION_S + 60.0)
        tally, wait = world.tally, measure.wait_p95_ms(world.tally)
        local = measure.local_share(tally)
        rows[variant] = {
            "served locally": local,
            "spilled": None if local is None else 1.0 - local,
            "wait p95 ms": wait,
            "failed": measure.failed(tally),
            "USD per million": measure.usd(world, dict(zip(fleet.names, prices, strict=True))) / len(load) * 1e6,
        }
        promises.append(Promise(f"queue wait p95, {variant}, ms", wait, "at most", most_ms))
        promises.append(Promise(f"requests that failed, {variant}", measure.failed(tally), "at most", 0))
    name = "built-in day" if setup.data is None else TRACE
    notes = (f"load: {name}, 24 h in {DURATION_S / 60:g} min",)
    return Result("day", len(PARTS), len(load), DURATION_S, rows, promises, notes)


def _load(setup: Setup) -> list[Request]:
    draw = setup.draw("load")
    if setup.data is None:
        made = traffic.built_in_day(draw, PARTS, setup.requests, DURATION_S, Shape())
    else:
        made = traffic.composed_day(setup.data / TRACE, draw, PARTS, setup.requests, DURATION_S)
    return sorted((r for _, r in made), key=lambda r: r.at_s)
