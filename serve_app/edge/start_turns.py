"""Engines of one machine start a few at a time, and what their starts came to is remembered for the next ones.

A starting engine takes every core and all of the disk that it gets: many at once are all late, and those that serve
already are slow meanwhile. The lock of a turn is the kernel's: it ends with the process, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import math
import os
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from serve_app.edge.private_file import write_private

log = logging.getLogger("ray.serve")

#: How often it is looked for a free turn.
LOOK_S: Final = 0.25
#: Long parts of a start have one thread: on two cores, one engine alone ran after 29 s and three at once after 56 s,
#: which is sooner than one after the other, but late for each.
LEAST_AT_ONCE: Final = 2
CORES_PER_START: Final = 4


def starts_folder() -> Path:
    """The folder that all engines of this cluster and machine share: the temporary one of a cluster is its own."""
    return Path(tempfile.gettempdir()) / f"grix-starts-{os.getuid()}"


def starts_at_once() -> int:
    """How many engines may start on this machine at a time."""
    return max(LEAST_AT_ONCE, len(os.sched_getaffinity(0)) // CORES_PER_START)


class StartTurns:
    """``at_once`` turns in ``folder``, which is made private. Where that cannot be, starts are not limited."""

    def __init__(
        self,
        folder: Path,
        at_once: int,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._folder, self._at_once = folder, at_once
        self._now_s, self._sleep = now_s, sleep

    @asynccontextmanager
    async def held(self, who: str) -> AsyncIterator[None]:
        """A turn, from when there is one until the block ends."""
        began_s, lock = self._now_s(), self._free(who)
        if lock is None:
            log.info("%s waits for another engine's start on this machine; at once: %d", who, self._at_once)
            while (lock := self._free(who)) is None:
                await self._sleep(LOOK_S)
            log.info("%s starts after a wait of %.1f s", who, self._now_s() - began_s)
        try:
            yield
        finally:
            if lock >= 0:
                # Closing is not enough: a forked engine has the same lock.
                fcntl.flock(lock, fcntl.LOCK_UN)
                os.close(lock)

    def _free(self, who: str) -> int | None:
        """The lock of a turn that nobody has, ``None`` without one; -1 where there can be no locks."""
        try:
            self._private()
            for i in range(self._at_once):
                lock = os.open(self._folder / f"turn-{i}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return lock
                except BlockingIOError:
                    os.close(lock)
                except OSError:
                    os.close(lock)
                    raise
            return None
        except OSError as error:
            log.warning("%s does not wait for other engines' starts on this machine: %s", who, error)
            return -1

    def _private(self) -> None:
        """Makes the folder; raises ``OSError`` for one that somebody else has made under its name."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        found = self._folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(f"{self._folder} is no folder of this user")

    def usual_ms(self, engine_digest: str) -> float | None:
        """The best round of the engine's earlier starts on this machine; ``None`` before the first."""
        try:
            usual_ms = float(self._usual(engine_digest).read_text("ascii"))
        except (OSError, ValueError):
            return None
        return usual_ms if 0 < usual_ms < math.inf else None

    def keep_usual_ms(self, engine_digest: str, best_ms: float) -> None:
        """Remembers a start that came to ``best_ms``, if no earlier one was better."""
        usual_ms = self.usual_ms(engine_digest)
        if usual_ms is None or best_ms < usual_ms:
            with contextlib.suppress(OSError):
                write_private(self._usual(engine_digest), f"{best_ms:.3f}")

    def _usual(self, engine_digest: str) -> Path:
        return self._folder / f"usual-{engine_digest}"
