"""The relay as its users have it: a process, real sockets, and exact behaviour."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from serve_app.edge.tcp_relay import Relay, Setting


@dataclass
class Line:
    """A relay with one link, and what listens at its far end."""

    relay: Relay
    port: int
    far: socket.socket

    def set(self, **fields: Any) -> dict[str, Any]:
        return dict(self.relay.set({"a>b": fields})["a>b"])

    def dial(self) -> socket.socket:
        near = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        return near

    def pair(self) -> tuple[socket.socket, socket.socket]:
        near = self.dial()
        far, _ = self.far.accept()
        far.settimeout(10)
        return near, far


@pytest.fixture(scope="module")
def process() -> Iterator[tuple[Relay, int]]:
    with tempfile.TemporaryDirectory(prefix="relay-") as folder:
        command = [sys.executable, "-m", "serve_app.edge.tcp_relay", folder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as relay:
            assert relay.stdin is not None and relay.stdout is not None
            try:
                with socket.create_server(("127.0.0.1", 0)) as taken:
                    listen = [f"127.0.0.1:{taken.getsockname()[1]}", "127.0.0.1:0"]
                    relay.stdin.write(json.dumps({"a>b": {"listen": listen, "target": "127.0.0.1:1"}}).encode())
                    relay.stdin.close()
                    ports = json.loads(relay.stdout.readline())
                    assert ports["a>b"] != taken.getsockname()[1]
                yield Relay(Path(folder) / "relay.sock"), ports["a>b"]
                relay.terminate()
                assert relay.wait(10) == 0
            finally:
                relay.kill()


@pytest.fixture
def line(process: tuple[Relay, int]) -> Iterator[Line]:
    relay, port = process
    with socket.create_server(("127.0.0.1", 0)) as far:
        far.settimeout(10)
        relay.set({"a>b": {"flow": "cut"}})
        plain = {"target": f"127.0.0.1:{far.getsockname()[1]}", "flow": "open", "delay_ms": 0.0, "bytes_per_s": None}
        relay.set({"a>b": plain})
        yield Line(relay, port, far)


def all_of(source: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size and (piece := source.recv(1 << 16)):
        got += piece
    return got


def silent(source: socket.socket, for_s: float) -> bool:
    return not select.select([source], [], [], for_s)[0]


def test_bytes_pass_whole_and_in_order_both_ways_and_ends_too(line: Line) -> None:
    near, far = line.pair()
    sent = bytes(range(256)) * 20_000  # more than all buffers on the way
    writer = threading.Thread(target=near.sendall, args=(sent,))
    writer.start()
    assert all_of(far, len(sent)) == sent
    writer.join()
    near.shutdown(socket.SHUT_WR)
    assert far.recv(1) == b""
    far.sendall(b"answer after the end of the question")
    far.close()
    assert all_of(near, 1 << 20) == b"answer after the end of the question"
    near.close()


def test_a_delay_is_each_way_and_keeps_the_order(line: Line) -> None:
    near, far = line.pair()
    assert line.set(delay_ms=80)["delay_ms"] == 80
    began_s = time.monotonic()
    near.sendall(b"one ")
    near.sendall(b"two")
    assert all_of(far, 7) == b"one two"
    there_s = time.monotonic() - began_s
    far.sendall(b"back")
    assert all_of(near, 4) == b"back"
    assert there_s >= 0.08 and time.monotonic() - began_s >= 0.16
    near.close()
    far.close()


def test_a_throttled_line_lets_through_what_its_rate_allows(line: Line) -> None:
    near, far = line.pair()
    line.set(bytes_per_s=20_000)
    began_s = time.monotonic()
    near.sendall(b"x" * 6_000)
    assert all_of(far, 1) == b"x" * 1_000  # 50 ms of it: the first step, long before the last
    assert all_of(far, 5_000) == b"x" * 5_000
    assert time.monotonic() - began_s >= 0.3
    near.close()
    far.close()


def test_a_stalled_line_keeps_its_connections_and_what_is_on_the_way(line: Line) -> None:
    near, far = line.pair()
    assert line.set(flow="stalled")["connections"] == 1
    near.sendall(b"held")
    far.sendall(b"back")
    assert silent(far, 0.15) and silent(near, 0.01)
    # Whoever dials now is let in, and reaches nobody.
    second = line.dial()
    second.sendall(b"second")
    assert silent(line.far, 0.05)
    line.set(flow="open")
    assert (all_of(far, 4), all_of(near, 4)) == (b"held", b"back")
    other, _ = line.far.accept()
    assert all_of(other, 6) == b"second"
    for end in (near, far, second, other):
        end.close()


def test_a_cut_line_resets_and_refuses_and_comes_back_at_the_same_port(line: Line) -> None:
    near, far = line.pair()
    line.set(flow="cut")
    for end in (near, far):
        with pytest.raises(ConnectionResetError):
            end.recv(1)
        end.close()
    with pytest.raises(ConnectionRefusedError):
        line.dial()
    assert line.set()["connections"] == 0
    assert line.set(flow="open")["port"] == line.port
    near, far = line.pair()
    near.sendall(b"again")
    assert all_of(far, 5) == b"again"
    near.close()
    far.close()


def test_what_was_held_when_the_line_is_cut_never_arrives(line: Line) -> None:
    near, far = line.pair()
    line.set(flow="stalled")
    near.sendall(b"lost")
    assert silent(far, 0.05)
    line.set(flow="cut")
    with pytest.raises(ConnectionResetError):
        far.recv(4)
    near.close()
    far.close()


def test_a_reset_at_one_end_is_a_reset_at_the_other(line: Line) -> None:
    near, far = line.pair()
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    far.close()
    with pytest.raises(ConnectionResetError):
        near.recv(1)
    near.close()


def test_a_target_that_is_not_there_is_a_reset_and_a_new_target_is_reached(line: Line) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(10)
        line.set(target="127.0.0.1:1")
        with pytest.raises(ConnectionResetError), line.dial() as near:
            near.recv(1)
        line.set(target=f"127.0.0.1:{other.getsockname()[1]}")
        near = line.dial()
        far, _ = other.accept()
        near.sendall(b"here")
        assert all_of(far, 4) == b"here"
        near.close()
        far.close()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"a>c": {}}, "there is no link a>c; allowed: a>b"),
        ({"a>b": {"flow": "shut"}}, "flow 'shut'; allowed: open, stalled, cut"),
        ({"a>b": {"delay_ms": -1}}, "delay_ms -1; allowed: 0 to 60000"),
        ({"a>b": {"delay_ms": "5"}}, "delay_ms '5'; allowed: 0 to 60000"),
        ({"a>b": {"bytes_per_s": 0}}, "bytes_per_s 0; allowed: 1 to 1e12, or null"),
        ({"a>b": {"target": "nowhere"}}, "'nowhere' is no address; allowed: HOST:PORT"),
        ({"a>b": {"delay_s": 1}}, "delay_s is no setting of a link; allowed: target, flow, delay_ms, bytes_per_s"),
        ({"a>b": {"flow": "cut"}, "a>c": {}}, "there is no link a>c; allowed: a>b"),
    ],
)
def test_a_wrong_command_is_refused_whole(line: Line, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError) as refused:
        line.relay.set(changes)
    assert str(refused.value) == told
    assert line.relay.links()["a>b"] == {
        "target": f"127.0.0.1:{line.far.getsockname()[1]}",
        "flow": "open",
        "delay_ms": 0.0,
        "bytes_per_s": None,
        "port": line.port,
        "connections": 0,
    }


def test_only_its_own_user_may_enter_the_control_socket(line: Line) -> None:
    assert line.relay.control.parent.stat().st_mode & 0o077 == 0


def test_a_setting_is_checked_without_a_relay() -> None:
    assert Setting("127.0.0.1:5").changed(delay_ms=3, flow="stalled") == Setting("127.0.0.1:5", "stalled", 3)
