"""A fetch ends with a whole version or none, whatever the store gives and whenever the process dies."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from serve_app.core.model_manifest import MANIFEST
from serve_app.edge import file_fetch
from serve_app.edge.engine_model import engine_model
from serve_app.edge.model_cache import ModelCache
from serve_app.edge.model_fetch import fetch
from serve_app.edge.model_files import model_bytes, model_digest
from serve_app.edge.model_gc import sweep
from serve_app.edge.model_store import push
from serve_app.edge.serve_config import engine_args
from serve_app.edge.store_types import Limits, NotThere, StoreAway, StoreError, Untrue
from tests.model_stores import LIMITS, SHARDS, WatchedStore, bytes_of, content_of, make_model, take

TOTAL = sum(SHARDS.values())


@pytest.fixture
def cache(tmp_path: Path) -> ModelCache:
    return ModelCache(tmp_path / "cache")


@pytest.fixture
def store(tmp_path: Path) -> WatchedStore:
    return a_version(tmp_path, "v1")


def a_version(tmp_path: Path, name: str, shards: dict[str, int] = SHARDS, **texts: str) -> WatchedStore:
    made = WatchedStore(tmp_path / "store" / "m" / name)
    push(make_model(tmp_path / f"model-{name}", shards, **texts), made.where, made, LIMITS, lambda said: None)
    return made


def of_shards(store: WatchedStore) -> list[tuple[str, int, int]]:
    return sorted(read for read in store.reads if read[0] in SHARDS)


def break_off(store: WatchedStore, cache: ModelCache) -> None:
    """A fetch that ends before the first shard, which is read last, with all the others there."""
    (store.folder / "model-1.safetensors").rename(store.folder / "later")
    with pytest.raises(NotThere, match=r"model-1\.safetensors: is not in the store, though the manifest has it$"):
        take(store, cache, limits=replace(LIMITS, parallel=1))
    (store.folder / "later").rename(store.folder / "model-1.safetensors")
    store.reads.clear()


def why(cache: ModelCache) -> list[str]:
    """What the notes in quarantine say."""
    return sorted(json.loads(note.read_text())["why"] for note in cache.quarantine.rglob("why.json"))


def versions(cache: ModelCache) -> list[str]:
    folder = cache.root / "versions"
    return sorted(p.name.partition("-")[0] for p in folder.iterdir()) if folder.exists() else []


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
    with pytest.raises(Untrue) as refused:
        take(new, cache)
    assert f"{new.address}/model-1.safetensors: 3500 bytes with SHA-256 " in str(refused.value)
    assert str(refused.value).endswith(f"; what came is in {cache.quarantine}")
    (kept,) = cache.quarantine.rglob("model-1.safetensors")
    assert kept.read_bytes() == shard.read_bytes() and len(why(cache)) == 1
    assert versions(cache) == ["m_v1"] and take(store, cache).read_bytes == 0 and old.folder.is_dir()
    # Only the wrong file is read again, and what is in quarantine does not pile up.
    new.reads.clear()
    with pytest.raises(Untrue):
        take(new, cache)
    assert {name for name, _, _ in new.reads} <= {"model-1.safetensors", "model-2.safetensors"}
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


def test_threads_share_no_byte_and_no_more_run_than_allowed(store: WatchedStore, cache: ModelCache) -> None:
    data, both, most = bytes_of("model-1.safetensors", 3500), threading.Barrier(2, timeout=20), []

    def meets(offset: int, size: int) -> Iterator[bytes]:
        both.wait()
        most.append(sum(t.name.startswith("Thread") and "one" in t.name for t in threading.enumerate()))
        yield data[offset : offset + size]

    store.lies["model-1.safetensors"] = [meets, meets]
    got = take(store, cache)
    assert content_of(got.folder)["model-1.safetensors"] == data and max(most) == 2


def engine(store: WatchedStore, **changes: object) -> dict[str, object]:
    from cluster_configs.kind_agent import AgentSpec

    storage = {"modelPath": store.address}
    spec = AgentSpec.model_validate({"version": "1", "duty": "chat", "model": "m", "storage": storage, **changes})
    return engine_args("a", spec, store.address)


def test_an_engine_loads_the_copy_of_its_host(
    store: WatchedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIX_CACHE", str(tmp_path / "c"))
    cache = ModelCache()
    assert cache.root == tmp_path / "c" / "models"
    folder, lease = engine_model(engine(store))
    assert folder == str(cache.version(store.where.key) / "files") and lease is not None
    swept = [(s.what, s.removed) for s in sweep(cache, keep=0, older_s=0.0, now_unix_s=0.0, dry_run=False)]
    assert swept == [("version, in use", False)]
    lease.free()
    assert engine_model({"model_path": "embedded:tiny-qwen"})[1] is None


def test_mod_07_a_digest_is_of_what_the_version_holds(
    store: WatchedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIX_CACHE", str(tmp_path / "c"))
    other = a_version(tmp_path, "v2", tokenizer_json="[1]")
    same = a_version(tmp_path, "v3")
    digests = [engine(s)["engine_digest"] for s in (store, other, same)]
    assert digests[0] == digests[2] != digests[1]
    # The same as of the folder that was pushed: moving a model does not change the engine.
    assert model_digest(store.address) == model_digest(f"file://{tmp_path / 'model-v1'}")
    assert model_bytes(store.address) == model_bytes(f"file://{tmp_path / 'model-v1'}") == TOTAL


def test_mod_07_a_version_that_was_changed_is_not_loaded(
    store: WatchedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIX_CACHE", str(tmp_path / "c"))
    args = engine(store)
    store.rewrite_manifest(tokenizer_json=b"[1]")
    with pytest.raises(
        StoreError, match=r"m/v1: this host has it as engine \w{12}, the config asks for \w{12}: the version"
    ):
        engine_model(args)
    assert engine_model(engine(store))[1] is not None


def test_mod_08_tokenizer_and_template_come_with_the_weights(
    store: WatchedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIX_CACHE", str(tmp_path / "c"))
    pinned = a_version(tmp_path, "v2", chat_template_jinja="pinned", tokenizer_json='"pinned"')
    main = a_version(tmp_path, "main", chat_template_jinja="main", tokenizer_json='"main"')
    assert engine(pinned)["engine_digest"] != engine(main)["engine_digest"]
    for version, said in ((main, "main"), (pinned, "pinned")):
        folder = Path(engine_model(engine(version))[0])
        assert (folder / "chat_template.jinja").read_text() == said
        assert (folder / "tokenizer.json").read_text() == f'"{said}"'


HOLD = """
import sys
from pathlib import Path
from serve_app.edge.model_cache import ModelCache
cache = ModelCache(Path(sys.argv[1]))
lock = cache.use(sys.argv[2]) if sys.argv[3] == "use" else cache.fetch_lock(sys.argv[2], print)
print("held", flush=True)
sys.stdin.read()
"""


def holding(cache: ModelCache, key: str, kind: str) -> subprocess.Popen[str]:
    """A process that has a lock."""
    command = [sys.executable, "-c", HOLD, str(cache.root), key, kind]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def swept(
    cache: ModelCache, keep: int = 0, now_unix_s: float = 2e9, dry_run: bool = False
) -> list[tuple[str, str, bool]]:
    done = sweep(cache, keep=keep, older_s=3600.0, now_unix_s=now_unix_s, dry_run=dry_run)
    return [(s.name.partition("-")[0], s.what, s.removed) for s in done]


def test_what_a_process_uses_stays_until_it_dies(store: WatchedStore, cache: ModelCache) -> None:
    take(store, cache).lease.free()
    holder = holding(cache, store.where.key, "use")
    try:
        assert swept(cache) == [("m_v1", "version, in use", False)]
        got = take(store, cache)
        got.lease.free()
        assert got.read_bytes == 0
    finally:
        holder.kill()
        holder.communicate()
    assert swept(cache, dry_run=True) == [("m_v1", "version", True)] and versions(cache) == ["m_v1"]
    assert swept(cache) == [("m_v1", "version", True)]
    assert swept(cache) == [] and versions(cache) == []
    assert sorted(p.name for p in cache.root.iterdir()) == ["fetching", "locks", "versions"]


def test_what_is_being_fetched_stays_until_its_process_dies(store: WatchedStore, cache: ModelCache) -> None:
    break_off(store, cache)
    holder = holding(cache, store.where.key, "fetch")
    try:
        assert swept(cache) == [("m_v1", "begun, in use", False)]
    finally:
        holder.kill()
        holder.communicate()
    assert swept(cache, now_unix_s=0.0) == [("m_v1", "begun", False)]
    assert swept(cache) == [("m_v1", "begun", True)]
    assert not cache.fetching(store.where.key).exists()


def test_the_last_used_versions_of_a_model_stay(tmp_path: Path, cache: ModelCache) -> None:
    for i, name in enumerate(("v1", "v2", "v3")):
        made = a_version(tmp_path, name)
        take(made, cache).lease.free()
        os.utime(cache.root / "locks" / f"{made.where.key}.use", (i, {"v1": 30, "v2": 10, "v3": 20}[name]))
    assert swept(cache, keep=2) == [("m_v1", "version", False), ("m_v2", "version", True), ("m_v3", "version", False)]
    assert versions(cache) == ["m_v1", "m_v3"]


def test_quarantine_is_for_a_while(store: WatchedStore, cache: ModelCache) -> None:
    (store.folder / "model-2.safetensors").write_bytes(b"short")
    with pytest.raises(Untrue):
        take(store, cache)
    key = store.where.key
    left = cache.quarantine / os.listdir(cache.quarantine)[0]
    assert sweep(cache, keep=2, older_s=3600.0, now_unix_s=left.stat().st_mtime, dry_run=False)[1].removed is False
    done = sweep(cache, keep=2, older_s=3600.0, now_unix_s=2e9, dry_run=False)
    assert [(s.name.startswith(key), s.what, s.removed) for s in done] == [
        (True, "begun", True),
        (True, "quarantine", True),
    ]
    assert why(cache) == []
