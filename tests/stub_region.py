"""A region of stub engines: real Ray cluster, real Router, real detector, rendered by the product's own ``render``."""

from __future__ import annotations

import hashlib
import http.client
import itertools
import json
import os
import random
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from cluster_configs.load import load_paths
from serve_app.edge import pki, ports_free, ray_cluster
from serve_app.edge.agent_app import START_LIMIT
from serve_app.edge.serve_config import render
from serve_app.edge.serve_rest import BROKEN, ServeRest, ServeRestError

READY_LIMIT_S = 120.0
REPLICAS = 2
DOCUMENTS = """\
apiVersion: grix.io/v1
kind: Federation
metadata: {name: stubs}
spec:
  regions:
    - {name: cloud-a, cloud: cloud-a, location: x, gpuHourUsd: 1, role: primary, residency: [eu]}
---
apiVersion: grix.io/v1
kind: AgentPolicy
metadata: {name: qwen-chat}
spec:
  version: "1"
  duty: chat
  model: stub
  storage: {modelPath: "embedded:tiny-qwen"}
  engine: {maxModelLen: 4096, maxNumSeqs: 64, kvCacheMemory: 128Mi}
  minReplicas: 2
  maxReplicas: 2
---
apiVersion: grix.io/v1
kind: AgentPolicy
metadata: {name: qwen-doc}
spec:
  version: "1"
  duty: worker
  model: stub
  storage: {modelPath: "embedded:tiny-qwen"}
  engine: {maxModelLen: 2048, maxNumSeqs: 1, kvCacheMemory: 128Mi}
  minReplicas: 1
  maxReplicas: 1
---
apiVersion: grix.io/v1
kind: RouteTable
metadata: {name: default}
spec:
  languages: {tokenRatio: {en: 1, es: 1.7, ja: 1.6, zh: 1.15}}
  rules:
    - {name: fallback, match: {}, target: {agent: qwen-chat, langTemplate: en}}
---
apiVersion: grix.io/v1
kind: Tenant
metadata: {name: tester}
spec:
  role: operator
  keys: [{id: k1, sha256: KEY}]
  residency: [any]
---
apiVersion: grix.io/v1
kind: PromptTemplate
metadata: {name: en}
spec: {version: "1", language: en, register: plain, system: Be brief.}
"""


@dataclass
class Reply:
    """A whole answer as it came."""

    status: int
    headers: dict[str, str]
    raw: bytes
    took_s: float

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def events(self) -> list[str]:
        """The data of each event."""
        assert self.raw.endswith(b"\n\n"), self.raw
        return [e.removeprefix("data: ") for e in self.raw.decode().removesuffix("\n\n").split("\n\n")]

    @property
    def text(self) -> str:
        """Content of all chunks."""
        chunks = [json.loads(e) for e in self.events if e != "[DONE]"]
        return "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk.get("choices", []))


@dataclass
class StubRegion:
    """Where the region answers, and the folder in which its stubs tell what they saw."""

    url: str
    key: str
    folder: Path
    rest: ServeRest
    temp_dir: Path
    #: What ``grix up`` keeps of a region, as far as its processes and ports are found by it.
    state: Mapping[str, Any]
    _count: Iterator[int] = field(default_factory=itertools.count)

    def new_id(self, name: str = "r") -> str:
        return f"{name}-{next(self._count)}"

    def begin(
        self, *attempts: list[list[Any]], stream: bool = True, text: str | None = None, **extra: Any
    ) -> tuple[str, http.client.HTTPConnection]:
        """Sends a request that plays ``attempts`` (none: the good answer); reads nothing of its answer."""
        headers = {"authorization": f"Bearer {self.key}", "x-request-id": self.new_id(), **extra.pop("headers", {})}
        content = text or (json.dumps({"attempts": attempts}) if attempts else "hello there")
        body = {"messages": [{"role": "user", "content": content}], "stream": stream, **extra}
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        return headers["x-request-id"], connection

    def ask(self, *attempts: list[list[Any]], **extra: Any) -> tuple[str, Reply]:
        """Request id and whole answer."""
        began_s = time.monotonic()
        request_id, connection = self.begin(*attempts, **extra)
        try:
            answer = connection.getresponse()
            raw = answer.read()
            told = {k.lower(): v for k, v in answer.getheaders()}
            return request_id, Reply(answer.status, told, raw, time.monotonic() - began_s)
        finally:
            connection.close()

    def seen(self, request_id: str) -> list[dict[str, Any]]:
        """What the workers noted about a request, oldest first."""
        file = self.folder / f"{request_id}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []

    def whats(self, request_id: str) -> list[str]:
        return [line["what"] for line in self.seen(request_id)]

    def record(self, request_id: str) -> dict[str, Any] | None:
        """The Router's record of a request that has ended."""
        status, raw = self._get(f"/grix/requests/{request_id}", with_key=True)
        return dict(json.loads(raw)) if status == 200 else None

    def fleet(self) -> dict[str, Any]:
        """The snapshot that the Router decides from."""
        return dict(json.loads(self._get("/grix/fleet", with_key=True)[1])["snapshot"])

    def metrics(self) -> str:
        """The exports of the region's node."""
        return self._get("/metrics")[1].decode()

    def healthz(self, query: str = "") -> tuple[int, dict[str, Any]]:
        """Status and body of the health check."""
        status, raw = self._get(f"/healthz{query}")
        return status, dict(json.loads(raw))

    def _get(self, path: str, *, with_key: bool = False) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=30)
        try:
            connection.request("GET", path, headers={"authorization": f"Bearer {self.key}"} if with_key else {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def room(self, agent: str) -> tuple[int, int]:
        """How many calls one replica of an agent runs, and how many may wait for it."""
        apps = self.rest.details()["applications"]
        (app,) = [a for name, a in apps.items() if name.startswith(f"{agent}--")]
        config = app["deployments"]["QwenAgent"]["deployment_config"]
        return config["max_ongoing_requests"], config["max_queued_requests"]

    def pids(self) -> set[int]:
        """Processes of the running stub replicas."""
        apps = self.rest.details()["applications"]
        rows = [r for n, a in apps.items() if "--" in n for r in a["deployments"]["QwenAgent"]["replicas"]]
        return {r["pid"] for r in rows if r["state"] == "RUNNING"}


def stub_config(
    key: str,
    folder: Path,
    port: int,
    blocks: dict[str, str | None],
    federation_port: int | None,
    peers: Mapping[str, str],
    peer_usd: float,
    start_limit_s: float | None,
) -> dict[str, Any]:
    """The region's Serve config with stubs in place of engines; with a coordinator (that is away) if it has a port.

    ``peers`` are the gateways of other regions by name, for tests that play them; ``peer_usd`` is their price.
    ``start_limit_s`` is what a replica has until it runs, if not the default.
    """
    documents = folder / "region.yaml"
    text = DOCUMENTS.replace("KEY", hashlib.sha256(key.encode()).hexdigest())
    for name, block in blocks.items():
        if block is not None:
            text = text.replace("role: primary", f"role: primary, {name}: {block}")
    if federation_port is not None:
        pki.init(folder / "pki", "stubs", ["cloud-a", *peers], datetime.now(UTC))
        more = f'spec:\n  coordinator: {{address: "127.0.0.1:1"}}\n  pki: {{folder: {folder / "pki"}}}\n'
        text = text.replace("spec:\n", more, 1)
        text = text.replace("role: primary", f'role: primary, gateway: "127.0.0.1:{federation_port}"')
        (mine,) = [line for line in text.splitlines(keepends=True) if line.startswith("    - {name: cloud-a,")]
        others = [
            f"    - {{name: {name}, cloud: {name}, location: y, gpuHourUsd: {peer_usd:g}, role: primary, "
            f'gateway: "{address}"}}\n'
            for name, address in peers.items()
        ]
        text = text.replace(mine, mine + "".join(others))
    documents.write_text(text)
    config = render(load_paths([documents], {}), "cloud-a", http_host="127.0.0.1", http_port=port)
    for app in config["applications"]:
        if "--" in app["name"]:
            app["import_path"] = "tests.stub_agent:build"
            app["args"] = {"folder": str(folder)}
            (deployment,) = app["deployments"]
            deployment["ray_actor_options"] = {"num_cpus": 0.1}
            deployment["graceful_shutdown_timeout_s"] = 1.0
            if start_limit_s is not None:
                deployment["user_config"][START_LIMIT] = start_limit_s
    return config


@contextmanager
def running_stub_region(
    http: str | None = None,
    haproxy_total_s: float | None = None,
    *,
    redis: str | None = None,
    tasks: str | None = None,
    federated: bool = False,
    peers: Mapping[str, str] = MappingProxyType({}),
    peer_usd: float = 2.0,
    routers: int | None = None,
    detector: str | None = None,
    start_limit_s: float | None = None,
) -> Iterator[StubRegion]:
    """Starts the region, and ends exactly what it started. ``http``, ``redis`` and ``tasks`` are blocks of the region.

    They are YAML. ``detector`` is where the language detector runs. The region's own price is 1.
    """
    with tempfile.TemporaryDirectory(prefix="grix-stub-") as name:
        folder, token, key = Path(name), secrets.token_hex(32), "grix-stub-" + secrets.token_hex(8)
        token_file = folder / "token"
        token_file.touch(0o600)
        token_file.write_text(token)
        first_port = ports_free.free_block(ray_cluster.BLOCK, random.SystemRandom())
        cluster = ray_cluster.Cluster(first_port, token_file, ray_cluster.new_temp_dir(), 4, haproxy_total_s)
        root = str(Path(__file__).parents[1])
        process = ray_cluster.start(cluster, folder / "ray.log", {**os.environ, "PYTHONPATH": root})
        started = ray_cluster.Running(process.pid, ray_cluster.started_unix_s(process.pid), cluster.temp_dir)
        try:
            rest = ServeRest(cluster.dashboard, token)
            federation_port = cluster.federation_port if federated else None
            count = None if routers is None else str(routers)
            blocks = {"http": http, "redis": redis, "tasks": tasks, "routers": count, "detectorPlacement": detector}
            port, more = cluster.spare_port, (peers, peer_usd, start_limit_s)
            _deploy(rest, stub_config(key, folder, port, blocks, federation_port, *more))
            scheme = "https" if http is not None and "tls" in http else "http"
            url = f"{scheme}://127.0.0.1:{cluster.spare_port}"
            state = {"url": url, "gcs": cluster.gcs, "temp_dir": str(cluster.temp_dir)}
            state |= {"pids": [started.pid], "started_unix_s": started.started_unix_s}
            yield StubRegion(url, key, folder, rest, cluster.temp_dir, state)
        finally:
            assert ray_cluster.stop(started) == []


def _deploy(rest: ServeRest, config: dict[str, Any]) -> None:
    deadline_s = time.monotonic() + READY_LIMIT_S
    put = False
    said: list[str] = []
    while time.monotonic() < deadline_s:
        try:
            if not put:
                rest.details()
                rest.put_config(config)
                put = True
            apps = rest.status()
            said = [f"{a.name} {a.status} {a.told}" for a in apps]
            assert not [a for a in apps if a.status in BROKEN], [a.told for a in apps]
            if apps and all(a.status == "RUNNING" for a in apps):
                return
        except ServeRestError:
            pass
        time.sleep(0.3)
    raise AssertionError(f"the stub region is not ready after {READY_LIMIT_S} s: {said}")
