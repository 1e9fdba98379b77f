"""What operators rely on: streams that stop when the client leaves, records, health, closed doors, Serve's own YAML."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import psutil
import pytest
import yaml

from tests.e2e.conftest import LiveRegion, of_this_region

REPLICA_METHOD = "/ray.serve.ASGIService/HandleRequestWithRejection"
GCS_METHOD = "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo"
ENDLESS = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3500, "ignore_eos": True}


def eventually(check: Callable[[], Any], limit_s: float, said: str) -> Any:
    """The first true value of ``check`` within ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        found = check()
        if found:
            return found
        time.sleep(0.1)
    pytest.fail(f"not within {limit_s} s: {said}")


def leave(region: LiveRegion, request_id: str, *, stream: bool) -> None:
    """Sends an endless request and hangs up: after the first bytes of a stream, else before any."""
    connection = http.client.HTTPConnection(urlsplit(region.url).netloc, timeout=60)
    headers = {"authorization": f"Bearer {region.key}", "x-request-id": request_id}
    connection.request("POST", "/v1/chat/completions", json.dumps({**ENDLESS, "stream": stream}), headers)
    if stream:
        answer = connection.getresponse()
        assert answer.getheader("x-accel-buffering") == "no"
        assert answer.getheader("content-type") == "text/event-stream; charset=utf-8"
        assert answer.read(6) == b"data: "
        answer.close()
    else:
        time.sleep(0.5)
    connection.close()


def record(region: LiveRegion, request_id: str) -> dict[str, Any] | None:
    status, _, body = region.ask("GET", f"/grix/requests/{request_id}")
    return dict(body) if status == 200 else None


@pytest.mark.parametrize("stream", [True, False])
def test_work_stops_when_the_client_leaves(region: LiveRegion, stream: bool) -> None:
    request_id = f"left-{stream}"
    leave(region, request_id, stream=stream)
    found = eventually(lambda: record(region, request_id), 5.0, "the request is recorded as ended")
    assert found["outcome"] == "client_left"
    assert found["error"] is None


def test_many_leave_at_once_and_the_next_is_served(region: LiveRegion) -> None:
    before = engine_pids(region)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda i: leave(region, f"mass-{i}", stream=True), range(16)))
    assert region.chat("hello")[0] == 200
    assert engine_pids(region) == before


def test_a_crowd_is_served_whole(region: LiveRegion) -> None:
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda _: region.chat("How do I reset my password?"), range(32)))
    assert {status for status, _, _ in answers} == {200}
    assert len({body["choices"][0]["message"]["content"] for _, _, body in answers}) == 1


def test_a_request_is_explained_afterwards(region: LiveRegion) -> None:
    region.chat("返品したいです", headers={"x-request-id": "told-1"})
    found = record(region, "told-1")
    assert found is not None
    assert (found["language"], found["agent"], found["template"]) == ("ja", "qwen-chat", "ja v1")
    assert found["outcome"] == "success" and found["queue_wait_ms"] >= 0 and found["first_token_ms"] > 0
    assert [c["dropped"] for c in found["candidates"]] == [None]
    assert "told-1" in region.grix("explain", "told-1").stdout
    assert record(region, "never-sent") is None


def test_explain_runs_nothing(region: LiveRegion) -> None:
    told = json.loads(region.grix("explain", "--text", "주문한 물건이 언제 오나요?", "--json").stdout)
    assert (told["language"], told["agent"], told["outcome"]) == ("ko", "qwen-chat", None)
    assert [r["rule"] for r in told["rules"]][-1] == "fallback"


def test_strangers_are_refused(region: LiveRegion) -> None:
    for headers in ({}, {"authorization": "Bearer nonsense"}, {"authorization": "Basic YTpi"}):
        request = urllib.request.Request(f"{region.url}/v1/models", headers=headers)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)
        assert refused.value.code == 401
        assert json.loads(refused.value.read())["error"]["type"] == "authentication_error"
    for path in ("/api/serve/applications/", "/api/jobs/", "/nodes?view=summary"):
        with pytest.raises(urllib.error.HTTPError) as closed:
            urllib.request.urlopen(region.record["dashboard"] + path, timeout=10)
        assert closed.value.code == 401


def test_secrets_are_private_and_not_in_logs(region: LiveRegion) -> None:
    for name in ("key_file", "token_file"):
        assert Path(region.record[name]).stat().st_mode & 0o777 == 0o600
    assert (region.folder / ".grix").stat().st_mode & 0o777 == 0o700
    token = Path(region.record["token_file"]).read_text().strip()
    files = [f for f in Path(region.record["temp_dir"]).rglob("*") if f.is_file()]
    logs = [f for f in files if f.suffix in (".log", ".out", ".err")]
    assert logs
    for log in logs:
        text = log.read_text(errors="replace")
        assert region.key not in text and token not in text, log


def connections(process: psutil.Process) -> list[Any]:
    """Its sockets; none of a process that ends meanwhile."""
    try:
        return list(process.net_connections("inet"))
    except psutil.NoSuchProcess:
        return []


def is_loopback(ip: str) -> bool:
    address = ipaddress.ip_address(ip)
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def test_only_replica_ports_leave_loopback_and_they_want_the_token(region: LiveRegion) -> None:
    outside: dict[int, str] = {}
    for process in of_this_region(region.record["temp_dir"]):
        for connection in connections(process):
            if connection.status == psutil.CONN_LISTEN and not is_loopback(connection.laddr.ip):
                outside[connection.laddr.port] = process.cmdline()[0]
    # Serve binds one gRPC port of each replica on all interfaces; nothing else may leave loopback.
    assert outside and all(name.startswith("ray::ServeReplica:") for name in outside.values())
    gcs = int(region.record["gcs"].rpartition(":")[2])
    for port, method in [*((p, REPLICA_METHOD) for p in outside), (gcs, GCS_METHOD)]:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(method)(b"", timeout=10)
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED, (port, method)


def test_health_and_metrics(region: LiveRegion) -> None:
    assert region.ask("GET", "/healthz")[2] == {"status": "ok"}
    status, _, deep = region.ask("GET", "/healthz?deep=1")
    assert status == 200 and deep["local"] is True and list(deep["engines"].values()) == [True]
    eventually(lambda: b"ray_grix_requests_total{" in region.ask("GET", "/metrics")[2], 30.0, "requests are exported")


def test_an_engine_tells_what_it_is_when_it_is_ready(region: LiveRegion) -> None:
    logs = (Path(region.record["temp_dir"]) / "r/session_latest/logs/serve").glob("replica_*_QwenAgent_*.log")
    lines = [line for log in logs for line in log.read_text().splitlines() if "engine ready: " in line]
    (app,) = region.ask("GET", "/healthz?deep=1")[2]["engines"]
    assert lines
    for line in lines:
        told = re.search(
            r"engine ready: agent=qwen-chat model=(\S+) engine_digest=([0-9a-f]{64}) context=4096 "
            r"resources=(\{.*\}) labels=(\{.*\}) start_s=\d+\.\d warm=\S",
            line,
        )
        assert told is not None, line
        path, digest, resources, labels = told.groups()
        assert (Path(path) / "model.safetensors").is_file()
        assert app == f"qwen-chat--{digest[:8]}"
        assert json.loads(resources)["kv_cache_memory_bytes"] == 128 * 2**20
        assert "ray.io/node-id" in json.loads(labels)


def rendered(region: LiveRegion) -> str:
    """The region may listen on another port than its document says, when that one was taken."""
    port = urlsplit(region.url).port
    return region.grix("render", "cloud-a", "--port", str(port), "--config", *region.documents).stdout


def serve_environment(region: LiveRegion) -> dict[str, str]:
    """What README has an operator export."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": region.record["token_file"]}
    return {**os.environ, **token, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def serve_command(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("serve")), *arguments]


def serve_deploy(region: LiveRegion, config: str, tmp_path: Path) -> None:
    """The stock ``serve deploy`` on a rendered file."""
    file = tmp_path / "region.yaml"
    file.write_text(config, encoding="utf-8")
    command = serve_command("deploy", "-a", region.record["dashboard"], str(file))
    done = subprocess.run(command, env=serve_environment(region), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


def test_serve_deploy_takes_what_render_prints(region: LiveRegion, tmp_path: Path) -> None:
    engines = engine_pids(region)
    assert len(engines) == 1, "one rank on CPU runs in the engine's own process"
    release = region.chat("hello")[1]["x-grix-release"]
    config = rendered(region)
    serve_deploy(region, config, tmp_path)
    assert region.chat("hello")[1]["x-grix-release"] == release
    changed = yaml.safe_load(config)
    router = changed["applications"][0]["deployments"][0]
    english = next(t for t in router["user_config"]["documents"]["templates"] if t["metadata"]["name"] == "en")
    english["spec"]["system"] += " Answer briefly."
    serve_deploy(region, yaml.safe_dump(changed, allow_unicode=True), tmp_path)
    eventually(lambda: region.chat("hello")[1]["x-grix-release"] != release, 60.0, "a new template is a new release")
    assert engine_pids(region) == engines, "a template must not cost an engine"
    serve_deploy(region, config, tmp_path)
    eventually(lambda: region.chat("hello")[1]["x-grix-release"] == release, 60.0, "the old release is back")


def test_serve_run_takes_what_render_prints(region: LiveRegion, tmp_path: Path) -> None:
    file, log = tmp_path / "region.yaml", tmp_path / "log"
    file.write_text(rendered(region), encoding="utf-8")
    environment = serve_environment(region)
    address = ("--address", region.record["gcs"])
    engines, release = engine_pids(region), region.chat("hello")[1]["x-grix-release"]
    with log.open("wb") as out:
        running = subprocess.Popen(
            serve_command("run", *address, str(file)),
            env=environment,
            stdout=out,
            stderr=out,
            # A shell starts what runs beside it deaf to Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    try:
        eventually(lambda: "Submitted deploy config" in log.read_text(), 60.0, "serve run has deployed")
        assert region.chat("hello")[1]["x-grix-release"] == release
        assert engine_pids(region) == engines, "what runs already is not started again"
        running.send_signal(signal.SIGINT)
        assert running.wait(60.0) == 0, log.read_text()[-2000:]
    finally:
        running.kill()
        running.wait()
    eventually(lambda: engine_pids(region) == [], 30.0, "Ctrl-C takes all of it away")
    command = serve_command("run", "--non-blocking", *address, str(file))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    eventually(lambda: is_healthy(region), 120.0, "it runs again, on a cluster that had no Serve")
    assert region.chat("hello")[1]["x-grix-release"] == release


def is_healthy(region: LiveRegion) -> bool:
    with contextlib.suppress(OSError):
        return region.ask("GET", "/healthz?deep=1")[0] == 200
    return False


def engine_pids(region: LiveRegion) -> list[int]:
    names = (p for p in of_this_region(region.record["temp_dir"]) if p.status() != psutil.STATUS_ZOMBIE)
    return sorted(p.pid for p in names if p.cmdline()[0].startswith("VLLM::"))
