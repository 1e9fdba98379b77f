"""Rounds against targets that are not there: the order of asking, the rates, the end of the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gateway_run
from benchmarks.gateway import QUICK, parser, plan_of
from benchmarks.gateway_report import Report
from benchmarks.gateway_run import Bench, Plan
from benchmarks.gateway_targets import Target
from cluster_configs.load import load_paths


class FakeClient:
    """Answers every job at once: ten requests in as many seconds as the target's name has letters."""

    def __init__(self) -> None:
        self.jobs: list[Mapping[str, Any]] = []

    def ask(self, job: Mapping[str, Any]) -> dict[str, Any]:
        self.jobs.append(job)
        seconds = float(len(job["url"].removeprefix("http://").partition("/")[0]))
        return {
            **{"ttft_ms": [1.0] * 10, "total_ms": [2.0] * 10, "failures": {}, "left": 0},
            **{"elapsed_s": seconds, "client_cpu_s": 0.0},
        }

    def stop(self) -> None: ...


TARGETS = [Target(name, f"http://{name}", list, lambda: None) for name in ("direct", "grix")]


def bench(plan: Plan) -> tuple[Bench, FakeClient]:
    client = FakeClient()
    return Bench(plan, client), client  # type: ignore[arg-type]


def asked(client: FakeClient) -> list[str]:
    return [job["url"].removeprefix("http://").partition("/")[0] for job in client.jobs]


def plan(*arguments: str) -> Plan:
    return plan_of(parser().parse_args([*arguments, "--models", "tiny-qwen"]))


def test_rounds_interleave_targets_and_change_who_begins() -> None:
    run, client = bench(plan("--streams", "1,64", "--rounds", "2"))
    assert run._rounds("tiny-qwen", TARGETS, QUICK["tiny-qwen"]) == 2
    assert asked(client) == ["direct", "grix", "direct", "grix", "grix", "direct", "grix", "direct"]
    assert [job["streams"] for job in client.jobs] == [1, 1, 64, 64, 1, 1, 64, 64]
    assert len({job["seed"] for job in client.jobs}) == 2, "both targets get the same requests in a round"


def test_open_loop_runs_at_a_fraction_of_what_direct_did() -> None:
    run, client = bench(plan("--streams", "64", "--open", "0.5", "--rounds", "2"))
    run._rounds("tiny-qwen", TARGETS, QUICK["tiny-qwen"])
    opened = [job for job in client.jobs if job["kind"] == "open"]
    assert [job["rate_rps"] for job in opened] == [pytest.approx(0.5 * 10 / len("direct"))] * 4
    assert list(Report(run.samples, {}).as_json()["tiny-qwen"]) == ["64"]


def test_rounds_that_do_not_fit_fall_away_but_never_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(gateway_run.time, "monotonic", lambda: now_s[0])

    class Slow(FakeClient):
        def ask(self, job: Mapping[str, Any]) -> dict[str, Any]:
            now_s[0] += 10.0
            return super().ask(job)

    for until_s, rounds in ((1.0, 1), (20.0 + 20.0 + gateway_run.STOP_S, 2), (1000.0, 5)):
        now_s[0] = 0.0
        run = Bench(replace(plan("--streams", "1", "--rounds", "5"), until_s={"tiny-qwen": until_s}), Slow())  # type: ignore[arg-type]
        assert run._rounds("tiny-qwen", TARGETS, QUICK["tiny-qwen"]) == rounds


class NoChild:
    def pids(self) -> list[int]:
        return []

    def stop(self) -> None: ...


def test_two_settings_of_grix_stand_side_by_side(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[str] = []

    def start_grix(paths: Sequence[Path], model: str, folder: Path, more: Sequence[str]) -> NoChild:
        (region, *_) = load_paths(paths, {}).federation.spec.regions
        told.append(f"start {folder.name} {region.http.profile} {region.detector_placement}")
        return NoChild()

    def grix_target(name: str, child: NoChild, folder: Path) -> Target:
        told.append(f"{name} is up")
        return Target(name, f"http://{name}", list, lambda: None)

    def start_direct(engine: object, folder: Path) -> tuple[NoChild, str]:
        told.append("start direct")
        return NoChild(), "http://direct"

    fakes = {"start_grix": start_grix, "grix_target": grix_target, "start_direct": start_direct}
    fakes |= {"wait_ready": lambda *_: None, "stop_grix": lambda folder: told.append(f"stop {folder.name}")}
    for name, fake in fakes.items():
        monkeypatch.setattr(gateway_run.gateway_targets, name, fake)
    wanted = plan("--targets", "direct,grix,grix-standard-deployment", "--profile", "fast")
    with gateway_run.targets_of(wanted, "tiny-qwen", tmp_path) as targets:
        assert [t.name for t in targets] == ["direct", "grix", "grix-standard-deployment"]
    assert told == [
        *("start grix fast router", "start direct", "grix is up"),
        *("start grix-standard-deployment standard deployment", "grix-standard-deployment is up"),
        *("stop grix-standard-deployment", "stop grix"),
    ]
