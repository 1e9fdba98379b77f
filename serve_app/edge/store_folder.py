"""A version in a folder: the store that needs no server, for one machine or a disk that several of them mount."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Final, TypeVar

from serve_app.edge.store_types import Held, NotThere, StoreError, Untrue

T = TypeVar("T")

_PIECE_BYTES: Final = 1 << 20
_NO_LINK: Final = os.O_NOFOLLOW | os.O_CLOEXEC


class FolderStore:
    """See :class:`~serve_app.edge.store_types.Store`. No symbolic link below the folder is followed."""

    def __init__(self, folder: Path) -> None:
        self.address = f"file://{folder}"
        self._folder = folder

    def look(self, name: str) -> Held | None:
        try:
            with self._opened(name) as descriptor:
                return Held(os.fstat(descriptor).st_size, _sha256(descriptor))
        except NotThere:
            return None

    def read(self, name: str, offset: int, size_bytes: int, total_bytes: int) -> Generator[bytes, None, None]:
        with self._opened(name) as descriptor:
            held = os.fstat(descriptor).st_size
            if held != total_bytes:
                raise Untrue(f"{self._at(name)}: has {held} bytes; the manifest says {total_bytes}")
            end = offset + size_bytes
            while offset < end:
                piece = os.pread(descriptor, min(end - offset, _PIECE_BYTES), offset)
                if not piece:
                    raise Untrue(f"{self._at(name)}: became shorter while it was read")
                offset += len(piece)
                yield piece

    def read_whole(self, name: str, most_bytes: int) -> bytes:
        with self._opened(name) as descriptor, open(descriptor, "rb", closefd=False) as file:
            size = os.fstat(descriptor).st_size
            if size > most_bytes:
                raise Untrue(f"{self._at(name)}: has {size} bytes; allowed: at most {most_bytes}")
            return file.read(size)

    def write(self, name: str, file: Path, sha256: str, told: Callable[[int], None]) -> None:
        path, digest = self._folder / name, hashlib.sha256()

        def pieces() -> Generator[bytes, None, None]:
            with file.open("rb") as source:
                while piece := source.read(_PIECE_BYTES):
                    digest.update(piece)
                    yield piece
                    told(len(piece))

        def place(draft: Path) -> None:
            if digest.hexdigest() != sha256:
                raise StoreError(f"{file}: changes while it is pushed")
            draft.replace(path)

        self._put(path, pieces(), place)

    def write_once(self, name: str, data: bytes) -> bool:
        path = self._folder / name

        def place(draft: Path) -> bool:
            try:
                os.link(draft, path)
            except FileExistsError:
                return False
            return True

        return self._put(path, [data], place)

    def _put(self, path: Path, pieces: Iterable[bytes], place: Callable[[Path], T]) -> T:
        """A file gets its name when it is on disk as a whole: ``place`` gives it."""
        draft = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("xb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            placed = place(draft)
            sync_folder(path.parent)
            return placed
        except OSError as error:
            raise StoreError(f"{self.address}: cannot be written: {error.strerror or error}") from None
        finally:
            with contextlib.suppress(OSError):
                draft.unlink()

    @contextlib.contextmanager
    def _opened(self, name: str) -> Generator[int, None, None]:
        """A regular file of the folder, reached without a symbolic link on the way."""
        with contextlib.ExitStack() as open_now:
            try:
                at = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                open_now.callback(os.close, at)
                *folders, last = name.split("/")
                for folder in folders:
                    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | _NO_LINK, dir_fd=at)
                    open_now.callback(os.close, at)
                # Without waiting: a pipe would be opened only when somebody writes into it.
                at = os.open(last, os.O_RDONLY | os.O_NONBLOCK | _NO_LINK, dir_fd=at)
                open_now.callback(os.close, at)
            except FileNotFoundError:
                raise NotThere(f"{self._at(name)}: is not in the store") from None
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise Untrue(f"{self._at(name)}: is behind a symbolic link, or no folder is on the way") from None
                raise StoreError(f"{self._at(name)}: cannot be read: {error.strerror}") from None
            if not stat.S_ISREG(os.fstat(at).st_mode):
                raise Untrue(f"{self._at(name)}: is no regular file")
            yield at

    def _at(self, name: str) -> str:
        return f"{self.address}/{name}"


def sync_folder(folder: Path) -> None:
    """Puts the names in a folder on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(descriptor: int) -> str:
    digest, offset = hashlib.sha256(), 0
    while piece := os.pread(descriptor, _PIECE_BYTES, offset):
        digest.update(piece)
        offset += len(piece)
    return digest.hexdigest()
