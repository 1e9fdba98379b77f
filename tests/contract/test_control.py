"""App grix-control on a real Ray cluster: it answers, comes back after its process was killed, ends with its app."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster_configs.bundle import Config
from serve_app.edge import ports_free, ray_cluster
from serve_app.edge.admin_client import Admin, AdminCallError, Unreachable
from serve_app.edge.fleet_documents import config_of
from serve_app.edge.ray_nodes import nodes_of
from serve_app.edge.serve_config import render_control
from serve_app.edge.serve_rest import ServeRest, ServeRestError
from tests.control import documents
from tests.pki import made

LIMIT_S = 120.0
#: What Ray does not know of the hardware, as ``grix up`` hands it on from its environment.
LABELS = '{"grix.io/vram-per-gpu": "24Gi"}'


@dataclass
class Cluster:
    """A control cluster, and how to talk to it."""

    rest: ServeRest
    admin: Admin
    rendered: dict[str, Any]
    metrics: str

    def until(self, holds: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
        deadline_s = time.monotonic() + limit_s
        while True:
            with suppress(AdminCallError, ServeRestError):
                found = holds()
                if found:
                    return found
            assert time.monotonic() < deadline_s, self.rest.status()
            time.sleep(0.1)

    def pid(self) -> int:
        """The coordinator's process."""
        app = self.rest.details()["applications"]["grix-control"]
        running = [r for r in app["deployments"]["GlobalCoordinator"]["replicas"] if r["state"] == "RUNNING"]
        return int(running[0]["pid"]) if running else 0


def configured(folder: Path, port: int) -> Config:
    return config_of(
        documents(
            coordinator={"address": f"127.0.0.1:{port}", "store": {"url": f"file://{folder / 'facts'}"}},
            pki={"folder": str(folder / "pki")},
        )
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("control")
    made(folder / "pki")
    token = secrets.token_hex(32)
    token_file = folder / "token"
    token_file.touch(0o600)
    token_file.write_text(token)
    first_port = ports_free.free_block(ray_cluster.BLOCK, random.SystemRandom())
    started_with = ray_cluster.Cluster(first_port, token_file, ray_cluster.new_temp_dir(), 1)
    port, metrics = started_with.federation_port, f"127.0.0.1:{started_with.spare_port}"
    root = str(Path(__file__).parents[2])
    process = ray_cluster.start(
        started_with, folder / "ray.log", {**os.environ, "PYTHONPATH": root, "RAY_OVERRIDE_LABELS": LABELS}
    )
    running = ray_cluster.Running(process.pid, ray_cluster.started_unix_s(process.pid), started_with.temp_dir)
    try:
        rendered = render_control(configured(folder, port), metrics=metrics)
        admin = Admin(f"127.0.0.1:{port}", folder / "pki" / "operator" / "admin")
        here = Cluster(ServeRest(started_with.dashboard, token), admin, rendered, metrics)
        here.until(lambda: here.rest.details() is not None)
        here.until(lambda: here.rest.put_config(rendered) is None)
        here.until(lambda: admin.do("status"))
        yield here
    finally:
        assert ray_cluster.stop(running) == []


def test_it_answers_operators_and_prometheus(cluster: Cluster) -> None:
    status = cluster.admin.do("status")
    assert [r["phase"] for r in status["regions"]] == ["joining"] * 3
    with urllib.request.urlopen(f"http://{cluster.metrics}/metrics", timeout=10) as answer:
        assert b"grix_control_serving 1.0" in answer.read()
    cluster.until(lambda: [(a.name, a.status) for a in cluster.rest.status()] == [("grix-control", "RUNNING")])


def test_the_node_is_told_with_its_resources_and_labels(cluster: Cluster) -> None:
    (row,) = cluster.rest.nodes()
    assert row["Alive"] and row["Labels"]["grix.io/vram-per-gpu"] == "24Gi"
    (node,) = nodes_of([row], "cloud-x", "cloud-a")
    assert (node.ready, node.cpus) == (True, 1.0) and node.memory_bytes > 0


def test_the_same_config_again_begins_nothing_anew(cluster: Cluster) -> None:
    before = cluster.admin.do("status")
    cluster.rest.put_config(cluster.rendered)
    cluster.until(lambda: cluster.rest.status()[0].status == "RUNNING")
    later_s = before["began_s_ago"] + 1.0
    after = cluster.until(lambda: (s := cluster.admin.do("status"))["began_s_ago"] > later_s and s)
    assert after["epoch"] == before["epoch"]


def test_a_killed_coordinator_comes_back_with_its_facts_and_a_later_epoch(cluster: Cluster) -> None:
    cluster.admin.do("drain", region="cloud-b")
    before, pid = cluster.admin.do("status"), cluster.pid()
    os.kill(pid, signal.SIGKILL)
    after = cluster.until(lambda: (s := cluster.admin.do("status"))["epoch"] > before["epoch"] and s, 60.0)
    assert [r["drained"] for r in after["regions"]] == [False, True, False]
    assert cluster.until(cluster.pid) != pid


def test_without_its_app_nobody_answers(cluster: Cluster) -> None:
    cluster.rest.put_config({**cluster.rendered, "applications": []})
    cluster.until(lambda: cluster.rest.status() == [])
    with pytest.raises(Unreachable):
        asyncio.run(Admin(cluster.admin._address, cluster.admin._folder, limit_s=2.0).ask("status"))
