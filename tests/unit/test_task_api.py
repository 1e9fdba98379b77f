"""Tasks over HTTP: what is taken, what is refused and why, whose a task is, and watching one to its end."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from serve_app import task_desk
from serve_app.core.table import Tenant, TenantKey
from serve_app.core.tasks import Event, Task
from serve_app.core.tenants import hash_key
from serve_app.task_request import MAX_INPUT_BYTES
from tests.fake_tasks import FakeTasks
from tests.fakes import BEARER, OPERATOR, Site, Stage, a_table, agent

ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "sum this up"}]}
SUBMITTED: dict[str, Any] = {"task_id": "t1", "request": ASKED}


def a_site(**changes: Any) -> Site:
    table = a_table(
        task_agents={"light": "qwen-chat", "heavy": "qwen-doc"},
        agents={"qwen-chat": agent("qwen-chat"), "qwen-doc": agent("qwen-doc", max_model_len=4000)},
        **changes,
    )
    return Site(Stage(table=table))


async def submit(site: Site, *, headers: dict[str, str] | None = None, **changes: Any) -> httpx.Response:
    return await site.ask("POST", "/v1/tasks", {**SUBMITTED, **changes}, headers)


def error_of(answer: httpx.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


async def test_a_task_is_taken_and_told() -> None:
    site = a_site()
    answer = await submit(site, priority="high")
    assert (answer.status_code, answer.headers["location"]) == (202, "/v1/tasks/t1")
    assert answer.json() == {
        "id": "t1",
        "object": "task",
        "region": "cloud-a",
        "state": "queued",
        "class": "light",
        "priority": "high",
        "attempts": 0,
        "created_at": 1_800_000_000,
        "started_at": None,
        "ended_at": None,
        "result": None,
        "result_uri": None,
        "error": None,
    }
    assert (await site.ask("GET", "/v1/tasks/t1")).json() == answer.json()
    (kept,) = site.tasks.kept.values()
    assert (kept.id, kept.tenant, json.loads(kept.input or "")) == ("acme/t1", "acme", ASKED)


async def test_submitted_again_it_is_the_same_task_and_another_one_is_refused() -> None:
    site = a_site()
    assert (await submit(site)).status_code == 202
    # The same request, written in another order.
    again = await submit(site, request=dict(reversed(ASKED.items())))
    assert again.status_code == 200 and len(site.tasks.kept) == 1
    other = await submit(site, request={**ASKED, "temperature": 0})
    assert error_of(other) == (409, "task_conflict", "task_id")


async def test_a_task_without_a_name_gets_one() -> None:
    site = a_site()
    first = await submit(site, task_id=None)
    second = await submit(site, task_id=None)
    assert first.json()["id"] != second.json()["id"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"task_id": "a/b"}, (400, "invalid_value", "task_id")),
        ({"task_id": "x" * 65}, (400, "invalid_value", "task_id")),
        ({"task_id": 7}, (400, "invalid_value", "task_id")),
        ({"model_required": "huge"}, (400, "invalid_value", "model_required")),
        ({"priority": "urgent"}, (400, "invalid_value", "priority")),
        ({"expected_output_tokens": 0}, (400, "invalid_value", "expected_output_tokens")),
        ({"expected_output_tokens": True}, (400, "invalid_value", "expected_output_tokens")),
        ({"sub_tasks": []}, (400, "invalid_value", "request")),
        ({"deadline": 3}, (400, "unknown_parameter", "deadline")),
        ({"request": "hello"}, (400, "invalid_value", "request")),
        ({"request": {**ASKED, "temperature": "hot"}}, (400, "invalid_value", "request.temperature")),
        ({"request": {**ASKED, "colour": 1}}, (400, "unknown_parameter", "request.colour")),
        ({"request": {"messages": []}}, (400, "invalid_value", "request.messages")),
        ({"request": {**ASKED, "stream": True}}, (400, "invalid_value", "request")),
        ({"request": {**ASKED, "model": "qwen-doc"}}, (400, "invalid_value", "request.model")),
        (
            {"request": {"messages": [{"role": "user", "content": "x" * MAX_INPUT_BYTES}]}},
            (413, "request_too_large", None),
        ),
        ({"expected_output_tokens": 4001}, (400, "context_length_exceeded", "request.messages")),
    ],
)
async def test_bad_input_names_the_field(changes: dict[str, Any], said: tuple[int, str, str | None]) -> None:
    site = a_site()
    assert error_of(await submit(site, **changes)) == said
    assert not site.tasks.kept


async def test_poison_is_no_task() -> None:
    site = a_site()
    for raw in (b"", b"\xff", b"[]", b'{"request": {"a": 1e999}}', b'{"task_id": "a", "task_id": "b"}'):
        answer = await site.ask("POST", "/v1/tasks", raw)
        assert answer.status_code == 400, raw
    assert not site.tasks.kept


@pytest.mark.parametrize(
    ("changes", "placed"),
    [
        ({}, "light"),
        ({"model_required": "heavy"}, "heavy"),
        ({"expected_output_tokens": 2000}, "heavy"),
        ({"model_required": "light", "expected_output_tokens": 2000}, "heavy"),
        # By the estimate it is too long for all, but it may be shorter than that.
        ({"request": {"messages": [{"role": "user", "content": "x" * 15_000}]}}, "heavy"),
    ],
)
async def test_a_task_goes_to_workers_that_can_hold_it(changes: dict[str, Any], placed: str) -> None:
    assert (await submit(a_site(), **changes)).json()["class"] == placed


async def test_a_tenant_sees_only_its_own_tasks() -> None:
    site = a_site()
    await submit(site)
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/events")):
        answer = await site.ask(method, f"/v1/tasks/t1{path}", headers=OPERATOR)
        assert error_of(answer) == (404, "not_found", None)
    # The same name is another task there.
    assert (await submit(site, headers=OPERATOR)).status_code == 202
    assert sorted(site.tasks.kept) == ["acme/t1", "ops/t1"]


async def test_strangers_are_told_nothing() -> None:
    site = a_site()
    for method, path in (("POST", "/v1/tasks"), ("GET", "/v1/tasks/t1"), ("DELETE", "/v1/tasks/t1")):
        assert error_of(await site.ask(method, path, headers={})) == (401, "missing_api_key", None)


def tenant(**changes: Any) -> Tenant:
    key = BEARER["authorization"].removeprefix("Bearer ")
    return replace(Tenant("acme", (TenantKey("k1", hash_key(key)),), frozenset({"any"})), **changes)


async def test_data_that_may_not_be_here_is_no_task_here() -> None:
    site = a_site(tenants=(tenant(residency=frozenset({"eu"})),))
    assert error_of(await submit(site)) == (403, "residency", None)
    narrowed = {**ASKED, "metadata": {"data_class": "eu"}}
    assert error_of(await submit(a_site(), request=narrowed)) == (403, "residency", None)
    assert not site.tasks.kept


async def test_the_data_class_of_the_header_wins_and_is_kept() -> None:
    said = {**BEARER, "x-data-class": "sg"}
    metadata = {"data_class": "eu", "user_id": "u"}
    request = {**ASKED, "metadata": metadata}
    site = a_site()
    assert (await submit(site, headers=said, request=request)).status_code == 202
    assert (
        await submit(site, headers=said, task_id="t2", request=None, sub_tasks=[{"request": ASKED}])
    ).status_code == 202
    line = json.dumps({"custom_id": "a", "url": "/v1/chat/completions", "body": request}).encode()
    jsonl = {**said, "content-type": "application/jsonl"}
    assert (await site.ask("POST", "/v1/tasks?task_id=t3", line, jsonl)).status_code == 202
    kept = {
        key: json.loads(site.tasks.kept[key].input or "")["metadata"] for key in ("acme/t1", "acme/t2:0", "acme/t3:a")
    }
    both = {"data_class": "sg", "user_id": "u"}
    assert kept == {"acme/t1": both, "acme/t2:0": {"data_class": "sg"}, "acme/t3:a": both}
    elsewhere = a_site()
    for value, answer in (("eu", (403, "residency", None)), ("x" * 257, (400, "invalid_value", "x-data-class"))):
        assert error_of(await submit(elsewhere, headers={**BEARER, "x-data-class": value})) == answer
    assert not elsewhere.tasks.kept


@pytest.mark.parametrize(
    ("chars", "shown", "apart"), [(100, True, False), (200_000, True, True), (600_000, False, True)]
)
async def test_large_results_are_made_ready_apart_and_are_in_the_output_alone(
    monkeypatch: pytest.MonkeyPatch, chars: int, shown: bool, apart: bool
) -> None:
    site, threads = a_site(), []
    await submit(site, request=None, sub_tasks=[{"request": ASKED}, {"request": ASKED}])
    for part in ("acme/t1:0", "acme/t1:1"):
        site.tasks.put(replace(site.tasks.kept[part], state="done", result=json.dumps("x" * chars)))
    to_thread = asyncio.to_thread

    async def seen(call: Any, *args: Any) -> Any:
        threads.append(call.__name__)
        return await to_thread(call, *args)

    monkeypatch.setattr(task_desk.asyncio, "to_thread", seen)
    rows = (await site.ask("GET", "/v1/tasks/t1")).json()["sub_tasks"]
    told = ("x" * chars, None) if shown else (None, "/v1/tasks/t1/output")
    assert [(row["result"], row["result_uri"]) for row in rows] == [told, told]
    output = await site.ask("GET", "/v1/tasks/t1/output")
    assert [len(json.loads(line)["response"]["body"]) for line in output.content.splitlines()] == [chars, chars]
    assert threads == (["_shown_json", "_output"] if apart else [])


async def test_who_watches_in_silence_looks_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    site, paused = a_site(), []
    await submit(site)

    async def pause(seconds: float) -> None:
        paused.append(seconds)
        kept = site.tasks.kept["acme/t1"]
        if len(paused) == 5:
            site.tasks.put(replace(kept, state="running"))
        elif len(paused) == 7:
            site.tasks.put(replace(kept, state="done"))

    desk = task_desk.TaskDesk(a_table, site.tasks)
    monkeypatch.setattr(task_desk.asyncio, "sleep", pause)
    said = [chunk.split(b"\n")[1] async for chunk in desk.told("acme/t1", "0")]
    assert paused == [0.25, 0.5, 1.0, 2.0, 2.0, 0.25, 0.5]
    assert said == [b"event: queued", b"event: running", b"event: done"]


async def test_a_tenant_without_the_agents_and_a_region_without_tasks() -> None:
    site = a_site(tenants=(tenant(agents=frozenset({"qwen-coder"})),))
    assert error_of(await submit(site)) == (403, "not_allowed", None)
    only_doc = a_site(tenants=(tenant(agents=frozenset({"qwen-doc"})),))
    assert (await submit(only_doc)).json()["class"] == "heavy"
    assert error_of(await submit(Site())) == (404, "not_found", None)
    assert error_of(await Site().ask("GET", "/v1/tasks/t1")) == (404, "not_found", None)
    assert error_of(await Site().ask("GET", "/grix/tasks", headers=OPERATOR)) == (404, "not_found", None)


@pytest.mark.parametrize("how", ["full", "tenant_full"])
async def test_too_many_tasks(how: str) -> None:
    site = a_site()
    site.tasks.refuse = how
    answer = await submit(site)
    assert error_of(answer) == (429, "tasks_full", None) and answer.headers["retry-after"] == "10"


async def test_tasks_that_cannot_be_reached() -> None:
    site = a_site()
    site.tasks.away = True
    answer = await submit(site)
    assert error_of(answer) == (503, "tasks_away", None) and answer.headers["retry-after"] == "2"


async def test_a_cancelled_task_stays_so() -> None:
    site = a_site()
    await submit(site)
    assert (await site.ask("DELETE", "/v1/tasks/t1")).json()["state"] == "cancelled"
    assert (await site.ask("DELETE", "/v1/tasks/t1")).json()["state"] == "cancelled"
    assert error_of(await site.ask("DELETE", "/v1/tasks/t2")) == (404, "not_found", None)


def ended(site: Site, **changes: Any) -> Task:
    return replace(site.tasks.kept["acme/t1"], **changes)


async def test_a_method_that_is_not_there_is_told_which_are() -> None:
    answer = await a_site().ask("PUT", "/v1/tasks/t1")
    assert (answer.status_code, set(answer.headers["allow"].split(", "))) == (405, {"GET", "HEAD", "DELETE"})


async def test_a_result_and_a_failure() -> None:
    site = a_site()
    await submit(site)
    site.tasks.put(ended(site, state="done", result='{"choices": []}', attempts=1, ended_unix_s=1_800_000_009.9))
    told = (await site.ask("GET", "/v1/tasks/t1")).json()
    assert (told["state"], told["result"], told["ended_at"]) == ("done", {"choices": []}, 1_800_000_009)
    site.tasks.put(ended(site, state="failed", result=None, reason="worker_lost", message="each was lost"))
    told = (await site.ask("GET", "/v1/tasks/t1")).json()
    assert told["error"] == {"reason": "worker_lost", "message": "each was lost"}
    site.tasks.put(ended(site, state="done", result="", uri="s3://results/x"))
    told = (await site.ask("GET", "/v1/tasks/t1")).json()
    assert (told["result"], told["result_uri"]) == (None, "s3://results/x")


def events_of(answer: httpx.Response) -> list[tuple[str, str, str | None]]:
    rows = [dict(line.split(": ", 1) for line in e.splitlines()) for e in answer.text.split("\n\n") if e]
    return [(row["id"], row["event"], json.loads(row["data"])["data"]) for row in rows]


async def test_events_to_the_end_and_from_where_they_were_left() -> None:
    site = a_site()
    await submit(site)
    site.tasks.put(ended(site, state="running"), "1")
    site.tasks.put(ended(site, state="done"))
    answer = await site.ask("GET", "/v1/tasks/t1/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert events_of(answer) == [("1-0", "queued", None), ("2-0", "running", "1"), ("3-0", "done", None)]
    rest = await site.ask("GET", "/v1/tasks/t1/events", headers={**BEARER, "last-event-id": "2-0"})
    assert events_of(rest) == [("3-0", "done", None)]
    nothing = await site.ask("GET", "/v1/tasks/t1/events", headers={**BEARER, "last-event-id": "3-0"})
    assert (nothing.status_code, nothing.text) == (200, "")
    bad = await site.ask("GET", "/v1/tasks/t1/events", headers={**BEARER, "last-event-id": "$"})
    assert error_of(bad) == (400, "invalid_value", "last-event-id")


async def test_events_outlive_a_pause_of_their_store(monkeypatch: pytest.MonkeyPatch) -> None:
    site = a_site()
    await submit(site)
    looks = 0
    real = FakeTasks.events

    async def shaky(self: FakeTasks, task_id: str, after: str) -> list[Event]:
        nonlocal looks
        looks += 1
        self.away = looks == 2
        if looks == 3:
            self.put(ended(site, state="done"))
        return await real(self, task_id, after)

    monkeypatch.setattr(FakeTasks, "events", shaky)
    monkeypatch.setattr("serve_app.task_desk.LOOK_S", 0.0)
    answer = await asyncio.wait_for(site.ask("GET", "/v1/tasks/t1/events"), 20.0)
    assert [event for _, event, _ in events_of(answer)] == ["queued", "done"] and looks == 3


async def test_operators_see_what_waits_and_what_died() -> None:
    site = a_site()
    await submit(site)
    site.tasks.put(ended(site, state="failed", reason="failed", message="no luck"))
    for method, path in (("GET", ""), ("GET", "/dead"), ("POST", "/dead/acme/t1"), ("DELETE", "/dead/acme/t1")):
        assert error_of(await site.ask(method, f"/grix/tasks{path}")) == (403, "not_allowed", None)
    stats = (await site.ask("GET", "/grix/tasks", headers=OPERATOR)).json()
    assert stats["light"] == {
        "waiting": {"high": 1, "normal": 2},
        "oldest_s": {"high": 0.5, "normal": 3.0},
        "running": 4,
        "workers": 1,
        "slots": 4,
    }
    (row,) = (await site.ask("GET", "/grix/tasks/dead", headers=OPERATOR)).json()["data"]
    assert (row["key"], row["tenant"], row["error"]["reason"]) == ("acme/t1", "acme", "failed")
    assert json.loads(row["input"]) == ASKED
    for query in ("limit=0", "limit=101", "offset=-1", "offset=x", "offset=10000000"):
        asked = await site.ask("GET", f"/grix/tasks/dead?{query}", headers=OPERATOR)
        assert error_of(asked) == (400, "invalid_value", query.partition("=")[0])
    assert (await site.ask("GET", "/grix/tasks/dead?offset=1&limit=1", headers=OPERATOR)).json() == {
        "object": "list",
        "data": [],
        "next_offset": None,
    }
    told = await site.ask("POST", "/grix/tasks/dead/acme/t1", headers=OPERATOR)
    assert told.json() == {"key": "acme/t1", "state": "replayed"} and site.tasks.kept["acme/t1"].state == "queued"
    again = await site.ask("POST", "/grix/tasks/dead/acme/t1", headers=OPERATOR)
    assert error_of(again) == (404, "not_found", None)
    site.tasks.put(ended(site, state="failed"))
    told = await site.ask("DELETE", "/grix/tasks/dead/acme/t1", headers=OPERATOR)
    assert told.json() == {"key": "acme/t1", "state": "dropped"} and not site.tasks.kept


def parts(*names: str) -> dict[str, Any]:
    return {"request": None, "sub_tasks": [{"sub_task_id": name, "request": ASKED} for name in names]}


async def test_a_task_in_parts_and_its_results_in_order() -> None:
    site = a_site()
    rows = [{"sequence": 20, "request": ASKED}, {"sub_task_id": "b", "sequence": 10, "request": ASKED}]
    answer = await submit(site, request=None, sub_tasks=rows)
    assert answer.status_code == 202 and sorted(site.tasks.kept) == ["acme/t1", "acme/t1:0", "acme/t1:b"]
    for part, changes in {"b": {"state": "done", "result": '{"n": 1}'}, "0": {"state": "failed"}}.items():
        site.tasks.put(replace(site.tasks.kept[f"acme/t1:{part}"], **changes, reason=None))
    site.tasks.put(ended(site, state="done", left=0))
    told = (await site.ask("GET", "/v1/tasks/t1")).json()
    assert (told["state"], told["left"], "result" in told) == ("done", 0, False)
    assert told["sub_tasks"] == [
        {"sub_task_id": "b", "state": "done", "result": {"n": 1}, "result_uri": None, "error": None},
        {"sub_task_id": "0", "state": "failed", "result": None, "result_uri": None, "error": None},
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"request": None, "sub_tasks": []}, (400, "invalid_value", "sub_tasks")),
        ({"request": None, "sub_tasks": [{}] * 257}, (400, "invalid_value", "sub_tasks")),
        ({"request": None, "sub_tasks": ["x"]}, (400, "invalid_value", "sub_tasks[0]")),
        ({"request": None, "sub_tasks": [{}]}, (400, "invalid_value", "sub_tasks[0].request")),
        (parts("a", "a"), (400, "invalid_value", "sub_tasks")),
        (parts("a/b"), (400, "invalid_value", "sub_tasks[0].sub_task_id")),
        (
            {"request": None, "sub_tasks": [{"request": ASKED, "sequence": -1}]},
            (400, "invalid_value", "sub_tasks[0].sequence"),
        ),
        (
            {"request": None, "sub_tasks": [{"request": ASKED}, {"request": {**ASKED, "top_p": 7}}]},
            (400, "invalid_value", "sub_tasks[1].request.top_p"),
        ),
        ({"request": None, "sub_tasks": [{"prio": 1}]}, (400, "unknown_parameter", "sub_tasks[0].prio")),
        (parts("a") | {"request": ASKED}, (400, "invalid_value", "request")),
        ({"request": None}, (400, "invalid_value", "request")),
    ],
)
async def test_parts_that_cannot_be(changes: dict[str, Any], said: tuple[int, str, str | None]) -> None:
    site = a_site()
    assert error_of(await submit(site, **changes)) == said
    assert not site.tasks.kept


JSON_LINES = {**BEARER, "content-type": "application/jsonl"}


def line(custom_id: str, /, **changes: Any) -> bytes:
    body = {"model": "gpt-4o-mini", **ASKED}
    row = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps({**row, **changes}).encode() + b"\n"


async def test_a_file_in_the_batch_format_and_its_output() -> None:
    site = a_site()
    path = "/v1/tasks?task_id=night&priority=high"
    answer = await site.ask("POST", path, line("a") + b"\n" + line("b") + line("c"), JSON_LINES)
    assert answer.status_code == 202, answer.text
    assert (answer.json()["id"], answer.json()["priority"]) == ("night", "high")
    assert json.loads(site.tasks.kept["acme/night:a"].input or "") == ASKED
    done = {"state": "done", "result": '{"choices": []}'}
    site.tasks.put(replace(site.tasks.kept["acme/night:a"], **done))
    site.tasks.put(replace(site.tasks.kept["acme/night:c"], state="failed", reason="failed", message="no luck"))
    output = await site.ask("GET", "/v1/tasks/night/output")
    assert output.headers["content-type"] == "application/jsonl"
    assert [json.loads(one) for one in output.text.splitlines()] == [
        {
            "id": "night:a",
            "custom_id": "a",
            "response": {"status_code": 200, "request_id": "acme/night:a", "body": {"choices": []}},
            "error": None,
        },
        {
            "id": "night:b",
            "custom_id": "b",
            "response": None,
            "error": {"code": "queued", "message": "the part is queued"},
        },
        {"id": "night:c", "custom_id": "c", "response": None, "error": {"code": "failed", "message": "no luck"}},
    ]
    await submit(site)
    assert error_of(await site.ask("GET", "/v1/tasks/t1/output")) == (404, "not_found", None)


@pytest.mark.parametrize(
    ("raw", "query", "said"),
    [
        (b"", "", (400, "invalid_value", "body")),
        (line("a") * 257, "", (400, "invalid_value", "body")),
        (line("a") + line("a"), "", (400, "invalid_value", "body")),
        (line("a") + b"{", "", (400, "invalid_value", "body")),
        (line("a", url="/v1/embeddings"), "", (400, "invalid_value", "line 1.url")),
        (line("a") + line("b", method="GET"), "", (400, "invalid_value", "line 2.url")),
        (line("a", body={"messages": []}), "", (400, "invalid_value", "line 1.body.messages")),
        (line("a", custom_id=None), "", (400, "invalid_value", "line 1.custom_id")),
        (line("a"), "?priority=urgent", (400, "invalid_value", "priority")),
        (line("a"), "?deadline=1", (400, "unknown_parameter", "deadline")),
    ],
)
async def test_a_file_that_is_no_batch(raw: bytes, query: str, said: tuple[int, str, str | None]) -> None:
    site = a_site()
    assert error_of(await site.ask("POST", f"/v1/tasks{query}", raw, JSON_LINES)) == said
    assert not site.tasks.kept
