"""Serve's REST interface against a small server over real HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from serve_app.edge.ray_nodes import nodes_of
from serve_app.edge.serve_rest import ServeRest, ServeRestError, statuses

STATES = ("RUNNING", "STARTING", "STOPPING", "RECOVERING")
DETAILS: dict[str, Any] = {
    "applications": {
        "grix": {
            "status": "DEPLOYING",
            "message": "",
            "deployments": {
                "Router": {
                    "status": "UPDATING",
                    "message": "starting",
                    "target_num_replicas": 2,
                    "replicas": [
                        {"replica_id": "r1", "state": "RUNNING", "node_id": "n"},
                        {"replica_id": "r2", "state": "STARTING", "node_id": None},
                        {"replica_id": "r3", "state": "STOPPING", "node_id": None},
                        # Of a controller that was replaced and has not asked it yet.
                        {"replica_id": "r4", "state": "RECOVERING", "node_id": None},
                    ],
                }
            },
        },
        "a": {"status": "DEPLOY_FAILED", "message": "no module"},
    }
}


#: What ``/api/v0/nodes`` of the pinned Ray says, shortened.
NODES: dict[str, Any] = {
    "result": True,
    "msg": "",
    "data": {
        "result": {
            "total": 2,
            "result": [
                {
                    "node_id": "n1",
                    "node_ip": "127.0.0.1",
                    "is_head_node": True,
                    "state": "ALIVE",
                    "state_message": None,
                    "node_name": "127.0.0.1",
                    "resources_total": {"CPU": 4.0, "GPU": 2.0, "memory": 1024.0, "accelerator_type:L4": 1.0},
                    "labels": {"grix.io/vram-per-gpu": "24Gi"},
                },
                {"node_id": "n2", "state": "DEAD", "node_name": "b", "resources_total": {}, "labels": {}},
            ],
        }
    },
}


class _Dashboard(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        size = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(size)
        self.server.seen.append((self.command, self.path, body))  # type: ignore[attr-defined]
        right = self.headers.get("authorization") == "Bearer good"
        self.send_response(200 if right else 401)
        self.end_headers()
        if self.command != "PUT":
            told = self.server.nodes if self.path == "/api/v0/nodes" else DETAILS  # type: ignore[attr-defined]
            self.wfile.write(json.dumps(told).encode() if right else b"Unauthorized")

    do_GET = do_PUT = do_DELETE = _answer

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def dashboard() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Dashboard)
    server.seen, server.nodes = [], NODES  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def _url(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def test_put_sends_the_config_with_the_token(dashboard: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    ServeRest(_url(dashboard), "good").put_config({"applications": []})
    assert dashboard.seen == [("PUT", "/api/serve/applications/", b'{"applications": []}')]  # type: ignore[attr-defined]


def test_status(dashboard: ThreadingHTTPServer) -> None:
    failed, grix = ServeRest(_url(dashboard), "good").status()
    assert (failed.name, failed.status, failed.told, failed.deployments) == ("a", "DEPLOY_FAILED", "no module", ())
    router = grix.deployments[0]
    assert (router.name, router.target_replicas, router.replicas) == ("Router", 2, dict.fromkeys(STATES, 1))
    assert [(r.id, r.has_node) for r in router.each] == [("r1", True), ("r2", False), ("r3", False), ("r4", True)]
    assert grix.told == "Router: starting"


def test_a_wrong_token_is_told_without_the_token(dashboard: ThreadingHTTPServer) -> None:
    with pytest.raises(ServeRestError, match="401 Unauthorized") as fault:
        ServeRest(_url(dashboard), "wrong-secret").details()
    assert fault.value.status == 401
    assert "wrong-secret" not in str(fault.value) + repr(ServeRest("x", "wrong-secret"))


def test_nobody_there() -> None:
    with pytest.raises(ServeRestError, match="no answer") as fault:
        ServeRest("http://127.0.0.1:9", "good").details(timeout_s=1.0)
    assert fault.value.status is None


def test_no_application_yet() -> None:
    assert statuses({}) == statuses({"applications": {}}) == []


def test_nodes_are_told_as_ray_nodes_has_them(dashboard: ThreadingHTTPServer) -> None:
    rest = ServeRest(_url(dashboard), "good")
    first, dead = nodes_of(rest.nodes(), "cloud-x", "cloud-a")
    assert (first.name, first.ready, first.cpus, first.memory_bytes) == ("127.0.0.1", True, 4.0, 1024)
    assert (first.gpu_count, first.vram_per_gpu_bytes) == (2, 24 << 30)
    assert (dead.name, dead.ready) == ("b", False)
    for nonsense in ({"data": {}}, [], {"data": {"result": {"result": [{"node_id": "n"}]}}}):
        dashboard.nodes = nonsense  # type: ignore[attr-defined]
        with pytest.raises(ServeRestError, match="the answer is no list of nodes"):
            rest.nodes()
