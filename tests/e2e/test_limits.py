"""Tenant limits at a real region with a real Valkey: refusals, slots, keys that change, and a Redis that dies."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from serve_app.core.tenants import hash_key
from serve_app.edge.serve_rest import ServeRest
from tests.e2e.conftest import LiveRegion

LIMIT_S = 30.0
LONG = {"max_tokens": 3000, "ignore_eos": True, "stream": True}


def until(holds: Callable[[], bool], what: str) -> None:
    """Waits for a condition, never for a time."""
    end_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end_s, f"{what}: not within {LIMIT_S} s"
        time.sleep(0.05)


def tenant(name: str, key: str, **spec: Any) -> dict[str, Any]:
    keys = [{"id": f"id-of-{key}", "sha256": hash_key(key)}]
    body = {"keys": keys, "residency": ["any"], **spec}
    return {"apiVersion": "grix.io/v1", "kind": "Tenant", "metadata": {"name": name}, "spec": body}


class Tenants:
    """Changes the region's tenants as an operator would: a new bundle to its Routers, nothing restarts."""

    def __init__(self, region: LiveRegion) -> None:
        self._rest = ServeRest(region.record["dashboard"], Path(region.record["token_file"]).read_text().strip())
        self._region = region
        apps = self._rest.details()["applications"]
        self._apps = [app["deployed_app_config"] for app in apps.values()]
        self._first = json.dumps(self._documents()["tenants"])

    def _documents(self) -> dict[str, Any]:
        for app in self._apps:
            for deployment in app["deployments"]:
                if deployment["name"] == "Router":
                    return deployment["user_config"]["documents"]
        raise AssertionError("no Router")

    def put(self, *more: dict[str, Any], witness: str | None = None) -> None:
        """The region's own tenants and ``more``; returns when the Router knows the key ``witness``."""
        self._documents()["tenants"] = [*json.loads(self._first), *more]
        http_options = {"host": "127.0.0.1", "port": urlsplit(self._region.url).port}
        self._rest.put_config({"proxy_location": "HeadOnly", "http_options": http_options, "applications": self._apps})
        if witness is not None:
            until(lambda: ask(self._region, witness, "GET", "/v1/models")[0] == 200, "the new bundle")


def ask(region: LiveRegion, key: str, method: str, path: str, body: Any = None) -> tuple[int, dict[str, str], Any]:
    return region.ask(method, path, body, {"authorization": f"Bearer {key}"})


def chat(region: LiveRegion, key: str, **fields: Any) -> tuple[int, dict[str, str], Any]:
    body = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 4, **fields}
    return ask(region, key, "POST", "/v1/chat/completions", body)


@contextmanager
def stream(region: LiveRegion, key: str, **fields: Any) -> Iterator[http.client.HTTPResponse]:
    """An answer past its first bytes; leaving the block hangs up."""
    where = urlsplit(region.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=120)
    body = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0, **LONG, **fields}
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    try:
        assert answer.status == 200, answer.read()
        assert answer.read(6) == b"data: "
        yield answer
    finally:
        answer.close()
        connection.close()


def limits_by(region: LiveRegion, headers: dict[str, str]) -> Any:
    """Who decided about a request that has ended."""
    status, _, record = region.ask("GET", f"/grix/requests/{headers['x-request-id']}")
    assert status == 200
    return record["limits_by"]


TWO = tenant("two", "grix-two", limits={"requestsPerMinute": 2})
DUO = tenant("duo", "grix-duo", limits={"requestsPerMinute": 2})
FEW = tenant("few", "grix-few", limits={"tokensPerMinute": 250})
ONE = tenant("one", "grix-one", limits={"concurrent": 1})
FREE = tenant("free", "grix-free", limits={"requestsPerMinute": 100_000})
OLD = tenant("turn", "grix-old")
NEW = tenant("turn", "grix-new")


@pytest.fixture(scope="module")
def tenants(region: LiveRegion) -> Iterator[Tenants]:
    made = Tenants(region)
    made.put(TWO, DUO, FEW, ONE, FREE, OLD, witness="grix-old")
    yield made
    made.put()
    until(lambda: ask(region, "grix-two", "GET", "/v1/models")[0] == 401, "the first bundle again")


def use_up(region: LiveRegion, key: str) -> tuple[list[int], dict[str, str], Any]:
    """Asks until refused: the statuses before, and the refusal."""
    statuses: list[int] = []
    while len(statuses) < 10:
        status, headers, told = chat(region, key)
        if status != 200:
            return statuses, headers, told
        statuses.append(status)
    raise AssertionError("no limit")


def test_requests_over_the_limit_are_told_when_to_come_back(region: LiveRegion, tenants: Tenants) -> None:
    until(lambda: limits_by(region, chat(region, "grix-free")[1]) == "region", "Redis in use")
    statuses, headers, told = use_up(region, "grix-two")
    # The second may be refilled while the first runs on a slow machine.
    assert 2 <= len(statuses) <= 3
    assert (told["error"]["type"], told["error"]["code"]) == ("requests", "rate_limit_exceeded")
    # 30 s a request; a quarter more at most is spread.
    assert 1 <= int(headers["retry-after"]) <= 37


def test_tokens_are_reserved_and_what_was_not_used_comes_back(region: LiveRegion, tenants: Tenants) -> None:
    status, _, told = chat(region, "grix-few", max_tokens=40, ignore_eos=True)
    assert status == 200 and told["usage"]["completion_tokens"] == 40
    status, headers, told = chat(region, "grix-few", max_tokens=200)
    assert (status, told["error"]["type"]) == (429, "tokens")
    assert int(headers["retry-after"]) >= 1
    assert chat(region, "grix-few", max_tokens=1)[0] == 200


def test_a_slot_is_held_while_a_stream_runs_and_comes_back_when_its_client_leaves(
    region: LiveRegion, tenants: Tenants
) -> None:
    with stream(region, "grix-one"):
        status, headers, told = chat(region, "grix-one")
        assert (status, told["error"]["type"]) == (429, "concurrency")
        assert int(headers["retry-after"]) >= 1
    until(lambda: chat(region, "grix-one")[0] == 200, "the slot back")


def test_a_key_changes_without_a_restart_and_streams_go_on(region: LiveRegion, tenants: Tenants) -> None:
    with stream(region, "grix-old", max_tokens=2000) as running:
        tenants.put(TWO, DUO, FEW, ONE, FREE, NEW, witness="grix-new")
        status, _, told = chat(region, "grix-old")
        assert (status, told["error"]["code"]) == (401, "invalid_api_key")
        assert running.read().rstrip().endswith(b"data: [DONE]")
    status, headers, _ = chat(region, "grix-new")
    assert status == 200
    assert region.ask("GET", f"/grix/requests/{headers['x-request-id']}")[2]["key_id"] == "id-of-grix-new"


def test_the_password_of_redis_is_nowhere_but_in_its_file(region: LiveRegion) -> None:
    file = Path(region.record["redis"]["password_file"])
    assert file.stat().st_mode & 0o777 == 0o600
    command = Path(f"/proc/{region.record['redis']['pid']}/cmdline").read_bytes()
    password = file.read_bytes()
    assert len(password) >= 32 and password not in command
    logs = [f for f in Path(region.record["temp_dir"]).rglob("*") if f.is_file() and f.stat().st_size < 50_000_000]
    kept = [f for f in file.parent.rglob("*") if f.is_file()]
    assert [f for f in [*logs, *kept] if f != file and password in f.read_bytes()] == []


def redis_of(region: LiveRegion) -> Any:
    """What ``grix status`` tells of the region's Redis."""
    return region.ask("GET", "/healthz?deep=1")[2]["redis"]


def test_without_redis_requests_are_served_within_local_limits(region: LiveRegion, tenants: Tenants) -> None:
    (server,) = psutil.Process(region.record["redis"]["pid"]).children()
    server.suspend()
    status, headers, _ = chat(region, "grix-free")
    assert (status, limits_by(region, headers)) == (200, "router")
    statuses, headers, _ = use_up(region, "grix-duo")
    assert 2 <= len(statuses) <= 3 and int(headers["retry-after"]) >= 1
    until(lambda: redis_of(region) == "down", "Redis seen to be away")
    # A frozen server is nobody's to end; one that died is started again.
    server.kill()
    until(lambda: limits_by(region, chat(region, "grix-free")[1]) == "region", "Redis back")
    until(lambda: redis_of(region) == "up", "Redis seen to be back")
