"""``python -m benchmarks.simulate [SCENARIO]``: production decisions over tens of regions on a virtual clock."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from benchmarks.simulate.result import table
from benchmarks.simulate.scenarios import SCENARIOS
from benchmarks.simulate.setup import Setup

PROGRESS_S = 2.0


def main(arguments: list[str] | None = None) -> int:
    """0: every promise was kept; 1: one was not; 2: bad arguments or data."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate", description=__doc__)
    parser.add_argument("scenario", nargs="?", choices=[*SCENARIOS, "all"], default="all")
    parser.add_argument("--regions", type=int, default=30, help="2 to 200 (day has three; default %(default)s)")
    parser.add_argument("--requests", type=int, default=1_000_000, help="of each run (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, help="folder with traces; without it load is made up")
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args(arguments)
    if not 2 <= told.regions <= 200:
        parser.error(f"--regions: {told.regions}; allowed: 2 to 200")
    if not 1000 <= told.requests <= 10_000_000:
        parser.error(f"--requests: {told.requests}; allowed: 1000 to 10000000")
    setup = Setup(told.regions, told.requests, told.seed, told.data, _Progress().tell)
    results = []
    for name in SCENARIOS if told.scenario == "all" else [told.scenario]:
        try:
            results.append(SCENARIOS[name](setup))
        except (OSError, ValueError) as error:
            print(f"simulate: {error}", file=sys.stderr)
            return 2
        if not told.json:
            print(table(results[-1]) + "\n", flush=True)
    if told.json:
        print(json.dumps([r.as_json() for r in results], indent=1))
    return 0 if all(r.is_kept for r in results) else 1


class _Progress:
    """A line on standard error every few seconds of real time."""

    def __init__(self) -> None:
        self._told_s = time.monotonic()

    def tell(self, name: str, done: int, total: int, now_s: float) -> None:
        if time.monotonic() - self._told_s >= PROGRESS_S:
            self._told_s = time.monotonic()
            print(f"{name}: {done:,} of {total:,} requests, {now_s:,.0f} s simulated", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
