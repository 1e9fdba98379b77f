"""A host's cache of versions from model stores: ``$GRIX_CACHE/models``, else ``~/.cache/grix/models``.

A version is either whole, below ``versions``, or not there: what is being fetched lies below ``fetching`` and gets its
place by one rename. Who uses a version and who fetches one holds a lock of the kernel on a file below ``locks``, which
ends with the process, whatever ends that.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from serve_app.core.model_address import Address
from serve_app.core.model_manifest import MANIFEST, Manifest, parse_manifest
from serve_app.core.model_plan import Part, have_line
from serve_app.edge.smollm2 import cache_folder
from serve_app.edge.store_folder import sync_folder
from serve_app.edge.store_types import StoreError

JOURNAL: Final = "journal"
FILES: Final = "files"
_ENTRY: Final = "entry.json"
_WAIT_S: Final = 0.2
_TELL_S: Final = 10.0

Tell = Callable[[str], None]


class Lock:
    """A lock that is held until :meth:`free`, or the end of the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def free(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()


@dataclass(frozen=True, slots=True)
class Found:
    """What a look at a version's place gave: ``manifest`` is ``None`` when nothing usable is there, and ``wrong`` are
    the files of it that are not as they were left."""

    manifest: Manifest | None = None
    wrong: tuple[int, ...] = ()

    @property
    def whole(self) -> bool:
        return self.manifest is not None and not self.wrong


class ModelCache:
    """The cache of one host; any number of processes use it at once."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or cache_folder() / "models"

    def version(self, key: str) -> Path:
        return self.root / "versions" / key

    def fetching(self, key: str) -> Path:
        return self.root / "fetching" / key

    @property
    def quarantine(self) -> Path:
        return self.root / "quarantine"

    def use(self, key: str) -> Lock:
        """Keeps a version from being removed, and notes that it was used now.

        Raises:
            OSError: when the cache cannot be written.
        """
        descriptor = self._lock_file(key, "use")
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.utime(descriptor)
        return Lock(descriptor)

    def try_lock(self, key: str, kind: str) -> Lock | None:
        """The lock for ``fetch`` or, against every user, for ``use``; ``None`` when another process has it."""
        descriptor = self._lock_file(key, kind)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return Lock(descriptor)

    def fetch_lock(self, key: str, tell: Tell) -> Lock:
        """The lock of whoever fetches a version, as soon as it is free."""
        waited_s = 0.0
        while (lock := self.try_lock(key, "fetch")) is None:
            if waited_s % _TELL_S < _WAIT_S:
                tell("another process of this host fetches it; waiting")
            time.sleep(_WAIT_S)
            waited_s += _WAIT_S
        return lock

    def used_unix_s(self, key: str) -> float:
        """When a version was last taken into use; 0.0 for never."""
        try:
            return (self.root / "locks" / f"{key}.use").stat().st_mtime
        except OSError:
            return 0.0

    def look(self, key: str) -> Found:
        """What is there of a version, by a stat of each file: regular, and size and time of change as it was left.

        Contents are not read: they were when the version got its place, and ``grix model verify`` reads them again.
        """
        folder = self.version(key)
        try:
            entry = json.loads((folder / _ENTRY).read_bytes())
            data = (folder / MANIFEST).read_bytes()
            times_ns = entry["mtimes_ns"]
            if entry["manifest"] != hashlib.sha256(data).hexdigest():
                return Found()
            manifest = parse_manifest(data)
            known = list(zip(manifest.files, times_ns, strict=True))
        except (OSError, ValueError, KeyError, TypeError):
            return Found()
        wrong = [i for i, (f, at) in enumerate(known) if _left(folder / FILES / f.path) != (f.size_bytes, at)]
        return Found(manifest, tuple(wrong))

    def address(self, key: str) -> str | None:
        """Where a version was fetched from."""
        try:
            return str(json.loads((self.version(key) / _ENTRY).read_bytes())["address"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def begin(self, key: str, data: bytes) -> bool:
        """Makes the folder of a fetch, or finds that of an earlier one; whether it was of another manifest, which is
        in quarantine now. The fetch lock is held."""
        folder = self.fetching(key)
        there = folder / MANIFEST
        changed = there.is_file()
        if changed and there.read_bytes() == data:
            return False
        if changed:
            self.set_aside(folder, key, "its manifest is another one now")
        shutil.rmtree(folder, ignore_errors=True)
        (folder / FILES).mkdir(parents=True)
        _write(folder / MANIFEST, data)
        return changed

    def publish(self, address: Address, manifest: Manifest) -> None:
        """Gives a fetched version its place. Every file is verified and on disk, and the fetch lock is held."""
        folder, place = self.fetching(address.key), self.version(address.key)
        left = [_left(folder / FILES / f.path) for f in manifest.files]
        entry = {
            "address": address.uri,
            "manifest": hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest(),
            "mtimes_ns": [file and file[1] for file in left],
        }
        _write(folder / _ENTRY, json.dumps(entry).encode())
        (folder / JOURNAL).unlink(missing_ok=True)
        for inner, _, _ in os.walk(folder):
            sync_folder(Path(inner))
        place.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(place)
        sync_folder(place.parent)

    def take_back(self, key: str, found: Found, why: str) -> None:
        """Turns a version that is not whole into a fetch of what it lacks. The fetch lock is held."""
        place, folder = self.version(key), self.fetching(key)
        if not place.exists():
            return
        shutil.rmtree(folder, ignore_errors=True)
        if found.manifest is None:
            self.set_aside(place, key, why)
            return
        good = [i for i in range(len(found.manifest.files)) if i not in found.wrong]
        lines = "".join(have_line(Part(i, 0, found.manifest.files[i].size_bytes)) for i in good)
        _write(place / JOURNAL, lines.encode())
        (place / _ENTRY).unlink(missing_ok=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        place.rename(folder)
        for i in found.wrong:
            self.set_aside(folder / FILES / found.manifest.files[i].path, key, why)

    def set_aside(self, path: Path, key: str, why: str) -> None:
        """Moves a file or folder into quarantine, with a note; what was there of the same path goes."""
        name = hashlib.sha256(str(path.relative_to(self.root)).encode()).hexdigest()[:8]
        place = self.quarantine / f"{key}.{name}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        note = {"path": str(path), "why": why, "unix_s": round(time.time())}
        _write(place / "why.json", (json.dumps(note, indent=1) + "\n").encode())
        with contextlib.suppress(FileNotFoundError):
            path.rename(place / path.name)

    def _lock_file(self, key: str, kind: str) -> int:
        folder = self.root / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / f"{key}.{kind}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)


@contextlib.contextmanager
def disk_faults(where: Path) -> Generator[None, None, None]:
    """What the disk refuses, as a fault of the store's kind.

    Raises:
        StoreError: naming folder and reason.
    """
    try:
        yield
    except OSError as error:
        raise StoreError(f"{where}: {error.strerror or error}; the cache is where GRIX_CACHE says") from None


def _left(path: Path) -> tuple[int, int] | None:
    """Size and time of change of a regular file."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def _write(path: Path, data: bytes) -> None:
    """A small file: on disk whole, or as it was."""
    draft = path.with_name(f"{path.name}.draft")
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
