"""The guard of a replica: a small process of its own that leaves no engine behind, and no frozen replica alive.

vLLM's engine is one or more processes beside the replica's. A replica that is killed cannot end them, a frozen one
cannot even be asked to; and Serve, which knows nothing of them, waits for a frozen replica as long as a stream may
last. So each replica starts a guard before its engine. The guard reads beats from a pipe:

* the pipe ends: the replica is gone, however it went. Its engine is killed, and the guard ends.
* no beat for :data:`FROZEN_AFTER_S`: the replica hangs. It is killed with its engine; Serve sees a dead actor at once.
  One that only waits for a processor does not hang, so little of that time counts.
* a start that has not settled in its time: the same, for it may hang where nothing else can end it.

Run as a script: the standard library only, started isolated and without ``site``, so that it costs a few megabytes.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

#: A replica whose event loop has not run for so long hangs. Longer than anything that may block a loop, and shorter
#: than calls wait in a queue: what a frozen replica never accepted, Serve still gives to another one.
FROZEN_AFTER_S = 6.0
TICK_S = 0.5
#: A starting engine is looked at more often: a process that is not known yet would be orphaned with its replica.
STARTING_TICK_S = 0.1
#: The most that a tick may count for: while the machine sleeps the guard does not run, so nobody was silent.
LONGEST_TICK_S = 1.0
#: So much of the time in which a silent replica waits for a processor counts all the same.
WAITING_RATIO = 0.1

#: A process: its id, and the time it started, because ids come back.
Process = tuple[int, str]
#: Threads by id: the letter of their state, and for how many ns they ever ran, and waited for a processor. A kernel
#: that does not count this (one without ``CONFIG_SCHED_INFO``) says nothing, and nobody is found to wait.
Threads = dict[int, tuple[str, int, int]]


def started(pid: int) -> str | None:
    """When a process started, in clock ticks since boot; ``None`` when there is none, or only its exit status."""
    try:
        # The name in brackets may hold anything, brackets too.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def descendants(pid: int) -> set[Process]:
    """Children of a process, their children, and so on. A process whose parent died first is nobody's any more."""
    found: set[Process] = set()
    todo = [pid]
    while todo:
        # A thread that ends while its list is read, or the whole process.
        with contextlib.suppress(OSError):
            lists = [(task / "children").read_text() for task in Path(f"/proc/{todo.pop()}/task").iterdir()]
            for child in {int(word) for text in lists for word in text.split()}:
                since = started(child)
                if since is not None and (child, since) not in found:
                    found.add((child, since))
                    todo.append(child)
    return found


def threads(tasks: Iterable[Path]) -> Threads:
    """What the kernel says of these threads, each a folder ``/proc/PID/task/ID``; nothing of one that has ended."""
    found: Threads = {}
    for task in tasks:
        with contextlib.suppress(OSError):
            ran_ns, waited_ns, _ = (task / "schedstat").read_text().split()
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            found[int(task.name)] = (state, int(ran_ns), int(waited_ns))
    return found


@dataclass(frozen=True)
class Waits:
    """What some threads had of the processors: seconds of all of them, and how long one of them waited at most."""

    ran_s: float = 0.0
    waited_s: float = 0.0
    longest_s: float = 0.0


def waits(before: Threads, after: Threads, passed_s: float) -> Waits:
    """Between two looks, ``passed_s`` apart. Where one is stopped, it is that one which the others wait for."""
    if any(state in "Tt" for state, _, _ in after.values()):
        return Waits()
    ran_ns, waited_s = 0, [0.0]
    for thread, (state, ran, waited) in after.items():
        if thread not in before:
            continue
        ran_ns += ran - before[thread][1]
        # The kernel adds a wait up when it is over: what is ready and has not run waits all the time.
        waiting = state == "R" and (ran, waited) == before[thread][1:]
        waited_s.append(passed_s if waiting else (waited - before[thread][2]) / 1e9)
    return Waits(ran_ns / 1e9, sum(waited_s), max(waited_s))


def kill(processes: set[Process]) -> None:
    """SIGKILL, which frozen processes hear too; only to those that still are who they were.

    Python's resource trackers are spared: they end with the processes they serve, after they have unlinked what those
    left in shared memory.
    """
    for pid, since in processes:
        with contextlib.suppress(OSError):
            if started(pid) == since and b"multiprocessing.resource_tracker" not in Path(
                f"/proc/{pid}/cmdline"
            ).read_bytes().replace(b"\0", b" "):
                os.kill(pid, signal.SIGKILL)


def step_back(processes: set[Process], nice: int) -> None:
    """Lowers the priority of all threads of these processes; the ones they start later inherit it."""
    for pid, _ in processes:
        # A thread that ends meanwhile, or a whole process.
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)


class Guard:
    """The replica's end: starts the guard, sends beats, and replaces it when it died."""

    def __init__(self, start_limit_s: float, frozen_after_s: float = FROZEN_AFTER_S) -> None:
        """To be made in the thread that runs the event loop."""
        self._limits_s = (start_limit_s, frozen_after_s)
        self._loop = threading.get_native_id()
        self._process = self._start("starting")

    def _start(self, engine: str) -> subprocess.Popen[bytes]:
        # -I -S: nothing but the standard library, and no import of what lies in the working directory.
        limits = map(str, self._limits_s)
        command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(self._loop), engine, *limits]
        # A session of its own: who kills the replica's process group must not take the guard with it.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        return process

    def settle(self) -> None:
        """To be called when the engine has started: waits until the guard knows all its processes."""
        self.beat()
        assert self._process.stdout is not None
        self._process.stdout.read(1)

    def beat(self) -> None:
        """Tells that the event loop runs."""
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), b".")
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._process.communicate()
            self._process = self._start("settled")

    def engine(self) -> set[Process]:
        """The processes of the engine: all that descend from this one, except the guard."""
        return {one for one in descendants(os.getpid()) if one[0] != self._process.pid}

    def threads(self) -> Threads:
        """The threads of the engine."""
        found: Threads = {}
        for pid, _ in self.engine():
            # A process that ends meanwhile.
            with contextlib.suppress(OSError):
                found |= threads(Path(f"/proc/{pid}/task").iterdir())
        return found


def watch(replica: int, loop: int, settled: bool, start_limit_s: float, frozen_after_s: float) -> None:
    """Reads beats from standard input until there is somebody to kill, and kills. ``loop`` is the thread that beats."""
    replica_started, beating = started(replica), Path(f"/proc/{replica}/task/{loop}")
    engine = descendants(replica)
    if settled:
        os.write(1, b".")
    silent_s = starting_s = 0.0
    ticked_s, seen = time.monotonic(), Threads()
    while silent_s < frozen_after_s and (settled or starting_s < start_limit_s):
        beaten = bool(select.select([0], [], [], TICK_S if settled else STARTING_TICK_S)[0])
        if beaten and not os.read(0, 4096):
            break
        last_s, ticked_s = ticked_s, time.monotonic()
        passed_s = min(ticked_s - last_s, LONGEST_TICK_S)
        if not settled:
            starting_s += passed_s
            engine |= descendants(replica)
            if beaten:
                settled = True
                os.write(1, b".")
        elif beaten:
            silent_s, seen = 0.0, {}
        else:
            before, seen = seen, threads([beating])
            silent_s += max(passed_s - waits(before, seen, passed_s).longest_s, WAITING_RATIO * passed_s)
    if not settled and not beaten:
        os.write(2, f"the engine of process {replica} has not started in its time; both are killed\n".encode())
    # Who is an orphan by now was known before; the children of those may not have been.
    engine |= descendants(replica)
    for pid, since in tuple(engine):
        if started(pid) == since:
            engine |= descendants(pid)
    if replica_started is not None:
        engine.add((replica, replica_started))
    kill({one for one in engine if one[0] != os.getpid()})


if __name__ == "__main__":
    watch(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "settled", float(sys.argv[4]), float(sys.argv[5]))
