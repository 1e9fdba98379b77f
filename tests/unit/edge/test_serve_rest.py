"""Serve's REST interface against a small server over real HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

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


class _Dashboard(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        size = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(size)
        self.server.seen.append((self.command, self.path, body))  # type: ignore[attr-defined]
        right = self.headers.get("authorization") == "Bearer good"
        self.send_response(200 if right else 401)
        self.end_headers()
        if self.command != "PUT":
            self.wfile.write(json.dumps(DETAILS).encode() if right else b"Unauthorized")

    do_GET = do_PUT = do_DELETE = _answer

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def dashboard() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Dashboard)
    server.seen = []  # type: ignore[attr-defined]
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
