"""Rollouts as people read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rollout_picture import mermaid
from serve_app.cli import control, rollout
from serve_app.cli.drill_release import changed
from serve_app.cli.say import Failed, Progress
from serve_app.cli.state import Home
from serve_app.core.rollout import TABLE

README = Path(__file__).parents[3] / "README.md"
RUNNING: dict[str, Any] = {
    "revision": "r2",
    "who": "ops",
    "began_unix_s": 0.0,
    "phase": "canary",
    "why": "",
    "waits": "12 s of its hold and 3 of 50 requests",
    "region": "edge-1",
    "step": 5,
    "agents": {"chat": ["a" * 64, "b" * 64]},
    "regions": [
        {
            "region": "edge-1",
            "percent": 5,
            "has": 5,
            "smoke": "passed",
            "counts": [
                {"agent": "chat", "release": release * 64, "requests": requests, "failed": 1, "truncated": 2}
                | {"mismatched": 0, "canary_breaks": 4, "first_token_p95_ms": 9.0}
                for release, requests in (("a", 900), ("b", 47))
            ],
        },
        {"region": "cloud-a", "percent": 0, "has": None, "smoke": "", "counts": []},
    ],
}
PAST = {**RUNNING, "outcome": "rolled_back", "why": "edge-1: smoke tests: ja: the answer is empty"}


def test_the_status_says_where_it_is_what_it_waits_for_and_how_the_new_release_does() -> None:
    first, agent, head, _, edge, cloud = rollout.text_of({"running": RUNNING, "last": None}).splitlines()
    assert first == "rollout r2: canary edge-1 at 5 % (waits for 12 s of its hold and 3 of 50 requests)"
    assert agent == "  chat aaaaaaaaaaaa -> bbbbbbbbbbbb"
    assert head.split("  ")[0] == "region"
    assert edge.split() == ["edge-1", "5", "%", "5", "%", "passed", "47", "1", "2", "0", "8"]
    assert cloud.split()[:3] == ["cloud-a", "0", "%"]


def test_what_is_over_is_a_line_with_its_reason() -> None:
    line = (
        "1970-01-01 00:00:00 UTC r2 by ops: rolled back (edge-1: smoke tests: ja: the answer is empty): "
        "chat aaaaaaaaaaaa -> bbbbbbbbbbbb"
    )
    assert rollout.history_text([PAST]) == line
    assert rollout.text_of({"running": None, "last": PAST}) == f"no rollout runs; the last: {line}"
    assert rollout.history_text([]) == "no rollout was begun"


@pytest.mark.parametrize(
    ("began", "outcome", "said"),
    [
        ("smoke", "done", ""),
        ("smoke", "aborted", "rollout r2 was aborted: no"),
        ("smoke", "rolled_back", "rollout r2 was rolled back: no"),
        ("adopting", "aborted", "rollout r2 was aborted: no"),
        # A rollback of what is on its way is its abort.
        ("reverting", "aborted", ""),
        (None, "aborted", ""),
    ],
)
def test_who_waits_for_a_rollout_fails_when_it_ends_otherwise_than_asked(
    began: str | None, outcome: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = {"running": None, "last": {**PAST, "outcome": outcome, "why": "no"}}
    told = over if began is None else {"running": {**RUNNING, "phase": began}, "last": None}
    monkeypatch.setattr(control, "admin", lambda *_: None)
    monkeypatch.setattr(control, "ask", lambda *_: over)
    monkeypatch.setattr(rollout, "POLL_S", 0.0)
    home = Home(Path("/nowhere"))
    if not said:
        assert rollout.follow(told, 9.0, home, None, Progress()) == over
        return
    with pytest.raises(Failed) as caught:
        rollout.follow(told, 9.0, home, None, Progress())
    assert str(caught.value) == said


def test_drift_is_a_table_or_a_sentence() -> None:
    assert rollout.drift_text([]) == "every region serves what the plan says"
    row = {"region": "cloud-b", "agent": "chat", "has": "x" * 64, "expected": "y" * 64, "differs": "the engine"}
    assert rollout.drift_text([row]).splitlines()[-1].split() == [
        "cloud-b",
        "chat",
        "x" * 12,
        "y" * 12,
        "the",
        "engine",
    ]


def test_the_picture_in_the_readme_is_the_table_s() -> None:
    assert f"```mermaid\n{mermaid()}\n```" in README.read_text("utf-8")
    assert all(phase in mermaid() for phase in TABLE)


def test_drills_change_the_japanese_template_and_hurry() -> None:
    before = [
        {"kind": "PromptTemplate", "metadata": {"name": "ja"}, "spec": {"system": "丁寧に。"}},
        {"kind": "PromptTemplate", "metadata": {"name": "ko"}, "spec": {"system": "정중하게."}},
        {"kind": "Federation", "metadata": {"name": "x"}, "spec": {"rollout": {"hold": "10m", "patience": "1h"}}},
    ]
    kept = json.dumps(before)
    ja, ko, federation = changed("rollback", before)
    assert ja["spec"]["system"].startswith("丁寧に。") and ko == before[1]
    assert federation["spec"]["rollout"] == {"hold": "2s", "patience": "1h", "steps": [100], "minSamples": 3}
    assert "한국어로만" in changed("bad-release", before)[0]["spec"]["system"]
    assert json.dumps(before) == kept
