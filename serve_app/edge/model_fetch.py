"""A version from a store into a host's cache: once for all who start on the host, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from serve_app.core.model_address import Address
from serve_app.core.model_manifest import MANIFEST, MOST_BYTES, Manifest, ManifestError, parse_manifest
from serve_app.edge.file_fetch import FileFetch
from serve_app.edge.model_cache import FILES, Found, Lock, ModelCache, Tell, disk_faults
from serve_app.edge.store_types import Limits, NotThere, Store, Untrue, retried


@dataclass(frozen=True, slots=True)
class Fetched:
    """A whole version on this host. ``folder`` is what an engine loads; the cache keeps it while ``lease`` is held.

    ``read_bytes`` came from the store, its manifest not counted: 0 for a version that was there.
    """

    folder: Path
    manifest: Manifest
    lease: Lock
    read_bytes: int


def fetch(address: Address, store: Callable[[], Store], cache: ModelCache, limits: Limits, tell: Tell) -> Fetched:
    """The version, from the cache when it is there, else from the store.

    Of a version that is there each file is looked at (a stat, see :meth:`ModelCache.look`) and the store is not asked.
    Whatever goes wrong, no version that is in the cache is touched, and what was verified is there for the next try.

    Raises:
        StoreError: naming version, file and what is wrong with it.
    """
    with disk_faults(cache.root):
        lease = cache.use(address.key)
        try:
            found, read_bytes = cache.look(address.key), 0
            if not found.whole:
                with cache.fetch_lock(address.key, tell):
                    found = cache.look(address.key)
                    if not found.whole:
                        found, read_bytes = _from_store(address, store(), cache, found, limits, tell)
            assert found.manifest is not None
            return Fetched(cache.version(address.key) / FILES, found.manifest, lease, read_bytes)
        except BaseException:
            lease.free()
            raise


def read_manifest(store: Store, limits: Limits) -> bytes:
    """The manifest of a version, as it lies in the store.

    Raises:
        StoreError: also when there is none: a version without it is not, or not yet, pushed.
    """
    try:
        return retried(lambda: store.read_whole(MANIFEST, MOST_BYTES), limits)
    except NotThere:
        raise NotThere(
            f"{store.address}: holds no version: {MANIFEST}, which is written last, is not there; "
            "push it with: grix model push FOLDER ADDRESS"
        ) from None


def checked_manifest(data: bytes, address: str) -> Manifest:
    """The manifest in these bytes.

    Raises:
        Untrue: when it is none.
    """
    try:
        return parse_manifest(data)
    except ManifestError as error:
        raise Untrue(f"{address}/{MANIFEST}: {error}") from None


def _from_store(
    address: Address, store: Store, cache: ModelCache, found: Found, limits: Limits, tell: Tell
) -> tuple[Found, int]:
    if found.wrong and found.manifest is not None:
        names = ", ".join(found.manifest.files[i].path for i in found.wrong[:5])
        tell(f"in the cache it is not as it was left ({names}): these files go into quarantine and are fetched again")
    cache.take_back(address.key, found, "was not as it was left when it got its place in the cache")
    data = read_manifest(store, limits)
    manifest = checked_manifest(data, address.uri)
    if cache.begin(address.key, data):
        tell("its manifest has changed since a fetch of it began: what that had fetched is in quarantine")
    work = FileFetch(address, store, manifest, cache, limits, tell)
    try:
        work.run()
        if read_manifest(store, limits) != data:
            why = "its manifest changed while it was fetched"
            cache.set_aside(cache.fetching(address.key), address.key, why)
            raise Untrue(f"{address.uri}: {why}; what was fetched is in {cache.quarantine}")
    finally:
        work.close()
    cache.publish(address, manifest)
    return Found(manifest), work.read_bytes
