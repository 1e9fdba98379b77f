"""A fetch ends with a whole version or none, whatever the store gives and whenever the process dies."""

from __future__ import annotations

import errno
import json
import os
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from serve_app.core.model_manifest import MANIFEST
from serve_app.edge import file_fetch
from serve_app.edge.model_cache import ModelCache
from serve_app.edge.model_fetch import fetch
from serve_app.edge.store_types import Limits, StoreAway, StoreError, Untrue
from tests.model_stores import (
    LIMITS,
    SHARDS,
    WatchedStore,
    a_version,
    break_off,
    bytes_of,
    content_of,
    take,
    versions,
    why,
)

TOTAL = sum(SHARDS.values())


@pytest.fixture
def cache(tmp_path: Path) -> ModelCache:
    return ModelCache(tmp_path / "cache")


@pytest.fixture
def store(tmp_path: Path) -> WatchedStore:
    return a_version(tmp_path, "v1")


def of_shards(store: WatchedStore) -> list[tuple[str, int, int]]:
    return sorted(read for read in store.reads if read[0] in SHARDS)


def test_a_version_comes_whole_and_once(store: WatchedStore, cache: ModelCache) -> None:
    told: list[str] = []
    got = take(store, cache, told)
    expected = {k: v for k, v in content_of(store.folder).items() if k != MANIFEST}
    assert content_of(got.folder) == expected
    assert got.read_bytes == sum(map(len, expected.values()))
    assert of_shards(store) == [
        *[("model-1.safetensors", at, min(1000, 3500 - at)) for at in range(0, 3500, 1000)],
        *[("model-2.safetensors", at, 1000) for at in (0, 1000)],
    ]
    # Read whole, each byte once; an empty file not at all.
    assert sum(size for _, _, size in store.reads) == got.read_bytes
    assert not list((cache.root / "fetching").iterdir())


def test_a_version_that_is_there_is_not_asked_for(cache: ModelCache, store: WatchedStore) -> None:
    take(store, cache)
    store.folder.rename(store.folder.with_name("gone"))

    def nobody() -> WatchedStore:
        raise AssertionError("the store is asked")

    got = fetch(store.where, nobody, cache, LIMITS, lambda said: None)
    assert (got.read_bytes, got.folder.is_dir()) == (0, True)


@pytest.mark.parametrize("kind", ["gone", "short", "touched", "link"])
def test_a_copy_that_is_not_as_it_was_left_is_mended(kind: str, store: WatchedStore, cache: ModelCache) -> None:
    shard = take(store, cache).folder / "model-2.safetensors"
    data = shard.read_bytes()
    if kind == "short":
        shard.write_bytes(data[:-1])
    elif kind == "touched":
        shard.write_bytes(data)
    else:
        shard.unlink()
    if kind == "link":
        shard.symlink_to(store.folder / "model-2.safetensors")
    store.reads.clear()
    told: list[str] = []
    got = take(store, cache, told)
    assert of_shards(store) == sorted(store.reads) == [("model-2.safetensors", at, 1000) for at in (0, 1000)]
    assert got.read_bytes == 2000 and shard.read_bytes() == data and not shard.is_symlink()
    assert told[0] == (
        "in the cache it is not as it was left (model-2.safetensors): "
        "these files go into quarantine and are fetched again"
    )
    assert why(cache) == ["was not as it was left when it got its place in the cache"]


@pytest.mark.parametrize("name", [MANIFEST, "entry.json"])
@pytest.mark.parametrize("text", ["", "{}", None])
def test_an_entry_that_cannot_be_read_is_no_version(
    name: str, text: str | None, store: WatchedStore, cache: ModelCache
) -> None:
    file = take(store, cache).folder.parent / name
    file.unlink()
    if text is not None:
        file.write_text(text)
    assert take(store, cache).read_bytes == TOTAL + rest(store)
    assert why(cache) == ["was not as it was left when it got its place in the cache"]


def rest(store: WatchedStore) -> int:
    return sum(len(v) for k, v in content_of(store.folder).items() if k not in SHARDS and k != MANIFEST)


def test_mod_02_a_fetch_that_ended_between_shards_goes_on_with_what_is_missing(
    store: WatchedStore, cache: ModelCache
) -> None:
    break_off(store, cache)
    assert versions(cache) == []
    got = take(store, cache)
    assert {name for name, _, _ in store.reads} == {"model-1.safetensors"} and got.read_bytes == 3500
    assert content_of(got.folder)["model-1.safetensors"] == bytes_of("model-1.safetensors", 3500)


def test_mod_02_a_version_whose_index_names_another_shard_is_none(store: WatchedStore, cache: ModelCache) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-3.safetensors"}}
    file = store.folder / "model.safetensors.index.json"
    file.write_text(json.dumps(index))
    store.rewrite_manifest()
    with pytest.raises(Untrue, match=r"lacks shards of model\.safetensors\.index\.json: model-3\.safetensors$"):
        take(store, cache)
    assert versions(cache) == []


def test_a_part_goes_on_where_it_broke_off(store: WatchedStore, cache: ModelCache) -> None:
    data = bytes_of("model-1.safetensors", 3500)

    def breaks(offset: int, size: int) -> Iterator[bytes]:
        yield data[offset : offset + 300]
        raise StoreAway("broke off")

    store.lies["model-1.safetensors"] = [breaks, breaks]
    got = take(store, cache, limits=Limits(parallel=1, part_bytes=1000, attempts=3, pause_s=0.0))
    assert [read for read in of_shards(store) if read[1] < 1000][:3] == [
        ("model-1.safetensors", 0, 1000),
        ("model-1.safetensors", 300, 700),
        ("model-1.safetensors", 600, 400),
    ]
    assert content_of(got.folder)["model-1.safetensors"] == data


def test_a_store_that_is_away_is_not_asked_for_ever(store: WatchedStore, cache: ModelCache) -> None:
    def away(offset: int, size: int) -> Iterator[bytes]:
        raise StoreAway("the store is away")
        yield b""

    store.lies["model-2.safetensors"] = [away] * 3
    with pytest.raises(StoreAway, match="the store is away"):
        take(store, cache, limits=Limits(parallel=1, part_bytes=10_000, attempts=3, pause_s=0.0))
    assert [read for read in store.reads if read[0] == "model-2.safetensors"] == [("model-2.safetensors", 0, 2000)] * 3
    assert versions(cache) == [] and why(cache) == []


def test_wrong_bytes_go_into_quarantine_and_the_old_version_stays(
    tmp_path: Path, store: WatchedStore, cache: ModelCache
) -> None:
    old = take(store, cache)
    new = a_version(tmp_path, "v2", tokenizer_json="[]")
    shard = new.folder / "model-1.safetensors"
    shard.write_bytes(b"\0" + shard.read_bytes()[1:])
    # One after the other, the wrong one last: of two at once the other may have to stop in the middle.
    alone = replace(LIMITS, parallel=1)
    with pytest.raises(Untrue) as refused:
        take(new, cache, limits=alone)
    assert f"{new.address}/model-1.safetensors: 3500 bytes with SHA-256 " in str(refused.value)
    assert str(refused.value).endswith(f"; what came is in {cache.quarantine}")
    (kept,) = cache.quarantine.rglob("model-1.safetensors")
    assert kept.read_bytes() == shard.read_bytes() and len(why(cache)) == 1
    assert versions(cache) == ["m_v1"] and take(store, cache).read_bytes == 0 and old.folder.is_dir()
    # Only the wrong file is read again, and what is in quarantine does not pile up.
    new.reads.clear()
    with pytest.raises(Untrue):
        take(new, cache, limits=alone)
    assert {name for name, _, _ in new.reads} == {"model-1.safetensors"}
    assert len(why(cache)) == 1
    shard.write_bytes(bytes_of("model-1.safetensors", 3500))
    assert content_of(take(new, cache).folder)["model-1.safetensors"] == shard.read_bytes()


@pytest.mark.parametrize("size", [1999, 2001, 0])
def test_half_a_file_is_refused(size: int, store: WatchedStore, cache: ModelCache) -> None:
    (store.folder / "model-2.safetensors").write_bytes(bytes(size))
    with pytest.raises(Untrue, match=rf"model-2\.safetensors: has {size} bytes; the manifest says 2000"):
        take(store, cache)
    assert versions(cache) == [] and len(why(cache)) == 1


def test_a_link_in_a_store_is_not_followed(store: WatchedStore, cache: ModelCache, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes_of("model-2.safetensors", 2000))
    (store.folder / "model-2.safetensors").unlink()
    (store.folder / "model-2.safetensors").symlink_to(secret)
    with pytest.raises(Untrue, match=r"model-2\.safetensors: is behind a symbolic link"):
        take(store, cache)
    os.mkfifo(tmp_path / "pipe")
    (store.folder / "model-2.safetensors").unlink()
    (tmp_path / "pipe").rename(store.folder / "model-2.safetensors")
    with pytest.raises(Untrue, match=r"model-2\.safetensors: is no regular file"):
        take(store, cache)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_text("a")
    (store.folder / "model-2.safetensors").unlink()
    (store.folder / "sub").symlink_to(tmp_path / "sub")
    with pytest.raises(Untrue, match=r"sub/a: is behind a symbolic link"):
        store.look("sub/a")


@pytest.mark.parametrize(
    "data",
    [
        b"<html>",
        b'{"format": "grix-model/1", "files": [{"path": "../../x", "bytes": 1, "sha256": "' + b"0" * 64 + b'"}]}',
        b'{"format": "grix-model/1", "files": [{"path": "/x", "bytes": 1, "sha256": "' + b"0" * 64 + b'"}]}',
    ],
)
def test_a_manifest_that_is_none_writes_nothing(data: bytes, store: WatchedStore, cache: ModelCache) -> None:
    (store.folder / MANIFEST).write_bytes(data)
    with pytest.raises(Untrue, match=r"m/v1/grix-model\.json: "):
        take(store, cache)
    assert store.reads == [] and set(content_of(cache.root)) == {
        f"locks/{store.where.key}.{k}" for k in ("use", "fetch")
    }


def test_a_manifest_that_changes_during_a_fetch_ends_it(store: WatchedStore, cache: ModelCache) -> None:
    store.before_manifest = [lambda: None, lambda: store.rewrite_manifest(config_json=b"[]")]
    with pytest.raises(Untrue, match="its manifest changed while it was fetched; what was fetched is in "):
        take(store, cache)
    assert versions(cache) == [] and why(cache) == ["its manifest changed while it was fetched"]
    assert content_of(take(store, cache).folder)["config.json"] == b"[]"


def test_a_manifest_that_changed_between_two_fetches_puts_the_first_aside(
    store: WatchedStore, cache: ModelCache
) -> None:
    break_off(store, cache)
    store.rewrite_manifest(config_json=b"[]")
    told: list[str] = []
    got = take(store, cache, told)
    assert told[0] == "its manifest has changed since a fetch of it began: what that had fetched is in quarantine"
    assert why(cache) == ["its manifest is another one now"]
    assert content_of(got.folder)["config.json"] == b"[]" and got.read_bytes == TOTAL + rest(store)


def test_a_manifest_that_changed_later_does_not_touch_what_is_there(store: WatchedStore, cache: ModelCache) -> None:
    take(store, cache)
    store.rewrite_manifest(config_json=b"[]")
    got = take(store, cache)
    assert got.read_bytes == 0 and content_of(got.folder)["config.json"] == b"{}"


def test_what_power_took_from_a_part_is_read_again(store: WatchedStore, cache: ModelCache) -> None:
    break_off(store, cache)
    half = cache.fetching(store.where.key) / "files" / "model-2.safetensors"
    assert half.stat().st_size == 2000
    half.write_bytes(bytes(2000))
    got = take(store, cache)
    assert content_of(got.folder)["model-2.safetensors"] == bytes_of("model-2.safetensors", 2000)
    assert got.read_bytes == TOTAL and why(cache) == []


def test_a_leftover_whose_file_is_gone_is_read_again(store: WatchedStore, cache: ModelCache, tmp_path: Path) -> None:
    break_off(store, cache)
    half = cache.fetching(store.where.key) / "files" / "model-2.safetensors"
    half.unlink()
    (tmp_path / "outside").write_text("outside")
    half.symlink_to(tmp_path / "outside")
    got = take(store, cache)
    assert got.read_bytes == TOTAL and (tmp_path / "outside").read_text() == "outside"
    assert not (got.folder / "model-2.safetensors").is_symlink()


def test_a_disk_without_room_is_told_before_a_byte_is_read(
    store: WatchedStore, cache: ModelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_fetch, "_free_bytes", lambda folder: 5000)
    with pytest.raises(
        StoreError, match=r"no room on the disk: 5\.5 KiB are still to come, 4\.9 KiB are free; grix model gc"
    ):
        take(store, cache)
    assert store.reads == [] and versions(cache) == []


def test_a_disk_that_fills_up_gets_its_room_back(
    store: WatchedStore, cache: ModelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite

    def full(descriptor: int, data: bytes, offset: int) -> int:
        if offset >= 2000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoreError, match=r"no room on the disk: 3\.4 KiB are still to come, "):
        take(store, cache, limits=Limits(parallel=1, part_bytes=1000, pause_s=0.0))
    left = content_of(cache.fetching(store.where.key) / "files")
    assert "model-1.safetensors" not in left and len(left["model-2.safetensors"]) == 2000
    monkeypatch.undo()
    store.reads.clear()
    assert take(store, cache).read_bytes == 3500
    assert {name for name, _, _ in store.reads} == {"model-1.safetensors"}


def test_a_disk_that_takes_a_part_of_a_write_gets_the_rest(
    store: WatchedStore, cache: ModelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: pwrite(descriptor, data[:7], offset))
    assert content_of(take(store, cache).folder)["model-1.safetensors"] == bytes_of("model-1.safetensors", 3500)


def test_a_manifest_of_endless_files_takes_no_memory_and_no_disk(store: WatchedStore, cache: ModelCache) -> None:
    huge = {"path": "model-1.safetensors", "bytes": 1 << 45, "sha256": "0" * 64}
    (store.folder / MANIFEST).write_text(json.dumps({"format": "grix-model/1", "files": [huge]}))
    tracemalloc.start()
    try:
        with pytest.raises(StoreError, match=r"no room on the disk: 32768\.0 GiB are still to come"):
            take(store, cache)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert store.reads == []


def test_a_cache_that_cannot_be_written_is_told(store: WatchedStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file: (Not a directory|File exists); the cache is where GRIX_CACHE says$"):
        take(store, ModelCache(tmp_path / "file"))


def test_a_fetch_of_which_nothing_moves_ends(store: WatchedStore, cache: ModelCache) -> None:
    go, over = threading.Event(), threading.Event()

    def hangs(offset: int, size: int) -> Iterator[bytes]:
        go.wait(30)
        try:
            yield bytes(size)
        finally:
            over.set()

    store.lies["model-2.safetensors"] = [hangs]
    with pytest.raises(StoreAway, match=r"nothing has come for 0\.3 s$"):
        take(store, cache, limits=Limits(parallel=2, part_bytes=10_000, pause_s=0.0, stall_s=0.3))
    # What comes after that is not written any more.
    go.set()
    assert over.wait(30)
    assert (cache.fetching(store.where.key) / "files" / "model-2.safetensors").read_bytes() == b""


def test_parts_of_one_file_come_at_once(store: WatchedStore, cache: ModelCache) -> None:
    data, both = bytes_of("model-1.safetensors", 3500), threading.Barrier(2, timeout=20)

    def meets(offset: int, size: int) -> Iterator[bytes]:
        both.wait()
        yield data[offset : offset + size]

    store.lies["model-1.safetensors"] = [meets, meets]
    assert content_of(take(store, cache).folder)["model-1.safetensors"] == data
