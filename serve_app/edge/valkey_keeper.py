"""Keeps the embedded Redis running: starts the server, and starts it again whenever it ends, until it is told to end.

The command that brings a region up has gone by then, and not every region has a RegionAgent. So the keeper is a small
process of its own, run as a script: the standard library only, isolated and without ``site``. A server that it starts
again has what the last one wrote down, if that was asked of it; Routers have counted on, and write down what runs.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

FIRST_PAUSE_S = 0.1
MOST_PAUSE_S = 10.0
#: A server that ran for so long did not end because it cannot run.
CALM_S = 10.0


def pause_s(last_s: float, ran_s: float) -> float:
    """How long to wait after a server that ran for ``ran_s``: twice as long as before, each time that one ends soon."""
    return FIRST_PAUSE_S if ran_s >= CALM_S else min(MOST_PAUSE_S, 2 * last_s)


class Keeper:
    """One server after the other. ``settings`` go to its standard input."""

    def __init__(self, command: Sequence[str], settings: bytes) -> None:
        self._command, self._settings = command, settings
        self._server: subprocess.Popen[bytes] | None = None
        self._told = threading.Event()

    def end(self, *_: object) -> None:
        self._told.set()
        if self._server is not None:
            self._server.terminate()

    def run(self) -> int:
        """Runs until :meth:`end`, or until a server refuses its settings at the first start; the exit status."""
        wait_s, starts = FIRST_PAUSE_S, 0
        while not self._told.is_set():
            began_s, starts = time.monotonic(), starts + 1
            self._server = subprocess.Popen(self._command, stdin=subprocess.PIPE)
            if self._told.is_set():
                self._server.terminate()
            self._server.communicate(self._settings)
            status = self._server.returncode
            if starts == 1 and status > 0:
                return status
            if self._told.is_set():
                break
            wait_s = pause_s(wait_s, time.monotonic() - began_s)
            print(f"the server ended with status {status}; the next one starts in {wait_s:g} s", flush=True)
            self._told.wait(wait_s)
        return 0


if __name__ == "__main__":
    keeper = Keeper(sys.argv[1:], sys.stdin.buffer.read())
    signal.signal(signal.SIGTERM, keeper.end)
    sys.exit(keeper.run())
