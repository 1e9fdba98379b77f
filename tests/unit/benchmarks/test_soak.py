"""What a soak reads and how it judges; the region itself is not started."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from benchmarks.soak import Peak, Row, table
from benchmarks.soak_watch import (
    METRICS_PORT_OFFSET,
    growth_ratio,
    in_flight_of,
    memory_of,
    not_zero,
    parts_of,
    private_bytes,
    until,
)
from serve_app.edge import ray_cluster

TEXT = """# HELP ray_serve_ongoing x
# TYPE ray_serve_ongoing gauge
ray_serve_ongoing{replica="a"} 2.0
ray_serve_ongoing{replica="b"} 0.0
# TYPE ray_serve_num_ongoing_http_requests_total counter
ray_serve_num_ongoing_http_requests_total 7
# TYPE ray_serve_autoscaling_target_ongoing_requests gauge
ray_serve_autoscaling_target_ongoing_requests 64
# TYPE ray_node_cpu gauge
ray_node_cpu 3
# TYPE grix_in_flight gauge
grix_in_flight 1
"""


def test_only_gauges_of_work_in_flight_count() -> None:
    found = in_flight_of(TEXT)
    assert len(found) == 3 and found['ray_serve_ongoing{replica="b"}'] == 0.0
    assert not_zero(found) == {'ray_serve_ongoing{replica="a"}': 2.0, "grix_in_flight": 1.0}


def test_the_exporter_is_where_the_cluster_puts_it(tmp_path: Path) -> None:
    command = ray_cluster.command(ray_cluster.Cluster(20_000, tmp_path / "token", tmp_path, 4))
    assert f"--metrics-export-port={20_000 + METRICS_PORT_OFFSET}" in command


def test_growth_is_against_the_middle() -> None:
    assert growth_ratio([100, 150, 200, 200, 202]) == pytest.approx(0.01)
    assert growth_ratio([100, 150]) is None and growth_ratio([0, 0, 0]) is None


def test_waiting_ends_when_it_is_done_or_too_late() -> None:
    answers = iter([False, False, True])
    assert until(lambda: next(answers), 60.0, 0.0) is not None
    assert until(lambda: False, 0.0, 0.0) is None


def test_memory_of_this_process_and_of_none() -> None:
    assert private_bytes(os.getpid()) > 2**20
    assert memory_of({"me": [os.getpid()], "nobody": []})["nobody"] == 0


def test_parts_are_told_by_what_processes_are_called() -> None:
    class Named:
        def __init__(self, pid: int, called: str) -> None:
            self.pid, self._called = pid, called

        def cmdline(self) -> list[str]:
            if not self._called:
                raise psutil.NoSuchProcess(self.pid)
            return [self._called]

    named = [Named(1, "ray::ServeReplica:grix:Router"), Named(2, ""), Named(3, "VLLM::EngineCore"), Named(4, "sh")]
    assert parts_of(named) == {"Router": [1], "engine core": [3]}  # type: ignore[arg-type]


def test_the_largest_reading_is_kept() -> None:
    readings = iter([{"Router": 5}])
    with Peak(lambda: next(readings, {"Router": 3})) as peak:
        pass
    assert peak.bytes == {"Router": 5}


def test_table_marks_what_is_missed() -> None:
    text = table([Row("a", "1", "0", False), Row("long", "2", "2", True), Row("told", "x")])
    assert [line.split() for line in text.splitlines()] == [
        *(["a", "1", "0", "MISSED"], ["long", "2", "2", "ok"], ["told", "x"])
    ]
