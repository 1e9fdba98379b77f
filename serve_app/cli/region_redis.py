"""The embedded Redis of a region: begun and ended with it, and remembered in its record of the state."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from serve_app.cli.say import Failed
from serve_app.cli.state import write_private


def begin(record: dict[str, Any], folder: Path, port: int, *, tasks: bool) -> None:
    """Starts it with a new password, which stands in a file of the region's folder and nowhere else.

    ``tasks``: the region takes some, which have to outlive it.

    Raises:
        Failed: when it does not come up.
    """
    from serve_app.edge import ray_cluster, valkey

    password, password_file = secrets.token_hex(32), folder / "redis_password"
    write_private(password_file, password)
    # The cluster's mark: a command that dies right now leaves what finds the server.
    environment = {ray_cluster.MARK: record["temp_dir"], "PATH": os.environ.get("PATH", "")}
    try:
        server = valkey.start(port, password, folder / "redis.log", folder, environment, tasks=tasks)
    except OSError as error:
        raise Failed(f"{record['name']}: {error}") from None
    record["redis"] = {
        "pid": server.pid,
        "started_unix_s": server.started_unix_s,
        "url": server.url,
        "password_file": str(password_file.resolve()),
        "log": tasks,
    }


def use(record: dict[str, Any], serve_config: dict[str, Any]) -> None:
    """Tells the region's Routers of it."""
    from serve_app.edge import serve_config as rendered

    redis = record["redis"]
    rendered.use_redis(serve_config, redis["url"], redis["password_file"], log=redis["log"])


def use_task_secret(folder: Path, serve_config: dict[str, Any]) -> None:
    """Tells Routers and workers the region's secret for tasks. It stays from start to start, as tasks do."""
    from serve_app.edge import serve_config as rendered

    file = folder / "task_secret"
    if not file.exists():
        write_private(file, secrets.token_hex(32))
    rendered.use_task_secret(serve_config, str(file.resolve()))


def end(record: dict[str, Any]) -> list[int]:
    """Ends it, by its own process id. Returns the id if it survives."""
    from serve_app.edge import valkey

    told = record.get("redis")
    if told is None or valkey.stop(told["pid"], told["started_unix_s"]):
        return []
    return [told["pid"]]
