"""One region's Ray cluster as a child process: started on loopback with a token, stopped without a trace.

``ray stop`` ends every cluster it can see, so it is never used: what belongs to a cluster is told by the session
its head process leads, by descent from it, and by the cluster's own temporary folder.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from serve_app.edge.health_key import hidden

#: In the environment of every process of a cluster: its temporary folder.
MARK: Final = "GRIX_CLUSTER"
#: In the same environment: where the cluster's dashboard is, for the one part that writes its Serve config.
DASHBOARD_VARIABLE: Final = "GRIX_DASHBOARD"
SERVICE_PORTS: Final = 16
#: Of Routers behind HAProxy: each one that ended keeps its port out of use for a while.
INGRESS_PORTS: Final = 31
#: Of Serve's own proxy behind HAProxy, for requests that come while no Router listens.
FALLBACK_OFFSET: Final = SERVICE_PORTS + INGRESS_PORTS
WORKERS_OFFSET: Final = FALLBACK_OFFSET + 1
WORKER_PORTS: Final = 152
BLOCK: Final = WORKERS_OFFSET + WORKER_PORTS
#: Ray's switch for HAProxy, in the environment of every process of a cluster.
HAPROXY_VARIABLE: Final = "RAY_SERVE_ENABLE_HA_PROXY"
OBJECT_STORE_BYTES: Final = 200 * 10**6
#: Ray puts sockets below its temporary folder, and a socket's path has at most 107 bytes.
LONGEST_TEMP_PARENT: Final = 30
TERM_WAIT_S: Final = 25.0
KILL_WAIT_S: Final = 5.0
#: Clocks of /proc are coarse: starts this near to each other are the same start.
SAME_START_S: Final = 2.0
#: Of the caller's environment, what would lead a child to another cluster or token.
_FOREIGN: Final = ("RAY_AUTH_TOKEN", "RAY_API_SERVER_ADDRESS", "RAY_TMPDIR", "RAY_NAMESPACE")
_SHM: Final = "/dev/shm/"


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a cluster is started with. ``first_port`` begins a block of :data:`BLOCK` free ports."""

    first_port: int
    token_file: Path
    temp_dir: Path
    num_cpus: int
    #: Behind HAProxy, with streams of at most so many seconds; ``None``: behind Serve's own proxy.
    haproxy_total_s: float | None = None

    @property
    def gcs(self) -> str:
        return f"127.0.0.1:{self.first_port}"

    @property
    def dashboard(self) -> str:
        return f"http://127.0.0.1:{self.first_port + 1}"

    @property
    def spare_port(self) -> int:
        """A port of the block that Ray does not get: for Serve's HTTP entry."""
        return self.first_port + 9

    @property
    def redis_port(self) -> int:
        """A port of the block that Ray does not get: for the region's embedded Redis."""
        return self.first_port + 14

    @property
    def federation_port(self) -> int:
        """A port of the block that Ray does not get: for what other clusters dial, gateway or coordinator."""
        return self.first_port + 15


@dataclass(frozen=True, slots=True)
class Running:
    """A cluster as the state file remembers it: its head process, when that started, and its folder.

    ``files`` are files in shared memory that were its own, with their inodes: what died before it could be asked.
    """

    pid: int | None
    started_unix_s: float
    temp_dir: Path
    files: Mapping[str, int] = field(default_factory=dict)


def new_temp_dir() -> Path:
    """A fresh folder (0700) with a path short enough for Ray's sockets.

    Raises:
        OSError: when the machine's temporary folder has too long a path.
    """
    parent = tempfile.gettempdir()
    if len(parent) > LONGEST_TEMP_PARENT:
        raise OSError(
            f"TMPDIR {parent} is too long for Ray's sockets; set one of at most {LONGEST_TEMP_PARENT} characters"
        )
    folder = Path(parent) / f"grix-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    return folder


def command(cluster: Cluster) -> list[str]:
    """The command line of the head process: every port named, so that none is left to a default."""
    first = cluster.first_port
    options: dict[str, object] = {
        "node-ip-address": "127.0.0.1",
        "port": first,
        "include-dashboard": "true",
        "dashboard-host": "127.0.0.1",
        "dashboard-port": first + 1,
        "dashboard-agent-listen-port": first + 2,
        "dashboard-agent-grpc-port": first + 3,
        "metrics-export-port": first + 4,
        "node-manager-port": first + 5,
        "object-manager-port": first + 6,
        "runtime-env-agent-port": first + 7,
        "ray-client-server-port": first + 8,
        "min-worker-port": first + WORKERS_OFFSET,
        "max-worker-port": first + BLOCK - 1,
        "num-cpus": cluster.num_cpus,
        "object-store-memory": OBJECT_STORE_BYTES,
        # Ray opens its folder to everybody (0777); one level down it stays behind a door that is closed.
        "temp-dir": cluster.temp_dir / "r",
    }
    flags = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats", *flags]


#: One loop and one process fewer on the way of a call, and gRPC instead of Ray's object store between replicas.
IN_PROCESS: Final = {
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    # What is there after the start stays; looking through it for garbage would stop every stream.
    "RAY_SERVE_FREEZE_GC_ON_STARTUP": "1",
}


def _haproxy(cluster: Cluster, total_s: float) -> dict[str, str]:
    """Profile ``fast``: HAProxy before Routers that listen themselves, its files and admin socket in a 0700 folder."""
    folder = cluster.temp_dir / "h"
    folder.mkdir(mode=0o700, exist_ok=True)
    first = cluster.first_port + SERVICE_PORTS
    return {
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        HAPROXY_VARIABLE: "1",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
        # A reloaded HAProxy ends its old workers after this, and with them their streams.
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(math.ceil(total_s) + 30),
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(cluster.first_port + 12),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(cluster.first_port + 13),
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(first),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(first + INGRESS_PORTS - 1),
        # Ray's default is one number for all: a second region of this machine would have no such proxy.
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(cluster.first_port + FALLBACK_OFFSET),
    }


def only_loopback() -> bool:
    """Whether no interface but loopback has an address: a machine, or a network namespace, that nobody else reaches."""
    outer = (socket.AF_INET, socket.AF_INET6)
    return all(
        ipaddress.ip_address(address.address.split("%")[0]).is_loopback
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family in outer
    )


def environment(cluster: Cluster, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of the cluster's processes: its own address and token, and no way to another cluster."""
    scratch = cluster.temp_dir / "t"
    kept = {name: value for name, value in base.items() if name not in _FOREIGN}
    ingress = {} if cluster.haproxy_total_s is None else _haproxy(cluster, cluster.haproxy_total_s)
    return (
        kept
        | IN_PROCESS
        | ingress
        | {
            MARK: str(cluster.temp_dir),
            DASHBOARD_VARIABLE: cluster.dashboard,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(cluster.token_file),
            "RAY_ADDRESS": cluster.gcs,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DISABLE_IMPORT_WARNING": "1",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            # Ray replaces 127.0.0.1 by an outer address, and then listens on every interface, unless clusters of
            # several machines are off; the switch has its name from where that is the default.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "AUTOSCALER_METRIC_PORT": str(cluster.first_port + 10),
            "DASHBOARD_METRIC_PORT": str(cluster.first_port + 11),
            # Before every HTTP server of Serve: bounded heads, and no header that Serve would stumble over.
            "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "serve_app.edge.http_guard:middlewares",
            # Ray's workers are nice by 15, and engines with them: anything else on the machine would starve them.
            "RAY_worker_niceness": "0",
            # A single node has nowhere to drain to.
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
            # A policy that names a hub says otherwise for its own engine.
            "HF_HUB_OFFLINE": "1",
            # What engines leave in the temporary folder goes away with the cluster.
            "TMPDIR": str(scratch),
            "PYTHONUNBUFFERED": "1",
        }
    )


def start(cluster: Cluster, log_file: Path, base: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts the head process in a session of its own, so that it outlives the command that started it."""
    (cluster.temp_dir / "t").mkdir(mode=0o700, exist_ok=True)
    with log_file.open("wb") as log:
        return subprocess.Popen(
            command(cluster),
            env=environment(cluster, hidden(base, cluster.temp_dir)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=cluster.temp_dir,
            start_new_session=True,
        )


def started_unix_s(pid: int) -> float:
    """When a process of ours started, 0.0 when it is gone already."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return 0.0


def leader(running: Running) -> psutil.Process | None:
    """The head process if it is alive; ``None`` also when its id belongs to another process by now."""
    if running.pid is None:
        return None
    try:
        process = psutil.Process(running.pid)
        same = abs(process.create_time() - running.started_unix_s) <= SAME_START_S
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None


def processes(running: Running) -> list[psutil.Process]:
    """Every living process of the cluster, the head included, this command and its parents never."""
    head = leader(running)
    found: dict[int, psutil.Process] = {}
    if head is not None:
        with contextlib.suppress(psutil.Error):
            found |= {p.pid: p for p in [head, *head.children(recursive=True)]}
    session = _session(running)
    folder = str(running.temp_dir)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if _belongs(process, session, folder, running.started_unix_s):
                found[process.pid] = process
                found |= {p.pid: p for p in process.children(recursive=True)}
    me = psutil.Process()
    for own in [me, *me.parents()]:
        found.pop(own.pid, None)
    return [p for p in found.values() if _alive(p)]


def _session(running: Running) -> int | None:
    """The session the head leads or led: an id is not given away while its session has members."""
    if running.pid is None or (psutil.pid_exists(running.pid) and leader(running) is None):
        return None
    return running.pid


def _belongs(process: psutil.Process, session: int | None, folder: str, started_s: float) -> bool:
    same_session = session is not None and os.getsid(process.pid) == session
    if same_session and process.create_time() >= started_s - SAME_START_S:
        return True
    if process.environ().get(MARK) == folder:
        return True
    return any(folder + "/" in part or part.endswith(folder) for part in _ray_words(process))


def _ray_words(process: psutil.Process) -> list[str]:
    """The command line of Ray's own programs; anybody else may name a folder without belonging to it."""
    words = process.cmdline()
    return words if any("ray" in Path(w).name or "/ray/" in w for w in words[:3]) else []


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def shared_memory(found: list[psutil.Process]) -> set[Path]:
    """Files in shared memory that these processes have mapped; a killed process leaves them.

    They are told by inode: a semaphore is mapped under a name it had only while it was made.
    """
    inodes = set()
    for process in found:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process.pid}/maps").read_text(errors="replace").splitlines():
                if f" {_SHM}" in line:
                    inodes.add(int(line.split(None, 5)[4]))
    with contextlib.suppress(OSError):
        return {file for file in Path(_SHM).iterdir() if file.lstat().st_ino in inodes}
    return set()


def _inode(file: Path) -> int | None:
    try:
        return file.lstat().st_ino
    except OSError:
        return None


def shared_files(running: Running) -> dict[str, int]:
    """The cluster's files in shared memory with their inodes, to be remembered in :class:`Running`."""
    found = {str(file): _inode(file) for file in shared_memory(processes(running))}
    return {file: inode for file, inode in found.items() if inode is not None}


def stop(running: Running) -> list[int]:
    """Ends the cluster: its head stops its own, what is left is told, then killed. Returns ids that survive."""
    found = processes(running)
    files = shared_memory(found) | {Path(f) for f, inode in running.files.items() if _inode(Path(f)) == inode}
    head = leader(running)
    if head is not None:
        head.send_signal(signal.SIGTERM)
        _wait_gone(running, TERM_WAIT_S)
    for signum, limit_s in ((signal.SIGTERM, KILL_WAIT_S), (signal.SIGKILL, KILL_WAIT_S)):
        left = {p.pid: p for p in [*(p for p in found if _alive(p)), *processes(running)]}
        files |= shared_memory(list(left.values()))
        for process in left.values():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signum)
        if left:
            psutil.wait_procs(list(left.values()), timeout=limit_s)
    survivors = [p.pid for p in {*found, *processes(running)} if _alive(p)]
    if not survivors:
        for file in files:
            file.unlink(missing_ok=True)
        shutil.rmtree(running.temp_dir, ignore_errors=True)
    return survivors


def _wait_gone(running: Running, limit_s: float) -> None:
    """Waits until the head is gone, which waits for its own children. Reaps it where it is this command's child."""
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        if running.pid is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(running.pid, os.WNOHANG)
        if leader(running) is None:
            return
        time.sleep(0.1)
