"""The files of one version from a store to disk: parts in parallel, a journal to resume from, SHA-256 of each file."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from serve_app.core.model_address import Address
from serve_app.core.model_manifest import MOST_BYTES, Manifest, ManifestError, is_weight_index, missing_shards
from serve_app.core.model_plan import Journal, Part, drop_line, fetch_order, have_line, shown
from serve_app.edge.crew import run_all
from serve_app.edge.model_cache import FILES, JOURNAL, ModelCache, Tell
from serve_app.edge.store_types import Limits, NotThere, Store, StoreAway, StoreError, Untrue, pause

_WATCH_S: Final = 0.2
_PIECE_BYTES: Final = 1 << 20
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class _WrongFile(Untrue):
    """A file that is not what the manifest says; it goes into quarantine."""

    def __init__(self, file: int, message: str) -> None:
        super().__init__(message)
        self.file = file


class FileFetch:
    """One fetch, in the folder made for it; its lock is held. Nothing is written once ``_stop`` is set."""

    def __init__(
        self, address: Address, store: Store, manifest: Manifest, cache: ModelCache, limits: Limits, tell: Tell
    ) -> None:
        self.read_bytes = 0
        self._address, self._store, self._manifest = address, store, manifest
        self._cache, self._limits, self._tell = cache, limits, tell
        self._folder = cache.fetching(address.key)
        journal = self._folder / JOURNAL
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._journal = os.open(journal, flags, 0o644)
        self._had = Journal.read(journal.read_text("ascii", "replace"))
        # A line that was cut short by a kill must not be the beginning of the next one.
        os.write(self._journal, b"\n")
        self._stop, self._gate = threading.Event(), threading.Lock()
        self._left: dict[int, int] = {}
        self._resumed: set[int] = set()
        self._suspect: list[int] = []
        self._there_bytes: dict[int, int] = {}
        self._checked_bytes = self._verified = 0
        self._moved, self._moved_s, self._told_s, self._began_s = 0, time.monotonic(), 0.0, time.monotonic()

    def close(self) -> None:
        with self._gate:
            self._stop.set()
            os.close(self._journal)

    def run(self) -> None:
        """Reads what is missing, verifies every file.

        Raises:
            StoreError: what is wrong is in quarantine. OSError: what the disk refuses.
        """
        self._check_room()
        order: Sequence[int] = fetch_order(self._manifest)
        try:
            self._pass(order)
            # What an earlier fetch left may have been lost with the power, after the journal had it.
            order, self._suspect = self._suspect, []
            self._pass(order)
        except _WrongFile as error:
            self._halt()
            path = self._path(error.file)
            os.write(self._journal, drop_line(error.file).encode())
            self._cache.set_aside(path, self._address.key, str(error))
            raise Untrue(f"{error}; what came is in {self._cache.quarantine}") from None
        except OSError as error:
            self._halt()
            if error.errno in _FULL:
                raise StoreError(self._no_room(self._give_back())) from None
            raise

    def _pass(self, order: Sequence[int]) -> None:
        run_all(
            self._items(order),
            self._work,
            self._watch,
            threads=self._limits.parallel,
            stop=self._stop,
            every_s=_WATCH_S,
        )

    def _items(self, order: Sequence[int]) -> Generator[Part, None, None]:
        """Missing parts, and for a file without any an empty part: then it is only verified."""
        for i in order:
            path = self._path(i)
            missing = self._had.missing(self._manifest, i, self._limits.part_bytes)
            if not (self._had.begun(i) and _is_file(path)):
                self._note(drop_line(i))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644))
                missing = Journal().missing(self._manifest, i, self._limits.part_bytes)
            else:
                self._resumed.add(i)
            self._there_bytes[i] = self._manifest.files[i].size_bytes - sum(p.size_bytes for p in missing)
            self._left[i] = max(1, len(missing))
            yield from missing or [Part(i, 0, 0)]

    def _work(self, part: Part) -> None:
        if part.size_bytes:
            self._read(part)
        with self._gate:
            self._left[part.file] -= 1
            last = self._left[part.file] == 0
        if last:
            self._verify(part.file)

    def _read(self, part: Part) -> None:
        """A part, from where the last attempt at it broke off."""
        file, at, end = self._manifest.files[part.file], part.offset, part.offset + part.size_bytes
        descriptor = os.open(self._path(part.file), os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for attempt in range(self._limits.attempts):
                try:
                    with closing(self._store.read(file.path, at, end - at, file.size_bytes)) as pieces:
                        for piece in pieces:
                            with self._gate:
                                self._check_stop()
                                _write_at(descriptor, piece, at)
                                self.read_bytes += len(piece)
                            at += len(piece)
                    break
                except StoreAway:
                    if attempt + 1 == self._limits.attempts or pause(attempt, self._limits, self._stop):
                        raise
                except NotThere as error:
                    raise NotThere(f"{error}, though the manifest has it") from None
                except Untrue as error:
                    raise _WrongFile(part.file, str(error)) from None
        finally:
            os.close(descriptor)
        self._note(have_line(part))

    def _verify(self, i: int) -> None:
        """Reads a file back and puts it on disk; wrong leftovers are read anew, once."""
        file = self._manifest.files[i]
        digest, size, head = hashlib.sha256(), 0, b""
        with self._path(i).open("rb") as source:
            while piece := source.read(_PIECE_BYTES):
                self._check_stop()
                digest.update(piece)
                size += len(piece)
                if is_weight_index(file.path) and size <= MOST_BYTES:
                    head += piece
                with self._gate:
                    self._checked_bytes += len(piece)
            os.fsync(source.fileno())
        if size == file.size_bytes and digest.hexdigest() == file.sha256:
            if is_weight_index(file.path):
                self._check_shards(file.path, head)
            with self._gate:
                self._verified += 1
        elif i in self._resumed:
            self._note(drop_line(i))
            with self._gate:
                self._had.drop(i)
                self._resumed.discard(i)
                self._suspect.append(i)
        else:
            found = digest.hexdigest()
            raise _WrongFile(
                i,
                f"{self._store.address}/{file.path}: {size} bytes with SHA-256 {found} came; "
                f"the manifest says {file.size_bytes} with {file.sha256}",
            )

    def _check_shards(self, path: str, index: bytes) -> None:
        try:
            missing = missing_shards(path, index, {f.path for f in self._manifest.files})
        except ManifestError as error:
            raise Untrue(f"{self._store.address}/{error}") from None
        if missing:
            raise Untrue(f"{self._store.address}: the version lacks shards of {path}: {', '.join(missing[:5])}")

    def _watch(self) -> None:
        now_s, moved = time.monotonic(), self.read_bytes + self._checked_bytes
        if moved != self._moved:
            self._moved, self._moved_s = moved, now_s
        elif now_s - self._moved_s > self._limits.stall_s:
            raise StoreAway(f"{self._store.address}: nothing has come for {self._limits.stall_s:g} s")
        if now_s - self._told_s >= self._limits.tell_s:
            self._told_s = now_s
            rate = self.read_bytes / max(0.1, now_s - self._began_s)
            there = shown(sum(list(self._there_bytes.values())) + self.read_bytes)
            self._tell(
                f"{there} of {shown(self._manifest.total_bytes)} there, "
                f"{self._verified} of {len(self._manifest.files)} files verified, {shown(rate)}/s"
            )

    def _note(self, line: str) -> None:
        with self._gate:
            self._check_stop()
            os.write(self._journal, line.encode())

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise StoreAway(f"{self._address.uri}: the fetch has ended")

    def _halt(self) -> None:
        with self._gate:
            self._stop.set()

    def _check_room(self) -> None:
        needed = self._manifest.total_bytes - sum(
            min(file.size_bytes, self._had.bytes_of(i)) for i, file in enumerate(self._manifest.files)
        )
        if needed > _free_bytes(self._folder):
            raise StoreError(self._no_room(needed))

    def _no_room(self, needed_bytes: int) -> str:
        free = shown(_free_bytes(self._folder))
        return (
            f"{self._address.uri}: {self._cache.root}: no room on the disk: {shown(needed_bytes)} are still to come, "
            f"{free} are free; grix model gc removes what is not in use"
        )

    def _give_back(self) -> int:
        """Files that are not whole leave a full disk; what they need."""
        for i, left in self._left.items():
            if left:
                self._path(i).unlink(missing_ok=True)
        return sum(file.size_bytes for i, file in enumerate(self._manifest.files) if self._left.get(i) != 0)

    def _path(self, i: int) -> Path:
        return self._folder / FILES / self._manifest.files[i].path


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    """All of it: a disk that is nearly full takes a part, and says so only to the next one."""
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
