"""How long the choice of a target takes: ``python -m benchmarks.pick [--targets N] [--calls N]``.

Runs the production function over ``--targets`` targets of one agent, in several tiers, under load, with corrections
for calls in flight; once with and once without sessions. Prints JSON, in microseconds of this process's CPU clock: what
other processes of the machine take is not counted. Exit 1 when a p99 is above 200 µs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from serve_app.core import pick
from serve_app.core.scorers import default_weights
from serve_app.core.snapshots import Load, Snapshot, Target
from serve_app.core.table import Agent, Tenant, Timeouts

WARM_UP: Final = 200
MOST_P99_US: Final = 200.0
KINDS: Final = ("sessionless", "session")


def fleet(count: int, seed: int = 1) -> Snapshot:
    """Targets of four prices, one in ten out, one in ten with a long queue."""
    draw = random.Random(seed)
    targets = []
    for i in range(count):
        wait_ms = draw.choice((5.0,) * 9 + (900.0,))
        load = Load(wait_ms, wait_ms, draw.randrange(4), draw.randrange(16), 0.4, 300.0, 0.0, draw.uniform(1, 200))
        targets.append(
            Target(
                region=f"region-{i}",
                cloud=f"cloud-{i % 5}",
                agent="qwen-chat",
                app="qwen-chat--12345678",
                release=f"{i:08x}" + "0" * 56,
                max_model_len=8192,
                slots=16,
                residency=frozenset({"eu", "sg"}),
                gpu_hour_usd=1.0 + (i % 4) / 4,
                health="ejected" if i % 10 == 9 else "healthy",
                load=load,
            )
        )
    return Snapshot(1, 1, tuple(targets))


def wish(session: str | None) -> pick.Wish:
    agent = Agent(
        name="qwen-chat",
        engine_agent="qwen-chat",
        app="qwen-chat--12345678",
        engine_digest="e" * 64,
        release="0" * 64,
        duty="chat",
        max_model_len=8192,
        slots=16,
        min_replicas=1,
        max_queue_ms=250,
        priority=100,
        max_tokens_default=100,
        timeouts=Timeouts(),
        language_affinity={"ja": "cloud-1", "ko": "cloud-2"},
    )
    tenant = Tenant("acme", (), frozenset({"eu"}))
    return pick.Wish(agent, tenant, "ja", 0, preferred_cloud="cloud-3", region="region-0", session=session)


def measure(targets: int, calls: int, *, sessions: bool) -> dict[str, float]:
    """p50 and p99 of one call in µs."""
    snapshot, scoring = fleet(targets), default_weights()
    # What this Router has sent since the last reports went to a few of them.
    in_flight = {t.id: 1 + i % 3 for i, t in enumerate(snapshot.targets[::7])}
    took_ns = []
    for i in range(calls + WARM_UP):
        asked = wish(f"acme/s{i}" if sessions else None)
        began_ns = time.thread_time_ns()
        pick.choose(snapshot, asked, scoring, blocked=(), in_flight=in_flight, draw=(i % 97) / 97)
        took_ns.append(time.thread_time_ns() - began_ns)
    took_ns = sorted(took_ns[WARM_UP:])
    return {
        "p50_us": round(took_ns[len(took_ns) // 2] / 1000, 1),
        "p99_us": round(took_ns[int(len(took_ns) * 0.99)] / 1000, 1),
    }


def too_slow(told: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Which kinds of request take longer than they may."""
    late = [(kind, told[kind]["p99_us"]) for kind in KINDS if told[kind]["p99_us"] > MOST_P99_US]
    return [f"{kind}: p99 {p99_us:g} µs, at most {MOST_P99_US:g} µs" for kind, p99_us in late]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pick", description=__doc__.splitlines()[0])
    parser.add_argument("--targets", type=int, default=50)
    parser.add_argument("--calls", type=int, default=20_000)
    asked = parser.parse_args(argv)
    if asked.targets < 1 or asked.calls < 100:
        parser.error("--targets must be at least 1 and --calls at least 100")
    measured = {kind: measure(asked.targets, asked.calls, sessions=kind == "session") for kind in KINDS}
    print(json.dumps({"targets": asked.targets, "calls": asked.calls, **measured}))
    faults = too_slow(measured)
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
