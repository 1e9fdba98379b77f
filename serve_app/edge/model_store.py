"""Model stores: weights, adapters and template sets as versions that never change, one prefix each.

A version is pushed file by file, and its manifest last: without it there is no version. The store is S3-compatible
(``s3://``) or a folder (``file://``); see ``model_fetch`` for the way back.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from dataclasses import dataclass
from pathlib import Path

from serve_app.core.model_address import Address, parse_address
from serve_app.core.model_manifest import (
    MANIFEST,
    MOST_BYTES,
    Manifest,
    ManifestError,
    StoredFile,
    is_weight_index,
    manifest_of,
    missing_shards,
)
from serve_app.core.model_plan import shown
from serve_app.edge.crew import run_all
from serve_app.edge.model_cache import ModelCache, Tell
from serve_app.edge.model_fetch import checked_manifest, read_manifest
from serve_app.edge.store_folder import FolderStore
from serve_app.edge.store_types import Limits, NotThere, Store, StoreError, Untrue, retried


def address_of(text: str) -> Address:
    """The address of a version.

    Raises:
        StoreError: naming what it is not.
    """
    try:
        return parse_address(text)
    except ValueError as error:
        raise StoreError(str(error)) from None


def stored(model_path: str) -> Address | None:
    """The version a ``storage.modelPath`` names; ``None`` for every other kind of model, a plain folder included.

    Raises:
        StoreError: for an address that cannot be one.
    """
    if model_path.startswith("s3://"):
        return address_of(model_path)
    if model_path.startswith("file://") and (Path(model_path.removeprefix("file://")) / MANIFEST).is_file():
        return address_of(model_path)
    return None


def open_store(address: Address, limits: Limits) -> Store:
    """The version at an address; nothing is asked yet."""
    if not address.bucket:
        return FolderStore(Path(address.path))
    # boto3 takes 0.3 s to import, which only those pay who need it.
    from serve_app.edge.store_s3 import S3Store

    return S3Store(address.bucket, address.path, limits)


def manifest_at(address: Address, cache: ModelCache, limits: Limits) -> Manifest:
    """What a version holds: from the cache where it is there, else from the store.

    Raises:
        StoreError: when neither has it.
    """
    found = cache.look(address.key).manifest
    if found is not None:
        return found
    return checked_manifest(read_manifest(open_store(address, limits), limits), address.uri)


@dataclass(frozen=True, slots=True)
class Pushed:
    """A version in a store, and what was sent for it: 0 bytes when all of it was there."""

    manifest: Manifest
    sent_bytes: int


def push(folder: Path, address: Address, store: Store, limits: Limits, tell: Tell) -> Pushed:
    """Writes a folder's files, looks whether the store holds them, writes the manifest.

    A push that was killed goes on where it was: what the store holds with the same size and SHA-256 is not sent again.

    Raises:
        StoreError: for a folder that cannot be a version, another version at the address, or a store that fails.
    """
    manifest = _manifest_of(folder, limits, tell)
    data = manifest.text().encode()
    if _is_there(store, data, limits):
        return Pushed(manifest, 0)
    sent = _Sent(manifest, tell)

    def send(file: StoredFile) -> None:
        path = folder / file.path
        if _holds(store, file, limits):
            sent.skipped(file.size_bytes)
            return
        before = _state(path)
        store.write(file.path, path, file.sha256, sent.went)
        if _state(path) != before or before[0] != file.size_bytes:
            raise StoreError(f"{path}: changes while it is pushed")

    def look(file: StoredFile) -> None:
        if not _holds(store, file, limits):
            raise Untrue(f"{store.address}/{file.path}: the store does not hold what was sent; does another push run?")

    for each in (send, look):
        run_all(manifest.files, each, sent.tell, threads=limits.parallel, every_s=limits.tell_s)
    if not retried(lambda: store.write_once(MANIFEST, data), limits) and not _is_there(store, data, limits):
        raise Untrue(f"{store.address}: {MANIFEST} cannot be written, though none is there")
    return Pushed(manifest, sent.sent_bytes)


def _manifest_of(folder: Path, limits: Limits, tell: Tell) -> Manifest:
    """Raises StoreError for what cannot be a version."""
    paths = _files_below(folder)
    found: list[StoredFile] = []

    def digest(path: str) -> None:
        with (folder / path).open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            found.append(StoredFile(path, file.tell(), sha256))

    def said() -> None:
        tell(f"{len(found)} of {len(paths)} files read")

    try:
        run_all(paths, digest, said, threads=limits.parallel, every_s=limits.tell_s)
        manifest = manifest_of(found)
        for path in filter(is_weight_index, paths):
            with (folder / path).open("rb") as file:
                missing = missing_shards(path, file.read(MOST_BYTES), paths)
            if missing:
                raise StoreError(f"{folder}: weights that {path} names are missing: {', '.join(missing[:5])}")
    except ManifestError as error:
        raise StoreError(f"{folder}: {error}") from None
    except OSError as error:
        raise StoreError(f"{error.filename}: cannot be read: {error.strerror}") from None
    return manifest


def _files_below(folder: Path) -> list[str]:
    """Regular files as paths below the folder; hidden ones are left out, anything else is refused."""
    if not folder.is_dir():
        raise StoreError(f"{folder}: is no folder")

    def refuse(error: OSError) -> None:
        raise error

    paths: list[str] = []
    for inner, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in [*folders, *files]:
            path = Path(inner) / name
            kind = path.lstat().st_mode
            if stat.S_ISLNK(kind):
                raise StoreError(f"{path}: is a symbolic link; allowed: files and folders, as cp -rL copies them")
            if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
                raise StoreError(f"{path}: is no regular file")
        paths += [str((Path(inner) / name).relative_to(folder)) for name in files if not name.startswith(".")]
    if not paths:
        raise StoreError(f"{folder}: holds no file")
    return sorted(paths)


def _is_there(store: Store, data: bytes, limits: Limits) -> bool:
    """Whether the version is in the store already.

    Raises:
        StoreError: when another one is at its address.
    """
    try:
        held = retried(lambda: store.read_whole(MANIFEST, MOST_BYTES), limits)
    except NotThere:
        return False
    if held != data:
        raise StoreError(
            f"{store.address}: holds another version, and a version never changes; push to another address"
        )
    return True


def _holds(store: Store, file: StoredFile, limits: Limits) -> bool:
    held = retried(lambda: store.look(file.path), limits)
    return held is not None and (held.size_bytes, held.sha256) == (file.size_bytes, file.sha256)


def _state(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino


class _Sent:
    """Counts of a push, from several threads."""

    def __init__(self, manifest: Manifest, tell: Tell) -> None:
        self.sent_bytes = self._skipped_bytes = 0
        self._total_bytes, self._tell, self._lock = manifest.total_bytes, tell, threading.Lock()

    def went(self, size_bytes: int) -> None:
        with self._lock:
            self.sent_bytes += size_bytes

    def skipped(self, size_bytes: int) -> None:
        with self._lock:
            self._skipped_bytes += size_bytes

    def tell(self) -> None:
        there = shown(self.sent_bytes + self._skipped_bytes)
        self._tell(f"{there} of {shown(self._total_bytes)} in the store")
