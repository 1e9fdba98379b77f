"""gRPC between the parts of a federation: certificates on both sides, always, renewed without a restart."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from serve_app.edge.identity import Identity
from serve_app.edge.pki import FILES, identity_in

log = logging.getLogger("ray.serve")

#: A connection that says nothing is asked this often, and is dead without an answer for as long: half-open ones end.
#: A line may be slow and a machine busy; that a peer is silent is for its beats to say.
LINK_S: Final = 10.0
#: A connection that does not come about is tried anew after this long.
DIAL_S: Final = 5.0
#: Less of a certificate's life left than this is told, once an hour.
ENDS_SOON_RATIO: Final = 0.25
TOLD_EVERY_S: Final = 3600.0
_BUSY_PAUSE_S: Final = 0.2
_READS: Final = 3


class TlsError(Exception):
    """Certificates that cannot be used, or an address where nobody can listen."""


@dataclass(frozen=True, slots=True)
class Pair:
    """What lies in an identity's folder, whole: the key is the certificate's."""

    identity: Identity
    ca: bytes
    cert: bytes
    key: bytes
    begins_unix_s: float
    ends_unix_s: float


def read_pair(folder: Path) -> Pair:
    """The files of a folder.

    Raises:
        TlsError: naming the file that is missing or unfit, or when key and certificate are not a pair.
    """
    for _ in range(_READS - 1):
        # They may be renewed between the first file and the last.
        with suppress(TlsError):
            return _read_pair(folder)
    return _read_pair(folder)


def _read_pair(folder: Path) -> Pair:
    try:
        # Links are followed before anything is read, so that the files are of one version.
        files = [(folder / name).resolve() for name in FILES]
        ca, cert, key = (file.read_bytes() for file in files)
    except OSError as error:
        raise TlsError(f"{error.filename}: cannot be read: {error.strerror}") from None
    try:
        leaf, secret = x509.load_pem_x509_certificate(cert), serialization.load_pem_private_key(key, None)
        x509.load_pem_x509_certificates(ca)
    except (ValueError, TypeError):
        raise TlsError(f"{folder}: one of {', '.join(FILES)} is not PEM of its kind") from None
    if leaf.public_key() != secret.public_key():
        raise TlsError(f"{folder}: key.pem is not the key of cert.pem")
    identity = identity_in(leaf)
    if identity is None:
        raise TlsError(f"{folder / 'cert.pem'}: has no URI such as grix://FEDERATION/region/NAME")
    return Pair(identity, ca, cert, key, leaf.not_valid_before_utc.timestamp(), leaf.not_valid_after_utc.timestamp())


class TlsFolder:
    """One identity's certificates, read again when their files change. Files that are no pair change nothing."""

    def __init__(self, folder: Path, unix_s: Callable[[], float] = time.time) -> None:
        """
        Raises:
            TlsError: when there is no usable pair to begin with.
        """
        self.folder = folder
        self._unix_s = unix_s
        self._lock = threading.Lock()
        self._seen = self._signature()
        self._fault = ""
        self._told_unix_s = float("-inf")
        self._pair = read_pair(folder)

    @property
    def identity(self) -> Identity:
        return self._pair.identity

    def pair(self) -> Pair:
        """The pair of this moment; asked at each handshake, from threads of gRPC's too."""
        with self._lock:
            seen = self._signature()
            if seen != self._seen:
                fault = self._read_again()
                if fault and fault != self._fault:
                    log.warning("certificates stay as they were: %s", fault)
                self._fault = fault
                # What could not be read is read again, though nothing of the files changes any more: it may be that
                # this process had no descriptor left.
                self._seen = self._seen if fault else seen
            self._tell_end()
            return self._pair

    def _signature(self) -> tuple[object, ...]:
        try:
            stats = [(self.folder / name).stat() for name in FILES]
        except OSError as error:
            return (error.errno,)
        return tuple((s.st_ino, s.st_mtime_ns, s.st_size) for s in stats)

    def _read_again(self) -> str:
        """Why the files cannot be used, empty when they can."""
        try:
            pair = read_pair(self.folder)
        except TlsError as error:
            return str(error)
        if pair.identity != self._pair.identity:
            return f"{self.folder} is now that of {pair.identity}"
        if pair != self._pair:
            self._pair, self._told_unix_s = pair, float("-inf")
            log.info("new certificate of %s, valid until %s", pair.identity, day(pair.ends_unix_s))
        return ""

    def _tell_end(self) -> None:
        now_unix_s, pair = self._unix_s(), self._pair
        soon = pair.ends_unix_s - now_unix_s < ENDS_SOON_RATIO * (pair.ends_unix_s - pair.begins_unix_s)
        if soon and now_unix_s - self._told_unix_s >= TOLD_EVERY_S:
            self._told_unix_s = now_unix_s
            word = "has ended" if now_unix_s > pair.ends_unix_s else "ends"
            log.warning(
                "the certificate of %s %s on %s; see grix pki renew", pair.identity, word, day(pair.ends_unix_s)
            )

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a server that demands a certificate of the same authority from each caller."""
        given = self.pair()

        def configuration(pair: Pair) -> Any:
            return grpc.ssl_server_certificate_configuration([(pair.key, pair.cert)], pair.ca)

        def changed() -> Any:
            nonlocal given
            pair = self.pair()
            if pair is given:
                return None
            given = pair
            return configuration(pair)

        return grpc.dynamic_ssl_server_credentials(configuration(given), changed, require_client_authentication=True)

    def channel(
        self, address: str, whom: Identity, most_bytes: int, *, link_s: float = LINK_S, dial_s: float = DIAL_S
    ) -> grpc.aio.Channel:
        """A channel that is open only to ``whom``, with the certificate of this moment."""
        pair = self.pair()
        options = [
            *_alive(link_s),
            *_sizes(most_bytes),
            ("grpc.ssl_target_name_override", whom.dns),
            # Connections of an earlier certificate are not shared.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.initial_reconnect_backoff_ms", 200),
            # Not a pause: how long one try may take.
            ("grpc.min_reconnect_backoff_ms", round(dial_s * 1000)),
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        return grpc.aio.secure_channel(
            address, grpc.ssl_channel_credentials(pair.ca, pair.key, pair.cert), options=options
        )


def _alive(link_s: float) -> list[tuple[str, int]]:
    link_ms = round(link_s * 1000)
    return [
        ("grpc.keepalive_time_ms", link_ms),
        ("grpc.keepalive_timeout_ms", link_ms),
        # The one before waits for any data; this one, a minute by default, for the answer.
        ("grpc.http2.ping_timeout_ms", link_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _sizes(most_bytes: int) -> list[tuple[str, int]]:
    return [("grpc.max_receive_message_length", most_bytes), ("grpc.max_send_message_length", most_bytes)]


def day(unix_s: float) -> str:
    """A moment as people read it, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(unix_s))


async def start_server(
    listen: str,
    tls: TlsFolder,
    add: Callable[[grpc.aio.Server], None],
    *,
    most_bytes: int,
    busy_s: float,
    link_s: float = LINK_S,
) -> tuple[grpc.aio.Server, int]:
    """A server that has begun to serve, and its port.

    A port that is taken is tried again for ``busy_s``: the one before may still be ending its streams.

    Raises:
        TlsError: when nobody can listen there.
    """
    options = [
        *_alive(link_s),
        *_sizes(most_bytes),
        # By default a second server takes half of the connections of the first, without an error.
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", round(link_s * 500)),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", round(link_s * 500)),
        # Whoever dials asks as often as its own configuration says.
        ("grpc.http2.max_ping_strikes", 0),
    ]
    server = grpc.aio.server(options=options)
    add(server)
    until_s = time.monotonic() + busy_s
    while (fault := _why_not(listen)) is not None:
        if fault.errno != errno.EADDRINUSE:
            raise TlsError(f"{listen}: nobody can listen there: {fault.strerror}")
        if time.monotonic() >= until_s:
            raise TlsError(f"{listen}: another process listens there, and did so for {busy_s:g} s")
        await asyncio.sleep(_BUSY_PAUSE_S)
    try:
        port = server.add_secure_port(listen, tls.server_credentials())
    except RuntimeError:
        raise TlsError(f"{listen}: another process took it a moment ago") from None
    await server.start()
    if listen.rpartition(":")[0].strip("[]") in ("", "::", "0.0.0.0"):
        log.warning("port %d is open on EVERY interface; only certificates of the federation keep strangers out", port)
    return server, port


def _why_not(listen: str) -> OSError | None:
    """Why nobody can listen there now: gRPC says only that it failed."""
    host, _, port = listen.rpartition(":")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        return error
    return None
