"""A replica that dies or freezes under load is no black hole: its calls end cleanly, another one comes, nothing stays.

An engine of one rank on CPU has no worker process beside it: its one process is killed here. One of several ranks ends
with any of its workers, which vLLM's own watch sees; then the replica and its guard end the rest, as for an engine.

Last, because each fault costs an engine start.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from serve_app.edge.serve_rest import ServeRest, ServeRestError
from tests.e2e.conftest import LiveRegion
from tests.e2e.test_region import ENDLESS, engine_pids, eventually

#: Calls at work when the fault happens: more than the engine runs at once, fewer than it takes in.
STREAMS, WHOLES = 8, 4
#: No call may take longer to end after a fault: a frozen replica is given 6 s, a frozen engine 3 s and a prefill.
END_LIMIT_S = 30.0


def replicas(region: LiveRegion) -> dict[str, int]:
    """Process id by replica id of the running engine replicas."""
    rest = ServeRest(region.record["dashboard"], Path(region.record["token_file"]).read_text().strip())
    try:
        apps: dict[str, Any] = rest.details()["applications"]
    except ServeRestError:
        # A machine whose cores all start an engine is slow to answer.
        return {}
    engines = [app["deployments"]["QwenAgent"] for app in apps.values() if "QwenAgent" in app["deployments"]]
    rows = [r for engine in engines for r in engine["replicas"]]
    return {r["replica_id"]: r["pid"] for r in rows if r["state"] == "RUNNING"}


@dataclass(eq=False)
class Call:
    """One call and how it ended."""

    began: threading.Event = field(default_factory=threading.Event)
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended_s: float = 0.0


def run(region: LiveRegion, call: Call, *, stream: bool) -> Call:
    connection = http.client.HTTPConnection(urlsplit(region.url).netloc, timeout=120)
    headers = {"authorization": f"Bearer {region.key}"}
    connection.request("POST", "/v1/chat/completions", json.dumps({**ENDLESS, "stream": stream}), headers)
    answer = connection.getresponse()
    call.status, call.headers = answer.status, {k.lower(): v for k, v in answer.getheaders()}
    call.body = answer.read(6)
    call.began.set()
    call.body += answer.read()
    call.ended_s = time.monotonic()
    connection.close()
    return call


def core(pid: int) -> int:
    return next(p.pid for p in psutil.Process(pid).children(recursive=True) if "EngineCore" in p.cmdline()[0])


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def assert_clean_refusal(status: int, headers: dict[str, str], error: dict[str, Any]) -> None:
    assert status == 503 and int(headers["retry-after"]) >= 1, (status, headers, error)
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] in {"replica_lost", "no_target", "queue_timeout"}


@pytest.mark.parametrize(
    ("victim", "fault"),
    [
        (core, signal.SIGKILL),
        (core, signal.SIGSTOP),
        (int, signal.SIGKILL),
        (int, signal.SIGSTOP),
    ],
    ids=["engine-killed", "engine-frozen", "replica-killed", "replica-frozen"],
)
def test_a_fault_under_load(region: LiveRegion, victim: Callable[[int], int], fault: signal.Signals) -> None:
    ((old, pid),) = eventually(lambda: replicas(region), 60.0, "a replica runs").items()
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    streams, wholes = [Call() for _ in range(STREAMS)], [Call() for _ in range(WHOLES)]
    with ThreadPoolExecutor(STREAMS + WHOLES) as pool:
        ends: list[Future[Call]] = [pool.submit(run, region, call, stream=True) for call in streams]
        ends += [pool.submit(run, region, call, stream=False) for call in wholes]
        eventually(lambda: sum(call.began.is_set() for call in streams) >= 2, 30.0, "streams run")
        had_bytes = [call for call in streams if call.began.is_set()]
        fault_s = time.monotonic()
        os.kill(victim(pid), fault)
        for end in ends:
            end.result(timeout=END_LIMIT_S)
    for call in streams + wholes:
        assert call.ended_s - fault_s < END_LIMIT_S
        if call.status == 200 and call not in had_bytes and (call in wholes or b"data: [DONE]" in call.body):
            # It had no byte yet, and waited for the replica that came in the place of the lost one.
            assert call.body.rstrip().endswith(b"}" if call in wholes else b"data: [DONE]")
        elif call.status == 200 and call in streams:
            events = call.body.decode().strip().split("\n\n")
            assert "data: [DONE]" not in events
            assert [json.loads(e.removeprefix("data: ")).get("error", {}).get("code") for e in events[-2:]] == [
                None,
                "replica_lost",
            ]
        else:
            assert call not in had_bytes
            assert_clean_refusal(call.status, call.headers, json.loads(call.body)["error"])
    began_s = time.monotonic()
    status, headers, body = region.chat("hello")
    if status != 200:
        assert_clean_refusal(status, headers, body["error"])
        assert time.monotonic() - began_s < 10.0, "it is known that no replica is there"
    after = eventually(lambda: replicas(region).keys() - {old}, 120.0, "another replica runs")
    assert len(after) == 1
    eventually(lambda: not any(alive(p) for p in family), 10.0, "all processes of the old one are gone")
    assert len(engine_pids(region)) == 1
    eventually(lambda: region.ask("GET", "/healthz?deep=1")[0] == 200, 60.0, "its engine makes tokens")
    assert region.chat("hello")[0] == 200
