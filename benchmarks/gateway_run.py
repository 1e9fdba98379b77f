"""One run of the gateway benchmark: starts the targets of a model, asks them in interleaved rounds, stops them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks import gateway_peers, gateway_targets
from benchmarks.gateway_report import BASELINE, Report, Sample, sample_of
from benchmarks.gateway_targets import MODEL_NAME, Target
from benchmarks.processes import TICKS_PER_S, BenchmarkError, Child, busy_ticks, cpu_of, spent_s

#: Above this an idle target takes time from the one that is measured; in cores.
IDLE_LIMIT_CORES: Final = 0.2
#: Above this a sample tells more of the rest of the machine than of its target; in cores.
NOISE_LIMIT_CORES: Final = 0.3
IDLE_LOOK_S: Final = 2.0
#: What stopping a model's servers takes.
STOP_S: Final = 15.0


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


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run measures."""

    models: Sequence[str]
    targets: Sequence[str] | None
    streams: Sequence[int]
    open_fractions: Sequence[float]
    rounds: int
    setting: gateway_targets.Setting
    sizes: Mapping[str, Size]
    #: More arguments of ``grix up``.
    up_args: Sequence[str]
    #: Models that peers are measured with too.
    peer_models: Sequence[str]
    #: Seconds from the start by which a model is to be done, its servers stopped; rounds that do not fit fall away.
    until_s: Mapping[str, float]


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
    paths = gateway_targets.config_paths(folder, plan.setting)
    ours = [gateway_targets.GRIX] if wanted is None else [n for n in wanted if gateway_targets.is_grix(n)]
    with ExitStack() as stack:
        found: list[Target] = []
        regions = [_Region(plan, model, folder, name) for name in ours]
        # The first one starts while direct does; each one after it finds the ports of those before it taken.
        for region in regions[:1]:
            region.start(stack)
        peers = gateway_peers.found() if wanted is None else [n for n in wanted if n != BASELINE and n not in ours]
        if wanted is None and model not in plan.peer_models:
            peers = []
        if wanted is None or peers or BASELINE in wanted:
            engine = gateway_targets.engine_of(paths, model)
            child, url = gateway_targets.start_direct(engine, folder)
            stack.callback(child.stop)
            messages = gateway_targets.template_messages(paths)
            direct = Target(BASELINE, url, child.pids, child.stop, messages=messages)
            gateway_targets.wait_ready(direct, child)
            say(f"{model}: direct is ready")
            found += [direct, *_peers(stack, peers, direct, child, folder)]
        at = min(1, len(found))
        found[at:at] = [region.target(stack) for region in regions]
        yield [t for t in found if wanted is None or t.name in wanted]


class _Region:
    """One Grix that is measured, in a folder of its own."""

    def __init__(self, plan: Plan, model: str, folder: Path, name: str) -> None:
        self._name, self._model, self._more, self._folder = name, model, plan.up_args, folder / name
        self._setting = gateway_targets.setting_of(name, plan.setting)
        self._child: Child | None = None

    def start(self, stack: ExitStack) -> Child:
        """Starts it unless it has been started."""
        if self._child is None:
            self._folder.mkdir()
            stack.callback(gateway_targets.stop_grix, self._folder)
            paths = gateway_targets.config_paths(self._folder, self._setting)
            self._child = gateway_targets.start_grix(paths, self._model, self._folder, self._more)
            stack.callback(self._child.stop)
        return self._child

    def target(self, stack: ExitStack) -> Target:
        """Waits until it is up."""
        target = gateway_targets.grix_target(self._name, self.start(stack), self._folder)
        say(f"{self._model}: {self._name} is ready")
        return target


def _peers(stack: ExitStack, names: Sequence[str], direct: Target, engine: Child, folder: Path) -> Iterator[Target]:
    """Starts peers in front of direct's engine, all at once; who does not come up is named and left out."""
    started = [gateway_peers.start_peer(name, direct.url, folder, direct.messages) for name in names]
    for _, child in started:
        stack.callback(child.stop)
    for peer, child in started:
        try:
            gateway_targets.wait_ready(peer, child, gateway_peers.READY_LIMIT_S)
        except BenchmarkError as error:
            say(f"{peer.name} is left out: {error}")
            continue
        say(f"{peer.name} is ready")
        # The engine behind a peer works for it: its CPU is part of what the peer costs.
        yield replace(peer, pids=partial(_both, child, engine))


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
        self._began_s = time.monotonic()
        self.samples: list[Sample] = []
        self.facts: dict[str, Any] = {
            **{"cores": os.cpu_count(), "setting": asdict(plan.setting), "up_args": list(plan.up_args)},
            **{"rounds": {}, "idle_cores": {}, "open_capacity_rps": {}},
        }

    def measure_model(self, model: str) -> None:
        """Starts the targets with a model and takes all of its samples."""
        size = self._plan.sizes.get(model, self._plan.sizes["tiny-qwen"])
        with tempfile.TemporaryDirectory(prefix="grix-bench-") as name:
            say(f"{model}: starting")
            with targets_of(self._plan, model, Path(name)) as targets:
                for target in targets:
                    job = job_for(target, size, 0, kind="closed", streams=8, requests=size.warm_requests)
                    self._client.ask(job)
                self.facts["idle_cores"][model] = idle_cores(targets)
                self.facts["rounds"][model] = self._rounds(model, targets, size)

    def _rounds(self, model: str, targets: Sequence[Target], size: Size) -> int:
        """Rounds of every load with every target, as many as are planned and fit into the time; how many."""
        until_s = self._began_s + self._plan.until_s.get(model, float("inf")) - STOP_S
        longest_s = 0.0
        for number in range(self._plan.rounds):
            began_s = time.monotonic()
            if number and began_s + longest_s > until_s:
                say(f"{model}: {number} rounds, since one more takes {longest_s:.0f} s and the time is over")
                return number
            for streams in self._plan.streams:
                kind = {"kind": "closed", "streams": streams, "requests": size.requests_at(streams)}
                self._round(model, targets, size, str(streams), number, kind)
            # The first round says what direct can carry; the rate is the same in all rounds.
            capacity_rps = self.facts["open_capacity_rps"].setdefault(model, self._capacity_rps(model))
            for fraction in self._plan.open_fractions if capacity_rps else ():
                kind = {"kind": "open", "rate_rps": fraction * capacity_rps, "seconds": size.open_s}
                self._round(model, targets, size, f"open-{fraction}", number, kind)
            longest_s = max(longest_s, time.monotonic() - began_s)
        return self._plan.rounds

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
            before, busy, began_s = cpu_of(target.pids()), busy_ticks(), time.monotonic()
            answer = self._client.ask(job)
            busy_s, lasted_s = (busy_ticks() - busy) / TICKS_PER_S, time.monotonic() - began_s
            server_s = spent_s(before, cpu_of(target.pids()))
            others_cores = max(0.0, busy_s - server_s - answer["client_cpu_s"]) / lasted_s
            sample = sample_of(model, load, target.name, number, answer, server_s, others_cores)
            self.samples.append(sample)
            rate, failed = sample.figures["throughput_rps"] or 0.0, sum(sample.failures.values())
            noise = f"; NOISE: others used {others_cores:.2f} cores" if others_cores > NOISE_LIMIT_CORES else ""
            say(f"{model} round {number + 1}, {load}: {target.name} {rate:.1f} req/s, {failed} failed{noise}")

    def _capacity_rps(self, model: str) -> float:
        """What direct did at its best number of streams; the least that arrived where there is no direct."""
        report = Report(self.samples, {})
        name = BASELINE if BASELINE in report.targets else report.targets[0]
        spreads = [report.figure(model, load, name, "throughput_rps") for load in report.loads(model)]
        return max((s.median for s in spreads if s is not None), default=0.0)
