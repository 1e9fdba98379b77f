"""Clusters that start side by side."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from serve_app.cli import clusters
from serve_app.cli.say import BAD_USAGE, Failed, Progress
from serve_app.cli.state import Home
from serve_app.edge import ports_free
from serve_app.edge.ray_cluster import BLOCK
from serve_app.edge.serve_rest import AppStatus


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "POLL_S", 0.0)


def starts(name: str, looks: int, told: list[str], fails: bool = False) -> Iterator[None]:
    for look in range(looks):
        told.append(f"{name}{look}")
        yield
    if fails:
        raise Failed(f"{name} failed")
    told.append(f"{name} started")


def test_each_is_looked_at_in_turn_until_all_have_started() -> None:
    told: list[str] = []
    clusters.together([starts("a", 3, told), starts("b", 1, told)])
    assert told == ["a0", "b0", "a1", "b started", "a2", "a started"]
    clusters.together([])


def test_what_goes_wrong_with_one_is_raised_at_once() -> None:
    told: list[str] = []
    with pytest.raises(Failed, match="b failed"):
        clusters.together([starts("a", 9, told), starts("b", 1, told, fails=True)])
    assert told == ["a0", "b0", "a1"]


def test_the_block_of_a_cluster_that_does_not_listen_yet_is_not_given_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports_free, "LOWEST", 20_000)
    monkeypatch.setattr(ports_free, "HIGHEST", 20_000 + 2 * BLOCK)
    monkeypatch.setattr(ports_free, "is_free", lambda port: True)
    monkeypatch.setattr(random, "SystemRandom", lambda: random.Random(1))
    home = Home(tmp_path / ".grix")
    made = []
    for name in ("a", "b"):
        cluster, record = clusters.prepare(home, name)
        home.remember(record)
        made.append(cluster)
    assert sorted(c.first_port for c in made) == [20_000, 20_000 + BLOCK]
    with pytest.raises(Failed, match="free ports in a row"):
        clusters.prepare(home, "c")
    for cluster in made:
        cluster.temp_dir.rmdir()


class Rest:
    """A dashboard that knows of its node at the second look."""

    def __init__(self) -> None:
        self.looks, self.put = 0, list[Any]()

    def details(self) -> dict[str, Any]:
        return {}

    def nodes(self) -> list[dict[str, Any]]:
        self.looks += 1
        return [{"NodeName": "box", "Alive": self.looks > 1}]

    def put_config(self, config: dict[str, Any]) -> None:
        self.put.append(config)

    def status(self) -> list[AppStatus]:
        return [AppStatus("grix", "RUNNING", "")]


def test_a_cluster_without_a_node_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = Rest()
    monkeypatch.setattr(clusters, "rest_of", lambda record: rest)
    monkeypatch.setattr(rest, "nodes", list)
    record = {"name": "cloud-a", "gcs": "127.0.0.1:1"}
    times = iter(range(0, 600, 30))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        progress = Progress(lambda _: None, lambda: next(times))
        starting = clusters.deploy(record, {}, process, Home(tmp_path), 60.0, progress, lambda: (True, "ok"))
        with pytest.raises(Failed) as failed:
            clusters.together([starting])
        process.communicate(b"\n")
    assert str(failed.value) == "cloud-a: Ray is not ready: its dashboard knows of no node that is alive"


@pytest.mark.parametrize("suits", [True, False])
def test_nothing_is_deployed_before_a_node_was_asked(
    suits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest, asked = Rest(), list[Any]()
    monkeypatch.setattr(clusters, "rest_of", lambda record: rest)

    def suited(rows: Sequence[Mapping[str, Any]]) -> None:
        assert rest.put == []
        asked.append(rows)
        if not suits:
            raise Failed("qwen-chat: gpu wants 1, it has 0", BAD_USAGE)

    record = {"name": "cloud-a", "gcs": "127.0.0.1:1"}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        starting = clusters.deploy(
            record, {"a": 1}, process, Home(tmp_path / ".grix"), 60.0, Progress(), lambda: (True, "ok"), suited
        )
        try:
            clusters.together([starting])
        except Failed as error:
            assert (error.code, str(error)) == (BAD_USAGE, "qwen-chat: gpu wants 1, it has 0")
        process.communicate(b"\n")
    assert (asked, rest.put) == ([[{"NodeName": "box", "Alive": True}]], [{"a": 1}] if suits else [])
