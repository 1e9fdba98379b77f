"""Engines of one machine start a few at a time, and what their starts came to is remembered for the next ones.

A starting engine takes every core and all of the disk that it gets: many at once are all late, and those that serve
already are slow meanwhile. The lock of a turn is the kernel's: it ends with the process, however that ends.

A load that hangs, on a dead file system for one, keeps its turn until its time is over. So a turn that is held for much
longer than starts take here is overdue: others may take another one in its place.
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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
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
#: So many times as long as the longest start on this machine so far is overdue; never sooner or later than this.
OVERDUE_RATIO: Final = 3.0
OVERDUE_S: Final = (60.0, 900.0)
#: The same where none has ended well yet: a large model may load for minutes.
OVERDUE_UNKNOWN_S: Final = 300.0
#: So many may be taken in the place of one, each when the one before is overdue: where all hang, more do not help.
MOST_IN_PLACE: Final = 3
_LONGEST: Final = "longest-s"
#: Local, as locks and the clock of the turns are, and the same for all clusters: ``TMPDIR`` is a cluster's own.
MACHINE_TEMP: Final = Path("/tmp")


def turns_folder() -> Path:
    """The folder of turns that all engines of this user and machine share, whatever their clusters."""
    return MACHINE_TEMP / f"grix-starts-{os.getuid()}"


def starts_folder() -> Path:
    """The folder of what earlier starts came to, which is a cluster's own, as its temporary folder is."""
    return Path(tempfile.gettempdir()) / f"grix-starts-{os.getuid()}"


def starts_at_once() -> int:
    """How many engines may start on this machine at a time."""
    return max(LEAST_AT_ONCE, len(os.sched_getaffinity(0)) // CORES_PER_START)


class StartTurns:
    """``at_once`` turns in the folder ``turns``, and how long starts took there; ``known`` has what they came to.

    Both are made private. Without ``turns`` starts are not limited; without ``known`` nothing is usual.
    """

    def __init__(
        self,
        turns: Path,
        known: Path,
        at_once: int,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._turns, self._known, self._at_once = turns, known, at_once
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
        taken_s = self._now_s()
        try:
            yield
            took_s = self._now_s() - taken_s
            _keep(self._turns, _LONGEST, max(took_s, _kept(self._turns, _LONGEST) or 0.0))
        finally:
            if lock >= 0:
                # Closing is not enough: a forked engine has the same lock.
                fcntl.flock(lock, fcntl.LOCK_UN)
                os.close(lock)

    def _free(self, who: str) -> int | None:
        """The lock of a turn that nobody has, ``None`` without one; -1 where there can be no locks.

        A replica looks from its event loop: a few calls of the kernel, as the folder is no network's.
        """
        try:
            _make_private(self._turns)
            with _alone_in(self._turns) as alone:
                return self._first_free(who) if alone else None
        except OSError as error:
            log.warning("%s does not wait for other engines' starts on this machine: %s", who, error)
            return -1

    def _first_free(self, who: str) -> int | None:
        overdue_s = self._overdue_s
        for turn in range(self._at_once):
            for in_place in range(1 + MOST_IN_PLACE):
                lock, held_s = self._tried(f"turn-{turn}-{in_place}")
                if lock is not None and in_place > 0:
                    log.warning("%s does not wait for a start that takes longer than %.0f s", who, overdue_s)
                if lock is not None:
                    return lock
                if held_s <= overdue_s:
                    break
        return None

    def _tried(self, name: str) -> tuple[int | None, float]:
        """The lock of this turn if it is free, else for how long it has been held, by the one clock of a machine."""
        lock = os.open(self._turns / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        free = False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{self._now_s():.3f}".encode(), 0)
            free = True
            return lock, 0.0
        except BlockingIOError:
            taken_s = _number(os.pread(lock, 32, 0))
            return None, 0.0 if taken_s is None else self._now_s() - taken_s
        finally:
            if not free:
                os.close(lock)

    def usual_ms(self, speed: str) -> float | None:
        """The best round of earlier starts of engines that are as fast, on this machine; ``None`` before the first."""
        return _kept(self._known, f"usual-{speed}")

    def keep_usual_ms(self, speed: str, best_ms: float) -> None:
        """Remembers a start that came to ``best_ms``, if no earlier one was better."""
        _keep(self._known, f"usual-{speed}", min(best_ms, self.usual_ms(speed) or math.inf))

    @property
    def _overdue_s(self) -> float:
        """How long a turn may be held before others need not wait for it."""
        longest_s = _kept(self._turns, _LONGEST)
        least_s, most_s = OVERDUE_S
        return OVERDUE_UNKNOWN_S if longest_s is None else min(most_s, max(least_s, OVERDUE_RATIO * longest_s))


def _kept(folder: Path, name: str) -> float | None:
    with contextlib.suppress(OSError):
        _make_private(folder)
        return _number((folder / name).read_bytes())
    return None


def _keep(folder: Path, name: str, number: float) -> None:
    if number != _kept(folder, name):
        with contextlib.suppress(OSError):
            _make_private(folder)
            write_private(folder / name, f"{number:.3f}")


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[bool]:
    """Whether nobody else takes a turn just now.

    Who has just locked a turn has not yet written when: the time in the file would be that of an earlier holder.
    """
    lock, alone = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW), True
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            alone = False
        yield alone
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _make_private(folder: Path) -> None:
    """Makes the folder; raises ``OSError`` for one under its name that is somebody else's or open to others."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} is no folder of this user")
    if found.st_mode & 0o077:
        raise PermissionError(f"{folder} is open to other users; it has to have mode 0700")


def _number(written: bytes) -> float | None:
    """A positive number; ``None`` for what cannot have been measured."""
    try:
        number = float(written)
    except ValueError:
        return None
    return number if 0 < number < math.inf else None
