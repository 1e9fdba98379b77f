"""The model store against a real S3 server: what is sent is counted there, and it lies, breaks off and stalls."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from serve_app.cli.main import main
from serve_app.core.model_manifest import MANIFEST
from serve_app.edge.model_cache import ModelCache
from serve_app.edge.model_fetch import Fetched, fetch
from serve_app.edge.model_store import address_of, open_store, push
from serve_app.edge.model_verify import faults_in_store
from serve_app.edge.store_types import Limits, NotThere, StoreAway, StoreError, Untrue
from tests.model_stores import LIMITS, SHARDS, bytes_of, content_of, make_model
from tests.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, Lie, S3Server, running_s3

SHARD = "model-1.safetensors"
VERSION = f"s3://{BUCKET}/tiny/v1"
#: Patience of a test for another process; nothing takes so long.
SOON_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The server, with one version in it that no test changes."""
    with running_s3() as made, pytest.MonkeyPatch.context() as patch:
        for name, value in made.environment().items():
            patch.setenv(name, value)
        client().create_bucket(Bucket=BUCKET)
        pushed(make_model(tmp_path_factory.mktemp("store") / "model"), VERSION)
        made.forget()
        yield made


@pytest.fixture
def s3(server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3Server]:
    """The server without lies, and the environment of a client."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GRIX_CACHE", str(tmp_path / "cache"))
    yield server
    server.lie = None
    server.forget()


def client() -> Any:
    return boto3.client("s3")


def pushed(model: Path, address: str, limits: Limits = LIMITS) -> int:
    where = address_of(address)
    return push(model, where, open_store(where, limits), limits, lambda said: None).sent_bytes


def pulled(address: str, limits: Limits = LIMITS) -> Fetched:
    where = address_of(address)
    return fetch(where, lambda: open_store(where, limits), ModelCache(), limits, lambda said: None)


def uri(tmp_path: Path, name: str = "v1") -> str:
    """An address that no other test has."""
    return f"s3://{BUCKET}/{tmp_path.name}/{name}"


def of(s3: S3Server, name: str) -> list[str]:
    """Ranges that were asked of a file."""
    return sorted(asked for method, key, asked in s3.asked if method == "GET" and key.endswith(f"/{name}"))


def test_a_version_goes_there_and_comes_back(s3: S3Server, tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    pushed(model, uri(tmp_path))
    s3.forget()
    got = pulled(uri(tmp_path))
    assert content_of(got.folder) == content_of(model)
    # Every byte once; the manifest at the beginning, and again at the end.
    sent = {key.rpartition("/")[2]: size for key, size in s3.sent_bytes.items()}
    assert sent.pop(MANIFEST) == 2 * len(got.manifest.text())
    assert sent == {name: len(data) for name, data in content_of(model).items() if data}
    assert sum(sent.values()) == got.read_bytes
    assert of(s3, SHARD) == ["bytes=0-999", "bytes=1000-1999", "bytes=2000-2999", "bytes=3000-3499"]
    s3.forget()
    assert pulled(uri(tmp_path)).read_bytes == 0 and s3.asked == []


def test_the_manifest_is_written_last_and_once(s3: S3Server, tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    pushed(model, uri(tmp_path))
    puts = [key for method, key, _ in s3.asked if method == "PUT"]
    assert puts[-1] == f"{tmp_path.name}/v1/{MANIFEST}" and len(puts) == len(content_of(model)) + 1
    s3.forget()
    assert pushed(model, uri(tmp_path)) == 0
    assert [asked[0] for asked in s3.asked] == ["GET"]
    (model / "config.json").write_text("[]")
    with pytest.raises(StoreError, match="holds another version, and a version never changes"):
        pushed(model, uri(tmp_path))
    store = open_store(address_of(uri(tmp_path)), LIMITS)
    assert store.write_once(MANIFEST, b"another") is False


def test_mod_05_objects_that_came_in_parts_are_sent_and_read_once(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from serve_app.edge import store_s3

    monkeypatch.setattr(store_s3, "_UPLOAD_PART_BYTES", 5 << 20)
    model = make_model(tmp_path / "model", {SHARD: (10 << 20) + 7, "model-2.safetensors": 100})
    address, limits = uri(tmp_path), Limits()
    assert pushed(model, address, limits) > 10 << 20
    head = client().head_object(Bucket=BUCKET, Key=f"{tmp_path.name}/v1/{SHARD}")
    assert head["ETag"].endswith('-3"')
    # A push that was killed before its manifest finds its objects by size and SHA-256.
    client().delete_object(Bucket=BUCKET, Key=f"{tmp_path.name}/v1/{MANIFEST}")
    assert pushed(model, address, limits) == 0
    assert pulled(address, limits).read_bytes > 10 << 20
    s3.forget()
    assert pulled(address, limits).read_bytes == 0
    assert s3.asked == [] and s3.sent_bytes == {}


def body(data: bytes, status: str = "206 Partial Content", length: int | None = None, said: str | None = None) -> Lie:
    """An answer to each GET of the first shard."""

    def lie(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes] | None:
        if environ["REQUEST_METHOD"] != "GET" or not environ["PATH_INFO"].endswith(SHARD):
            return None
        first, _, last = environ["HTTP_RANGE"].removeprefix("bytes=").partition("-")
        headers = [("Content-Length", str(len(data) if length is None else length)), ("Connection", "close")]
        headers.append(("Content-Range", said or f"bytes {first}-{last}/{SHARDS[SHARD]}"))
        start(status, headers)
        return iter([data])

    return lie


ONE = Limits(parallel=2, part_bytes=10_000, attempts=2, pause_s=0.0, silence_s=5.0)


@pytest.mark.parametrize(
    ("lie", "kind", "why"),
    [
        (body(b"x" * 3500), Untrue, "3500 bytes with SHA-256 "),
        (body(b"x" * 9000), Untrue, "3500 bytes with SHA-256 "),
        (body(b"<html>busy</html>", "200 OK"), Untrue, "answers 200, bytes 0-3499/3500; asked was 206, bytes 0-"),
        (body(b"x" * 9, said="bytes 0-8/9"), Untrue, "answers 206, bytes 0-8/9; asked was 206, bytes 0-3499/3500"),
        (body(b"x", said=f"key {SECRET_KEY}"), Untrue, "answers 206, no range; asked was 206, bytes 0-3499/3500"),
        (body(b"x" * 100, length=3500), StoreAway, "the store broke off 3300 bytes before the end"),
        (body(b"", length=3500), StoreAway, "the store broke off 3500 bytes before the end"),
        (body(b"<Error><Code>SlowDown</Code></Error>", "503 Slow Down"), StoreAway, "the store answers 503 SlowDown"),
        (body(b"garbage", "500 Broken"), StoreAway, "the store answers 500 "),
        (body(b"<Error><Code>AccessDenied</Code></Error>", "403 Forbidden"), StoreError, "refuses: 403 AccessDenied"),
        (body(f"<Error><Code>{ACCESS_KEY}</Code><Message>{SECRET_KEY}</Message></Error>".encode(), "400 Bad"),
         StoreError, "refuses: 400 without a code"),
        (body(b"", "416 Range Not Satisfiable"), Untrue, "is shorter in the store than the manifest says"),
        (body(b"<Error><Code>NoSuchKey</Code></Error>", "404 Not Found"), NotThere, "is not in the store, though the"),
    ],
)  # fmt: skip
def test_a_bucket_that_lies_is_told_and_nothing_of_it_is_loaded(
    lie: Lie, kind: type[StoreError], why: str, s3: S3Server
) -> None:
    s3.lie = lie
    with pytest.raises(kind) as refused:
        pulled(VERSION, ONE)
    told = str(refused.value)
    assert type(refused.value) is kind and f"{VERSION}/{SHARD}: " in told and why in told
    assert ACCESS_KEY not in told and SECRET_KEY not in told and refused.value.__cause__ is None
    # Away is tried again, within bounds; a lie is not.
    assert len(of(s3, SHARD)) == (2 if kind is StoreAway else 1)
    cache = ModelCache()
    assert not (cache.root / "versions").exists() and cache.quarantine.exists() == (kind is Untrue)
    s3.lie = None
    assert content_of(pulled(VERSION, ONE).folder)[SHARD] == bytes_of(SHARD, SHARDS[SHARD])


def test_a_body_without_end_is_left_where_it_should_have_ended(s3: S3Server) -> None:
    pieces = [0]

    def endless(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes] | None:
        if environ["REQUEST_METHOD"] != "GET" or not environ["PATH_INFO"].endswith(SHARD):
            return None
        start("206 Partial Content", [("Content-Range", "bytes 0-3499/3500"), ("Transfer-Encoding", "chunked")])

        def chunks() -> Iterator[bytes]:
            while True:
                pieces[0] += 1
                yield b"x" * 1000

        return chunks()

    s3.lie = endless
    with pytest.raises(Untrue, match="3500 bytes with SHA-256 "):
        pulled(VERSION, ONE)
    # The server notices at some time that nobody listens: what it can send until then are full buffers.
    assert pieces[0] < 100_000


def test_a_manifest_without_end_is_not_read(s3: S3Server) -> None:
    def endless(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes] | None:
        start("200 OK", [("Transfer-Encoding", "chunked")])
        return iter(lambda: b" " * 65536, b"")

    s3.lie = endless
    with pytest.raises(Untrue, match=r"grix-model\.json: the store gives no length; allowed: at most 16777216 bytes"):
        pulled(VERSION, ONE)

    def huge(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes] | None:
        start("200 OK", [("Content-Length", str(1 << 40))])
        return iter(lambda: b" " * 65536, b"")

    s3.lie = huge
    with pytest.raises(
        Untrue, match=r"grix-model\.json: the store gives 1099511627776 bytes; allowed: at most 16777216"
    ):
        pulled(VERSION, ONE)


@pytest.mark.parametrize("drips", [False, True])
def test_a_bucket_that_stalls_is_given_up(drips: bool, s3: S3Server) -> None:
    over = threading.Event()

    def stalls(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes] | None:
        if environ["REQUEST_METHOD"] != "GET" or not environ["PATH_INFO"].endswith(SHARD):
            return None
        first = int(environ["HTTP_RANGE"].removeprefix("bytes=").partition("-")[0])
        length = SHARDS[SHARD] - first
        start("206 Partial Content", [("Content-Range", f"bytes {first}-3499/3500"), ("Content-Length", str(length))])

        def pieces() -> Iterator[bytes]:
            yield b"x"
            while not over.wait(0.05 if drips else 30):
                yield b"x"

        return pieces()

    s3.lie = stalls
    limits = Limits(parallel=2, part_bytes=10_000, attempts=2, pause_s=0.0, silence_s=0.4, slow_bytes=1000)
    try:
        with pytest.raises(StoreAway, match=r"the store gave \d+ bytes in|does not answer \(ReadTimeoutError\)"):
            pulled(VERSION, limits)
    finally:
        over.set()
    assert len(of(s3, SHARD)) == 2
    assert [asked.startswith("bytes=0-") for asked in of(s3, SHARD)].count(True) == 1, "the second try goes on"
    s3.lie = None
    assert content_of(pulled(VERSION, ONE).folder)[SHARD] == bytes_of(SHARD, SHARDS[SHARD])


def test_a_server_that_is_not_there_is_named_without_its_secrets(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://user:word@127.0.0.1:9")
    with pytest.raises(StoreAway) as refused:
        pulled(VERSION, ONE)
    assert str(refused.value) == (f"{VERSION}/grix-model.json: 127.0.0.1:9 does not answer (EndpointConnectionError)")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    with pytest.raises(StoreError, match="there are no S3 credentials; allowed: AWS_ACCESS_KEY_ID and AWS_SECRET"):
        pulled(VERSION, ONE)


def test_a_bucket_or_version_that_is_not_there_is_told(s3: S3Server, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"holds no version: grix-model\.json, which is written last, is not there"):
        pulled(uri(tmp_path, "none"))
    with pytest.raises(StoreError, match=r"there is no bucket another-bucket"):
        pushed(make_model(tmp_path / "model"), "s3://another-bucket/v1")


def test_an_upload_that_is_refused_is_told_and_leaves_no_version(s3: S3Server, tmp_path: Path) -> None:
    def refuses(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes] | None:
        if environ["REQUEST_METHOD"] != "PUT":
            return None
        environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        start("403 Forbidden", [("Connection", "close")])
        return [b"<Error><Code>QuotaExceeded</Code></Error>"]

    s3.lie = refuses
    with pytest.raises(StoreError, match=r"/v1/[a-z0-9_.-]+: the store refuses: 403 QuotaExceeded$"):
        pushed(make_model(tmp_path / "model"), uri(tmp_path))
    s3.lie = None
    with pytest.raises(NotThere, match="holds no version"):
        pulled(uri(tmp_path))


def test_what_the_store_has_lost_is_named(s3: S3Server, tmp_path: Path) -> None:
    version = uri(tmp_path)
    pushed(make_model(tmp_path / "model"), version)
    where, store = address_of(version), open_store(address_of(version), LIMITS)

    def faults(read: bool) -> list[str]:
        return faults_in_store(where, ModelCache(), store, LIMITS, lambda said: None, read=read)

    assert faults(False) == faults(True) == []
    prefix = f"{tmp_path.name}/v1"
    client().delete_object(Bucket=BUCKET, Key=f"{prefix}/model-2.safetensors")
    client().put_object(Bucket=BUCKET, Key=f"{prefix}/{SHARD}", Body=bytes(3500))
    assert faults(False) == [f"{version}/model-2.safetensors: is not in the store"]
    wrong = faults(True)
    assert wrong[0].startswith(f"{version}/{SHARD}: SHA-256 ") and wrong[1:] == [
        f"{version}/model-2.safetensors: is not in the store"
    ]


# Real processes.

#: What ``grix model pull`` does, with parts of 1000 bytes.
PULL = """
import json, sys
from serve_app.edge.model_cache import ModelCache
from serve_app.edge.model_fetch import fetch
from serve_app.edge.model_store import address_of, open_store
from tests.model_stores import LIMITS
where = address_of(sys.argv[1])
got = fetch(where, lambda: open_store(where, LIMITS), ModelCache(), LIMITS, lambda said: print(said, flush=True))
print(json.dumps([str(got.folder), got.read_bytes]))
"""


def starter(address: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", PULL, address], stdout=pipe, stderr=pipe, text=True)


def end_of(process: subprocess.Popen[str]) -> tuple[Path, int]:
    """Folder, and bytes read from the store."""
    out, err = process.communicate(timeout=SOON_S)
    assert process.returncode == 0, err
    folder, read_bytes = json.loads(out.splitlines()[-1])
    return Path(folder), read_bytes


def waits(process: subprocess.Popen[str]) -> bool:
    """Whether a starter's first word is that another one fetches."""
    assert process.stdout is not None
    return process.stdout.readline() == "another process of this host fetches it; waiting\n"


def until(true: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Waits for something that another process brings about."""
    end_s = time.monotonic() + SOON_S
    while not true():
        if process.poll() is not None or time.monotonic() > end_s:
            process.kill()
            pytest.fail(f"did not come about: {process.communicate()}")
        time.sleep(0.02)


def held_back(name: str, first: int, go: threading.Event) -> Lie:
    """Ranges of a file from a byte on wait until they may go."""

    def lie(environ: dict[str, Any], start: Callable[..., Any]) -> None:
        asked = environ.get("HTTP_RANGE", "")
        if environ["PATH_INFO"].endswith(name) and asked and int(asked[6:].partition("-")[0]) >= first:
            go.wait(SOON_S)

    return lie


def test_a_fetch_that_is_killed_goes_on_with_ranges_and_ends_right(s3: S3Server) -> None:
    go = threading.Event()
    s3.lie = held_back(SHARD, 2000, go)
    process = starter(VERSION)
    journal = ModelCache().fetching(address_of(VERSION).key) / "journal"
    # Both threads wait for the third and the fourth part of the shard; everything else is there.
    until(lambda: len(of(s3, SHARD)) == 4, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    go.set()
    s3.lie = None
    assert not (ModelCache().root / "versions").exists()
    assert journal.read_text().count("have") == 7
    s3.forget()

    folder, read_bytes = end_of(starter(VERSION))
    # What was on disk is not sent again; the last two parts are, once.
    assert read_bytes == 1500
    assert sorted(asked for asked in s3.asked if not asked[1].endswith(MANIFEST)) == [
        ("GET", f"tiny/v1/{SHARD}", "bytes=2000-2999"),
        ("GET", f"tiny/v1/{SHARD}", "bytes=3000-3499"),
    ]
    assert content_of(folder)[SHARD] == bytes_of(SHARD, SHARDS[SHARD])


def test_two_starters_on_a_host_fetch_once(s3: S3Server) -> None:
    go = threading.Event()
    s3.lie = held_back(SHARD, 0, go)
    first = starter(VERSION)
    until(lambda: of(s3, SHARD) != [], first)
    second = starter(VERSION)
    assert waits(second)
    go.set()
    (folder, read_bytes), there = end_of(first), end_of(second)
    assert there == (folder, 0)
    sizes = {name: len(data) for name, data in content_of(folder).items() if data}
    sent = {key.rpartition("/")[2]: size for key, size in s3.sent_bytes.items()}
    assert sent.pop(MANIFEST) > 0 and sent == sizes and read_bytes == sum(sizes.values())

    # A version that is there: not one request more.
    s3.forget()
    assert end_of(starter(VERSION)) == (folder, 0) and s3.asked == []


def test_whoever_waits_goes_on_where_a_killed_one_was(s3: S3Server) -> None:
    go = threading.Event()
    s3.lie = held_back(SHARD, 2000, go)
    first = starter(VERSION)
    until(lambda: len(of(s3, SHARD)) == 4, first)
    second = starter(VERSION)
    assert waits(second)
    first.kill()
    first.communicate()
    go.set()
    folder, read_bytes = end_of(second)
    assert read_bytes == 1500 and content_of(folder)[SHARD] == bytes_of(SHARD, SHARDS[SHARD])


def test_no_secret_is_in_what_the_command_says(s3: S3Server, capfd: pytest.CaptureFixture[str]) -> None:
    for lie in (None, body(f"<Error><Code>{ACCESS_KEY}</Code></Error>".encode(), "400 Bad")):
        s3.lie = lie
        assert main(["model", "verify", VERSION, "--read"]) == (0 if lie is None else 1)
        said = "".join(capfd.readouterr())
        assert VERSION in said and ACCESS_KEY not in said and SECRET_KEY not in said
