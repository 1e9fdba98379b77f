"""Every socket that a region's processes listen on is in SECURITY.md, and does to a stranger what is written there."""

from __future__ import annotations

import re
import socket
import ssl
import stat
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import psutil
import pytest

from serve_app.cli.regions import running
from serve_app.edge import ray_cluster
from serve_app.edge.ray_cluster import BLOCK, FALLBACK_OFFSET, SERVICE_PORTS, WORKERS_OFFSET
from tests.e2e.conftest import LiveRegion, of_this_region
from tests.e2e.test_region import connections, is_loopback

SECURITY: Final = Path(__file__).resolve().parents[2] / ".github/SECURITY.md"
#: What Ray is told to listen on: the offset in the cluster's block of ports.
OFFSETS: Final = {
    0: "gcs",
    1: "dashboard",
    2: "agent-http",
    3: "agent-grpc",
    4: "metrics",
    5: "node-manager",
    6: "object-manager",
    7: "runtime-env-agent",
    8: "client-server",
    10: "autoscaler-metrics",
    11: "dashboard-metrics",
    12: "haproxy-metrics",
    13: "haproxy-stats",
    FALLBACK_OFFSET: "fallback-proxy",
}
FEDERATION_OFFSET: Final = 15
INGRESS: Final = range(SERVICE_PORTS, FALLBACK_OFFSET)
WORKERS: Final = range(WORKERS_OFFSET, BLOCK)


@dataclass(frozen=True)
class Listener:
    kind: str
    ip: str
    port: int
    process: str


def kind_of(record: Mapping[str, Any], title: str, ip: str, port: int) -> str:
    """The name in SECURITY.md, or a description of a socket that nobody wrote down.

    ``record`` is of a region, of the control cluster, which has no URL, or of the relay, which has no Ray.
    """
    if "gcs" not in record:
        return "relay"
    offset = port - int(record["gcs"].rpartition(":")[2])
    if port == urlsplit(record.get("url", "")).port:
        return "entry"
    if offset == FEDERATION_OFFSET:
        return "gateway" if "url" in record else "coordinator"
    if f"{ip}:{port}" == record.get("metrics"):
        return "coordinator-metrics"
    if offset in OFFSETS:
        return OFFSETS[offset]
    if "valkey" in title or "redis-server" in title:
        return "valkey"
    if title.startswith(("ray::", "ray-dashboard-")) and offset in WORKERS and is_loopback(ip):
        return "worker"
    if title.startswith("ray::ServeReplica:") and offset in INGRESS:
        return "direct-ingress" if title.startswith("ray::ServeReplica:grix:Router") else "replica-http"
    if "/haproxy" in title and offset not in range(BLOCK):
        return "haproxy-log"
    if title.startswith("ray::ServeReplica:") and not is_loopback(ip):
        return "replica-grpc"
    if (title.startswith("VLLM::") or "QwenAgent" in title) and is_loopback(ip):
        return "engine"
    return f"not documented: {title[:80]} on {ip}:{port} (offset {offset})"


def processes(record: Mapping[str, Any]) -> list[psutil.Process]:
    """Also those that wrote a title over their environment: they descend from the head process."""
    named = of_this_region(record["temp_dir"])
    return list({p.pid: p for p in [*named, *ray_cluster.processes(running(dict(record)))]}.values())


def title_of(process: psutil.Process) -> str:
    """Its command line; a process that ended since it was found has none."""
    try:
        return " ".join(process.cmdline())[:200] or process.name()
    except psutil.NoSuchProcess:
        return "ended"


def sockets(record: Mapping[str, Any]) -> list[Listener]:
    """TCP sockets that listen and UDP sockets that are bound to no peer."""
    found = []
    for process in processes(record):
        title = title_of(process)
        for one in connections(process):
            listens = one.status == psutil.CONN_LISTEN or (one.type == socket.SOCK_DGRAM and not one.raddr)
            if listens:
                kind = kind_of(record, title, one.laddr.ip, one.laddr.port)
                found.append(Listener(kind, one.laddr.ip, one.laddr.port, title))
    return found


def documented() -> dict[str, str]:
    """Kind -> what protects it, from SECURITY.md's table of listeners."""
    rows = re.findall(r"^\| `([a-z-]+)` \|.*\| (\w+)[^|]*\|$", SECURITY.read_text(), re.MULTILINE)
    assert len({kind for kind, _ in rows}) == len(rows) >= 15
    return dict(rows)


def grpc_says(method: str) -> Callable[[int], str]:
    def ask(port: int) -> str:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            try:
                channel.unary_unary(method)(b"", timeout=10)
            except grpc.RpcError as error:
                refused = error.code() == grpc.StatusCode.UNAUTHENTICATED
                return "token" if refused else f"{error.code()}: {error.details()}"
        return "open"

    return ask


def http_says(path: str, refusal: str = "token", data: bytes | None = None) -> Callable[[int], str]:
    def ask(port: int) -> str:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            opener.open(urllib.request.Request(f"http://127.0.0.1:{port}{path}", data), timeout=10).read()
        except urllib.error.HTTPError as error:
            return refusal if error.code == 401 else f"status {error.code}"
        return "loopback"

    return ask


def redis_says(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"PING\r\n")
        told = connection.recv(200)
    return "password" if told.startswith(b"-NOAUTH") else told.decode(errors="replace")


def certificate_says(port: int) -> str:
    """A TLS client that trusts anybody and is nobody, and one that speaks no TLS at all."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    plain = grpc_says("/grix.v1.Admin/Do")(port)
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
            context.wrap_socket(connection) as tls,
        ):
            tls.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
            told = tls.recv(1) or b"closed"
    except (ssl.SSLError, ConnectionError) as error:
        told = b"closed" if "REQUIRED" in str(error).upper() or isinstance(error, ConnectionError) else b"other"
    return "certificate" if told == b"closed" and "UNAVAILABLE" in plain else f"{told!r}, {plain}"


def no_application_says(port: int) -> str:
    """HTTP in front of what takes calls of other replicas only."""
    told = {http_says("/")(port), http_says("/v1/models")(port), http_says("/v1/chat/completions", data=b"{}")(port)}
    return "nothing" if told == {"status 500"} else f"{told}"


def datagram_says(port: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.settimeout(1.0)
        sender.sendto(b"<14>hello", ("127.0.0.1", port))
        try:
            return repr(sender.recv(200))
        except TimeoutError:
            return "nothing"


def anybody_on_this_host(port: int) -> str:
    """A connection that is taken and kept: who reaches it may talk to it. What one said could disturb the engine."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.settimeout(1.0)
        try:
            return "loopback" if connection.recv(64) else "closed"
        except TimeoutError:
            return "loopback"


#: One real attempt of a stranger a kind. The answer must be the word in SECURITY.md.
STRANGER: Final[dict[str, Callable[[int], str]]] = {
    "entry": http_says("/v1/models", "key"),
    "gcs": grpc_says("/ray.rpc.NodeInfoGcsService/GetAllNodeInfo"),
    "dashboard": http_says("/api/serve/applications/"),
    "agent-http": http_says("/api/job_agent/jobs/x/logs"),
    "agent-grpc": grpc_says("/ray.rpc.ReporterService/GetTraceback"),
    "metrics": http_says("/metrics"),
    "node-manager": grpc_says("/ray.rpc.NodeManagerService/GetNodeStats"),
    "object-manager": grpc_says("/ray.rpc.ObjectManagerService/Push"),
    "runtime-env-agent": http_says("/get_runtime_envs_info", data=b""),
    "client-server": grpc_says("/ray.rpc.RayletDriver/ClusterInfo"),
    "autoscaler-metrics": http_says("/metrics"),
    "dashboard-metrics": http_says("/metrics"),
    "worker": grpc_says("/ray.rpc.CoreWorkerService/PushTask"),
    "replica-grpc": grpc_says("/ray.serve.ASGIService/HandleRequestWithRejection"),
    "fallback-proxy": http_says("/v1/models", "key"),
    "direct-ingress": http_says("/v1/models", "key"),
    "replica-http": no_application_says,
    "haproxy-log": datagram_says,
    "haproxy-metrics": http_says("/metrics"),
    "haproxy-stats": http_says("/stats"),
    "valkey": redis_says,
    "engine": anybody_on_this_host,
    "gateway": certificate_says,
    "coordinator": certificate_says,
    "coordinator-metrics": http_says("/metrics"),
    "relay": certificate_says,
}


def strangers_see(record: Mapping[str, Any]) -> dict[str, set[str]]:
    """What each kind of listener of a region says to a stranger."""
    told: dict[str, set[str]] = {}
    for one in sockets(record):
        told.setdefault(one.kind, set()).add(STRANGER[one.kind](one.port))
    return told


def test_every_listener_is_documented(region: LiveRegion) -> None:
    found = {one.kind for one in sockets(region.record)}
    assert found - set(documented()) == set()
    assert {"entry", "gcs", "dashboard", "agent-http", "node-manager", "worker", "engine"} <= found


def test_every_listener_off_loopback_wants_a_secret(region: LiveRegion) -> None:
    outside = {one.kind for one in sockets(region.record) if not is_loopback(one.ip)}
    assert {kind for kind in outside if documented()[kind] not in ("token", "key", "password", "certificate")} == set()


def test_each_kind_of_listener_refuses_a_stranger_as_documented(region: LiveRegion) -> None:
    told = strangers_see(region.record)
    assert told == {kind: {documented()[kind]} for kind in told}


def test_every_documented_kind_has_an_attempt() -> None:
    on_the_network = {kind for kind in documented() if not kind.endswith(("-socket", "-admin"))}
    assert on_the_network == set(STRANGER)


def test_sockets_in_the_file_system_are_behind_a_closed_door(region: LiveRegion) -> None:
    """Ray's folder is open to everybody; what protects the sockets in it is the folder above."""
    paths = set()
    for process in processes(region.record):
        for one in process.net_connections("unix"):
            if one.laddr and str(one.laddr).startswith("/"):
                paths.add(Path(str(one.laddr)))
    assert paths
    for path in paths:
        modes = [stat.S_IMODE(folder.stat().st_mode) for folder in path.parents if folder.exists()]
        assert any(mode & 0o077 == 0 for mode in modes), path


@pytest.mark.parametrize("service", ["GetAllNodeInfo", "GetClusterId"])
def test_a_wrong_token_is_no_better_than_none(region: LiveRegion, service: str) -> None:
    metadata = (("authorization", "Bearer " + "0" * 64),)
    with grpc.insecure_channel(region.record["gcs"]) as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(f"/ray.rpc.NodeInfoGcsService/{service}")(b"", timeout=10, metadata=metadata)
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
