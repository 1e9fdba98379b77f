"""``grix drill``: a rehearsed failure under a stream of real requests, what it cost, and the world as it was."""

from __future__ import annotations

import time
from typing import Any, Final

from serve_app.cli import control, regions
from serve_app.cli.drill_faults import FAULTS, Fault
from serve_app.cli.drill_scene import Scene
from serve_app.cli.drill_stream import CALM_RATE_RPS, RATE_RPS, Entry, Stream, agent_of, records_of, with_retries
from serve_app.cli.drill_watch import Watch
from serve_app.cli.say import BAD_USAGE, FAILED, OK, Failed, Progress, note, out, out_json
from serve_app.cli.state import Home
from serve_app.cli.table import render
from serve_app.cli.up import alone
from serve_app.core import drill_verdict
from serve_app.core.drill_verdict import Drill, Promise, Run, Times

#: Long enough for Routers to earn what moving elsewhere costs them.
BASELINE_S: Final = 10.0
AFTERWARDS_S: Final = 2.0
#: From the end of the fault to full weight: a replica may have to start, and then ramps up.
RECOVERY_LIMIT_S: Final = 180.0
POLL_S: Final = 0.2


def run(drill: Drill, region: str | None, runs: int, home: Home, *, as_json: bool) -> int:
    """All runs of a drill; the exit status.

    Raises:
        Failed: when the federation is not well enough to rehearse a failure, before the fault.
    """
    scene = Scene(home, _region(home, region), Progress())
    results: list[Run] = []
    faults: list[str] = []
    with alone(home):
        for number in range(1, runs + 1):
            wait_well(scene)
            result, wrong = run_once(drill, scene)
            results.append(result)
            faults += [f"run {number}: {fault}" for fault in wrong]
    faults += drill_verdict.late(drill, results)
    report = drill_verdict.report(drill, scene.region, results)
    if as_json:
        out_json(report)
    else:
        out(text_of(report))
    if faults:
        note("\n".join(f"BROKEN PROMISE {fault}" for fault in faults))
    return FAILED if faults else OK


def _region(home: Home, region: str | None) -> str:
    """The region that the drill is about: the first one, where none is named."""
    state = home.read()
    alive = [r["name"] for r in state["regions"] if regions.is_alive(r)]
    if len(alive) < 2 or state["coordinator"] is None:
        raise Failed("a drill needs a coordinator and at least two regions that are up; start them with: grix up")
    if region is not None and region not in alive:
        raise Failed(f"--region {region}: is not up; allowed: {', '.join(alive)}", BAD_USAGE)
    return region or alive[0]


def entries(home: Home) -> list[Entry]:
    """Every region that is up, as clients have it."""
    return [Entry(r["name"], regions.client(r)) for r in home.read()["regions"] if regions.is_alive(r)]


def wait_well(scene: Scene, *, with_plan: bool = True) -> None:
    """Waits until every region makes tokens, and is in the plan, which a coordinator that is gone cannot tell.

    Raises:
        Failed: when that does not come.
    """
    if with_plan:
        names = [e.name for e in entries(scene.home)]
        control.wait_until_ready(names, scene.home, scene.wait_s, scene.progress)
    until_s = time.monotonic() + scene.wait_s
    for record in scene.home.read()["regions"]:
        while not regions.deep_health(record)[0]:
            if time.monotonic() > until_s:
                raise Failed(f"{record['name']} is not healthy: there is nothing to rehearse; see grix status")
            time.sleep(POLL_S)


def run_once(drill: Drill, scene: Scene, *, restores: bool = True) -> tuple[Run, list[str]]:
    """One run; the promises it broke. The world is whole again when this returns, also by an exception.

    Without ``restores`` it is left with the fault in it.
    """
    there = entries(scene.home)
    observer = next(e for e in there if e.name != scene.region)
    stream, watch = Stream(there), Watch(observer, scene.region, agent_of(observer))
    promise = drill_verdict.promise_of(drill, restored=restores)
    watch.start()
    stream.start()
    try:
        _baseline(stream, watch, scene)
        scene.progress.tell(f"{scene.region}: {drill}")
        times = _strike(FAULTS[drill](scene), stream, scene, restores=restores)
        if restores:
            _wait_full(promise, watch, times, scene)
        time.sleep(AFTERWARDS_S)
    finally:
        watch.stop()
        stream.stop()
    records = records_of(stream, there, times.fault_s, times.restore_s)
    asked = with_retries(stream, times.fault_s, times.restore_s, records)
    result = drill_verdict.run_of(promise, asked, watch.sights, times)
    return result, drill_verdict.broken(promise, result, asked, watch.sights, times)


def _baseline(stream: Stream, watch: Watch, scene: Scene) -> None:
    """A drill shows nothing where things are not well before it."""
    scene.progress.tell(f"{scene.region}: {BASELINE_S:g} s of requests before the fault")
    until_s = time.monotonic() + RECOVERY_LIMIT_S
    while not (watch.sights and not watch.sights[-1].out and watch.sights[-1].weight == 1.0):
        if time.monotonic() > until_s:
            raise Failed(f"{scene.region} does not have its full share before the drill: {watch.sights[-1:]}")
        time.sleep(POLL_S)
    time.sleep(BASELINE_S)
    bad = [a for a in stream.asked() if a.ending != "whole"]
    if bad or not stream.asked():
        told = f"{len(bad)} requests failed before the fault: {bad[0].told}" if bad else "no request was answered"
        raise Failed(f"{scene.region}: {told}")


def _strike(fault: Fault, stream: Stream, scene: Scene, *, restores: bool) -> Times:
    """The fault, and its removal."""
    fault.prepare()
    stream.gone = frozenset({scene.region}) if fault.entry_goes else frozenset()
    fault_s = time.monotonic()
    try:
        fault.strike()
        time.sleep(fault.hold_s)
    finally:
        restore_s = time.monotonic()
        if restores:
            scene.progress.tell(f"{scene.region}: the fault is removed")
            stream.rate_rps = CALM_RATE_RPS
            fault.restore()
            stream.rate_rps, stream.gone = RATE_RPS, frozenset()
    return Times(fault_s, restore_s, time.monotonic())


def _wait_full(promise: Promise, watch: Watch, times: Times, scene: Scene) -> None:
    """Waits until the survivor gives the region its full share; what does not come is the verdict's to tell."""
    while time.monotonic() < times.back_s + RECOVERY_LIMIT_S:
        last = watch.sights[-1]
        if last.at_s >= times.back_s and not last.out and (last.weight == 1.0 or promise.ejects is False):
            return
        share = "no" if last.out or last.weight is None else f"{last.weight:.1f} of its"
        scene.progress.tell(f"{scene.region}: has {share} share")
        time.sleep(POLL_S)


HEAD: Final = (
    *("run", "detected s", "by", "failover s", "recovered s", "requests", "lost entry"),
    *("no first byte", "mid-stream", "hung"),
)


def text_of(report: dict[str, Any]) -> str:
    """The report for people."""
    rows = [[i + 1, *run.values()] for i, run in enumerate(report["runs"])]
    spread = report["failover_s"]
    return "\n".join(
        [
            f"drill {report['drill']} of {report['region']}",
            render(HEAD, rows, frozenset(HEAD) - {"by"}),
            f"failover s: p50 {spread['p50']}, p95 {spread['p95']}, max {spread['max']}",
        ]
    )
