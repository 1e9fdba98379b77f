"""A region's record in the state: is it alive, how to reach it, how to end it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from serve_app.cli import region_redis
from serve_app.cli.client import Client
from serve_app.cli.say import Failed, Progress
from serve_app.cli.state import Home

NOTHING_UP = "no region is up in this folder; start one with: grix up"


def running(record: dict[str, Any]) -> Any:
    """The record as ``ray_cluster`` wants it."""
    from serve_app.edge.ray_cluster import Running

    pids = record["pids"]
    return Running(
        pids[0] if pids else None,
        float(record.get("started_unix_s", 0.0)),
        Path(record["temp_dir"]),
        record.get("shared_memory", {}),
    )


def is_alive(record: dict[str, Any]) -> bool:
    """Whether the head process of a region is there."""
    from serve_app.edge import ray_cluster

    return ray_cluster.leader(running(record)) is not None


def client(record: dict[str, Any]) -> Client:
    """A client with the region's own key.

    Raises:
        Failed: when the key file is gone.
    """
    try:
        key = Path(record["key_file"]).read_text().strip()
        return Client(record["url"], key, certificate=record.get("tls_certificate"))
    except OSError as error:
        raise Failed(f"{record['key_file']}: cannot be read: {error.strerror}; run grix down, then grix up") from None


def first_up(home: Home) -> dict[str, Any]:
    """The first region that is alive.

    Raises:
        Failed: when none is.
    """
    for record in home.read()["regions"]:
        if is_alive(record):
            return dict(record)
    raise Failed(NOTHING_UP)


def deep_health(record: dict[str, Any], timeout_s: float = 10.0) -> tuple[bool, Any]:
    """Whether the region's engines make tokens, and what it says about it."""
    try:
        reply = client(record).ask("GET", "/healthz?deep=1", timeout_s=timeout_s)
    except Failed as error:
        return False, str(error)
    return reply.status == 200, reply.body


def short_health(said: Any) -> str:
    """The report of a deep health check in a few words."""
    if isinstance(said, dict) and isinstance(said.get("engines"), dict):
        silent = sorted(app for app, alive in said["engines"].items() if not alive)
        return f"no token from {', '.join(silent)}" if silent else "every engine makes tokens"
    return str(said)[:160]


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Cleaning up is not to be cut short by a second Ctrl-C."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {s: signal.signal(s, signal.SIG_IGN) for s in signals}
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


def end(record: dict[str, Any], home: Home, progress: Progress, *, keep_log: bool = False) -> None:
    """Ends a region's processes and removes its files.

    Raises:
        Failed: when a process survives even SIGKILL; the record is kept then.
    """
    from serve_app.edge import ray_cluster

    name = record["name"]
    with uninterrupted():
        progress.tell(f"{name}: stopping {len(ray_cluster.processes(running(record)))} processes")
        survivors = ray_cluster.stop(running(record)) + region_redis.end(record)
        if survivors:
            raise Failed(f"{name}: processes {', '.join(map(str, survivors))} do not end; run grix down again")
        home.forget(name, keep_log=keep_log)
        progress.tell(f"{name}: down, nothing left")
