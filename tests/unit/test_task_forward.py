"""Tasks of other regions: which one they go to, that they go once, and what is said when it cannot be reached."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from serve_app.core.snapshots import RegionView, Snapshot
from serve_app.core.table import Tenant, TenantKey
from serve_app.core.tenants import hash_key
from serve_app.outcomes import GrixError
from serve_app.ports import Failure
from serve_app.task_forward import TaskPart
from tests.fakes import BEARER, Site, Stage, a_table, agent

ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "sum this up"}]}
EU = {**ASKED, "metadata": {"data_class": "eu"}}
JSON = {"content-type": "application/json"}
STREAM = TaskPart(200, {"content-type": "text/event-stream"})
TAKEN = [TaskPart(202, {**JSON, "location": "/v1/tasks/t1"}), TaskPart(data=b'{"region": '), TaskPart(data=b'"eu-1"}')]


def a_site(snapshot: Snapshot | None = None, **changes: Any) -> Site:
    table = a_table(
        task_agents={"light": "qwen-chat"},
        agents={"qwen-chat": agent("qwen-chat")},
        task_regions={"us-1": frozenset({"us"}), "eu-1": frozenset({"eu"}), "eu-2": frozenset({"eu"})},
        **changes,
    )
    return Site(Stage(table=table, snapshot=snapshot))


async def submit(site: Site, request: Any = EU, **more: Any) -> httpx.Response:
    return await site.ask("POST", "/v1/tasks", {"task_id": "t1", "request": request, **more})


def error_of(answer: httpx.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


def failed(reason: str) -> list[TaskPart]:
    return [TaskPart(failure=Failure(reason, "no"))]  # type: ignore[arg-type]


async def test_a_task_goes_to_a_region_that_may_keep_its_data() -> None:
    site = a_site()
    site.peers.answers = {"eu-1": [TAKEN]}
    answer = await submit(site)
    assert (answer.status_code, answer.json()) == (202, {"region": "eu-1"})
    assert answer.headers["location"] == "/v1/tasks/t1" and not site.tasks.kept
    ((region, call),) = site.peers.asked
    assert (region, call.verb, call.tenant, call.task_id) == ("eu-1", "submit", "acme", "t1")
    assert call.residency == {"any"} and json.loads(call.body)["request"] == EU
    assert await site.tasks.sent("acme/t1") == "eu-1"


async def test_what_may_stay_stays_unless_its_caller_says_where() -> None:
    site = a_site()
    assert (await submit(site, ASKED)).json()["region"] == "cloud-a"
    assert (await submit(site, ASKED, region="cloud-a")).status_code == 200 and not site.peers.asked
    site.peers.answers = {"us-1": [TAKEN]}
    assert (await submit(site, ASKED, task_id="t2", region="us-1")).status_code == 202
    assert [region for region, _ in site.peers.asked] == ["us-1"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"region": "moon-1"}, (400, "invalid_value", "region")),
        ({"region": 7}, (400, "invalid_value", "region")),
        ({"region": "us-1"}, (403, "residency", None)),
        ({"region": "cloud-a"}, (403, "residency", None)),
        ({"request": {**ASKED, "metadata": {"data_class": "jp"}}}, (403, "residency", None)),
    ],
)
async def test_where_a_task_may_not_go(changes: dict[str, Any], said: tuple[int, str, str | None]) -> None:
    site = a_site()
    assert error_of(await submit(site, **{"request": EU, **changes})) == said
    assert not site.peers.asked and not site.tasks.at


async def test_a_tenants_residency_sends_all_its_tasks() -> None:
    key = BEARER["authorization"].removeprefix("Bearer ")
    site = a_site(tenants=(Tenant("acme", (TenantKey("k1", hash_key(key)),), frozenset({"us"})),))
    site.peers.answers = {"us-1": [TAKEN]}
    assert (await submit(site, ASKED)).status_code == 202
    assert site.peers.asked[0][1].residency == {"us"}


def seen(**health: str) -> Snapshot:
    views = tuple(
        RegionView(name.replace("_", "-"), "c", one, "", True)  # type: ignore[arg-type]
        for name, one in health.items()
    )
    return Snapshot(1, 1, (), views)


DRAINED = replace(seen(eu_1="healthy").regions[0], drained=True)


@pytest.mark.parametrize(
    ("snapshot", "chosen"),
    [
        (seen(eu_1="ejected", eu_2="healthy"), "eu-2"),
        (seen(eu_1="slow", eu_2="healthy"), "eu-1"),
        # Nobody is known to be well: the first one is asked.
        (seen(eu_1="ejected"), "eu-1"),
        (Snapshot(1, 1, (), (DRAINED, *seen(eu_2="slow").regions)), "eu-2"),
    ],
)
async def test_of_those_that_may_one_that_is_well_is_chosen(snapshot: Snapshot, chosen: str) -> None:
    site = a_site(snapshot)
    site.peers.answers = {chosen: [TAKEN]}
    assert (await submit(site)).status_code == 202


async def test_submitted_again_it_goes_where_it_went() -> None:
    site = a_site(seen(eu_1="healthy", eu_2="healthy"))
    # Nobody knows whether the first one arrived.
    site.peers.answers = {"eu-1": [failed("peer_silent"), TAKEN, failed("replica_lost")]}
    first = await submit(site)
    assert error_of(first) == (503, "tasks_away", None) and first.headers["retry-after"] == "2"
    assert "task t1" in first.json()["error"]["message"]
    elsewhere = a_site(seen(eu_1="ejected", eu_2="healthy"))
    elsewhere.tasks, elsewhere.peers = site.tasks, site.peers
    assert (await submit(elsewhere)).status_code == 202
    assert [region for region, _ in site.peers.asked] == ["eu-1", "eu-1"]
    # Nor does it become a task here, when its data could be here.
    site.peers.answers = {"eu-1": [TAKEN]}
    assert (await submit(site, ASKED)).status_code == 202
    assert site.peers.asked[-1][0] == "eu-1" and not site.tasks.kept


async def test_what_was_not_sent_may_go_to_another_region() -> None:
    site = a_site()
    assert error_of(await submit(site)) == (503, "tasks_away", None)
    assert site.tasks.at == {}
    elsewhere = a_site(seen(eu_2="healthy"))
    elsewhere.tasks = site.tasks
    elsewhere.peers.answers = {"eu-2": [TAKEN]}
    assert (await submit(elsewhere)).status_code == 202


async def test_a_refusal_there_is_told_and_leaves_no_note() -> None:
    site = a_site()
    full = {"error": {"code": "tasks_full"}}
    refused = [TaskPart(429, {**JSON, "retry-after": "10"}), TaskPart(data=json.dumps(full).encode())]
    site.peers.answers = {"eu-1": [refused]}
    answer = await submit(site)
    assert (answer.status_code, answer.headers["retry-after"], answer.json()) == (429, "10", full)
    assert site.tasks.at == {}
    # A task that is there stays noted, whatever is said of a later submission.
    site.peers.answers = {"eu-1": [TAKEN, refused]}
    await submit(site)
    assert (await submit(site)).status_code == 429 and site.tasks.at["acme/t1"][0] == "eu-1"


async def test_a_task_that_is_here_is_not_sent() -> None:
    site = a_site()
    await submit(site, ASKED)
    # The same id, with a request that has to go elsewhere: it is the id of a task here.
    assert error_of(await submit(site)) == (403, "residency", None)
    assert not site.peers.asked and not site.tasks.at


@pytest.mark.parametrize(
    ("method", "path", "verb"),
    [("GET", "", "get"), ("DELETE", "", "cancel"), ("GET", "/output", "output"), ("GET", "/events", "events")],
)
async def test_what_is_asked_here_is_answered_there(method: str, path: str, verb: str) -> None:
    site = a_site()
    told = [TaskPart(200, {"content-type": "text/plain"}), TaskPart(data=b"one "), TaskPart(data=b"two")]
    site.peers.answers = {"eu-1": [TAKEN, told, failed("peer_silent")]}
    await submit(site)
    headers = {**BEARER, "last-event-id": "5-0"}
    answer = await site.ask(method, f"/v1/tasks/t1{path}", headers=headers)
    assert (answer.status_code, answer.text) == (200, "one two")
    region, call = site.peers.asked[1]
    assert (region, call.verb, call.tenant, call.task_id, call.body) == ("eu-1", verb, "acme", "t1", b"")
    assert call.headers == ({"last-event-id": "5-0"} if verb == "events" else {})
    assert error_of(await site.ask(method, f"/v1/tasks/t1{path}", headers=headers)) == (503, "tasks_away", None)
    assert error_of(await site.ask(method, f"/v1/tasks/t2{path}", headers=headers)) == (404, "not_found", None)


async def test_events_that_break_off_end_and_are_gone_on_with() -> None:
    site = a_site()
    broken = [STREAM, TaskPart(data=b"id: 1-0\n\n"), *failed("peer_silent")]
    site.peers.answers = {"eu-1": [TAKEN, broken]}
    await submit(site)
    answer = await site.ask("GET", "/v1/tasks/t1/events")
    assert (answer.status_code, answer.text) == (200, "id: 1-0\n\n")


async def test_a_region_that_is_no_longer_one_of_ours_is_not_asked() -> None:
    site = a_site()
    site.tasks.at["acme/t1"] = ("gone-1", "n")
    assert error_of(await site.ask("GET", "/v1/tasks/t1")) == (404, "not_found", None)
    assert error_of(await submit(site)) == (403, "residency", None) and not site.peers.asked


async def test_what_is_too_large_for_another_region_was_not_sent() -> None:
    site = a_site()
    site.peers.answers = {"eu-1": [GrixError("body_too_large", "too large")]}
    assert error_of(await submit(site)) == (413, "request_too_large", None) and site.tasks.at == {}
