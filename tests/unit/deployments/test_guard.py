"""The guard: real processes, killed and frozen, and what is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deployments import guard
from deployments.guard import Threads, Waits, waits

#: A replica: starts its guard, then an engine that starts a worker, lets the guard see them, tells who they are, beats.
REPLICA = """
import subprocess, sys, time
from deployments.guard import Guard
guard = Guard(60.0, frozen_after_s=1.0)
core = subprocess.Popen(
    [sys.executable, "-c", "import subprocess, sys, time; "
     "w = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
     "print(w.pid, flush=True); time.sleep(600)"],
    stdout=subprocess.PIPE, text=True)
worker = int(core.stdout.readline())
guard.settle()
print(guard._process.pid, core.pid, worker, *sorted(p for p, _ in guard.engine()), flush=True)
while True:
    time.sleep(0.1)
    guard.beat()
"""


def eventually(check: Callable[[], bool], said: str, limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not check():
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


def gone(*pids: int) -> bool:
    return all(guard.started(pid) is None for pid in pids)


class Replica:
    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", REPLICA], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.guard, self.core, self.worker, *self.engine = map(int, self.process.stdout.readline().split())

    @property
    def pids(self) -> tuple[int, ...]:
        return (self.process.pid, self.guard, self.core, self.worker)


@pytest.fixture
def replicas() -> Iterator[list[Replica]]:
    made: list[Replica] = []
    yield made
    for replica in made:
        for pid in replica.pids:
            if guard.started(pid) is not None:
                os.kill(pid, signal.SIGKILL)
        replica.process.communicate()


def test_the_engine_is_all_that_descends_from_the_replica_but_the_guard(replicas: list[Replica]) -> None:
    replicas.append(replica := Replica())
    assert replica.engine == sorted((replica.core, replica.worker))


@pytest.mark.parametrize("frozen", [False, True])
def test_a_killed_replica_takes_its_engine_with_it_frozen_or_not(replicas: list[Replica], frozen: bool) -> None:
    replicas.append(replica := Replica())
    if frozen:
        os.kill(replica.core, signal.SIGSTOP)
        os.kill(replica.worker, signal.SIGSTOP)
    os.kill(replica.process.pid, signal.SIGKILL)
    replica.process.wait()
    eventually(lambda: gone(*replica.pids), "engine and guard are gone")


@pytest.mark.parametrize("first", ["core", "worker"])
def test_what_is_left_of_an_engine_that_lost_a_process_goes_with_its_replica(
    replicas: list[Replica], first: str
) -> None:
    replicas.append(replica := Replica())
    killed = {"core": replica.core, "worker": replica.worker}[first]
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: gone(killed), f"the {first} is gone")
    os.kill(replica.process.pid, signal.SIGKILL)
    replica.process.wait()
    eventually(lambda: gone(*replica.pids), "the other one is gone")


def test_a_frozen_replica_is_killed_with_its_engine(replicas: list[Replica]) -> None:
    replicas.append(replica := Replica())
    os.kill(replica.process.pid, signal.SIGSTOP)
    eventually(lambda: replica.process.poll() == -signal.SIGKILL, "the frozen replica was killed")
    eventually(lambda: gone(*replica.pids), "engine and guard are gone")


def test_a_start_that_hangs_is_killed_with_its_engine_when_its_time_is_over() -> None:
    code = (
        "import subprocess, sys, time\n"
        "from deployments.guard import Guard\n"
        "guard = Guard(0.5)\n"
        "core = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(core.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    pipe = subprocess.PIPE
    starting = subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True)
    try:
        assert starting.stdout is not None
        core = int(starting.stdout.readline())
        assert starting.wait(20.0) == -signal.SIGKILL
        eventually(lambda: gone(core), "its engine is gone")
    finally:
        starting.kill()
        _, said = starting.communicate()
    assert said == f"the engine of process {starting.pid} has not started in its time; both are killed\n"


def test_a_guard_that_died_is_replaced(replicas: list[Replica]) -> None:
    replicas.append(replica := Replica())
    os.kill(replica.guard, signal.SIGKILL)
    others = {replica.core, replica.worker, replica.guard}

    def successor() -> bool:
        return bool({pid for pid, _ in guard.descendants(replica.process.pid)} - others)

    eventually(successor, "another guard runs")
    os.kill(replica.process.pid, signal.SIGSTOP)
    eventually(lambda: gone(replica.core, replica.worker), "the new guard does its duty")


#: Starts another thread, says so, then spins.
SPINS = (
    "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    "print('up', flush=True)\n"
    "while True: pass\n"
)


def tasks(*spinning: subprocess.Popen[str]) -> Threads:
    return guard.threads(task for one in spinning for task in Path(f"/proc/{one.pid}/task").iterdir())


@pytest.fixture
def spinning() -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes that share one processor, whoever else may want it."""
    made = [subprocess.Popen([sys.executable, "-c", SPINS], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        one = min(os.sched_getaffinity(0))
        for process in made:
            assert process.stdout is not None and process.stdout.readline() == "up\n"
            os.sched_setaffinity(process.pid, {one})
        yield made
    finally:
        for process in made:
            process.kill()
            process.communicate()


def test_the_kernel_tells_what_runs_what_waits_and_what_is_stopped(spinning: list[subprocess.Popen[str]]) -> None:
    began = tasks(*spinning)
    assert len(began) == 4 and {one.pid for one in spinning} < began.keys()

    def both_ran_and_waited() -> bool:
        now = tasks(*spinning)
        return all(
            now[pid][1] > began[pid][1] + 10**7 and now[pid][2] > began[pid][2] + 10**7
            for pid in (one.pid for one in spinning)
        )

    eventually(both_ran_and_waited, "each ran and waited for the other")
    had = waits(began, tasks(*spinning), 1.0)
    assert had.ran_s > 0.02 and had.waited_s > 0.02 and 0.01 < had.longest_s < had.waited_s
    stopped = spinning[0]
    os.kill(stopped.pid, signal.SIGSTOP)
    eventually(lambda: {state for state, _, _ in tasks(stopped).values()} == {"T"}, "it is stopped")
    assert waits(began, tasks(*spinning), 1.0) == Waits()
    assert waits(began, tasks(spinning[1]), 1.0) != Waits()
    # Who ends is nobody to look at.
    gone_soon = list(Path(f"/proc/{stopped.pid}/task").iterdir())
    stopped.kill()
    stopped.wait()
    assert guard.threads(gone_soon) == {}


def test_the_threads_of_an_engine_are_not_those_of_its_replica_and_its_guard() -> None:
    code = (
        "import os, subprocess, sys, threading\n"
        "from deployments.guard import Guard\n"
        "guard = Guard(60.0)\n"
        f"engine = subprocess.Popen([sys.executable, '-c', {SPINS!r}], stdout=subprocess.PIPE, text=True)\n"
        "engine.stdout.readline()\n"
        "found = guard.threads()\n"
        "print(len(found), engine.pid in found, guard._loop == threading.get_native_id(), flush=True)\n"
        "engine.kill()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "2 True True\n"


def test_a_process_id_that_came_back_is_left_alone() -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        guard.kill({(other.pid, "1")})
        assert guard.started(other.pid) not in (None, "1")
    finally:
        other.kill()
        other.wait()


def test_an_ended_process_has_not_started_even_while_its_status_waits() -> None:
    other = subprocess.Popen([sys.executable, "-c", ""])
    eventually(lambda: guard.started(other.pid) is None, "a zombie counts as gone")
    other.wait()
    assert guard.started(other.pid) is None


def test_resource_trackers_are_spared(tmp_path: Path) -> None:
    code = "import time; time.sleep(600)"
    tracker = subprocess.Popen([sys.executable, "-c", code, "multiprocessing.resource_tracker"])
    try:
        since = guard.started(tracker.pid)
        assert since is not None
        guard.kill({(tracker.pid, since)})
        assert tracker.poll() is None
    finally:
        tracker.kill()
        tracker.wait()


def test_all_threads_of_an_engine_step_back_and_those_they_start_later() -> None:
    script = (
        "import threading, time, sys\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "print('up', flush=True); sys.stdin.readline()\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "print('more', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        guard.step_back({(process.pid, "")}, 5)
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        threads = [int(thread.name) for thread in Path(f"/proc/{process.pid}/task").iterdir()]
        assert [os.getpriority(os.PRIO_PROCESS, thread) for thread in threads] == [5, 5, 5]
    finally:
        process.kill()
        process.communicate()


def test_who_ended_meanwhile_is_nobody_to_step_back() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    guard.step_back({(process.pid, "")}, 5)
