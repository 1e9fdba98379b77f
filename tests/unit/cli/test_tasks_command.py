"""``grix tasks``: what it asks of the region, what it prints, and its exit status."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from serve_app.cli import tasks
from serve_app.cli.client import Reply
from serve_app.cli.main import main


class Region:
    """Answers as it is told, and notes what was asked."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[tuple[str, str, Any]] = []

    def ask(self, method: str, path: str, body: Any = None) -> Reply:
        self.asked.append((method, path, body))
        status, told = self.answers.pop(0)
        return Reply(status, {}, told)


@pytest.fixture
def region(monkeypatch: pytest.MonkeyPatch) -> Region:
    made = Region()
    monkeypatch.setattr(tasks, "_client", lambda: made)
    return made


def test_submit_from_a_file_and_from_standard_input(
    region: Region, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"request": {"messages": []}}
    (tmp_path / "task.json").write_text(json.dumps(body))
    region.answers = [(202, {"id": "t1", "state": "queued"}), (200, {"id": "t1", "state": "running"})]
    assert main(["tasks", "submit", str(tmp_path / "task.json")]) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(body)))
    assert main(["tasks", "submit", "-"]) == 0
    assert capfd.readouterr().out == "t1 queued\nt1 running\n"
    assert region.asked == [("POST", "/v1/tasks", body)] * 2


def test_what_is_no_json_and_what_the_region_refuses(
    region: Region, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "task.json").write_text("{")
    assert main(["tasks", "submit", str(tmp_path / "task.json")]) == 2
    (tmp_path / "task.json").write_text("{}")
    region.answers = [(400, {"error": {"code": "invalid_value", "message": "request: is needed"}})]
    assert main(["tasks", "submit", str(tmp_path / "task.json")]) == 1
    said = capfd.readouterr().err
    assert "cannot be read as JSON" in said and "400 invalid_value: request: is needed" in said


def test_what_waits_and_who_works(region: Region, capfd: pytest.CaptureFixture[str]) -> None:
    one = {"waiting": {"high": 0, "normal": 12}, "oldest_s": {"high": 0, "normal": 3.21}}
    region.answers = [(200, {"light": {**one, "running": 4, "workers": 1, "slots": 4}})]
    assert main(["tasks", "status"]) == 0
    assert capfd.readouterr().out == (
        "class  priority  waiting  oldest s  running  workers  slots\n"
        "-----  --------  -------  --------  -------  -------  -----\n"
        "light  high            0       0.0        4        1      4\n"
        "light  normal         12       3.2\n"
    )
    region.answers = [(200, {"id": "a b", "state": "done"})]
    assert main(["tasks", "status", "a b"]) == 0
    assert region.asked[-1][1] == "/v1/tasks/a%20b"


def test_dead_letters(region: Region, capfd: pytest.CaptureFixture[str]) -> None:
    row = {"key": "acme/t1", "class": "light", "attempts": 4, "error": {"reason": "failed", "message": "no luck"}}
    second = {**row, "key": "acme/t2"}
    region.answers = [
        (200, {"data": [], "next_offset": None}),
        (200, {"data": [row], "next_offset": 1}),
        # One more came meanwhile, and t1 is on this page too.
        (200, {"data": [row, second], "next_offset": None}),
    ]
    assert main(["tasks", "dead"]) == 0 and main(["tasks", "dead"]) == 0
    assert capfd.readouterr().out == (
        "no dead letters\n"
        "task     class  attempts  reason  message\n"
        "-------  -----  --------  ------  -------\n"
        "acme/t1  light         4  failed  no luck\n"
        "acme/t2  light         4  failed  no luck\n"
    )
    assert [path for _, path, _ in region.asked] == [f"/grix/tasks/dead?offset={n}" for n in (0, 0, 1)]
    region.answers = [(200, {"state": "replayed"}), (200, {"state": "dropped"}), (404, "gone")]
    assert main(["tasks", "replay", "acme/t1"]) == 0 and main(["tasks", "drop", "acme/t1"]) == 0
    assert capfd.readouterr().out == "acme/t1 replayed\nacme/t1 dropped\n"
    assert main(["tasks", "drop", "acme/t1"]) == 1 and main(["tasks", "drop", "t1"]) == 2
    assert [(method, path) for method, path, _ in region.asked[3:]] == [
        ("POST", "/grix/tasks/dead/acme/t1"),
        ("DELETE", "/grix/tasks/dead/acme/t1"),
        ("DELETE", "/grix/tasks/dead/acme/t1"),
    ]
