"""What a gateway benchmark tells: medians and quartiles over rounds, the table, and the JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

#: Figures of one cell of the JSON, in this order; ``failed`` is a sum, the others are medians over rounds.
FIGURES: Final = (
    "throughput_rps",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "total_p50_ms",
    "total_p99_ms",
    "cpu_ms_per_request",
)
BASELINE: Final = "direct"


@dataclass(frozen=True, slots=True)
class Sample:
    """One target under one load in one round. ``None`` where no request succeeded."""

    model: str
    load: str
    target: str
    round: int
    completed: int
    failures: Mapping[str, int]
    figures: Mapping[str, float | None]
    client_cpu_ms_per_request: float | None
    #: What neither the target nor the client used meanwhile: idle targets, and whatever else runs on the machine.
    others_cores: float = 0.0


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles over rounds."""

    median: float
    q1: float
    q3: float


def quantile(values: Sequence[float], share: float) -> float | None:
    """Linear between the two nearest ranks; ``None`` without values."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Iterable[float | None]) -> Spread | None:
    """Median and quartiles of the values that are there."""
    there = [v for v in values if v is not None]
    median, q1, q3 = (quantile(there, share) for share in (0.5, 0.25, 0.75))
    return None if median is None or q1 is None or q3 is None else Spread(median, q1, q3)


def sample_of(
    model: str,
    load: str,
    target: str,
    number: int,
    answer: Mapping[str, Any],
    server_cpu_s: float,
    others_cores: float,
) -> Sample:
    """One sample out of the client's answer."""
    ttft, total = answer["ttft_ms"], answer["total_ms"]
    done = len(total)
    figures = {
        "throughput_rps": done / answer["elapsed_s"] if done else None,
        "ttft_p50_ms": quantile(ttft, 0.5),
        "ttft_p99_ms": quantile(ttft, 0.99),
        "total_p50_ms": quantile(total, 0.5),
        "total_p99_ms": quantile(total, 0.99),
        "cpu_ms_per_request": server_cpu_s * 1000 / done if done else None,
    }
    client_cpu_ms = answer["client_cpu_s"] * 1000 / done if done else None
    return Sample(model, load, target, number, done, answer["failures"], figures, client_cpu_ms, others_cores)


def _in_order(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


class Report:
    """Samples of a run, and what follows from them."""

    def __init__(self, samples: Sequence[Sample], facts: Mapping[str, Any]) -> None:
        self.samples, self.facts = samples, facts
        self.models = _in_order(s.model for s in samples)
        self.targets = _in_order(s.target for s in samples)

    def loads(self, model: str) -> list[str]:
        """Numbers of streams first, ascending, then open-loop loads."""
        found = {s.load for s in self.samples if s.model == model}
        return sorted(found, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name))

    def of(self, model: str, load: str, target: str) -> list[Sample]:
        return [s for s in self.samples if (s.model, s.load, s.target) == (model, load, target)]

    def figure(self, model: str, load: str, target: str, name: str) -> Spread | None:
        return spread(s.figures[name] for s in self.of(model, load, target))

    def failed(self, model: str, load: str, target: str) -> int:
        return sum(sum(s.failures.values()) for s in self.of(model, load, target))

    def against_direct(
        self, model: str, load: str, target: str, name: str, how: Callable[[float, float], float]
    ) -> Spread | None:
        """``how(target, direct)`` of rounds that have both: noise that a whole round shares falls out."""
        direct = {s.round: s.figures[name] for s in self.of(model, load, BASELINE)}
        pairs = [(s.figures[name], direct.get(s.round)) for s in self.of(model, load, target)]
        return spread(how(mine, base) for mine, base in pairs if mine is not None and base)

    def as_json(self) -> dict[str, Any]:
        """``{MODEL: {STREAMS: {TARGET: figures}}}``, numbers of streams only."""
        out: dict[str, Any] = {}
        for model in self.models:
            for load in filter(str.isdecimal, self.loads(model)):
                for target in self.targets:
                    if self.of(model, load, target):
                        out.setdefault(model, {}).setdefault(load, {})[target] = self._cell(model, load, target)
        return out

    def _cell(self, model: str, load: str, target: str) -> dict[str, float | int | None]:
        cell: dict[str, float | int | None] = {}
        for name in FIGURES:
            found = self.figure(model, load, target, name)
            cell[name] = None if found is None else round(found.median, 3)
        return {**cell, "failed": self.failed(model, load, target)}

    def full(self) -> dict[str, Any]:
        """Everything: facts of the run, medians with quartiles of every load, each sample."""
        cells = []
        for model in self.models:
            for load in self.loads(model):
                for target in self.targets:
                    mine = self.of(model, load, target)
                    if mine:
                        cells.append(self._full_cell(model, load, target, mine))
        samples = [
            {
                **{"model": s.model, "load": s.load, "target": s.target, "round": s.round, "completed": s.completed},
                **{"failures": dict(s.failures), "client_cpu_ms_per_request": s.client_cpu_ms_per_request},
                **{"others_cores": round(s.others_cores, 3)},
                **s.figures,
            }
            for s in self.samples
        ]
        return {"facts": dict(self.facts), "cells": cells, "samples": samples}

    def _full_cell(self, model: str, load: str, target: str, mine: Sequence[Sample]) -> dict[str, Any]:
        spreads = {name: self.figure(model, load, target, name) for name in FIGURES}
        spreads["client_cpu_ms_per_request"] = spread(s.client_cpu_ms_per_request for s in mine)
        spreads["throughput_ratio"] = self.against_direct(model, load, target, "throughput_rps", lambda a, b: a / b)
        for name in ("ttft_p50_ms", "total_p50_ms"):
            spreads[f"{name}_over_direct"] = self.against_direct(model, load, target, name, lambda a, b: a - b)
        told = {n: None if s is None else [round(v, 3) for v in (s.q1, s.median, s.q3)] for n, s in spreads.items()}
        return {
            **{"model": model, "load": load, "target": target, "rounds": len(mine)},
            **{"completed": sum(s.completed for s in mine), "failed": self.failed(model, load, target)},
            "q1_median_q3": told,
        }

    def noise(self) -> str:
        """How much of the machine went elsewhere: a run beside other work is told from a quiet one."""
        found = spread(s.others_cores for s in self.samples)
        if found is None:
            return ""
        return f"others on the machine, idle targets included: {_with_quartiles(found, 2)} cores"

    def table(self) -> str:
        """The figures for people."""
        out = []
        for model in self.models:
            for load in self.loads(model):
                streams = f"{load} stream{'' if load == '1' else 's'}" if load.isdecimal() else load
                out += ["", f"{model}, {streams}: median (quartiles)", HEADER]
                for target in self.targets:
                    if self.of(model, load, target):
                        out.append(self._line(model, load, target))
        return "\n".join([*out[1:], "", self.noise()])

    def _line(self, model: str, load: str, target: str) -> str:
        mine = self.of(model, load, target)
        ratio = self.against_direct(model, load, target, "throughput_rps", lambda a, b: a / b)
        client = spread(s.client_cpu_ms_per_request for s in mine)
        figures = {name: self.figure(model, load, target, name) for name in FIGURES}
        return COLUMNS.format(
            target,
            _with_quartiles(figures["throughput_rps"]),
            _with_quartiles(ratio, 2),
            _with_quartiles(figures["ttft_p50_ms"]),
            _median(figures["ttft_p99_ms"]),
            _with_quartiles(figures["total_p50_ms"]),
            _median(figures["total_p99_ms"]),
            _median(figures["cpu_ms_per_request"], 2),
            _median(client, 2),
            self.failed(model, load, target),
        )

    def write(self, folder: Path) -> None:
        """Everything as ``gateway.json`` in a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "gateway.json").write_text(json.dumps(self.full(), indent=1) + "\n")


COLUMNS: Final = "  {:<12} {:>22} {:>18} {:>22} {:>9} {:>22} {:>9} {:>8} {:>8} {:>7}"
HEADER: Final = COLUMNS.format(
    *("target", "requests/s", "of direct", "first token p50 ms", "p99 ms", "whole p50 ms", "p99 ms"),
    *("cpu ms", "client", "failed"),
)


def _median(found: Spread | None, digits: int = 1) -> str:
    return "-" if found is None else f"{found.median:.{digits}f}"


def _with_quartiles(found: Spread | None, digits: int = 1) -> str:
    if found is None:
        return "-"
    return f"{found.median:.{digits}f} ({found.q1:.{digits}f}-{found.q3:.{digits}f})"
