"""Rounds against targets that are not there: the order of asking, the rates, the end of the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import gateway_run
from benchmarks.gateway import QUICK, parser, plan_of
from benchmarks.gateway_report import Report
from benchmarks.gateway_run import Bench, Plan
from benchmarks.gateway_targets import Target


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
