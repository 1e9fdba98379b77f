"""Servers as children of a benchmark: started in a session of their own, stopped by its id, CPU read from ``/proc``."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
TERM_WAIT_S: Final = 20.0
TAIL_CHARS: Final = 2000

#: CPU ticks by process, told apart by id and start: an id may be given away again.
Cpu = Mapping[tuple[int, int], int]


class BenchmarkError(Exception):
    """The benchmark cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Stat:
    """What is used of ``/proc/PID/stat``."""

    session: int
    ticks: int
    started_ticks: int
    zombie: bool


def parse_stat(text: str) -> Stat:
    """The command's name may hold blanks and brackets, so fields count from the last bracket."""
    fields = text.rpartition(")")[2].split()
    return Stat(int(fields[3]), int(fields[11]) + int(fields[12]), int(fields[19]), fields[0] == "Z")


def read_stat(pid: int) -> Stat | None:
    """``None`` when the process is gone."""
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_text())
    except (OSError, IndexError, ValueError):
        return None


def in_session(session: int) -> list[int]:
    """Living processes of a session."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            stat = read_stat(int(entry))
            if stat is not None and stat.session == session and not stat.zombie:
                found.append(int(entry))
    return found


def cpu_of(pids: Iterable[int]) -> dict[tuple[int, int], int]:
    """CPU ticks that processes have used so far."""
    out = {}
    for pid in pids:
        stat = read_stat(pid)
        if stat is not None:
            out[(pid, stat.started_ticks)] = stat.ticks
    return out


def spent_s(before: Cpu, after: Cpu) -> float:
    """CPU seconds between two readings. A process that began between them counts whole, one that ended not at all."""
    return sum(ticks - before.get(key, 0) for key, ticks in after.items()) / TICKS_PER_S


def busy_ticks(text: str | None = None) -> int:
    """CPU ticks of the whole machine that were not idle, those that a host gave to others included."""
    line = (text if text is not None else Path("/proc/stat").read_text()).splitlines()[0]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, line.split()[1:9])
    return user + nice + system + irq + softirq + steal


def free_port() -> int:
    """A loopback port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Child:
    """A server we started; it leads a session."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def pids(self) -> list[int]:
        return in_session(self.process.pid)

    def check(self) -> None:
        """Raises BenchmarkError with the server's last words when it has ended."""
        if self.process.poll() is not None:
            raise BenchmarkError(f"{self.name} ended with status {self.process.returncode}; it said:\n{self.tail()}")

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-TAIL_CHARS:]

    def stop(self) -> None:
        """Tells the whole session to end, then makes it."""
        for signum in (signal.SIGTERM, signal.SIGKILL):
            until_s = time.monotonic() + TERM_WAIT_S
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)
            while time.monotonic() < until_s:
                self.process.poll()
                if not self.pids():
                    return
                time.sleep(0.1)


def start(name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> Child:
    """Starts a server with ``environment`` on top of ours; what it says goes to a file in ``folder``."""
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            list(command),
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
    return Child(name, process, log)
