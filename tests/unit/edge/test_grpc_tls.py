"""Real servers and channels with real certificates on loopback: who gets in, who does not, and what is said of it."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest

from serve_app.edge import grpc_tls, pki
from serve_app.edge.door import Door, Refused
from serve_app.edge.grpc_tls import Pair, TlsError, TlsFolder, read_pair, start_server
from serve_app.edge.identity import Identity
from serve_app.edge.tls_faults import fault_of
from tests.pki import FEDERATION, made, region, reissue

MOST = 1000
B = region("cloud-b")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("pki"))


class Echo(grpc.GenericRpcHandler):
    """Says who called. ``/stream`` says it again at each message."""

    def __init__(self, door: Door) -> None:
        self.door = door

    def service(self, details: Any) -> Any:
        async def once(_: bytes, context: Any) -> bytes:
            try:
                return str(self.door.caller(context)).encode()
            except Refused as refused:
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, refused.why)

        async def stream(asked: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async for _ in asked:
                yield await once(b"", context)

        if details.method == "/stream":
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(once)


@asynccontextmanager
async def serving(tls: TlsFolder, unix_s: Callable[[], float] | None = None) -> AsyncIterator[str]:
    door = Door(FEDERATION, ("region",), unix_s) if unix_s else Door(FEDERATION, ("region",))
    echo = Echo(door)
    server, port = await start_server(
        "127.0.0.1:0", tls, lambda s: s.add_generic_rpc_handlers((echo,)), most_bytes=MOST, busy_s=0
    )
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def ask(tls: TlsFolder, address: str, whom: Identity = B, said: bytes = b"") -> str:
    async with tls.channel(address, whom, 10 * MOST) as channel:
        try:
            return (await channel.unary_unary("/echo")(said, timeout=5)).decode()
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"


async def test_both_sides_know_each_other(root: Path) -> None:
    a, b = TlsFolder(root / "region/cloud-a"), TlsFolder(root / "region/cloud-b")
    async with serving(b) as address:
        assert await ask(a, address) == "grix://demo/region/cloud-a"
        assert await fault_of(address, B, a) == ""


async def test_a_region_that_answers_for_another_is_not_spoken_to(root: Path) -> None:
    a, b = TlsFolder(root / "region/cloud-a"), TlsFolder(root / "region/cloud-b")
    async with serving(b) as address:
        assert "Hostname Verification Check failed" in await ask(a, address, region("edge-1"))
        assert "refused grix://demo/region/cloud-b (certificate of " in await fault_of(address, region("edge-1"), a)


async def test_an_expired_certificate_is_refused_by_both_sides(
    root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    a, b = TlsFolder(root / "region/cloud-a"), TlsFolder(root / "region/cloud-b")
    old_a = TlsFolder(reissue(root, region("cloud-a"), tmp_path / "a", valid_from_now_s=-60))
    old_b = TlsFolder(reissue(root, B, tmp_path / "b", valid_from_now_s=-60))
    async with serving(b) as address:
        assert (await ask(old_a, address)).startswith("UNAVAILABLE: ")
        assert "hangs up; it saw the certificate of grix://demo/region/cloud-a, valid until" in (
            await fault_of(address, B, old_a)
        )
    # gRPC tells nobody but standard error about a caller that it turned away.
    assert "certificate has expired" in capfd.readouterr().err
    async with serving(old_b) as address:
        assert "CERTIFICATE_VERIFY_FAILED: certificate has expired" in await ask(a, address)
        assert (await fault_of(address, B, a)).endswith(
            "dialled as grix://demo/region/cloud-b: certificate has expired"
        )


async def test_a_certificate_that_ends_during_a_connection_is_refused_by_name(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = TlsFolder(root / "region/cloud-a"), TlsFolder(root / "region/cloud-b")
    ends_unix_s = a.pair().ends_unix_s
    with caplog.at_level(logging.WARNING, "ray.serve"):
        async with serving(b, lambda: ends_unix_s + 1) as address:
            assert (await ask(a, address)).startswith("PERMISSION_DENIED: has a certificate that ended on ")
            await ask(a, address)
    said = [r.getMessage() for r in caplog.records if "refused" in r.getMessage()]
    assert len(said) == 1 and said[0].startswith("refused grix://demo/region/cloud-a at ipv4:127.0.0.1:")


async def test_another_authority_is_refused_by_both_sides(
    root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = made(tmp_path / "other")
    # A stranger that trusts this authority, and is not of it: the server alone can refuse it.
    shutil.copy(root / "ca/ca.pem", other / "region/cloud-a/ca.pem")
    mine, theirs = TlsFolder(root / "region/cloud-a"), TlsFolder(other / "region/cloud-a")
    async with serving(TlsFolder(root / "region/cloud-b")) as address:
        assert (await ask(theirs, address)).startswith("UNAVAILABLE: ")
        assert "hangs up; it saw the certificate of grix://demo/region/cloud-a, valid until" in (
            await fault_of(address, B, theirs)
        )
    # gRPC tells nobody but standard error about a caller that it turned away.
    assert "Handshake failed" in capfd.readouterr().err
    async with serving(TlsFolder(other / "region/cloud-b")) as address:
        assert (await ask(mine, address)).startswith("UNAVAILABLE: ")
        assert "self-signed certificate" in await fault_of(address, B, mine) or "unable to get local issuer" in (
            await fault_of(address, B, mine)
        )


async def test_who_shows_no_certificate_is_refused(root: Path) -> None:
    async with serving(TlsFolder(root / "region/cloud-b")) as address:
        bare = grpc.ssl_channel_credentials((root / "ca/ca.pem").read_bytes())
        options = [("grpc.ssl_target_name_override", B.dns)]
        async with grpc.aio.secure_channel(address, bare, options=options) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                await channel.unary_unary("/echo")(b"", timeout=5)


async def test_a_foreign_federation_and_a_part_that_may_not_call_are_refused_and_logged(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    foreign = TlsFolder(reissue(root, region("cloud-a", "evil"), tmp_path / "evil"))
    with caplog.at_level(logging.WARNING, "ray.serve"):
        async with serving(TlsFolder(root / "region/cloud-b")) as address:
            assert await ask(foreign, address) == "PERMISSION_DENIED: belongs to another federation than demo"
            operator = TlsFolder(root / "operator/admin")
            assert await ask(operator, address) == "PERMISSION_DENIED: may not call this; allowed: region"
    said = " ".join(r.getMessage() for r in caplog.records)
    assert "refused grix://evil/region/cloud-a at ipv4:127.0.0.1:" in said
    assert "refused grix://demo/operator/admin at ipv4:127.0.0.1:" in said
    assert "PRIVATE" not in said


async def test_a_message_above_the_limit_is_refused(root: Path) -> None:
    a, b = TlsFolder(root / "region/cloud-a"), TlsFolder(root / "region/cloud-b")
    async with serving(b) as address:
        assert (await ask(a, address, said=b"x" * (MOST + 1))).startswith("RESOURCE_EXHAUSTED: ")


async def test_certificates_are_renewed_while_a_stream_runs(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "pki", symlinks=True)
    mine = tmp_path / "pki"
    a, b = TlsFolder(mine / "region/cloud-a"), TlsFolder(mine / "region/cloud-b")
    async with serving(b) as address, a.channel(address, B, MOST) as channel:
        stream = channel.stream_stream("/stream")(timeout=10)
        await stream.write(b"")
        assert await stream.read() == b"grix://demo/region/cloud-a"
        before = (a.pair(), b.pair())
        pki.renew(mine, datetime.now(UTC))
        assert a.pair() != before[0]
        assert await ask(a, address) == "grix://demo/region/cloud-a"
        assert b.pair() != before[1]
        await stream.write(b"")
        assert await stream.read() == b"grix://demo/region/cloud-a"
        await stream.done_writing()
    # The server of before is gone: what it showed last is the new certificate.
    async with serving(b) as address:
        assert await fault_of(address, B, a) == ""


def test_half_a_pair_changes_nothing(root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(root / "region/cloud-a", folder)
    tls = TlsFolder(folder)
    before = tls.pair()
    other = reissue(root, region("cloud-a"), tmp_path / "other")
    with caplog.at_level(logging.INFO, "ray.serve"):
        (folder / "cert.pem").write_bytes((other / "cert.pem").read_bytes())
        assert tls.pair() is before
        (folder / "key.pem").write_bytes((other / "key.pem").read_bytes())
        assert tls.pair().cert == (other / "cert.pem").read_bytes()
        (folder / "cert.pem").unlink()
        assert tls.pair().cert == (other / "cert.pem").read_bytes()
    said = [r.getMessage() for r in caplog.records]
    assert said[0].startswith("certificates stay as they were: ") and "is not the key of cert.pem" in said[0]
    assert any(s.startswith("new certificate of grix://demo/region/cloud-a, valid until ") for s in said)


def test_a_certificate_that_could_not_be_read_is_read_again(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(root / "region/cloud-a", folder)
    tls = TlsFolder(folder)
    other = reissue(root, region("cloud-a"), tmp_path / "other")

    def broken(folder: Path) -> Pair:
        raise TlsError(f"{folder}: cannot be read: Too many open files")

    for name in pki.FILES:
        (folder / name).write_bytes((other / name).read_bytes())
    with monkeypatch.context() as now:
        now.setattr(grpc_tls, "read_pair", broken)
        before = [tls.pair() for _ in range(3)]
        assert len(caplog.records) == 1
    # Nothing of the files has changed since.
    assert tls.pair().cert == (other / "cert.pem").read_bytes() != before[-1].cert


def test_the_same_refusal_is_logged_again_after_a_while_whatever_the_wall_clock_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Context:
        def peer(self) -> str:
            return "ipv4:127.0.0.1:1"

    unix_s, now_s = [1_800_000_000.0], [0.0]
    door = Door(FEDERATION, ("region",), lambda: unix_s[0], lambda: now_s[0])
    for now_s[0], unix_s[0], told in ((0, 1.8e9, 1), (29, 1.9e9, 1), (30, 1.7e9, 2), (60, 1.6e9, 3)):
        door.refused(Context(), "somebody", "is nobody")
        assert len(caplog.records) == told


def test_a_folder_does_not_become_somebody_else(root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(root / "region/cloud-a", folder)
    tls = TlsFolder(folder)
    for name in pki.FILES:
        (folder / name).write_bytes((root / "region/cloud-b" / name).read_bytes())
    assert tls.pair().identity == tls.identity == region("cloud-a")
    assert "is now that of grix://demo/region/cloud-b" in caplog.text


def test_an_end_that_comes_is_told_once_an_hour(root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    tls = TlsFolder(root / "region/cloud-a", lambda: now[0])
    ends_unix_s = tls.pair().ends_unix_s
    for left_s, told in ((86400 * 3, 0), (86400, 1), (86400 - 3599, 1), (86400 - 3600, 2), (-1, 3)):
        now[0] = ends_unix_s - left_s
        tls.pair()
        assert len(caplog.records) == told
    assert "has ended on" in caplog.text


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("cert.pem", None, r"cert\.pem: cannot be read: No such file or directory$"),
        ("key.pem", b"no key", r": one of ca\.pem, cert\.pem, key\.pem is not PEM of its kind$"),
    ],
)
def test_unusable_certificates_are_named(root: Path, tmp_path: Path, name: str, data: bytes | None, said: str) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(root / "region/cloud-a", folder)
    (folder / name).unlink() if data is None else (folder / name).write_bytes(data)
    with pytest.raises(TlsError, match=said):
        read_pair(folder)


async def test_a_busy_port_is_waited_for_and_then_an_error(root: Path) -> None:
    tls = TlsFolder(root / "region/cloud-b")

    def start(busy_s: float) -> Awaitable[tuple[grpc.aio.Server, int]]:
        return start_server(address, tls, lambda server: None, most_bytes=MOST, busy_s=busy_s)

    first, port = await start_server("127.0.0.1:0", tls, lambda server: None, most_bytes=MOST, busy_s=0)
    address = f"127.0.0.1:{port}"
    with pytest.raises(TlsError, match=rf"^{address}: another process listens there, and did so for 0 s$"):
        await start(0)
    waiting = asyncio.ensure_future(start(30))
    await asyncio.sleep(0)
    await first.stop(0)
    second, again = await waiting
    assert again == port
    await second.stop(0)


async def test_an_address_of_another_machine_is_an_error_at_once(root: Path) -> None:
    with pytest.raises(
        TlsError, match=r"^192\.0\.2\.1:7543: nobody can listen there: Cannot assign requested address$"
    ):
        await start_server(
            "192.0.2.1:7543", TlsFolder(root / "region/cloud-b"), lambda s: None, most_bytes=MOST, busy_s=60
        )


@pytest.mark.parametrize(("address", "said"), [("127.0.0.1:1", "cannot be reached: Connection refused")])
async def test_nobody_there_is_said_as_it_is(root: Path, address: str, said: str) -> None:
    assert await fault_of(address, B, TlsFolder(root / "region/cloud-a")) == f"{B} at {address} {said}"
