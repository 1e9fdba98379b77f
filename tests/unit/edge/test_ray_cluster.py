"""A cluster's command line and environment; ending processes is tried on small ones of our own."""

from __future__ import annotations

import os
import random
import socket
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from serve_app.edge import ports_free, ray_cluster
from serve_app.edge.ports_free import HIGHEST, LOWEST, free_block, is_free
from serve_app.edge.ray_cluster import BLOCK, MARK, Cluster, Running

CLUSTER = Cluster(20_000, Path("/secret/token"), Path("/short/grix-1"), 4)


def test_every_port_is_named_once_inside_the_block() -> None:
    words = ray_cluster.command(CLUSTER)
    ports = [int(w.split("=")[1]) for w in words if "port=" in w and not w.startswith("--include")]
    assert len(ports) == len(set(ports)) == 11
    assert min(ports) == 20_000 and max(ports) == 20_000 + BLOCK - 1
    env = ray_cluster.environment(CLUSTER, {})
    metrics = {int(env[n]) for n in ("AUTOSCALER_METRIC_PORT", "DASHBOARD_METRIC_PORT")}
    assert len({*ports, *metrics, CLUSTER.spare_port}) == 14


def test_haproxy_has_its_own_ports_a_closed_folder_and_outlives_the_longest_stream(tmp_path: Path) -> None:
    cluster = Cluster(20_000, Path("/secret/token"), tmp_path, 4, haproxy_total_s=600.0)
    env = ray_cluster.environment(cluster, {})
    assert env["RAY_SERVE_ENABLE_HA_PROXY"] == "1" and env["RAY_SERVE_HAPROXY_METRICS_ENABLED"] == "0"
    assert int(env["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"]) >= 600
    folder = Path(env["RAY_SERVE_HAPROXY_SOCKET_PATH"]).parent
    assert folder.is_relative_to(tmp_path) and stat.S_IMODE(folder.stat().st_mode) == 0o700
    bounds = ("MIN", "MAX")
    low, high = (int(env[f"RAY_SERVE_DIRECT_INGRESS_{bound}_HTTP_PORT"]) for bound in bounds)
    named = {int(w.split("=")[1]) for w in ray_cluster.command(cluster) if "port=" in w and not w.startswith("--incl")}
    workers = {int(w.split("=")[1]) for w in ray_cluster.command(cluster) if "worker-port" in w}
    single = ("HAPROXY_STATS_PORT", "HAPROXY_METRICS_PORT", "FALLBACK_PROXY_HTTP_PORT")
    own = {*(int(env[f"RAY_SERVE_{name}"]) for name in single), *range(low, high + 1)}
    assert not own & named and max(own) < min(workers) and len(own) == 34
    assert "RAY_SERVE_ENABLE_HA_PROXY" not in ray_cluster.environment(CLUSTER, {})


def test_loopback_only_and_no_stop_command() -> None:
    words = ray_cluster.command(CLUSTER)
    assert "--node-ip-address=127.0.0.1" in words and "--dashboard-host=127.0.0.1" in words
    assert ray_cluster.environment(CLUSTER, {})["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"


def test_environment_leads_to_no_other_cluster() -> None:
    base = {"RAY_ADDRESS": "10.0.0.1:6379", "RAY_AUTH_TOKEN": "other", "RAY_AUTH_MODE": "disabled", "HOME": "/h"}
    env = ray_cluster.environment(CLUSTER, base)
    assert env["RAY_ADDRESS"] == "127.0.0.1:20000"
    assert env["RAY_AUTH_MODE"] == "token" and env["RAY_AUTH_TOKEN_PATH"] == "/secret/token"
    assert "RAY_AUTH_TOKEN" not in env and env["HOME"] == "/h"
    assert base["RAY_ADDRESS"] == "10.0.0.1:6379"


def test_new_temp_dir_is_private_and_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ray_cluster.tempfile, "gettempdir", lambda: str(tmp_path)[:1] + "x" * 30)
    with pytest.raises(OSError, match="too long"):
        ray_cluster.new_temp_dir()
    monkeypatch.setattr(ray_cluster, "LONGEST_TEMP_PARENT", 1000)
    monkeypatch.setattr(ray_cluster.tempfile, "gettempdir", lambda: str(tmp_path))
    assert stat.S_IMODE(ray_cluster.new_temp_dir().stat().st_mode) == 0o700


def test_free_block_skips_what_is_taken() -> None:
    taken = set(range(LOWEST, HIGHEST)) - set(range(LOWEST + 600, LOWEST + 800))
    for seed in range(5):
        assert free_block(200, random.Random(seed), lambda p: p not in taken) == LOWEST + 600
    with pytest.raises(OSError, match="no 200 free ports"):
        free_block(200, random.Random(0), lambda p: False)


def test_is_free_sees_a_listener() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert not is_free(port)
    assert is_free(port)


SLEEP = "import time; time.sleep(600)"
#: A head that ignores SIGTERM, with a child in another session that only the mark gives away.
STUBBORN = (
    "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    f"c = subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True);"
    "print(c.pid, flush=True); time.sleep(600)"
)


def _start(code: str, folder: Path, **options: object) -> subprocess.Popen[str]:
    env = {**os.environ, MARK: str(folder)}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True, start_new_session=True, **options
    )


def test_stop_ends_head_children_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "TERM_WAIT_S", 0.3)
    monkeypatch.setattr(ray_cluster, "KILL_WAIT_S", 0.5)
    folder = tmp_path / "grix-x"
    folder.mkdir()
    head = _start(STUBBORN, folder)
    assert head.stdout is not None
    child = int(head.stdout.readline())
    running = Running(head.pid, ray_cluster.started_unix_s(head.pid), folder)
    assert {head.pid, child} <= {p.pid for p in ray_cluster.processes(running)}
    assert ray_cluster.stop(running) == []
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    assert not folder.exists()
    head.wait()
    head.stdout.close()


def test_an_orphan_is_found_by_its_mark(tmp_path: Path) -> None:
    orphan = _start(SLEEP, tmp_path / "mine")
    other = _start(SLEEP, tmp_path / "other")
    try:
        found = [p.pid for p in ray_cluster.processes(Running(None, 0.0, tmp_path / "mine"))]
        assert found == [orphan.pid]
    finally:
        for process in (orphan, other):
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def test_a_recycled_id_is_not_ours(tmp_path: Path) -> None:
    stranger = _start(SLEEP, tmp_path / "other")
    try:
        running = Running(stranger.pid, ray_cluster.started_unix_s(stranger.pid) - 100.0, tmp_path / "mine")
        assert ray_cluster.leader(running) is None
        assert ray_cluster.processes(running) == []
    finally:
        stranger.kill()
        stranger.wait()
        assert stranger.stdout is not None
        stranger.stdout.close()


MAPPED = (
    "import mmap, os, time; f = open(os.environ['FILE'] + '.draft', 'w+b'); f.truncate(4096);"
    "m = mmap.mmap(f.fileno(), 4096); os.rename(f.name, os.environ['FILE']); print(flush=True); time.sleep(600)"
)


def test_shared_memory_of_a_killed_process_goes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = (Path("/dev/shm") / f"grix-test-{os.getpid()}-{n}" for n in ("mine", "other"))
    other.write_bytes(b"x")
    monkeypatch.setenv("FILE", str(mine))
    head = _start(MAPPED, tmp_path / "x")
    try:
        assert head.stdout is not None
        head.stdout.readline()
        running = Running(head.pid, ray_cluster.started_unix_s(head.pid), tmp_path / "x")
        assert ray_cluster.shared_memory(ray_cluster.processes(running)) == {mine}
        assert ray_cluster.stop(running) == []
        assert not mine.exists() and other.exists()
    finally:
        head.kill()
        head.wait()
        mine.unlink(missing_ok=True)
        other.unlink()
        if head.stdout is not None:
            head.stdout.close()


def test_remembered_files_go_when_they_are_still_the_same(tmp_path: Path) -> None:
    same, other = tmp_path / "same", tmp_path / "other"
    same.write_bytes(b"x")
    other.write_bytes(b"x")
    inode = same.stat().st_ino
    running = Running(None, 0.0, tmp_path / "none", {str(same): inode, str(other): inode, "/no/such": 1})
    assert ray_cluster.stop(running) == []
    assert not same.exists() and other.exists()


def test_a_held_port_is_only_for_a_server_that_shares_it() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    holder = ports_free.hold(port)
    assert holder is not None
    with holder, socket.socket() as server:
        assert ports_free.hold(port) is None and not ports_free.is_free(port)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
        with socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()
