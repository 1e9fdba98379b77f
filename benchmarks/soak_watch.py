"""What a soak looks at: counters of work in flight, the engine's own numbers, memory by process."""

from __future__ import annotations

import json
import logging
import os
import re
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import psutil

#: Gauges of Serve and Grix that count requests which are somewhere in the region now; a target is a setting.
IN_FLIGHT: Final = re.compile(r"^(?!.*target).*(ongoing|processing_queries|queued_queries|in_?flight)")
#: Where the node's metrics exporter listens, counted from the first port of the region's block.
METRICS_PORT_OFFSET: Final = 4
_LINE: Final = re.compile(r"^([a-zA-Z_:][\w:]*)(\{[^}]*\})?\s+(\S+)")
#: Parts of a region whose memory is told apart, by what their processes are called.
PARTS: Final[Mapping[str, str]] = {
    "Router": "ServeReplica:grix:Router",
    "LanguageDetector": "ServeReplica:grix:LanguageDetector",
    "QwenAgent": "QwenAgent",
    "engine core": "EngineCore",
    "engine worker": "VLLM::Worker",
    "proxy": "ProxyActor",
}


def in_flight_of(text: str) -> dict[str, float]:
    """Series of a Prometheus text that count work in flight; histograms and counters of the past are none."""
    out: dict[str, float] = {}
    kinds: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(None, 3)
            kinds[name] = kind
            continue
        match = _LINE.match(line)
        if match is None or kinds.get(match[1]) != "gauge" or not IN_FLIGHT.search(match[1]):
            continue
        series = match[1] + (match[2] or "")
        out[series] = out.get(series, 0.0) + float(match[3])
    return out


def not_zero(series: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in series.items() if value != 0.0}


def until(done: Callable[[], bool], limit_s: float, every_s: float) -> float | None:
    """Seconds until ``done``; ``None`` when it is not in time."""
    began_s = time.monotonic()
    while True:
        passed_s = time.monotonic() - began_s
        if done():
            return passed_s
        if passed_s > limit_s:
            return None
        time.sleep(every_s)


def private_bytes(pid: int) -> int:
    """Memory that only this process has, in bytes; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024


def parts_of(processes: Iterable[psutil.Process]) -> dict[str, list[int]]:
    """The region's processes by part."""
    out: dict[str, list[int]] = {}
    for process in processes:
        try:
            called = " ".join(process.cmdline())
        except psutil.Error:
            continue
        for part, word in PARTS.items():
            if word in called:
                out.setdefault(part, []).append(process.pid)
                break
    return out


def memory_of(parts: Mapping[str, Iterable[int]]) -> dict[str, int]:
    return {part: sum(private_bytes(pid) for pid in pids) for part, pids in parts.items()}


def growth_ratio(values: list[int]) -> float | None:
    """Growth over the second half of a series, against its middle; ``None`` where there is nothing to compare."""
    if len(values) < 3 or not values[len(values) // 2]:
        return None
    return values[-1] / values[len(values) // 2] - 1


def gauges_of(record: Mapping[str, Any]) -> dict[str, float]:
    """What of the region is in flight, by its node's exporter: asking through the Router would count the question."""
    port = int(record["gcs"].rpartition(":")[2]) + METRICS_PORT_OFFSET
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return in_flight_of(answer.read().decode())


def apps_of(url: str) -> list[str]:
    """Applications of the region that run an engine."""
    with urllib.request.urlopen(f"{url}/healthz?deep=1", timeout=10) as answer:
        return sorted(json.load(answer)["engines"])


class Engines:
    """The region's engines as their schedulers see themselves, asked over Ray as Grix's own parts do."""

    def __init__(self, record: Mapping[str, Any], apps: Iterable[str]) -> None:
        head = psutil.Process(record["pids"][0]).environ()
        # Its address and token; how Serve runs inside its replicas is no setting for a process that looks from outside.
        ours = {n: v for n, v in head.items() if n.startswith("RAY_") and not n.startswith("RAY_SERVE_")}
        os.environ.update(ours)
        import ray
        from ray import serve

        ray.init(address=record["gcs"], log_to_driver=False, logging_level=logging.ERROR)
        self._handles = [serve.get_deployment_handle("QwenAgent", app) for app in apps]

    def requests(self) -> int:
        """Requests that the engines run or hold."""
        loads = [handle.load.remote().result(timeout_s=10) for handle in self._handles]
        return sum((load["waiting"] or 0) + (load["running"] or 0) for load in loads)

    def close(self) -> None:
        import ray

        ray.shutdown()
