"""The embedded Redis as a process: on loopback, with a password nobody can read elsewhere, ended by its own id."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

from serve_app.cli import region_redis
from serve_app.edge import ray_cluster, valkey, valkey_keeper
from serve_app.edge.ports_free import free_block


@pytest.fixture
def port() -> int:
    return free_block(1, random.SystemRandom())


@pytest.fixture
def record(tmp_path: Path, port: int) -> Iterator[dict[str, object]]:
    """A region's record with its Redis begun."""
    made: dict[str, object] = {"name": "cloud-a", "temp_dir": str(tmp_path / "ray")}
    region_redis.begin(made, tmp_path, port, tasks=False)
    yield made
    region_redis.end(made)


def keeper_of(record: dict[str, object]) -> psutil.Process:
    told = record["redis"]
    assert isinstance(told, dict)
    return psutil.Process(told["pid"])


def process_of(record: dict[str, object]) -> psutil.Process:
    """The server that runs now."""
    (server,) = keeper_of(record).children()
    return server


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_it_listens_on_loopback_alone_and_wants_its_password(record: dict[str, object], port: int) -> None:
    process = process_of(record)
    bound = {(c.laddr.ip, c.laddr.port) for c in process.net_connections() if c.status == psutil.CONN_LISTEN}
    assert bound == {("127.0.0.1", port)}
    password = Path(record["redis"]["password_file"]).read_text()  # type: ignore[index]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"GET grix:a\r\n")
        assert connection.recv(200).startswith(b"-NOAUTH")
        connection.sendall(f"AUTH {password}\r\n".encode())
        assert connection.recv(200) == b"+OK\r\n"
        # Its own keys, and nothing that ends, empties or rewrites the server.
        for command in ("SET other x", "FLUSHALL", "CONFIG GET requirepass", "SHUTDOWN", "ACL LIST"):
            connection.sendall(f"{command}\r\n".encode())
            assert connection.recv(500).startswith(b"-NOPERM"), command


@pytest.mark.parametrize(("tasks", "memory"), [(False, 256 << 20), (True, 512 << 20)])
def test_only_a_region_with_tasks_writes_them_down_and_has_room_for_them(
    tmp_path: Path, port: int, tasks: bool, memory: int
) -> None:
    record: dict[str, object] = {"name": "cloud-a", "temp_dir": str(tmp_path / "ray")}
    region_redis.begin(record, tmp_path, port, tasks=tasks)
    try:
        password = Path(record["redis"]["password_file"]).read_text()  # type: ignore[index]
        with Redis.from_url(f"redis://127.0.0.1:{port}/0", password=password) as client:
            client.set("grix:a", "1")
            told: Any = client.info("all")
        assert (told["maxmemory"], told["aof_enabled"]) == (memory, int(tasks))
        assert (tmp_path / "redis-log").exists() is tasks
    finally:
        region_redis.end(record)


def test_the_password_is_in_one_private_file_only(record: dict[str, object], tmp_path: Path) -> None:
    process = process_of(record)
    told = record["redis"]
    assert isinstance(told, dict)
    file = Path(told["password_file"])
    password = file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600 and len(password) == 64
    keeper = keeper_of(record)
    shown = [*process.cmdline(), *keeper.cmdline(), *process.environ().values(), *keeper.environ().values()]
    shown += [str(record), (tmp_path / "redis.log").read_text()]
    assert not any(password in text for text in shown)
    assert password not in valkey.settings(1, password, tasks=True)


def test_it_ends_with_the_region_and_once(record: dict[str, object], port: int) -> None:
    keeper, server = keeper_of(record), process_of(record)
    for process in (keeper, server):
        assert process.environ()[ray_cluster.MARK] == record["temp_dir"]
    assert region_redis.end(record) == [] and not server.is_running() and not keeper.is_running()
    assert region_redis.end(record) == []
    assert region_redis.end({"name": "cloud-b"}) == []


def test_a_server_that_was_killed_is_there_again(record: dict[str, object], port: int, tmp_path: Path) -> None:
    first = process_of(record)
    first.kill()
    until_s = time.monotonic() + 20
    while not (keeper_of(record).children() not in ([], [first]) and answers(port)):
        assert time.monotonic() < until_s
        time.sleep(0.01)
    assert process_of(record).pid != first.pid
    assert "ended with status -9; the next one starts in 0.2 s" in (tmp_path / "redis.log").read_text()
    assert region_redis.end(record) == [] and not answers(port)


def test_the_pause_grows_while_servers_end_soon() -> None:
    paused, waits = valkey_keeper.FIRST_PAUSE_S, []
    for ran_s in (0.0, 0.0, 0.0, 9.9, 0.0, 0.0, 0.0, 0.0, 10.0, 0.0):
        paused = valkey_keeper.pause_s(paused, ran_s)
        waits.append(paused)
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 0.1, 0.2]


def test_another_process_with_the_same_id_is_left_alone() -> None:
    assert valkey.stop(os.getpid(), 1.0) is True
    assert psutil.Process().is_running()


def test_a_port_that_is_taken_is_told_and_nothing_stays(tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match="did not come up"):
            valkey.start(taken.getsockname()[1], "p", tmp_path / "log", tmp_path, {}, tasks=False)
    assert set(psutil.Process().children(recursive=True)) == before


def test_a_machine_without_a_server_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(OSError, match=r"linux-riscv64.*redis: in the Federation"):
        valkey.binary()
