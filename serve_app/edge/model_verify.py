"""Whether a version is what its manifest says: in a host's cache, where every file is read again, and in its store."""

from __future__ import annotations

import hashlib

from serve_app.core.model_address import Address
from serve_app.core.model_manifest import StoredFile
from serve_app.edge.crew import run_all
from serve_app.edge.model_cache import FILES, Found, ModelCache, Tell, disk_faults
from serve_app.edge.model_fetch import checked_manifest, read_manifest
from serve_app.edge.store_types import Limits, Store, StoreError, retried


def faults_in_cache(address: Address, cache: ModelCache, limits: Limits, tell: Tell) -> list[str] | None:
    """What is wrong with a version in the cache; ``None`` when it is not there.

    Files that are wrong go into quarantine, and the version is not whole any more: who needs it fetches them again. An
    engine that has it open keeps what it has.

    Raises:
        StoreError: when the cache cannot be read or written.
    """
    with disk_faults(cache.root), cache.use(address.key):
        found = cache.look(address.key)
        manifest = found.manifest
        if manifest is None:
            return None
        folder, wrong = cache.version(address.key) / FILES, list(found.wrong)

        def read(i: int) -> None:
            file = manifest.files[i]
            with (folder / file.path).open("rb") as content:
                if hashlib.file_digest(content, "sha256").hexdigest() != file.sha256:
                    wrong.append(i)
            tell(f"{file.path}: read")

        whole = [i for i in range(len(manifest.files)) if i not in found.wrong]
        run_all(whole, read, lambda: None, threads=limits.parallel, every_s=limits.tell_s)
        if wrong:
            with cache.fetch_lock(address.key, tell):
                cache.take_back(address.key, Found(manifest, tuple(wrong)), "was not what its manifest says")
        names = [manifest.files[i].path for i in sorted(wrong)]
        return [f"{folder}/{name}: is not what the manifest says; it is in {cache.quarantine} now" for name in names]


def faults_in_store(
    address: Address, cache: ModelCache, store: Store, limits: Limits, tell: Tell, *, read: bool
) -> list[str]:
    """What is wrong with a version in its store: its manifest, that of the cache against it, and every file, of which
    the store is asked; with ``read`` it is read."""
    try:
        manifest = checked_manifest(read_manifest(store, limits), address.uri)
    except StoreError as error:
        return [str(error)]
    faults: list[str] = []
    here = cache.look(address.key).manifest
    if here is not None and here != manifest:
        faults.append(f"{address.uri}: its manifest is not the one it was fetched with; the copy in the cache is kept")

    def check(file: StoredFile) -> None:
        try:
            fault = _read_fault(store, file, limits) if read else _held_fault(store, file, limits)
        except StoreError as error:
            fault = str(error)
        if fault:
            faults.append(fault)
        elif read:
            tell(f"{file.path}: read and right")

    run_all(manifest.files, check, lambda: None, threads=limits.parallel, every_s=limits.tell_s)
    return sorted(faults)


def _held_fault(store: Store, file: StoredFile, limits: Limits) -> str:
    held = retried(lambda: store.look(file.path), limits)
    if held is None:
        return f"{store.address}/{file.path}: is not in the store"
    if held.size_bytes != file.size_bytes:
        return f"{store.address}/{file.path}: {held.size_bytes} bytes; the manifest says {file.size_bytes}"
    if held.sha256 not in (None, file.sha256):
        return f"{store.address}/{file.path}: SHA-256 {held.sha256}; the manifest says {file.sha256}"
    return ""


def _read_fault(store: Store, file: StoredFile, limits: Limits) -> str:
    def digest() -> str:
        made = hashlib.sha256()
        if file.size_bytes:
            for piece in store.read(file.path, 0, file.size_bytes, file.size_bytes):
                made.update(piece)
        return made.hexdigest()

    found = retried(digest, limits)
    return (
        "" if found == file.sha256 else f"{store.address}/{file.path}: SHA-256 {found}; the manifest says {file.sha256}"
    )
