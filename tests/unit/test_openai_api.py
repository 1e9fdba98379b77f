"""The HTTP surface: envelopes, paths, who may see what, and clients that leave."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from serve_app.core.snapshots import RegionView, local_snapshot
from serve_app.core.table import Tenant, TenantKey
from serve_app.core.tenants import hash_key
from serve_app.openai_request import MAX_BODY_BYTES
from serve_app.ports import Accepted, Body, Head
from tests.fakes import (
    BEARER,
    CHAT,
    HELLO,
    KEY,
    OPERATOR,
    STREAMED,
    Caller,
    FakeAgents,
    Message,
    Site,
    Stage,
    a_table,
    refused,
    settle,
)


def told(answer: Any) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == {"error"}
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def test_a_whole_answer_has_its_length_and_the_paths_headers() -> None:
    answer = await Site().ask("POST", CHAT, HELLO)
    assert (answer.status_code, answer.content) == (200, b'{"ok":1}')
    assert answer.headers["content-length"] == "8"
    assert answer.headers["x-grix-agent"] == "qwen-chat"


async def test_a_stream_is_handed_on_byte_for_byte() -> None:
    answer = await Site(Stage(scripts=[STREAMED])).ask("POST", CHAT, {**HELLO, "stream": True})
    assert (answer.status_code, answer.content) == (200, b"data: 1\n\ndata: [DONE]\n\n")
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-length" not in answer.headers


async def test_str_05_a_stream_nobody_takes_is_a_503_in_json() -> None:
    site = Site(Stage(scripts=[refused("overloaded", retry_after_s=2.2)]))
    answer = await site.ask("POST", CHAT, {**HELLO, "stream": True})
    assert (answer.status_code, told(answer)["code"], answer.headers["retry-after"]) == (503, "overloaded", "3")


async def test_completions_take_a_prompt() -> None:
    site = Site()
    assert (await site.ask("POST", "/v1/completions", {"prompt": "Once"})).status_code == 200
    call = site.stage.agents.calls[0][1]
    assert (call.kind, call.body) == ("completion", {"prompt": "Once"})
    assert site.stage.detector.texts == ["Once"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "not_found"),
        ("GET", "/docs", 404, "not_found"),
        # No redirect: it would lead to the host that the request names.
        ("POST", f"{CHAT}/", 404, "not_found"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/grix/explain", 405, "method_not_allowed"),
    ],
)
async def test_unknown_paths_and_methods_use_the_envelope(method: str, path: str, status: int, code: str) -> None:
    answer = await Site().ask(method, path)
    error = told(answer)
    assert (answer.status_code, error["code"], error["type"]) == (status, code, "invalid_request_error")
    assert error["param"] is None


async def test_the_body_limit_holds_while_reading() -> None:
    site = Site()
    answer = await site.ask("POST", CHAT, b" " * (MAX_BODY_BYTES + 1))
    assert (answer.status_code, told(answer)["code"]) == (413, "request_too_large")
    assert site.stage.journal.records == []


@pytest.mark.parametrize("given", ["a b", "a/b", "x" * 129, "a;b"])
async def test_a_request_id_that_cannot_stand_in_a_log_is_refused(given: str) -> None:
    answer = await Site().ask("POST", CHAT, HELLO, {**BEARER, "x-request-id": given})
    assert (answer.status_code, told(answer)["param"]) == (400, "x-request-id")


@pytest.mark.parametrize("name", ["authorization", "x-request-id", "x-language", "x-grix-history", "traceparent"])
async def test_a_router_without_a_guard_takes_what_decides_once(name: str) -> None:
    caller = Caller(json.dumps(HELLO).encode())
    scope = caller.scope()
    scope["headers"] += [(b"x-forwarded-proto", b"https"), (b"x-forwarded-proto", b"http")]
    await Site().app(scope, caller.receive, caller.send)
    assert caller.sent[0]["status"] == 200
    twice = Caller(json.dumps(HELLO).encode())
    scope["headers"] += [(name.encode(), b"a"), (name.encode(), b"b")]
    await Site().app(scope, twice.receive, twice.send)
    assert (twice.sent[0]["status"], json.loads(twice.sent[1]["body"])["error"]["param"]) == (400, name)


async def test_a_session_has_one_name_in_header_and_metadata() -> None:
    site = Site()
    caller = Caller(json.dumps(HELLO).encode())
    scope = caller.scope()
    scope["headers"].append((b"x-session-id", "会話 1".encode()))
    await site.app(scope, caller.receive, caller.send)
    await site.ask("POST", CHAT, {**HELLO, "metadata": {"session_id": "会話 1"}})
    assert [r.session_id for r in site.stage.journal.records] == ["会話 1", "会話 1"]


async def test_a_callers_request_id_is_the_records_and_one_is_made_without() -> None:
    site = Site()
    await site.ask("POST", CHAT, HELLO, {**BEARER, "x-request-id": "job:7_a.b-c"})
    await site.ask("POST", CHAT, HELLO)
    first, second = (r.request_id for r in site.stage.journal.records)
    assert first == "job:7_a.b-c"
    assert len(second) == 32 and int(second, 16) >= 0


async def test_models_lists_auto_and_what_the_tenant_may_use() -> None:
    table = a_table(tenants=(Tenant("acme", a_table().tenants[0].keys, frozenset({"any"}), agents={"qwen-doc"}),))
    answer = await Site(Stage(table=table)).ask("GET", "/v1/models")
    row = {"object": "model", "created": 1_700_000_000, "owned_by": "grix"}
    assert answer.json() == {"object": "list", "data": [{"id": "auto", **row}, {"id": "qwen-doc", **row}]}
    assert (await Site().ask("GET", "/v1/models/qwen-chat")).json() == {"id": "qwen-chat", **row}


async def test_one_model_that_is_not_there_is_a_404_without_its_name_in_param() -> None:
    answer = await Site().ask("GET", "/v1/models/no/such")
    assert (answer.status_code, told(answer)["code"], told(answer)["param"]) == (404, "model_not_found", "model")
    assert (await Site().ask("GET", "/v1/models", headers={})).status_code == 401


@pytest.mark.parametrize(
    ("query", "peer", "headers", "local", "status"),
    [
        ("", "10.0.0.9", {}, False, 200),
        ("?deep=0", "10.0.0.9", {}, False, 200),
        ("?deep=1", "127.0.0.1", {}, True, 200),
        ("?deep=true", "::1", {}, True, 200),
        ("?deep=1", "127.0.0.1", {}, False, 503),
        ("?deep=1", "10.0.0.9", {}, True, 401),
        ("?deep=1", "no-address", {}, True, 401),
        ("?deep=1", "10.0.0.9", BEARER, True, 403),
        ("?deep=1", "10.0.0.9", OPERATOR, True, 200),
        ("?deep=1", "10.0.0.9", {"authorization": "Bearer pulse"}, True, 200),
        ("?deep=1", "10.0.0.9", {"authorization": "Bearer puls"}, True, 401),
    ],
)
async def test_the_deep_check_is_for_loopback_operators_and_the_health_key(
    query: str, peer: str, headers: dict[str, str], local: bool, status: int
) -> None:
    answer = await Site(local=local, health_key="pulse").ask("GET", f"/healthz{query}", headers=headers, peer=peer)
    assert answer.status_code == status
    if status == 403:
        assert told(answer)["code"] == "not_allowed"


@pytest.mark.parametrize(("query", "body"), [("", {"status": "drained"}), ("?deep=1", {"local": True})])
async def test_a_drained_region_says_so_for_dns(query: str, body: dict[str, object]) -> None:
    here = RegionView("cloud-a", "cloud-a", "healthy", "", True, drained=True)
    site = Site(Stage(snapshot=replace(local_snapshot(a_table(), 1), regions=(here,))))
    answer = await site.ask("GET", f"/healthz{query}", peer="127.0.0.1")
    assert (answer.status_code, answer.json()) == (503, body)


async def test_without_a_health_key_an_empty_bearer_opens_nothing() -> None:
    answer = await Site(health_key=None).ask("GET", "/healthz?deep=1", headers={"authorization": "Bearer "})
    assert answer.status_code == 401


async def test_behind_haproxy_nobody_is_trusted_for_an_address() -> None:
    site = Site(health_key="pulse", sees_callers=False)
    for path in ("/healthz?deep=1", "/metrics"):
        assert (await site.ask("GET", path, headers={}, peer="127.0.0.1")).status_code == 401
        assert (await site.ask("GET", path, headers=OPERATOR, peer="127.0.0.1")).status_code == 200
    assert (await site.ask("GET", "/healthz", headers={}, peer="127.0.0.1")).status_code == 200


async def test_a_strangers_body_is_not_gathered() -> None:
    large = b"x" * (8 * 1024 * 1024 + 1)
    answer = await Site().ask("POST", CHAT, large, headers={"authorization": "Bearer nobody"})
    assert answer.status_code == 401
    assert (await Site().ask("POST", CHAT, large)).status_code == 413


@pytest.mark.parametrize(
    ("peer", "headers", "status"),
    [("127.0.0.1", {}, 200), ("10.0.0.9", OPERATOR, 200), ("10.0.0.9", BEARER, 403), ("10.0.0.9", {}, 401)],
)
async def test_metrics_are_for_loopback_and_operators(peer: str, headers: dict[str, str], status: int) -> None:
    answer = await Site().ask("GET", "/metrics", headers=headers, peer=peer)
    assert answer.status_code == status
    if status == 200:
        assert answer.content == b"grix_up 1\n"


async def test_explain_is_for_operators_and_can_ask_for_a_tenant() -> None:
    site = Site()
    assert (await site.ask("POST", "/grix/explain", HELLO)).status_code == 403
    assert (await site.ask("POST", "/grix/explain", HELLO, {})).status_code == 401
    answer = await site.ask("POST", "/grix/explain", HELLO, {**OPERATOR, "x-grix-as-tenant": "acme"})
    plain = answer.json()
    assert (plain["tenant"], plain["rule"], plain["agent"], plain["template"]) == (
        "acme",
        "fallback",
        "qwen-chat",
        "en v1",
    )
    assert plain["candidates"][0]["target"] == "cloud-a/qwen-chat@abcdef12"
    assert [r["rule"] for r in plain["rules"]] == ["ja-service", "long-doc", "fallback"]
    stranger = await site.ask("POST", "/grix/explain", HELLO, {**OPERATOR, "x-grix-as-tenant": "evil"})
    assert (stranger.status_code, told(stranger)["param"]) == (400, "x-grix-as-tenant")
    assert site.stage.agents.calls == []


async def test_the_fleet_is_for_operators() -> None:
    site = Site()
    assert (await site.ask("GET", "/grix/fleet")).status_code == 403
    fleet = (await site.ask("GET", "/grix/fleet", headers=OPERATOR)).json()
    snapshot = fleet["snapshot"]
    assert fleet["plan_age_s"] is None
    (target,) = [t for t in snapshot["targets"] if t["agent"] == "qwen-chat"]
    assert (target["id"], target["health"], target["weight"]) == ("cloud-a/qwen-chat@abcdef12", "unknown", 1.0)
    assert (target["breaker"], target["drained"], target["load"]["waiting"], snapshot["lent"]) == (
        "closed",
        False,
        None,
        [],
    )
    assert isinstance(target["residency"], list)


async def test_a_past_request_is_found_by_operators_only() -> None:
    site = Site(kept={"r9": {"request_id": "r9"}})
    assert (await site.ask("GET", "/grix/requests/r9", headers=OPERATOR)).json() == {"request_id": "r9"}
    assert (await site.ask("GET", "/grix/requests/r8", headers=OPERATOR)).status_code == 404
    assert (await site.ask("GET", "/grix/requests/r9")).status_code == 403


async def test_a_fault_of_ours_is_a_500_that_tells_nothing() -> None:
    site = Site(Stage(scripts=[(RuntimeError("secret path"),)]))
    answer = await site.ask("POST", CHAT, HELLO)
    assert (answer.status_code, told(answer)["code"]) == (500, "internal_error")
    assert "secret" not in answer.text


async def test_open_access_needs_no_key() -> None:
    assert (await Site(Stage(table=a_table(open_access=True))).ask("POST", CHAT, HELLO, {})).status_code == 200


async def test_a_key_past_its_last_day_is_refused() -> None:
    past = Tenant("acme", (TenantKey("k", hash_key(KEY), "2026-11-29"),), frozenset({"any"}))
    answer = await Site(Stage(table=a_table(tenants=(past,)))).ask("POST", CHAT, HELLO)
    assert (answer.status_code, told(answer)["code"]) == (401, "invalid_api_key")


def calls(site: Site) -> FakeAgents:
    return site.stage.agents


async def test_leaving_during_the_prefill_cancels_though_no_byte_came() -> None:
    site = Site(Stage(scripts=[(Accepted("t", "r"), "hang")]))
    caller = Caller(json.dumps({**HELLO, "stream": True}).encode())
    task = asyncio.ensure_future(caller.call(site.app))
    await settle(lambda: bool(calls(site).calls))
    caller.leaves.set()
    await task
    assert calls(site).closed == 1
    assert caller.sent == []
    assert [(r.outcome, r.status) for r in site.stage.journal.records] == [("client_left", None)]


async def test_leaving_in_the_middle_of_a_stream_cancels_and_records_once() -> None:
    site = Site(Stage(scripts=[(Accepted("t", "r"), Head(max_tokens=9), Body(b"data: 1\n\n"), "hang")]))
    caller = Caller(json.dumps({**HELLO, "stream": True}).encode())
    task = asyncio.ensure_future(caller.call(site.app))
    await settle(lambda: len(caller.sent) == 2)
    caller.leaves.set()
    await task
    assert calls(site).closed == 1
    assert [m.get("body") for m in caller.sent] == [None, b"data: 1\n\n"]
    assert [(r.outcome, r.status) for r in site.stage.journal.records] == [("client_left", 200)]


async def test_a_socket_that_breaks_while_sending_closes_the_call() -> None:
    site = Site(Stage(scripts=[(Accepted("t", "r"), Head(max_tokens=9), Body(b"data: 1\n\n"), Body(b"2"), "hang")]))

    async def broken(message: Message) -> None:
        if message.get("body") == b"2":
            raise OSError("gone")

    caller = Caller(json.dumps({**HELLO, "stream": True}).encode(), on_send=broken)
    await caller.call(site.app)
    assert calls(site).closed == 1
    assert [r.outcome for r in site.stage.journal.records] == ["client_left"]


async def test_who_left_before_the_call_began_has_a_record() -> None:
    site = Site(Stage(scripts=[(Accepted("t", "r"), "hang")]))
    caller = Caller(json.dumps(HELLO).encode())
    caller.leaves.set()
    await caller.call(site.app)
    assert [r.outcome for r in site.stage.journal.records] == ["client_left"]
    assert caller.sent == []


@pytest.mark.parametrize("turns", range(12))
async def test_a_server_that_cancels_at_any_moment_leaves_no_call_behind(turns: int) -> None:
    site = Site(Stage(scripts=[(Accepted("t", "r"), Head(max_tokens=9), Body(b"data: 1\n\n"), "hang")]))
    caller = Caller(json.dumps({**HELLO, "stream": True}).encode())
    task = asyncio.ensure_future(caller.call(site.app))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(50):
        await asyncio.sleep(0)
    assert calls(site).closed == len(calls(site).calls)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_leaving_after_the_end_changes_nothing() -> None:
    site = Site(Stage(scripts=[STREAMED]))
    caller = Caller(json.dumps({**HELLO, "stream": True}).encode())
    await caller.call(site.app)
    caller.leaves.set()
    assert caller.sent[-1] == {"type": "http.response.body", "body": b""}
    assert [(r.outcome, r.finish_reason) for r in site.stage.journal.records] == [("success", "stop")]
    assert calls(site).closed == 1
