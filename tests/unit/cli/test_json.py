"""Every command that takes ``--json`` prints one JSON document, and nothing else, on standard output."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from serve_app.cli import (
    apply,
    demo,
    drill,
    explain,
    links,
    model,
    region_command,
    regions,
    rollout,
    rollout_commands,
    tasks,
    up,
)
from serve_app.cli.client import Reply
from serve_app.cli.main import main, parser
from serve_app.cli.state import Home
from serve_app.core.drill_verdict import Run

Patch = pytest.MonkeyPatch
RUN = Run(1.0, "peer", 0.5, 2.0, 10, 0, 0, 0, 0)
STATE = {"regions": [{"name": "cloud-a", "url": "u", "key_file": "key", "dashboard": "d"}], "coordinator": None}


class Region:
    """Answers whatever it is asked."""

    def ask(self, method: str, path: str, body: Any = None) -> Reply:
        return Reply(200, {}, {"id": "t1", "state": "queued", "data": [], "next_offset": None})


def _returns(told: Any) -> Callable[..., Any]:
    return lambda *_, **__: told


def _drilled(patch: Patch) -> None:
    patch.setattr(drill, "_region", _returns("cloud-a"))
    patch.setattr(drill, "wait_well", _returns(None))
    # A promise that was broken is told beside the result.
    patch.setattr(drill, "run_once", _returns((RUN, ["too late"])))


def _toured(patch: Patch) -> None:
    patch.setattr(demo, "up", _returns((STATE, True)))
    patch.setattr(demo, "STOPS", ())
    patch.setattr(regions, "client", _returns(Region()))
    Path("key").write_text("grix-a-key")


def _ended(patch: Patch) -> None:
    home = Home.here()
    home.remember({"name": "cloud-a"})
    patch.setattr(regions, "end", lambda record, home, progress, **_: home.forget(record["name"]))


def _submitted(patch: Patch) -> None:
    patch.setattr(tasks, "_client", Region)
    Path("task.json").write_text("{}")


def _broken(patch: Patch) -> None:
    Path("bad.yaml").write_text("kind: Nothing")


def _told(module: Any, name: str, told: Any) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(module, name, _returns(told))


def _rolled(patch: Patch) -> None:
    patch.setattr(rollout_commands, "admin", _returns(None))
    patch.setattr(rollout_commands, "ask", _returns({"running": None, "last": None}))


def _rolled_back(patch: Patch) -> None:
    patch.setattr(rollout, "rollback", _returns({}))
    patch.setattr(rollout, "follow", _returns({"running": None}))


def _nothing(patch: Patch) -> None: ...


MODEL: tuple[Any, str, int] = ({"address": "a"}, "text", 0)

#: By command: how it is made to say something, its other arguments, exit status and a key of what it prints.
CASES: dict[str, tuple[Callable[[Patch], None], list[str], int, str]] = {
    "validate": (_broken, ["bad.yaml"], 2, "faults"),
    "up": (_told(up, "up", (STATE, False)), [], 0, "regions"),
    "down": (_ended, [], 0, "ended"),
    "status": (_nothing, [], 0, "regions"),
    "apply": (_told(apply, "apply", {"revision": "r1"}), ["a.yaml"], 0, "revision"),
    "region": (_told(region_command, "turn", {"region": "a", "phase": "drained"}), ["drain", "a"], 0, "phase"),
    "coordinator audit": (_told(region_command, "audit", [{"what": "apply"}]), [], 0, ""),
    "coordinator backup": (_told(region_command, "backup", {"revision": "r1"}), ["f"], 0, "revision"),
    "coordinator restore": (_told(region_command, "restore", {"revision": "r1"}), ["f"], 0, "revision"),
    "rollout start": (_told(rollout, "start", {"running": {"phase": "baking"}}), ["a.yaml"], 0, "running"),
    **{f"rollout {verb}": (_rolled, [], 0, "running") for verb in ("status", "pause", "resume", "abort")},
    "rollout history": (_told(rollout, "history", [{"outcome": "done"}]), [], 0, ""),
    "rollback": (_rolled_back, ["qwen-chat"], 0, "running"),
    "drift": (_told(rollout, "drift", [{"region": "a"}]), [], 0, ""),
    "link": (_told(links, "set_line", {"line": "a"}), ["a", "b", "--cut"], 0, "line"),
    "drill": (_drilled, ["kill-region", "--runs", "2"], 1, "runs"),
    "explain": (_told(explain, "past", {"rule": "fallback"}), ["some-id"], 0, "rule"),
    "key": (_nothing, ["new", "acme"], 0, "key"),
    "pki": (_nothing, ["init"], 0, "certificates"),
    "model push": (_told(model, "_push", MODEL), ["folder", "file:///a"], 0, "address"),
    "model pull": (_told(model, "_pull", MODEL), ["file:///a"], 0, "address"),
    "model verify": (_told(model, "_verify", MODEL), ["file:///a"], 0, "address"),
    "model gc": (_nothing, [], 0, "entries"),
    "tasks submit": (_submitted, ["task.json"], 0, "id"),
    "tasks status": (_told(tasks, "_client", Region()), [], 0, "id"),
    "tasks dead": (_told(tasks, "_client", Region()), [], 0, ""),
    "demo": (_toured, [], 0, "requests"),
}


def _with_json(made: argparse.ArgumentParser, name: str = "") -> Iterator[str]:
    for action in made._actions:
        if "--json" in action.option_strings:
            yield name.strip()
        if isinstance(action, argparse._SubParsersAction):
            for verb, inner in action.choices.items():
                yield from _with_json(inner, f"{name} {verb}")


def test_every_command_that_takes_it_is_here() -> None:
    assert sorted(_with_json(parser())) == sorted(CASES)


@pytest.mark.parametrize("command", CASES)
def test_one_document_and_nothing_else(
    command: str, tmp_path: Path, monkeypatch: Patch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRIX_CACHE", str(tmp_path / "cache"))
    prepare, arguments, status, key = CASES[command]
    prepare(monkeypatch)
    assert main([*command.split(), *arguments, "--json"]) == status
    told = json.loads(capfd.readouterr().out)
    assert key in told if key else isinstance(told, list)


def test_down_names_what_it_ended(tmp_path: Path, monkeypatch: Patch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["down", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"ended": []}
    _ended(monkeypatch)
    assert main(["down", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"ended": ["cloud-a"]}
    # Of an earlier `down` that ended the clusters alone.
    monkeypatch.setattr(links, "end", lambda home: home.forget_links())
    home = Home.here()
    home.write({**home.read(), "links": {"temp_dir": "t", "pids": [], "ports": {}}})
    assert main(["down", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"ended": ["relay"]}
