"""Autoscalers against traces, on a virtual clock: ``python -m benchmarks.autoscale [--data DIR] [--json]``.

The production policy (``autoscale.queue_latency.decide`` with what ``grix render`` writes for the chat agent) goes
through Serve's own factors, delays and bounds, and so do three others. Each runs each trace once for each setting of
its main knob. ``over target`` is the share of minutes whose 95th percentile of queue waits is above 250 ms; ``late`` is
the share of requests that waited longer, and ``left`` counts those of them that gave up after ten seconds. GPU-hours
count from the start of a replica to the end of its last answer. Without ``--data`` load is made up with the statistics
of the traces.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import ceil
from pathlib import Path
from typing import Final

from benchmarks.autoscale_picture import svg
from benchmarks.autoscale_policies import CONTENDERS, Pool, production
from benchmarks.autoscale_replica import Engine
from benchmarks.autoscale_report import Curves, Point, as_json, table, verdicts
from benchmarks.autoscale_traces import Rates, Trace, TraceError, built_in, from_folder
from benchmarks.autoscale_world import World, capacity_rps

TARGET_MS: Final = 250.0
#: Rates become so much work on average; hour-long traces are replayed as they are.
MEAN_REPLICAS: Final = 3.0
#: One replica is enough at night, whatever the fleet of the chat agent keeps.
MIN_REPLICAS: Final = 1
#: How full replicas are at the start, whoever scales them: that is no merit of a policy.
FIRST_SHARE: Final = 0.7
NEED_S: Final = 600.0
PROGRESS: Final = "{}: {} {:g}: {:.2%} of the time over target, {:.1f} GPU-hours ({:.0f} s)"


def sized(load: Trace | Rates, engine: Engine, seed: int) -> tuple[Trace, float]:
    """A trace and what one replica can do of it. Its requests are the same for every policy."""
    draw = random.Random(f"{seed}/{load.name}/sizes")
    capacity = capacity_rps(lambda: load.draw(draw), engine)
    return (load if isinstance(load, Trace) else load.trace(MEAN_REPLICAS * capacity, seed)), capacity


def needs(trace: Trace, capacity: float) -> list[float]:
    """The work that came, in replicas, by steps of ten minutes."""
    counts = [0] * ceil(trace.span_s / NEED_S)
    for at_s in trace.at_s:
        counts[min(len(counts) - 1, int(at_s / NEED_S))] += 1
    return [n / min(NEED_S, trace.span_s - place * NEED_S) / capacity for place, n in enumerate(counts)]


def run(trace: Trace, pool: Pool, name: str, knob: float) -> Point:
    """One policy at one setting."""
    contender = CONTENDERS[name]
    first = max(MIN_REPLICAS, ceil(needs(trace, pool.capacity_rps)[0] / FIRST_SHARE))
    world = World(trace, pool.engine, contender.metrics(pool), contender.make(knob, pool), TARGET_MS)
    return Point.of(knob, world.run(first), trace.span_s)


def curves_of(loads: Sequence[Trace | Rates], seed: int, jobs: int) -> Iterator[Curves]:
    """Trace by trace; runs of one trace go side by side."""
    config, scaling = production()
    config["min_replicas"] = MIN_REPLICAS
    with ProcessPoolExecutor(jobs) as workers:
        for load in loads:
            trace, capacity = sized(load, Engine(), seed)
            pool = Pool(Engine(), capacity, config, scaling)
            began_s = time.monotonic()
            asked = [(name, knob) for name, contender in CONTENDERS.items() for knob in contender.knobs]
            waiting = [workers.submit(run, trace, pool, name, knob) for name, knob in asked]
            points: dict[str, list[Point]] = {name: [] for name in CONTENDERS}
            for (name, knob), future in zip(asked, waiting, strict=True):
                point = future.result()
                points[name].append(point)
                took_s = time.monotonic() - began_s
                said = PROGRESS.format(trace.name, name, knob, point.over_ratio, point.gpu_hours, took_s)
                print(said, file=sys.stderr, flush=True)
            yield Curves(trace.name, trace.span_s, len(trace.at_s), capacity, needs(trace, capacity), points)


def main(arguments: list[str] | None = None) -> int:
    """0: it ran, whatever came out; 2: bad arguments or data."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.autoscale", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, help="folder with traces; without it load is made up")
    parser.add_argument("--traces", help="names, separated by commas; all by default")
    parser.add_argument("--picture", type=Path, help="where to write the picture (SVG)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args(arguments)
    if told.jobs < 1:
        parser.error(f"--jobs: {told.jobs}; allowed: 1 or more")
    try:
        loads = built_in(told.seed) if told.data is None else from_folder(told.data, told.seed)
        loads = _chosen(loads, told.traces)
    except TraceError as error:
        print(f"autoscale: {error}", file=sys.stderr)
        return 2
    found = []
    for curves in curves_of(loads, told.seed, told.jobs):
        found.append(curves)
        if not told.json:
            print(table(curves) + "\n", flush=True)
    print(json.dumps(as_json(found), indent=1) if told.json else verdicts(found))
    if told.picture is not None:
        told.picture.write_text(svg(found))
    return 0


def _chosen(loads: Sequence[Trace | Rates], names: str | None) -> list[Trace | Rates]:
    known: Mapping[str, Trace | Rates] = {load.name: load for load in loads}
    if names is None:
        return list(loads)
    asked = names.split(",")
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise TraceError(f"--traces: no {', '.join(unknown)}; there are: {', '.join(known)}")
    return [known[name] for name in asked]


if __name__ == "__main__":
    sys.exit(main())
