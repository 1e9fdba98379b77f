"""What a coordinator costs: ``python -m benchmarks.coordinator [--regions 200] [--targets 20] [--json]``.

A real coordinator in a process of its own serves real regions' links: gRPC, mTLS with a certificate for each region, a
heartbeat a second. Each report has fresh load of every target and a judgement on every other region; ``--changing`` of
the regions also change what plans show in each heartbeat. Documents are applied before the measurement, so plans carry
them and the releases expected of every target. The other side of the links is one process that reads messages and does
not use them: what regions make of plans is theirs to pay.

CPU is that of the coordinator's process over the measured time, as a share of one core; memory is the most it held.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks import processes
from benchmarks.coordinator_regions import FEDERATION, HEARTBEAT_S, Region, Traffic, documents, region_names
from serve_app.edge import pki
from serve_app.edge.admin_client import Admin, AdminCallError
from serve_app.edge.coordinator import Coordinator, settings_of

#: Regions dial over so long, as after a restart.
DIAL_S: Final = 5.0
START_LIMIT_S: Final = 60.0
#: The goals: under half a core, and under so much memory.
MOST_CPU: Final = 0.5
MOST_MIB: Final = 300.0


# ---- the coordinator's process ----


async def serve(folder: Path) -> None:
    """Serves until it is told to end; the port is then in ``folder``."""
    coordinator = Coordinator(settings_of(json.loads((folder / "settings.json").read_text())))
    coordinator.start()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    while coordinator.hub is None:
        await asyncio.sleep(0.05)
    (folder / "port.new").write_text(str(coordinator.port))
    (folder / "port.new").rename(folder / "port")
    await ended.wait()
    await coordinator.close()


# ---- the measurement ----


@dataclass(frozen=True, slots=True)
class Wish:
    """What is measured."""

    regions: int
    targets: int
    seconds: float
    changing: float


async def measure(wish: Wish, folder: Path, server: processes.Child) -> dict[str, Any]:
    """Figures of one run against a coordinator that serves from ``folder``."""
    address = f"127.0.0.1:{(folder / 'port').read_text()}"
    admin = Admin(address, folder / "operator" / pki.OPERATOR, limit_s=30.0)
    rng, traffic, names = random.Random(4), Traffic(), region_names(wish.regions)
    wanted = documents(wish.regions, wish.targets)
    agents = [d["metadata"]["name"] for d in wanted if d["kind"] == "AgentPolicy"]
    regions = [Region(name, names, agents, rng, traffic) for name in names]
    delay_s = DIAL_S / len(regions)
    links = [asyncio.create_task(r.run(address, folder, n * delay_s)) for n, r in enumerate(regions)]
    await asyncio.sleep(DIAL_S + 2 * HEARTBEAT_S)
    revision = (await admin.ask("apply", documents=wanted))["revision"]
    for region in regions:
        region.revision = revision
    # Every region has applied, and has been told so; whole plans of the start are through.
    await asyncio.sleep(5 * HEARTBEAT_S)
    before, cpu, began_s = replace(traffic), processes.cpu_of(server.pids()), time.monotonic()
    traffic.longest_gap_s, most_mib = 0.0, 0.0
    while time.monotonic() - began_s < wish.seconds:
        for region in rng.sample(regions, math.ceil(wish.changing * len(regions))):
            region.change()
        server.check()
        most_mib = max(most_mib, resident_mib(server.process.pid))
        await asyncio.sleep(HEARTBEAT_S)
    passed_s = time.monotonic() - began_s
    spent_s = processes.spent_s(cpu, processes.cpu_of(server.pids()))
    status = await admin.ask("status")
    for link in links:
        link.cancel()
    await asyncio.wait(links)
    phases = [r["phase"] for r in status["regions"]]
    return {
        "regions": wish.regions,
        "targets": wish.targets,
        "seconds": round(passed_s, 1),
        "changing": wish.changing,
        "cpu_cores": round(spent_s / passed_s, 3),
        "resident_mib": round(most_mib, 1),
        "reports_per_s": round((traffic.sent - before.sent) / passed_s, 1),
        "report_bytes": round((traffic.sent_bytes - before.sent_bytes) / max(1, traffic.sent - before.sent)),
        "messages_per_s": round((traffic.got - before.got) / passed_s, 1),
        "sent_mib_per_s": round((traffic.got_bytes - before.got_bytes) / passed_s / 2**20, 2),
        "longest_gap_s": round(traffic.longest_gap_s, 2),
        "generation": status["generation"],
        "regions_ready": phases.count("ready"),
        "links_ended": len(traffic.ended),
    }


def resident_mib(pid: int) -> float:
    """Memory of a process, pages of files that it maps included."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def run(wish: Wish) -> dict[str, Any]:
    """Makes certificates, starts a coordinator, measures, and leaves nothing behind.

    Raises:
        BenchmarkError: when the coordinator does not come up or ends.
    """
    folder = Path(tempfile.mkdtemp(prefix="grix-coordinator-"))
    server: processes.Child | None = None
    try:
        pki.init(folder, FEDERATION, region_names(wish.regions), datetime.now(UTC))
        settings = {
            "documents": documents(wish.regions, wish.targets),
            "pkiFolder": str(folder / "coordinator"),
            "listen": "127.0.0.1:0",
            "store": {"url": f"file://{folder / 'facts'}"},
        }
        (folder / "settings.json").write_text(json.dumps(settings))
        root = str(Path(__file__).resolve().parents[1])
        command = [sys.executable, "-m", "benchmarks.coordinator", "--serve", str(folder)]
        server = processes.start("coordinator", command, folder, {"PYTHONPATH": root})
        until_s = time.monotonic() + START_LIMIT_S
        while not (folder / "port").exists():
            server.check()
            if time.monotonic() > until_s:
                raise processes.BenchmarkError(f"the coordinator did not come up; it said:\n{server.tail()}")
            time.sleep(0.05)
        return asyncio.run(measure(wish, folder, server))
    except AdminCallError as error:
        raise processes.BenchmarkError(f"the coordinator refused: {error}") from None
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def fits(figures: dict[str, Any]) -> bool:
    """Whether the goals are kept, and the run was one: every region linked and ready all the time."""
    whole = figures["regions_ready"] == figures["regions"] and figures["links_ended"] == 0
    return whole and figures["cpu_cores"] < MOST_CPU and figures["resident_mib"] < MOST_MIB


def table(figures: dict[str, Any]) -> str:
    """The figures for people."""
    f = figures
    return "\n".join(
        (
            f"{f['regions']} regions x {f['targets']} targets, a heartbeat a second, {f['seconds']:g} s,"
            f" {f['changing']:.1%} of the regions change what plans show in each",
            f"  CPU of the coordinator   {f['cpu_cores']:.3f} cores   (goal: under {MOST_CPU:g})",
            f"  memory of it             {f['resident_mib']:.0f} MiB     (goal: under {MOST_MIB:g})",
            f"  reports in               {f['reports_per_s']:.0f}/s of {f['report_bytes']} bytes",
            f"  messages out             {f['messages_per_s']:.0f}/s, {f['sent_mib_per_s']:.2f} MiB/s",
            f"  longest gap on a link    {f['longest_gap_s']:.2f} s",
            f"  ready at the end         {f['regions_ready']} regions; links that ended: {f['links_ended']}",
        )
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Status 0 when the goals are kept, 1 when they are not, 2 when it could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coordinator", description=__doc__.split("\n")[0])
    parser.add_argument("--regions", type=int, default=200)
    parser.add_argument("--targets", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--changing", type=float, default=0.01, help="share of regions that change in each heartbeat")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    wanted = parser.parse_args(argv)
    if wanted.serve is not None:
        asyncio.run(serve(wanted.serve))
        return 0
    if not 1 <= wanted.regions <= 999 or wanted.targets < 4 or wanted.seconds <= 0 or not 0 <= wanted.changing <= 1:
        parser.error("allowed: --regions 1 to 999, --targets from 4, --seconds above 0, --changing 0 to 1")
    try:
        figures = run(Wish(wanted.regions, wanted.targets, wanted.seconds, wanted.changing))
    except processes.BenchmarkError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(figures) if wanted.json else table(figures))
    return 0 if fits(figures) else 1


if __name__ == "__main__":
    raise SystemExit(main())
