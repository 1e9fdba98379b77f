"""Clusters that start side by side."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from serve_app.cli import clusters
from serve_app.cli.say import Failed
from serve_app.cli.state import Home
from serve_app.edge import ports_free
from serve_app.edge.ray_cluster import BLOCK


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
