"""``grix status``: what an operator sees whose machine has no region."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from serve_app.cli import clusters, control, regions, status
from serve_app.cli.state import Home
from serve_app.core.fleet import Fleet
from serve_app.core.fleet_events import Facts, KnownRegion, LinkOpened, Reported, Wanted
from serve_app.core.fleet_status import status_of
from serve_app.core.reports import RegionState, TargetReport
from serve_app.core.snapshots import Load
from serve_app.edge.serve_rest import AppStatus, DeploymentStatus, ReplicaStatus


def plan(*targets: TargetReport) -> dict[str, object]:
    """What a coordinator answers that has heard one of its two regions."""
    fleet = Fleet(Wanted((KnownRegion("cloud-a"), KnownRegion("cloud-b"))), Facts(epoch=7), 1000.0)
    fleet.handle(LinkOpened("cloud-a", 1), 1000.0)
    fleet.handle(Reported("cloud-a", 1, 1, RegionState("cloud-a", "slow", "first token late", targets)), 1000.0)
    return {"store_fault": "", **status_of(fleet, 1000.5)}


def told(monkeypatch: pytest.MonkeyPatch, home: Path, answer: dict[str, object]) -> str:
    monkeypatch.setattr(control, "admin", lambda *_: object())
    monkeypatch.setattr(control, "ask", lambda *_: answer)
    gathered = status.gather(Home(home), [home])
    assert gathered["fleet"] is None and gathered["regions"] == []
    return status.text_of(gathered)


def test_without_a_region_here_the_targets_are_the_coordinators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Load(900.0, 1200.0, waiting=3, running=16, kv_cache_used_ratio=0.5, first_token_p95_ms=1600.0)
    chat = TargetReport(
        "qwen-chat", "qwen-chat--1", "abcdef0123", "e" * 64, "slow", "first token late", 2, 16, 4096, load
    )
    doc = TargetReport("qwen-doc", "qwen-doc--1", "0123456789", "e" * 64, "healthy", "", 1, 16, 4096, Load())
    assert told(monkeypatch, tmp_path, plan(chat, doc)).splitlines()[-5:] == [
        "targets as their regions last reported them to the coordinator",
        "target             release   health   replicas  waiting  running  queue p95 ms  first p95 ms   KV  why",
        "-----------------  --------  -------  --------  -------  -------  ------------  ------------  ---  "
        "----------------",
        "cloud-a/qwen-chat  abcdef01  slow            2        3       16           900          1600  50%  "
        "first token late",
        "cloud-a/qwen-doc   01234567  healthy         1        –        –             –             –    –  –",
    ]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, ""),
        ({"plan_age_s": None}, ""),
        ({"plan_age_s": 12.34}, "; the coordinator's plan was confirmed 12.3 s ago"),
    ],
)
def test_the_age_of_the_plan_that_a_region_decides_with_is_told(more: dict[str, object], said: str) -> None:
    fleet = {"seen_by": "cloud-a", "snapshot": {"epoch": 7, "generation": 3, "targets": [], "regions": []}, **more}
    first = status._fleet_text(fleet, with_regions=True).splitlines()[0]
    assert first == f"targets as cloud-a decides from them, snapshot (7, 3){said}"


def test_before_any_report_there_is_no_table_of_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "targets" not in told(monkeypatch, tmp_path, plan())


@pytest.mark.parametrize(
    ("health", "said"),
    [
        ({"local": True, "redis": "up"}, ["  redis     answers"]),
        (
            {"redis": "down"},
            ["  redis     does NOT answer: each Router allows its part of the limits, and conversations are not kept"],
        ),
        ({"redis": None}, []),
        ("the cluster is gone", []),
    ],
)
def test_a_region_says_whether_its_redis_answers(health: object, said: list[str]) -> None:
    region = {"name": "cloud-a", "url": "http://127.0.0.1:8000", "dashboard": "http://127.0.0.1:26001", "pids": [1]}
    text = status._region_text({**region, "alive": True, "healthy": True, "health": health, "applications": None})
    assert text.splitlines()[2:] == said


def test_a_region_tells_its_replicas_by_state(monkeypatch: pytest.MonkeyPatch) -> None:
    each = tuple(
        ReplicaStatus(name, state, True) for name, state in (("a", "RUNNING"), ("b", "STARTING"), ("c", "RUNNING"))
    )
    app = AppStatus("qwen-chat--1", "DEPLOYING", "", (DeploymentStatus("QwenAgent", "UPSCALING", "", 3, each),))
    monkeypatch.setattr(regions, "is_alive", lambda record: True)
    monkeypatch.setattr(regions, "deep_health", lambda record: (True, {}))
    monkeypatch.setattr(clusters, "rest_of", lambda record: SimpleNamespace(status=lambda: [app]))
    record = {
        "name": "cloud-a",
        "url": "http://127.0.0.1:8000",
        "dashboard": "http://127.0.0.1:1",
        "key_file": "k",
        "pids": [1],
    }
    region = status._region(record)
    assert region["applications"] == [
        {
            "name": "qwen-chat--1",
            "status": "DEPLOYING",
            "message": "",
            "deployments": [
                {
                    "name": "QwenAgent",
                    "status": "UPSCALING",
                    "message": "",
                    "target_replicas": 3,
                    "replicas": {"RUNNING": 2, "STARTING": 1},
                }
            ],
        }
    ]
    told = status.text_of({"regions": [region], "coordinator": None, "fleet": None})
    assert told.splitlines()[-1].split() == ["QwenAgent", "UPSCALING", "2", "RUNNING,", "1", "STARTING", "3"]
