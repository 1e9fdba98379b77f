"""Manifests of any bytes, and fetches that break off anywhere, any number of times."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.core.model_manifest import MANIFEST, ManifestError, parse_manifest
from serve_app.edge.model_cache import ModelCache
from serve_app.edge.model_store import push
from serve_app.edge.store_types import Limits, StoreError
from tests.model_stores import LIMITS, SHARDS, Lie, WatchedStore, content_of, make_model, take

PART = 1000

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("0" * 64)
paths = st.text(alphabet="ab./\\\0é\u202e", max_size=12) | st.just(MANIFEST) | st.text(max_size=6)
files = st.fixed_dictionaries(
    {"path": paths | scalars, "bytes": st.just(1) | scalars, "sha256": st.just("0" * 64) | scalars}
)
manifests = st.fixed_dictionaries({"format": st.just("grix-model/1"), "files": st.lists(files, max_size=4)})
anything = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=6), inner), max_leaves=8
)


@given(st.binary(max_size=64) | (manifests | anything).map(lambda value: json.dumps(value).encode()))
def test_a_manifest_is_refused_by_name_or_leads_nowhere_else(data: bytes) -> None:
    try:
        manifest = parse_manifest(data)
    except ManifestError as error:
        assert str(error).isprintable() and len(str(error)) < 400
        return
    names = [file.path for file in manifest.files]
    assert names == sorted(set(names)) and MANIFEST not in names
    for name in names:
        path = PurePosixPath(name)
        assert not path.is_absolute() and ".." not in path.parts and str(path) == name
    assert parse_manifest(manifest.text().encode()) == manifest


@settings(max_examples=30)
@given(st.lists(st.integers(0, 1200), max_size=4), st.integers(1, 3))
def test_a_fetch_that_breaks_off_anywhere_ends_right_and_reads_little_twice(cuts: list[int], threads: int) -> None:
    """Each cut ends a fetch for good after so many bytes of some part."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store, cache = WatchedStore(folder / "store" / "v1"), ModelCache(folder / "cache")
        push(make_model(folder / "model"), store.where, store, LIMITS, lambda said: None)
        limits = Limits(parallel=threads, part_bytes=PART, attempts=1, pause_s=0.0)
        data = content_of(folder / "model")

        def breaks(after: int, file: str) -> Lie:
            def lie(offset: int, size: int) -> Iterator[bytes]:
                yield data[file][offset : offset + min(after, size)]
                raise StoreError("broke off")

            return lie

        for i, cut in enumerate(cuts):
            file = list(SHARDS)[i % 2]
            store.lies = {file: [breaks(cut, file)]}
            try:
                take(store, cache, limits=limits)
                break
            except StoreError as error:
                assert str(error) == "broke off" and not (cache.root / "versions").exists()
        store.lies = {}
        got = take(store, cache, limits=limits)
        assert content_of(got.folder) == data
        read_bytes = sum(size for _, _, size in store.reads)
        assert read_bytes <= sum(map(len, data.values())) + len(cuts) * threads * PART
