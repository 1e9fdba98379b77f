"""What a model store is to those who push and fetch: names, limits, and the ways in which one fails."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from serve_app.edge.smollm2 import ModelError

T = TypeVar("T")


class StoreError(ModelError):
    """A version cannot be read, written or used; the message says which and why, and never holds a credential."""


class StoreAway(StoreError):
    """The store did not answer, broke off or was too slow: the same may work later."""


class NotThere(StoreError):
    """The store says that it has no such file."""


class Untrue(StoreError):
    """What the store gave is not what it, or the manifest, said: nothing of it is kept."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one push or fetch.

    A connection on which nothing comes for ``silence_s``, or fewer than ``slow_bytes`` in that time, is given up; a
    fetch of which nothing at all moves for ``stall_s`` ends. A part is tried ``attempts`` times, each from where the
    last one broke off, after a pause that doubles from ``pause_s``. ``tell_s`` is how often progress is told.
    """

    parallel: int = 8
    part_bytes: int = 16 << 20
    connect_s: float = 5.0
    silence_s: float = 30.0
    slow_bytes: int = 64 << 10
    stall_s: float = 300.0
    attempts: int = 6
    pause_s: float = 0.5
    tell_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Held:
    """What a store says of a file it holds; ``sha256`` is ``None`` where whoever wrote it did not say."""

    size_bytes: int
    sha256: str | None


class Store(Protocol):
    """One version in a store. Names are checked paths of a manifest, or the manifest's own."""

    address: str

    def look(self, name: str) -> Held | None:
        """What is held under a name; ``None`` when nothing is.

        Raises:
            StoreError: see its kinds.
        """
        ...

    def read(self, name: str, offset: int, size_bytes: int, total_bytes: int) -> Generator[bytes, None, None]:
        """Exactly a range of a file that has ``total_bytes``, in pieces of at most 1 MiB. Close it.

        Raises:
            StoreError: after the pieces that came; Untrue when the store holds another length.
        """
        ...

    def read_whole(self, name: str, most_bytes: int) -> bytes:
        """A small file.

        Raises:
            StoreError: Untrue when it is longer.
        """
        ...

    def write(self, name: str, file: Path, sha256: str, told: Callable[[int], None]) -> None:
        """Writes a file from disk; ``told`` gets the bytes that went out since it was called last.

        Raises:
            StoreError: nothing is under the name, or what was there before.
        """
        ...

    def write_once(self, name: str, data: bytes) -> bool:
        """Writes a small file unless one is there already; whether it did.

        Raises:
            StoreError: see its kinds.
        """
        ...


def retried(call: Callable[[], T], limits: Limits) -> T:
    """The result of a call that is made again while the store is away, within the limits.

    Raises:
        StoreError: the last one.
    """
    never = threading.Event()
    for attempt in range(limits.attempts):
        try:
            return call()
        except StoreAway:
            if attempt + 1 == limits.attempts or pause(attempt, limits, never):
                raise
    raise AssertionError("at least one attempt is made")


def pause(attempt: int, limits: Limits, stop: threading.Event) -> bool:
    """Waits before the next attempt; whether to stop. Hosts that lost a store together do not come back together."""
    return stop.wait(min(8.0, limits.pause_s * 2**attempt) * random.uniform(0.5, 1.0))
