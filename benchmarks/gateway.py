"""The cost of a gateway: ``python -m benchmarks.gateway [--quick] [--json]``.

Starts vLLM's own server (``direct``), Grix, and each peer found in ``.venv-peers`` (``make peers``), all in front of
engines with the same settings; then, in interleaved rounds, one client program asks each of them for streams. One
target is under load at a time, the others idle. Results go to standard output, progress to standard error.

A developer's question, answered in under two minutes:
``python -m benchmarks.gateway --targets direct,grix --models tiny-qwen --streams 64 --rounds 3``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

from benchmarks import gateway_peers, gateway_targets
from benchmarks.gateway_picture import svg
from benchmarks.gateway_report import BASELINE, Report, Sample, sample_of
from benchmarks.gateway_targets import MODEL_NAME, Target
from benchmarks.processes import BenchmarkError, Child, cpu_of, spent_s
from serve_app.edge.model_files import ModelError

#: Above this an idle target takes time from the one that is measured; in cores.
IDLE_LIMIT_CORES: Final = 0.2
IDLE_LOOK_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Size:
    """How much of one model is asked. ``requests`` by number of streams; a target that is slow stops at ``limit_s``."""

    tokens: int
    requests: Mapping[int, int]
    limit_s: float
    open_s: float
    warm_requests: int

    def requests_at(self, streams: int) -> int:
        """As many as the nearest smaller size says for each stream."""
        known = max((s for s in self.requests if s <= streams), default=min(self.requests))
        return max(streams, self.requests[known] * streams // known)


FULL: Final[Mapping[str, Size]] = {
    "tiny-qwen": Size(16, {1: 40, 16: 480, 64: 960}, 6.0, 5.0, 64),
    "smollm2": Size(64, {1: 2, 16: 16, 64: 64}, 30.0, 10.0, 2),
}
QUICK: Final[Mapping[str, Size]] = {
    "tiny-qwen": Size(16, {1: 20, 16: 240, 64: 512}, 3.0, 3.0, 32),
    "smollm2": Size(64, {1: 1, 16: 16, 64: 64}, 10.0, 6.0, 2),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run measures."""

    models: Sequence[str]
    targets: Sequence[str] | None
    streams: Sequence[int]
    open_fractions: Sequence[float]
    rounds: int
    slots: int | None
    sizes: Mapping[str, Size]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


class Client:
    """The load client as a process of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.load_client"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """One job; the client's answer.

        Raises:
            BenchmarkError: when the client is gone.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise BenchmarkError(f"the load client ended with status {self._process.wait()}")
        return dict(json.loads(line))

    def stop(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(10)


def job_for(target: Target, size: Size, seed: int, **kind: Any) -> dict[str, Any]:
    """A job of the client at a target: streams of ``size.tokens`` tokens, no shorter, so that answers compare."""
    body = {"model": MODEL_NAME, "stream": True, "max_tokens": size.tokens, "ignore_eos": True, "temperature": 0}
    return {
        **{"url": target.chat_url, "headers": dict(target.headers), "messages": list(target.messages)},
        **{"body": body, "seed": seed, "limit_s": size.limit_s, **kind},
    }


def rotated(names: Sequence[Any], by: int) -> list[Any]:
    """Each round begins with another one: what drifts with time hits all alike."""
    by %= len(names)
    return [*names[by:], *names[:by]]


def _both(peer: Child, engine: Child) -> list[int]:
    return [*peer.pids(), *engine.pids()]


@contextmanager
def targets_of(plan: Plan, model: str, folder: Path) -> Iterator[list[Target]]:
    """Starts everything that is measured with a model; stops it, whatever happens."""
    wanted = plan.targets
    paths = gateway_targets.config_paths(folder, plan.slots)
    engine = gateway_targets.engine_of(paths, model)
    messages = gateway_targets.template_messages(paths)
    with ExitStack() as stack:
        found: list[Target] = []
        grix_child = None
        if wanted is None or "grix" in wanted:
            grix_folder = folder / "grix"
            grix_folder.mkdir()
            stack.callback(gateway_targets.stop_grix, grix_folder)
            grix_child = gateway_targets.start_grix(paths, model, grix_folder)
            stack.callback(grix_child.stop)
        peers = gateway_peers.found() if wanted is None else [n for n in wanted if n not in (BASELINE, "grix")]
        if wanted is None or peers or BASELINE in wanted:
            child, url = gateway_targets.start_direct(engine, folder)
            stack.callback(child.stop)
            direct = Target(BASELINE, url, child.pids, child.stop, messages=messages)
            gateway_targets.wait_ready(direct, child)
            say(f"{model}: direct is ready")
            found.append(direct)
            for name in peers:
                peer, peer_child = gateway_peers.start_peer(name, url, folder, messages)
                stack.callback(peer_child.stop)
                try:
                    gateway_targets.wait_ready(peer, peer_child, gateway_peers.READY_LIMIT_S)
                except BenchmarkError as error:
                    say(f"{model}: {name} is left out: {error}")
                    continue
                # The engine behind a peer works for it: its CPU is part of what the peer costs.
                found.append(replace(peer, pids=partial(_both, peer_child, child)))
                say(f"{model}: {name} is ready")
        if grix_child is not None:
            found.insert(min(1, len(found)), gateway_targets.grix_target(grix_child, folder / "grix"))
            say(f"{model}: grix is ready")
        yield [t for t in found if wanted is None or t.name in wanted]


def idle_cores(targets: Sequence[Target]) -> dict[str, float]:
    """CPU of each target while nobody asks, in cores: a noisy neighbour is told, not hidden."""
    before = {t.name: cpu_of(t.pids()) for t in targets}
    time.sleep(IDLE_LOOK_S)
    idle = {t.name: round(spent_s(before[t.name], cpu_of(t.pids())) / IDLE_LOOK_S, 3) for t in targets}
    for name, cores in idle.items():
        if cores > IDLE_LIMIT_CORES:
            say(f"WARNING: {name} uses {cores:.2f} cores while idle; figures of the others are too low")
    return idle


class Bench:
    """A run: measures models one after the other."""

    def __init__(self, plan: Plan, client: Client) -> None:
        self._plan, self._client = plan, client
        self.samples: list[Sample] = []
        self.facts: dict[str, Any] = {"cores": os.cpu_count(), "slots": plan.slots, "rounds": plan.rounds, "idle": {}}

    def measure_model(self, model: str) -> None:
        """Starts the targets with a model and takes all of its samples."""
        size = self._plan.sizes.get(model, self._plan.sizes["tiny-qwen"])
        with tempfile.TemporaryDirectory(prefix="grix-bench-") as name:
            say(f"{model}: starting")
            with targets_of(self._plan, model, Path(name)) as targets:
                for target in targets:
                    job = job_for(target, size, 0, kind="closed", streams=8, requests=size.warm_requests)
                    self._client.ask(job)
                self.facts["idle"][model] = idle_cores(targets)
                for number in range(self._plan.rounds):
                    for streams in self._plan.streams:
                        kind = {"kind": "closed", "streams": streams, "requests": size.requests_at(streams)}
                        self._round(model, targets, size, str(streams), number, kind)
                capacity_rps = self._capacity_rps(model)
                for number in range(self._plan.rounds):
                    for fraction in self._plan.open_fractions if capacity_rps else ():
                        kind = {"kind": "open", "rate_rps": fraction * capacity_rps, "seconds": size.open_s}
                        self._round(model, targets, size, f"open-{fraction}", number, kind)

    def _round(
        self,
        model: str,
        targets: Sequence[Target],
        size: Size,
        load: str,
        number: int,
        kind: Mapping[str, Any],
    ) -> None:
        for target in rotated(targets, number):
            job = job_for(target, size, 1 + number, **kind)
            before = cpu_of(target.pids())
            answer = self._client.ask(job)
            sample = sample_of(model, load, target.name, number, answer, spent_s(before, cpu_of(target.pids())))
            self.samples.append(sample)
            rate, failed = sample.figures["throughput_rps"] or 0.0, sum(sample.failures.values())
            say(f"{model} round {number + 1}, {load}: {target.name} {rate:.1f} req/s, {failed} failed")

    def _capacity_rps(self, model: str) -> float:
        """What direct did at its best number of streams; the least that arrived where there is no direct."""
        report = Report(self.samples, {})
        name = BASELINE if BASELINE in report.targets else report.targets[0]
        spreads = [report.figure(model, load, name, "throughput_rps") for load in report.loads(model)]
        return max((s.median for s in spreads if s is not None), default=0.0)


def _list(kind: Any) -> Any:
    def parse(text: str) -> list[Any]:
        return [kind(part) for part in text.split(",") if part]

    return parse


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=(__doc__ or "").split("\n\n")[0])
    top.add_argument("--quick", action="store_true", help="fewer and shorter rounds: under 6 minutes")
    top.add_argument("--json", action="store_true", help="medians as JSON on standard output")
    top.add_argument("--models", type=_list(str), metavar="A,B", help="default: tiny-qwen,smollm2")
    top.add_argument("--targets", type=_list(str), metavar="A,B", help="direct, grix, peers; default: all found")
    top.add_argument("--streams", type=_list(int), metavar="N,N", help="default: 1,16,64")
    top.add_argument("--open", type=_list(float), metavar="F,F", help="open loop at fractions of direct's capacity")
    top.add_argument("--rounds", type=int, metavar="N", help="default: 7; with --quick 3")
    top.add_argument("--slots", type=int, metavar="N", help="maxNumSeqs of every engine; default: what is shipped")
    top.add_argument("--out", type=Path, metavar="DIR", help="write everything that was measured, and the picture")
    return top


def plan_of(args: argparse.Namespace) -> Plan:
    """What was asked for. Asking for one thing (``--streams``) leaves the others out."""
    fractions = args.open if args.open is not None else [] if args.streams else [0.5, 0.8]
    return Plan(
        models=args.models or ["tiny-qwen", "smollm2"],
        targets=args.targets,
        streams=args.streams or [1, 16, 64],
        open_fractions=fractions,
        rounds=args.rounds or (3 if args.quick else 7),
        slots=args.slots,
        sizes=QUICK if args.quick else FULL,
    )


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; the exit status."""
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    plan = plan_of(args)
    client = Client()
    bench = Bench(plan, client)
    try:
        for model in plan.models:
            bench.measure_model(model)
    except (BenchmarkError, ModelError) as error:
        say(f"gateway: {error}")
        return 1
    except KeyboardInterrupt:
        say("gateway: interrupted")
        return 1
    finally:
        client.stop()
    report = Report(bench.samples, bench.facts)
    if args.out:
        report.write(args.out)
        caption = f"Medians of {plan.rounds} interleaved rounds, whiskers: quartiles. {os.cpu_count()} cores."
        (args.out / "gateway.svg").write_text(svg(report, caption))
    if args.json:
        print(report.table(), file=sys.stderr)
        print(json.dumps(report.as_json(), indent=1))
    else:
        print(report.table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
