"""Whom the chaos run kills, and for how long."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks import tasks
from benchmarks.tasks import Scene
from serve_app.edge.task_bus import TaskBus


@dataclass
class PlayedWorker:
    ended: bool = False
    signals: list[int] = field(default_factory=list)

    def poll(self) -> int | None:
        return 0 if self.ended else None

    def send_signal(self, number: int) -> None:
        self.signals.append(number)


def scene_of(folder: Path, workers: Sequence[PlayedWorker], monkeypatch: pytest.MonkeyPatch) -> tuple[Scene, list[int]]:
    added: list[int] = []
    monkeypatch.setattr(Scene, "add_worker", lambda scene: added.append(1))
    return Scene(folder, 30.0, 4, workers=cast(Any, list(workers)), started=len(workers)), added


def test_a_worker_is_killed_when_it_works_and_not_while_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting, working, ended = PlayedWorker(), PlayedWorker(), PlayedWorker(ended=True)
    scene, added = scene_of(tmp_path, [starting, working, ended], monkeypatch)
    draw = random.Random(1)
    scene.kill_worker(draw)
    assert added == []
    for n in (2, 3):
        (tmp_path / f"w{n}.jsonl").touch()
    for _ in range(5):
        scene.kill_worker(draw)
    assert (len(starting.signals), len(working.signals), len(ended.signals), len(added)) == (0, 5, 0, 5)


async def test_nothing_is_killed_any_more_after_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = PlayedWorker()
    scene, _ = scene_of(tmp_path, [worker], monkeypatch)
    (tmp_path / "w1.jsonl").touch()
    now_s = iter((0.0, 0.0, 1.0, 599.0, 599.5, 600.0))
    monkeypatch.setattr(tasks, "time", SimpleNamespace(monotonic=lambda: next(now_s)))
    await tasks.fire(scene, cast(TaskBus, None), random.Random(1), 0.0, 1e9)
    assert len(worker.signals) == 2
