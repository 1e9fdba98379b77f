"""Does a region stay well: ``python -m benchmarks.soak [--requests 10000]``.

Three trials against a region of its own with tiny-qwen: many requests of which a share leaves at a random moment, then
leaving all at once with a clock beside it, then a thousand streams at the same time. Afterwards nothing may be in
flight and memory may not have grown. Prints a table; exit status 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from benchmarks import gateway_targets, soak_watch
from benchmarks.gateway_run import Client, say
from benchmarks.gateway_targets import MODEL_NAME, Target
from benchmarks.processes import BenchmarkError
from serve_app.edge import ray_cluster

#: Slots of the engine, so that a thousand streams find a place in the bounded queues.
SLOTS: Final = 64
BATCHES: Final = 20
STREAMS: Final = 32
LEAVE_WITHIN_S: Final = 0.3
ABORT_LIMIT_S: Final = 1.0
GROWTH_LIMIT_RATIO: Final = 0.02
#: Ray's exporter tells gauges every few seconds.
GAUGES_LIMIT_S: Final = 30.0
PEAK_EVERY_S: Final = 0.5
LEAVERS: Final = 16
ABORT_TRIALS: Final = 5
#: The first waves fill what is kept for reuse; the last two are to be alike.
WAVES: Final = 4
WAVE_GROWTH_LIMIT_RATIO: Final = 0.05
#: Parts whose growth is bounded; the others are shown.
BOUNDED: Final = ("Router", "QwenAgent")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result. ``ok`` is ``None`` for what is only told."""

    what: str
    measured: str
    bound: str = ""
    ok: bool | None = None


class Peak:
    """The largest memory of each part while it is watched."""

    def __init__(self, read: Callable[[], Mapping[str, int]]) -> None:
        self._read, self._stop = read, threading.Event()
        self.bytes: dict[str, int] = {}
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while True:
            for part, value in self._read().items():
                self.bytes[part] = max(value, self.bytes.get(part, 0))
            if self._stop.wait(PEAK_EVERY_S):
                return

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Soak:
    """A region under trial."""

    def __init__(self, target: Target, record: Mapping[str, Any], client: Client, engines: soak_watch.Engines) -> None:
        self._target, self._client, self._engines = target, client, engines
        self._record = record
        self._parts = soak_watch.parts_of(ray_cluster.processes(gateway_targets.running_of(record)))
        self.rows: list[Row] = []

    def _memory(self) -> dict[str, int]:
        return soak_watch.memory_of(self._parts)

    def _job(self, seed: int, tokens: int, **fields: Any) -> dict[str, Any]:
        body = {"model": MODEL_NAME, "stream": True, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        base = {"kind": "closed", "url": self._target.chat_url, "headers": dict(self._target.headers), "messages": []}
        return {**base, "body": body, "seed": seed, "limit_s": 600.0, **fields}

    def _row(self, what: str, measured: str, bound: str = "", ok: bool | None = None) -> None:
        self.rows.append(Row(what, measured, bound, ok))
        say(f"{what}: {measured}{f' (bound {bound})' if bound else ''}{'' if ok is not False else '  MISSED'}")

    def disconnects(self, requests: int, leave_ratio: float) -> None:
        """Many requests, some of which leave before or amid their answer."""
        whole = left = 0
        failures: dict[str, int] = {}
        memory = [self._memory()]
        began_s = time.monotonic()
        for batch in range(BATCHES):
            share = requests * (batch + 1) // BATCHES - requests * batch // BATCHES
            leaving = {"leave_ratio": leave_ratio, "leave_within_s": LEAVE_WITHIN_S}
            answer = self._client.ask(self._job(batch, 16, streams=STREAMS, requests=share, **leaving))
            whole, left = whole + len(answer["total_ms"]), left + answer["left"]
            for why, count in answer["failures"].items():
                failures[why] = failures.get(why, 0) + count
            memory.append(self._memory())
            say(f"{(batch + 1) * 100 // BATCHES} %: {whole} whole, {left} left, {sum(failures.values())} failed")
        self._row("requests", f"{whole + left} in {time.monotonic() - began_s:.0f} s: {whole} whole, {left} left")
        self._row("failed", json.dumps(failures) if failures else "0", "0", not failures)
        self._zero("after disconnects")
        for part in self._parts:
            values = [reading[part] for reading in memory]
            growth = soak_watch.growth_ratio(values)
            told = "no data" if growth is None else f"{growth:+.1%}, now {values[-1] / 2**20:.0f} MiB"
            bounded = part in BOUNDED
            ok = growth is not None and growth < GROWTH_LIMIT_RATIO if bounded else None
            bound = f"< {GROWTH_LIMIT_RATIO:.0%}" if bounded else ""
            self._row(f"memory growth in the second half, {part}", told, bound, ok)

    def _zero(self, when: str) -> None:
        """Nothing is in flight: in the engines within a second, in the gauges as soon as they are told."""
        engine_s = soak_watch.until(lambda: self._engines.requests() == 0, 10.0, 0.02)
        told = f"{self._engines.requests()} left after 10 s" if engine_s is None else "0"
        self._row(f"requests in engines {when}", told, "0", engine_s is not None)
        last: dict[str, float] = {}

        def quiet() -> bool:
            last.clear()
            last.update(soak_watch.gauges_of(self._record))
            return bool(last) and not soak_watch.not_zero(last)

        gauges_s = soak_watch.until(quiet, GAUGES_LIMIT_S, 1.0)
        left = soak_watch.not_zero(last)
        told = f"0 in {len(last)} series" if gauges_s is not None else f"not zero: {json.dumps(left)}"
        self._row(f"in-flight gauges {when}", told, "0", gauges_s is not None)

    def aborts(self) -> None:
        """All leave at once while one stream keeps the engine stepping: how long until it has let go of them."""
        seconds: list[float | None] = []
        for trial in range(ABORT_TRIALS):
            keeper, leavers = Client(), Client()
            try:
                # The keeper's own stream ends by itself; it outlives the look at the engine.
                job = self._job(900 + trial, 1500, streams=1, requests=1)
                keeping = threading.Thread(target=keeper.ask, args=(job,))
                keeping.start()
                soak_watch.until(lambda: self._engines.requests() == 1, 10.0, 0.02)
                fields = {"streams": LEAVERS, "requests": LEAVERS, "leave_ratio": 1.0, "leave_at_s": 1.0}
                leavers.ask(self._job(trial, 3000, **fields))
                seconds.append(soak_watch.until(lambda: self._engines.requests() <= 1, 10.0, 0.01))
                keeping.join()
            finally:
                keeper.stop()
                leavers.stop()
        worst = "over 10 s" if None in seconds else f"{max(s for s in seconds if s is not None) * 1000:.0f} ms"
        ok = all(s is not None and s <= ABORT_LIMIT_S for s in seconds)
        self._row(f"{LEAVERS} leave at once: the engine has let go, worst of {ABORT_TRIALS}", worst, "1 s", ok)

    def wide(self, streams: int) -> None:
        """A thousand streams at the same time, wave after wave: in the last one memory is what it was before."""
        before = self._memory()
        peaks = []
        for wave in range(WAVES):
            with Peak(self._memory) as peak:
                answer = self._client.ask(self._job(500 + wave, 16, streams=streams, requests=streams))
            peaks.append(peak.bytes)
            whole, failed = len(answer["total_ms"]), answer["failures"]
            told = f"{whole} whole in {answer['elapsed_s']:.0f} s, failed {json.dumps(failed) if failed else 0}"
            self._row(f"{streams} streams at once, wave {wave + 1}", told, f"{streams} whole", whole == streams)
        for part in BOUNDED:
            peak_mib = [peak[part] / 2**20 for peak in peaks]
            told = f"{before[part] / 2**20:.0f} MiB before, peaks {', '.join(f'{mib:.0f}' for mib in peak_mib)}"
            growth = peak_mib[-1] / peak_mib[-2] - 1
            ok = growth < WAVE_GROWTH_LIMIT_RATIO
            bound = f"last wave < +{WAVE_GROWTH_LIMIT_RATIO:.0%}"
            self._row(f"memory with {streams} streams, {part}", told, bound, ok)
        self._zero(f"after {streams} streams")


def table(rows: Sequence[Row]) -> str:
    """The result for people."""
    marks = {True: "ok", False: "MISSED", None: ""}
    lines = [(r.what, r.measured, r.bound, marks[r.ok]) for r in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def run(args: argparse.Namespace, folder: Path) -> list[Row]:
    """Brings a region up, tries it, takes it down."""
    client = Client()
    grix_folder = folder / "grix"
    grix_folder.mkdir()
    paths = gateway_targets.config_paths(folder, gateway_targets.Setting(SLOTS))
    child = gateway_targets.start_grix(paths, "tiny-qwen", grix_folder)
    engines = None
    try:
        target = gateway_targets.grix_target("grix", child, grix_folder)
        record = gateway_targets.region_of(grix_folder)
        say(f"the region is up at {record['url']}")
        engines = soak_watch.Engines(record, soak_watch.apps_of(record["url"]))
        soak = Soak(target, record, client, engines)
        if args.requests:
            soak.disconnects(args.requests, args.leave)
        soak.aborts()
        if args.streams:
            soak.wide(args.streams)
        return soak.rows
    finally:
        client.stop()
        if engines is not None:
            with suppress(Exception):
                engines.close()
        child.stop()
        gateway_targets.stop_grix(grix_folder)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the soak; the exit status."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=(__doc__ or "").split("\n\n")[0])
    top.add_argument("--requests", type=int, default=10_000, help="requests with disconnects (10000); 0: none")
    top.add_argument("--leave", type=float, default=0.3, metavar="RATIO", help="share that leaves (0.3)")
    top.add_argument("--streams", type=int, default=1000, help="streams at once (1000); 0: none")
    top.add_argument("--json", action="store_true")
    args = top.parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with tempfile.TemporaryDirectory(prefix="grix-soak-") as name:
            rows = run(args, Path(name))
    except BenchmarkError as error:
        say(f"soak: {error}")
        return 1
    except KeyboardInterrupt:
        say("soak: interrupted")
        return 1
    if args.json:
        keys = ("what", "measured", "bound", "ok")
        print(json.dumps([{key: getattr(row, key) for key in keys} for row in rows], indent=1))
    else:
        print(table(rows))
    return 0 if all(row.ok is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
