"""Faults on real processes, lines and files, and the way back."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from serve_app.cli import clusters, links, regions
from serve_app.cli.drill_faults import FAULTS, BadCert, HalfPartition, Partition, Slow, Stall
from serve_app.cli.drill_scene import Scene, bring_back
from serve_app.cli.say import Failed, Progress
from serve_app.cli.state import CONTROL, Home
from serve_app.core.drill_verdict import PROMISES
from serve_app.edge import pki
from tests.unit.cli.test_links import config_of


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    home = Home(tmp_path / ".grix")
    links.begin(config_of(tmp_path), home)
    pki.ensure(home.pki, "two", ["a", "b", "edge"], datetime.now(UTC))
    home.remember({"name": CONTROL, "pki": str(home.pki)})
    home.remember({"name": "a"})
    try:
        yield Scene(home, "a", Progress(lambda _: None))
    finally:
        links.end(home)


def flows(scene: Scene) -> dict[str, str]:
    return {name: told["flow"] for name, told in links.change(scene.lines, {}).items()}


def test_a_partition_is_around_one_region_and_heals(scene: Scene) -> None:
    fault = Partition(scene)
    fault.strike()
    stalled = {name for name, flow in flows(scene).items() if flow == "stalled"}
    assert stalled == {"*>a", "b>a", "edge>a", "a>b", "a>coordinator"}
    fault.restore()
    assert set(flows(scene).values()) == {"open"}


def test_half_a_partition_is_one_line(scene: Scene) -> None:
    fault = HalfPartition(scene)
    fault.strike()
    assert {name for name, flow in flows(scene).items() if flow == "stalled"} == {"a>coordinator"}
    fault.restore()
    assert set(flows(scene).values()) == {"open"}


def test_a_bad_certificate_is_a_strangers_for_the_same_name_and_goes_again(scene: Scene) -> None:
    folder = scene.home.pki / "region" / "a"
    before = {file: (folder / file).read_bytes() for file in pki.FILES}
    fault = BadCert(scene)
    fault.strike()
    after = {file: (folder / file).read_bytes() for file in pki.FILES}
    assert all(after[file] != before[file] for file in pki.FILES)
    assert pki.read(folder).identity.uri == "grix://two/region/a"
    assert set(flows(scene).values()) == {"open"}
    fault.restore()
    assert {file: (folder / file).read_bytes() for file in pki.FILES} == before
    assert sorted(f.name for f in folder.parent.iterdir()) == ["a", "b", "edge"]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[psutil.Process]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        monkeypatch.setattr(Scene, "engines", lambda _: [process.pid])
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def until(engine: psutil.Process, status: str) -> bool:
    deadline_s = time.monotonic() + 5
    while time.monotonic() < deadline_s:
        if (engine.status() == psutil.STATUS_STOPPED) == (status == "stopped"):
            return True
        time.sleep(0.005)
    return False


def test_a_stalled_engine_stands_still_until_it_may_go_on(
    scene: Scene, engine: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scene, "wait_tokens", lambda _: None)
    fault = Stall(scene)
    fault.prepare()
    assert until(engine, "running")
    fault.strike()
    assert until(engine, "stopped")
    fault.restore()
    assert until(engine, "running")


def test_a_slow_engine_stands_still_now_and_then(
    scene: Scene, engine: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_app.cli.drill_faults.SLOW_STOP_S", 0.05)
    monkeypatch.setattr("serve_app.cli.drill_faults.SLOW_RUN_S", 0.05)
    fault = Slow(scene)
    fault.prepare()
    fault.strike()
    assert all(until(engine, status) for status in ("stopped", "running", "stopped"))
    fault.restore()
    assert until(engine, "running")


def test_without_a_relay_or_an_engine_there_is_no_such_drill(tmp_path: Path) -> None:
    home = Home(tmp_path / ".grix")
    home.remember({"name": "a", "pids": [], "temp_dir": str(tmp_path / "none")})
    scene = Scene(home, "a", Progress(lambda _: None))
    with pytest.raises(Failed, match="needs the relay between regions of one machine"):
        Partition(scene).strike()
    with pytest.raises(Failed, match="a: no process of an engine was found"):
        scene.engines()


def test_every_drill_that_promises_something_has_a_fault() -> None:
    assert list(FAULTS) == list(PROMISES)


def starts(told: list[str], *faults: str) -> Callable[[], Iterator[None]]:
    """A start that fails so often before it ends well."""
    left = list(faults)

    def start() -> Iterator[None]:
        told.append("start")
        yield
        if left:
            raise Failed(left.pop(0))
        told.append("up")

    return start


def brought_back(folder: Path, monkeypatch: pytest.MonkeyPatch, *faults: str) -> list[str]:
    told: list[str] = []
    home = Home(folder / ".grix")
    home.remember({"name": "a"})

    def end(record: dict[str, Any], home: Home, progress: Progress, *, keep_log: bool = False) -> None:
        told.append(f"end {record['name']}{', log kept' if keep_log else ''}")

    monkeypatch.setattr(clusters, "POLL_S", 0.0)
    monkeypatch.setattr(regions, "end", end)
    stage = Scene(home, "a", Progress(lambda text: told.append(text.split("  ")[-1])))
    try:
        bring_back(stage, stage.record, starts(told, *faults))
    except Failed as error:
        told.append(f"failed: {error}")
    return told


def test_what_died_is_cleaned_up_and_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert brought_back(tmp_path, monkeypatch) == ["end a", "start", "up"]


def test_a_start_that_a_busy_machine_let_down_is_made_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = ["end a", "start", "a: not ready; once more", "end a, log kept", "start"]
    assert brought_back(tmp_path, monkeypatch, "not ready\nit said: x") == [*again, "up"]
    assert brought_back(tmp_path, monkeypatch, "not ready", "not ready") == [*again, "failed: not ready"]
