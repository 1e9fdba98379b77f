"""What Serve has given up is tried again, ever more seldom, through a config that differs without a difference."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from serve_app.edge.desired_config import ConfigWriter
from serve_app.edge.start_again import AGAIN_S, LONGEST_S, StartAgain
from tests.unit.edge.test_desired_config import TOP, FakeServe

CHAT, GRIX = "chat--1", "grix"
WAIT_LOOP = "graceful_shutdown_wait_loop_s"


def app(name: str, *deployments: str) -> dict[str, Any]:
    return {"name": name, "deployments": [{"name": d, "graceful_shutdown_timeout_s": 20.0} for d in deployments]}


@dataclass
class Stubborn(FakeServe):
    """It starts nothing of a deployment that it has given up until its config differs.

    ``given_up`` are applications and deployments, without a name for one that could not be built.
    """

    given_up: set[tuple[str, str]] = field(default_factory=set)
    status: str = "DEPLOY_FAILED"
    tried: list[tuple[str, str]] = field(default_factory=list)
    #: Whether what is tried again fails again.
    stays: bool = True

    def put_config(self, config: dict[str, Any]) -> None:
        before = deepcopy(self.apps)
        super().put_config(config)
        for name, part in sorted(self.given_up):
            old, new = (
                [d for a in (apps[name],) for d in a["deployments"] if d["name"] == part]
                for apps in (before, self.apps)
            )
            if not part or old != new:
                self.tried.append((name, part))
                if not self.stays:
                    self.given_up.remove((name, part))

    def details(self) -> dict[str, Any]:
        told = super().details()
        for name, one in told["applications"].items():
            lost = {part for app, part in self.given_up if app == name}
            one["status"] = self.status if lost else "RUNNING"
            one["deployments"] = (
                {} if "" in lost else {d["name"]: self._part(lost, d) for d in self.apps[name]["deployments"]}
            )
        return told

    def _part(self, lost: set[str], deployment: dict[str, Any]) -> dict[str, Any]:
        if deployment["name"] in lost:
            rows = [{"replica_id": "x", "state": "STOPPING", "node_id": "n"}]
            return {"status": self.status, "target_num_replicas": 1, "replicas": rows}
        rows = [{"replica_id": "y", "state": "RUNNING", "node_id": "n"}]
        return {"status": "HEALTHY", "target_num_replicas": 1, "replicas": rows}


class Region:
    """Looked at each two seconds."""

    def __init__(self, folder: Path, *lost: tuple[str, str]) -> None:
        self.serve = Stubborn({CHAT: app(CHAT, "QwenAgent"), GRIX: app(GRIX, "Router", "LanguageDetector")})
        self.serve.given_up = set(lost)
        self.folder, self.now_s = folder, 100.0
        self.start()

    def start(self) -> None:
        """Anew, as after a restart."""
        self.writer = ConfigWriter(self.serve, self.folder)  # type: ignore[arg-type]
        self.writer.begin()
        self.again = StartAgain(self.writer, now_s=lambda: self.now_s)

    async def look(self, after_s: float = 2.0) -> list[str]:
        """What was put back of a foreign change."""
        self.now_s += after_s
        foreign = self.writer.put_back(TOP)
        await self.again.look(TOP)
        return foreign


@pytest.mark.parametrize("status", ["DEPLOY_FAILED", "UNHEALTHY"])
async def test_what_was_given_up_is_tried_again_after_twice_as_long_each_time(tmp_path: Path, status: str) -> None:
    region = Region(tmp_path, (CHAT, "QwenAgent"))
    region.serve.status = status
    tried_s = [region.now_s + 2.0]
    for _ in range(10_000):
        assert await region.look() == []
        if len(region.serve.tried) >= len(tried_s):
            tried_s.append(region.now_s)
    pauses_s = [b - a for a, b in pairwise(tried_s)]
    assert pauses_s[:8] == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, LONGEST_S, LONGEST_S]
    assert len(region.serve.puts) == len(region.serve.tried) == len(pauses_s)
    # Only what was given up differs.
    assert [d.get(WAIT_LOOP) for d in region.serve.apps[GRIX]["deployments"]] == [None, None]
    (one,) = region.serve.apps[CHAT]["deployments"]
    assert one[WAIT_LOOP] == pytest.approx(2.0 + len(pauses_s) / 1000)
    assert region.again.told() == [
        f"Serve has given {CHAT} up; tried again: {len(pauses_s)}, the next 3600 s after the last"
    ]


async def test_what_runs_again_stays_as_it_is_also_after_a_restart(tmp_path: Path) -> None:
    region = Region(tmp_path, (GRIX, "LanguageDetector"))
    region.serve.stays = False
    await region.look()
    await region.look(AGAIN_S)
    await region.look()
    assert (region.again.told(), region.serve.tried) == ([], [(GRIX, "LanguageDetector")])
    for _ in range(2):
        assert await region.look() == []
        assert [d.get(WAIT_LOOP) for d in region.serve.apps[GRIX]["deployments"]] == [None, 2.001]
        region.start()
    assert len(region.serve.puts) == 1
    # The next time it begins anew, and the config differs once more.
    region.serve.given_up = {(GRIX, "LanguageDetector")}
    await region.look()
    await region.look(AGAIN_S)
    assert region.serve.apps[GRIX]["deployments"][1][WAIT_LOOP] == 2.002
    # What documents ask for has nothing of it.
    assert region.writer.desired is not None
    assert (
        region.writer.desired.applications[GRIX]["deployments"]
        == app(GRIX, "Router", "LanguageDetector")["deployments"]
    )


async def test_what_could_not_be_built_is_put_again_as_it_is(tmp_path: Path) -> None:
    region = Region(tmp_path, (CHAT, ""))
    region.serve.stays = False
    await region.look()
    await region.look(AGAIN_S - 0.1)
    assert region.serve.puts == []
    await region.look(0.1)
    assert region.serve.tried == [(CHAT, "")]
    assert WAIT_LOOP not in region.serve.apps[CHAT]["deployments"][0]
    await region.look()
    assert region.again.told() == []


@pytest.mark.parametrize(
    ("target", "states"), [(1, ["STARTING"]), (1, ["RUNNING"]), (1, ["STOPPING", "RECOVERING"]), (0, [])]
)
async def test_who_goes_on_by_itself_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: int, states: list[str]
) -> None:
    region = Region(tmp_path, (CHAT, "QwenAgent"))
    rows = [{"replica_id": state, "state": state, "node_id": "n"} for state in states]
    part = {"status": "DEPLOY_FAILED", "target_num_replicas": target, "replicas": rows}
    monkeypatch.setattr(region.serve, "_part", lambda lost, deployment: part)
    for _ in range(100):
        await region.look()
    assert (region.serve.puts, region.again.told()) == ([], [])


async def test_a_moment_without_a_replica_is_no_reason(tmp_path: Path) -> None:
    region = Region(tmp_path, (CHAT, "QwenAgent"))
    for i in range(100):
        region.serve.given_up = {(CHAT, "QwenAgent")} if i % 2 else set()
        await region.look()
    assert region.serve.puts == []
