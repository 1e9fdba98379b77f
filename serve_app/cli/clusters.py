"""One Ray cluster of this folder: prepared, started, given its Serve config, and waited for."""

from __future__ import annotations

import os
import random
import secrets
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from serve_app.cli.say import Failed, Progress
from serve_app.cli.state import Home, private_folder, write_private

if TYPE_CHECKING:
    from serve_app.edge.ray_cluster import Cluster
    from serve_app.edge.serve_rest import AppStatus, ServeRest

LEAST_CPUS: Final = 4
POLL_S: Final = 0.5
CLUSTER_LIMIT_S: Final = 180.0
TAIL_CHARS: Final = 3000

#: Whether what a cluster runs is well, and what it says about it.
Healthy = Callable[[], tuple[bool, str]]
#: Raises when what is to run cannot run on these nodes, rows of ``ray.nodes()``.
Suited = Callable[[Sequence[Mapping[str, Any]]], None]


#: What starts, one look at it after the other; it has started when there is no further one.
Starting = Iterator[None]
_STARTED: Final = object()


def together(starting: Iterable[Starting]) -> None:
    """Waits until all of them have started.

    While one loads a model with one core another one has the rest. What goes wrong with one is raised at once.
    """
    left = list(starting)
    while left:
        left = [one for one in left if next(one, _STARTED) is not _STARTED]
        time.sleep(POLL_S)


def prepare(home: Home, name: str, haproxy_total_s: float | None = None) -> tuple[Cluster, dict[str, Any]]:
    """A folder, a token, a block of ports; the cluster to start and what the state has to remember of it.

    Raises:
        Failed: without free ports, or with a temporary folder that Ray cannot use.
    """
    from serve_app.edge import ports_free, ray_cluster

    token_file = private_folder(home.region(name)) / "ray_token"
    write_private(token_file, secrets.token_hex(32))
    begun = [int(r["gcs"].rpartition(":")[2]) for r in home.records()]

    def free(port: int) -> bool:
        # A cluster that has only begun does not listen yet.
        return not any(first <= port < first + ray_cluster.BLOCK for first in begun) and ports_free.is_free(port)

    try:
        first_port = ports_free.free_block(ray_cluster.BLOCK, random.SystemRandom(), free)
        temp_dir = ray_cluster.new_temp_dir()
    except OSError as error:
        raise Failed(str(error)) from None
    cpus = max(LEAST_CPUS, os.cpu_count() or 1)
    cluster = ray_cluster.Cluster(first_port, token_file.resolve(), temp_dir, cpus, haproxy_total_s)
    record: dict[str, Any] = {
        "name": name,
        "dashboard": cluster.dashboard,
        "pids": [],
        "token_file": str(token_file.resolve()),
        "temp_dir": str(temp_dir),
        "gcs": cluster.gcs,
        "started_unix_s": time.time(),
    }
    return cluster, record


def start(
    cluster: Cluster, record: dict[str, Any], home: Home, environment: Mapping[str, str] = os.environ
) -> subprocess.Popen[bytes]:
    """Starts the head process, and remembers it."""
    from serve_app.edge import ray_cluster

    process = ray_cluster.start(cluster, log_file(home, record), environment)
    record |= {"pids": [process.pid], "started_unix_s": ray_cluster.started_unix_s(process.pid)}
    home.remember(record)
    return process


def log_file(home: Home, record: dict[str, Any]) -> Path:
    """What the head process says."""
    return home.region(record["name"]) / "ray.log"


def rest_of(record: dict[str, Any]) -> ServeRest:
    """Serve's REST interface of a cluster."""
    from serve_app.edge.serve_rest import ServeRest

    return ServeRest(record["dashboard"], Path(record["token_file"]).read_text().strip())


def deploy(
    record: dict[str, Any],
    serve_config: dict[str, Any],
    process: subprocess.Popen[bytes],
    home: Home,
    wait_s: float,
    progress: Progress,
    healthy: Healthy,
    suited: Suited = lambda _: None,
) -> Starting:
    """Puts the config once there is a node, and it is ``suited``; then waits until all of it runs and is ``healthy``.

    Raises:
        Failed: when the head process ends, Serve refuses, an application breaks, or ``wait_s`` passes.
    """
    from serve_app.edge.serve_rest import ServeRestError

    name, rest, log = record["name"], rest_of(record), log_file(home, record)
    until_s = progress.elapsed_s() + wait_s

    def head_lives() -> None:
        if process.poll() is not None:
            tail = log.read_text(errors="replace")[-TAIL_CHARS:] if log.is_file() else ""
            raise Failed(f"{name}: Ray's head process ended with status {process.returncode}; it said:\n{tail}")

    cluster_until_s = progress.elapsed_s() + min(wait_s, CLUSTER_LIMIT_S)
    while True:
        head_lives()
        progress.tell(f"{name}: Ray cluster {record['gcs']} is starting")
        try:
            rest.details()
            nodes = rest.nodes()
            if any(node["Alive"] for node in nodes):
                break
            fault = "its dashboard knows of no node that is alive"
        except ServeRestError as error:
            fault = str(error)
        if progress.elapsed_s() > cluster_until_s:
            raise Failed(f"{name}: Ray is not ready: {fault}")
        yield
    suited(nodes)
    try:
        rest.put_config(serve_config)
    except ServeRestError as error:
        raise Failed(f"{name}: Serve refused the config: {error}") from None
    while True:
        head_lives()
        told, ready = _progress_of(rest, name, log.with_name("failure.log"))
        if ready:
            well, said = healthy()
            told += f"; {said}"
            if well:
                progress.tell(f"{name}: {told}")
                return
        progress.tell(f"{name}: {told}")
        if progress.elapsed_s() > until_s:
            raise Failed(f"{name}: not ready after {wait_s:.0f} s (--wait): {told}")
        yield


def _last_words(told: str, failure_file: Path) -> str:
    """The line that says what went wrong; everything that was said goes to a file."""
    write_private(failure_file, told + "\n")
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    return f"{lines[-1][:500] if lines else 'no reason given'}\n  all that was said is in {failure_file}"


def _progress_of(rest: ServeRest, name: str, failure_file: Path) -> tuple[str, bool]:
    """Which application is in which state, and whether all of them run."""
    from serve_app.edge.serve_rest import BROKEN, ServeRestError

    try:
        apps: list[AppStatus] = rest.status()
    except ServeRestError as error:
        return f"no status ({error})"[:160], False
    for app in apps:
        if app.status in BROKEN:
            raise Failed(f"{name}: app {app.name} is {app.status}: {_last_words(app.told, failure_file)}")
    told = " · ".join(f"{a.name} {a.status}" for a in apps) or "Serve is starting"
    return told, bool(apps) and all(a.status == "RUNNING" for a in apps)
