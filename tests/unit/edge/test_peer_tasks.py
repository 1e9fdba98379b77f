"""Tasks between two gateways over real gRPC: what is submitted there, told here, refused, and what breaks between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serve_app.core.table import Tenant
from serve_app.edge import peer_client
from serve_app.edge.peer_tasks import PeerTasks
from serve_app.edge.wire_tasks import PART_BYTES
from serve_app.task_forward import TaskCall, TaskPart
from tests.fakes import agent
from tests.pki import made
from tests.unit.edge.test_region_gateway import Side, two

ASKED: dict[str, Any] = {"task_id": "of the body", "request": {"messages": [{"role": "user", "content": "सार"}]}}
SUBMIT = TaskCall("submit", "acme", frozenset({"any"}), "t1", json.dumps({"request": ASKED["request"]}).encode())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("pki"))


@pytest.fixture
async def pair(root: Path) -> AsyncIterator[tuple[Side, Side]]:
    """cloud-a, and cloud-b, which takes tasks."""
    async with two(root) as (a, b):
        serve(b)
        yield a, b


def serve(side: Side, **changes: Any) -> None:
    plan = side.gateway.plan
    table = replace(plan.served.table, **{"task_agents": {"light": "qwen-chat"}, **changes})
    side.gateway._plan = replace(plan, served=replace(plan.served, table=table))


async def ask(a: Side, call: TaskCall) -> tuple[int, dict[str, str], bytes]:
    parts = [part async for part in a.gateway.task("cloud-b", call)]
    assert all(part.failure is None for part in parts), parts
    return parts[0].status, dict(parts[0].headers), b"".join(part.data for part in parts)


def code_of(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    return answer[0], json.loads(answer[2])["error"]["code"]


def verb(name: Any, **changes: Any) -> TaskCall:
    return replace(SUBMIT, verb=name, body=b"", **changes)


async def test_a_task_is_submitted_once_told_and_cancelled(pair: tuple[Side, Side]) -> None:
    a, b = pair
    status, headers, body = await ask(a, SUBMIT)
    assert (status, headers["location"]) == (202, "/v1/tasks/t1")
    assert (json.loads(body)["region"], json.loads(body)["state"]) == ("cloud-b", "queued")
    assert (await ask(a, SUBMIT))[0] == 200 and list(b.tasks.kept) == ["acme/t1"]
    assert json.loads((await ask(a, verb("get")))[2])["id"] == "t1"
    assert json.loads((await ask(a, verb("cancel")))[2])["state"] == "cancelled"
    status, headers, events = await ask(a, verb("events"))
    assert headers["content-type"].startswith("text/event-stream")
    assert [line for line in events.decode().splitlines() if line.startswith("event")] == [
        "event: queued",
        "event: cancelled",
    ]
    later = await ask(a, verb("events", headers={"last-event-id": "1-0"}))
    assert later[2].count(b"event: ") == 1
    assert code_of(await ask(a, verb("get", task_id="t2"))) == (404, "not_found")
    assert code_of(await ask(a, verb("output"))) == (404, "not_found")
    # Nothing of it is in the region that asked.
    assert not a.tasks.kept


async def test_a_batch_is_read_as_its_type_says_and_a_large_answer_comes_in_parts(pair: tuple[Side, Side]) -> None:
    a, b = pair
    line = {"custom_id": "a", "url": "/v1/chat/completions", "body": ASKED["request"]}
    batch = replace(SUBMIT, body=json.dumps(line).encode(), headers={"content-type": "application/jsonl"})
    assert (await ask(a, replace(batch, query={"priority": "high"})))[0] == 202
    assert b.tasks.kept["acme/t1"].priority == "high"
    text = json.dumps("x" * (2 * PART_BYTES))
    b.tasks.put(replace(b.tasks.kept["acme/t1:a"], state="done", result=text))
    parts = [part async for part in a.gateway.task("cloud-b", verb("output"))]
    assert [len(part.data) for part in parts][:3] == [0, PART_BYTES, PART_BYTES] and len(parts) == 4
    assert json.loads(b"".join(part.data for part in parts))["response"]["body"] == "x" * (2 * PART_BYTES)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (replace(SUBMIT, tenant="unknown"), (403, "not_allowed")),
        (replace(SUBMIT, body=b"{"), (400, "invalid_value")),
        # What the entry knows of the tenant narrows, and so does what the region itself knows.
        (replace(SUBMIT, residency=frozenset({"eu"})), (403, "residency")),
        (replace(SUBMIT, headers={"x-data-class": "eu"}), (403, "residency")),
        (replace(SUBMIT, tenant="european"), (403, "residency")),
    ],
)
async def test_what_is_not_taken_of_another_region(pair: tuple[Side, Side], call: TaskCall, said: Any) -> None:
    a, b = pair
    tenants = b.gateway.plan.served.table.tenants
    serve(b, tenants=(*tenants, Tenant("european", (), frozenset({"eu"}))))
    assert code_of(await ask(a, call)) == said and not b.tasks.kept


async def test_a_region_that_takes_no_tasks_of_others(pair: tuple[Side, Side]) -> None:
    a, b = pair
    serve(b, task_agents={})
    assert code_of(await ask(a, SUBMIT)) == (403, "not_allowed")
    serve(b, agents={"qwen-chat": agent("qwen-chat")})
    b.gateway._plan = replace(b.gateway.plan, served=replace(b.gateway.plan.served, accepts_spill=False))
    assert code_of(await ask(a, SUBMIT)) == (403, "not_allowed")
    assert code_of(await ask(a, verb("get"))) == (403, "not_allowed")


async def test_a_task_that_was_sent_on_is_not_sent_further(pair: tuple[Side, Side]) -> None:
    a, b = pair
    await b.tasks.send("acme/t1", "acme", "edge-1")
    assert code_of(await ask(a, SUBMIT)) == (409, "task_conflict") and not b.tasks.kept


async def test_a_store_that_is_away_there_is_told(pair: tuple[Side, Side]) -> None:
    a, b = pair
    b.tasks.away = True
    assert code_of(await ask(a, SUBMIT)) == (503, "tasks_away")


async def only(a: Side, region: str = "cloud-b", call: TaskCall = SUBMIT) -> str:
    """Why a region was not asked, or did not answer."""
    (part,) = [part async for part in a.gateway.task(region, call)]
    assert part.failure is not None
    return part.failure.reason


async def test_who_cannot_be_asked_was_not_asked(root: Path, pair: tuple[Side, Side]) -> None:
    a, b = pair
    assert await only(a, "cloud-z") == "no_target"
    # cloud-b only hears cloud-a.
    assert await only(b, "cloud-a") == "no_target"
    assert await only(a, call=replace(SUBMIT, query={"x": "y" * 513})) == "body_too_large"


async def test_a_peer_that_falls_silent_is_left_and_what_it_does_may_have_happened(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_client, "TASK_LIMIT_S", 0.05)
    async with two(root) as (a, b):
        serve(b)
        go = asyncio.Event()
        stats = b.tasks.stats

        async def slow() -> Any:
            await go.wait()
            return await stats()

        b.tasks.stats = slow  # type: ignore[method-assign]
        assert await only(a) == "peer_silent"
        go.set()
        monkeypatch.setattr(peer_client, "TASK_LIMIT_S", 10.0)
        # Whether or not it went on there: asked again it is one task.
        assert (await ask(a, SUBMIT))[0] in (200, 202) and list(b.tasks.kept) == ["acme/t1"]


async def test_events_end_with_the_region_that_tells_them(monkeypatch: pytest.MonkeyPatch, pair: Any) -> None:
    _, b = pair
    desk = PeerTasks(lambda: b.gateway.plan.served, b.tasks)
    assert [part.status async for part in desk.run("cloud-a", SUBMIT)] == [202, 0]
    told: list[TaskPart] = []
    async with aclosing(desk.run("cloud-a", verb("events"))) as parts:
        async for part in parts:
            told.append(part)
            desk.draining = True
    assert [part.status for part in told] == [200, 0]
    (refused, _) = [part async for part in desk.run("cloud-a", verb("get"))]
    assert refused.status == 503
