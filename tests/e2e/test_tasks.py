"""Tasks in a real region: real Router, workers as Serve runs them, real Redis; the engine is a stub."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest

from serve_app.edge.task_bus import CLAIM_HOLDS_S
from tests.e2e.test_region import eventually
from tests.stub_region import StubRegion, running_stub_region
from tests.valkey_store import Store

#: A worker that died is replaced by another one within this time.
TAKEOVER_S = 60.0
#: Longer than any engine here has to work.
ENGINE_LIMIT_S = 15.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    made = Store(tmp_path_factory.mktemp("valkey"))
    made.begin()
    yield made
    made.end()


@pytest.fixture(scope="module")
def region(store: Store) -> Iterator[StubRegion]:
    redis = f"{{url: '{store.url}', passwordFile: '{store.password_file}'}}"
    more = f"engineLimit: {ENGINE_LIMIT_S:g}s, secretFile: '{store.task_secret_file}'"
    tasks = f"{{light: {{agent: qwen-chat, minWorkers: 2, maxWorkers: 2}}, heavy: {{agent: qwen-doc}}, {more}}}"
    with running_stub_region(redis=redis, tasks=tasks) as made:
        yield made


def ask(region: StubRegion, method: str, path: str, body: Any = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(urlsplit(region.url).netloc, timeout=90)
    try:
        headers = {"authorization": f"Bearer {region.key}"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def submit(region: StubRegion, task_id: str, *attempt: list[Any], **more: Any) -> dict[str, Any]:
    text = json.dumps({"attempts": [list(attempt)]}) if attempt else "hello"
    body = {"task_id": task_id, "request": {"messages": [{"role": "user", "content": text}]}, **more}
    status, told = ask(region, "POST", "/v1/tasks", body)
    assert status in (200, 202), told
    return dict(json.loads(told))


def task(region: StubRegion, task_id: str) -> dict[str, Any]:
    status, told = ask(region, "GET", f"/v1/tasks/{task_id}")
    assert status == 200, told
    return dict(json.loads(told))


def is_in(region: StubRegion, task_id: str, *states: str) -> bool:
    return task(region, task_id)["state"] in states


def test_a_task_runs_to_its_result_and_its_events_are_told(region: StubRegion) -> None:
    assert submit(region, "first")["class"] == "light"
    status, events = ask(region, "GET", "/v1/tasks/first/events")
    assert status == 200
    told = [line.removeprefix("event: ") for line in events.splitlines() if line.startswith("event: ")]
    assert told == ["queued", "running", "progress", "done"]
    found = task(region, "first")
    assert (found["state"], found["attempts"], found["error"]) == ("done", 1, None)
    assert found["result"]["choices"][0]["message"]["content"] == "one two"
    # Once more it is the same task: the engine has seen one call.
    assert submit(region, "first")["state"] == "done"
    assert region.whats("task:tester:first:1") == ["called", "finished"]


def test_each_class_goes_to_its_agent(region: StubRegion) -> None:
    assert submit(region, "large", model_required="heavy")["class"] == "heavy"
    eventually(lambda: is_in(region, "large", "done"), 20.0, "the task is done")
    record = region.record("task:tester:large:1")
    assert record is not None
    assert (record["agent"], record["key_id"], record["tenant"]) == ("qwen-doc", "task", "tester")


def test_what_the_engine_cannot_do_is_tried_again(region: StubRegion) -> None:
    fails = ["accepted"], ["fail", "upstream_failed"]
    submit(region, "fails", *fails)
    eventually(lambda: is_in(region, "fails", "retrying"), 20.0, "the task is tried again later")
    error = task(region, "fails")["error"]
    assert error["reason"] == "failed" and error["message"].startswith("upstream_failed")
    status, told = ask(region, "DELETE", "/v1/tasks/fails")
    assert (status, json.loads(told)["state"]) == (200, "cancelled")


def test_an_engine_that_hangs_is_left_at_its_limit(region: StubRegion) -> None:
    submit(region, "stuck", ["accepted"], ["hang"])
    eventually(lambda: is_in(region, "stuck", "retrying"), ENGINE_LIMIT_S + 20.0, "the engine is left")
    error = task(region, "stuck")["error"]
    assert (error["reason"], error["message"].partition(":")[0]) == ("failed", "total_timeout")
    assert ask(region, "DELETE", "/v1/tasks/stuck")[0] == 200


def test_a_cancelled_task_leaves_its_engine(region: StubRegion) -> None:
    submit(region, "long", ["accepted"], ["hang"])
    eventually(lambda: region.whats("task:tester:long:1") == ["called"], 20.0, "the engine has it")
    assert ask(region, "DELETE", "/v1/tasks/long")[0] == 200
    eventually(lambda: region.whats("task:tester:long:1") == ["called", "aborted"], 20.0, "the engine is free")


def test_the_redis_dies_and_no_task_with_it(region: StubRegion, store: Store) -> None:
    for n in range(10):
        submit(region, f"r{n}", ["accepted"], ["wait", 1.0], ["head"], ["end"])
    store.process().kill()

    def done() -> bool:
        try:
            return all(is_in(region, f"r{n}", "done") for n in range(10))
        except AssertionError:  # it cannot be reached yet
            return False

    eventually(done, 60.0, "all tasks are done")
    assert all(task(region, f"r{n}")["attempts"] == 1 for n in range(10))


def workers(region: StubRegion) -> list[int]:
    rows = region.rest.details()["applications"]["grix-tasks-light"]["deployments"]["TaskWorkers"]["replicas"]
    return [row["pid"] for row in rows if row["state"] == "RUNNING"]


def test_a_worker_dies_and_its_task_is_done_by_another(region: StubRegion) -> None:
    """Both die, so that the one that had it is among them; chat goes on meanwhile."""
    submit(region, "lost", ["accepted"], ["wait", 5.0], ["head"], ["end"])
    eventually(lambda: region.whats("task:tester:lost:1") == ["called"], 20.0, "the engine has it")
    began_s = time.monotonic()
    for pid in workers(region):
        os.kill(pid, signal.SIGKILL)
    with ThreadPoolExecutor(1) as pool:
        chat = pool.submit(region.ask)
        eventually(lambda: is_in(region, "lost", "done"), TAKEOVER_S + 10.0, "another worker did it")
        assert chat.result()[1].status == 200
    assert time.monotonic() - began_s >= CLAIM_HOLDS_S - 10.0
    assert task(region, "lost")["attempts"] == 2
    eventually(lambda: len(workers(region)) == 2, 30.0, "the workers are there again")
