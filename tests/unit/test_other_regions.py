"""Requests that another region answers: what goes along, how long is waited, what it says about targets and regions."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from serve_app import attempts
from serve_app.core.breaker import Entry
from serve_app.core.known_targets import KnownTargets
from serve_app.core.reports import Trip
from serve_app.core.shared_breakers import SharedBreakers
from serve_app.core.snapshots import Load, Snapshot, Target
from serve_app.core.table import Tenant, TenantLimits, Timeouts
from serve_app.ports import Accepted, Body, Head, Origin, Tail
from serve_app.replies import Answer
from tests.fakes import BEARER, GOOD, HELLO, STREAMED, Stage, Step, a_table, agent, failed, refused, two_regions

TRACE = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
BUSY = Load(queue_wait_p95_ms=900.0, waiting=9, running=4)
CUT: tuple[Step, ...] = (Accepted("t", "r"), Head(max_tokens=9), Body(b"data: 1\n\n"), failed("upstream_failed"))


def picture(here: dict[str, Any] | None = None, there: dict[str, Any] | None = None, **changes: Any) -> Snapshot:
    """Both regions; ``here`` is cheaper and so preferred."""
    made = two_regions()
    both = {"cloud-a": here or {}, "cloud-b": there or {}}
    return replace(made, targets=tuple(replace(t, **both[t.region]) for t in made.targets), **changes)


def spilling(*scripts: tuple[Step, ...], **changes: Any) -> Stage:
    return Stage(scripts=list(scripts or [GOOD]), snapshot=picture({"load": BUSY}), **changes)


async def run(stage: Stage, body: Any = HELLO, **headers: str) -> Answer:
    told = {**BEARER, **{k.replace("_", "-"): v for k, v in headers.items()}}
    return await stage.run(json.dumps(body).encode(), told)


async def drained(answer: Answer) -> bytes:
    if isinstance(answer.body, bytes):
        return answer.body
    return b"".join([data async for data in answer.body])


def code(answer: Answer) -> str:
    assert isinstance(answer.body, bytes)
    return str(json.loads(answer.body)["error"]["code"])


def regions(stage: Stage) -> list[str]:
    return [target.region for target, _ in stage.agents.calls]


CHAT_A, CHAT_B = (t.id for t in two_regions().targets if t.agent == "qwen-chat")


async def test_an_overloaded_region_spills_and_tells_so() -> None:
    stage = spilling()
    answer = await run(stage)
    (record,) = stage.journal.records
    assert (answer.status, answer.headers["x-grix-region"], answer.headers["x-grix-hops"]) == (200, "cloud-b", "1")
    assert (record.hops, record.spilled, record.serving_region) == (1, True, "cloud-b")
    report = stage.breakers.report("r", 0.0)
    assert (report.wanted_spilled, report.spilled_to) == ({"qwen-chat": 1}, {"cloud-b": 1})
    assert report.outcomes[CHAT_B].succeeded == 1


@pytest.mark.parametrize(
    ("here", "load"),
    [
        ({"load": BUSY}, 1),
        ({"health": "ejected"}, 1),
        ({"health": "stale"}, 1),
        ({"health": "slow", "weight": 0.03}, 1),
        ({"breaker": "open"}, 1),
        # It comes back slowly, or an operator took it out: more replicas would have changed nothing.
        ({"weight": 0.1}, 0),
        ({"drained": True}, 0),
    ],
)
async def test_what_goes_elsewhere_is_load_of_this_region_where_no_engine_could_take_it(
    here: dict[str, Any], load: int
) -> None:
    stage = Stage(snapshot=picture(here))
    answer = await run(stage)
    report = stage.breakers.report("r", 0.0)
    assert (answer.headers["x-grix-region"], report.spilled_to) == ("cloud-b", {"cloud-b": 1})
    assert report.wanted_spilled == ({"qwen-chat": load} if load else {})


async def test_what_failed_here_and_went_elsewhere_is_load_of_this_region() -> None:
    stage = Stage(scripts=[refused("overloaded"), GOOD], snapshot=picture())
    assert (await run(stage)).headers["x-grix-region"] == "cloud-b"
    assert stage.breakers.report("r", 0.0).wanted_spilled == {"qwen-chat": 1}


async def test_a_prompt_that_is_surely_too_long_here_goes_where_it_may_fit() -> None:
    long, short = "a" * 8 * 64, "a" * (8 * 64 - 1)
    for text, region in ((short, "cloud-a"), (long, "cloud-b")):
        stage = Stage(snapshot=picture({"max_model_len": 64}))
        answer = await run(stage, {**HELLO, "messages": [{"role": "user", "content": text}]})
        assert answer.headers["x-grix-region"] == region
    # Where it fits nowhere an engine counts exactly, and says so.
    nowhere = Stage(scripts=[refused("context_length")], snapshot=picture({"max_model_len": 64}, {"max_model_len": 8}))
    answer = await run(nowhere, {**HELLO, "messages": [{"role": "user", "content": long}]})
    assert (answer.status, code(answer), regions(nowhere)) == (400, "context_length_exceeded", ["cloud-a"])


async def test_what_is_answered_here_makes_no_hop() -> None:
    stage = Stage(snapshot=picture())
    answer = await run(stage)
    (record,) = stage.journal.records
    assert (answer.headers["x-grix-hops"], record.hops, record.spilled) == ("0", 0, False)
    assert stage.agents.calls[0][1].origin is None
    assert stage.breakers.report("r", 0.0).wanted_spilled == {}


async def test_a_hop_to_the_preferred_region_is_no_spill() -> None:
    loving = a_table(agents={"qwen-chat": agent("qwen-chat", language_affinity={"en": "cloud-b"})})
    stage = Stage(table=loving, snapshot=picture())
    answer = await run(stage)
    (record,) = stage.journal.records
    assert (answer.headers["x-grix-region"], record.hops, record.spilled) == ("cloud-b", 1, False)
    assert stage.breakers.report("r", 0.0).wanted_spilled == {}


async def test_what_others_should_have_answered_and_is_answered_here_is_a_spill_that_nobody_here_missed() -> None:
    loving = a_table(agents={"qwen-chat": agent("qwen-chat", language_affinity={"en": "cloud-b"})})
    stage = Stage(table=loving, snapshot=picture(there={"health": "ejected", "why": "peer silent for 1.1 s"}))
    await run(stage)
    (record,) = stage.journal.records
    assert (record.serving_region, record.hops, record.spilled) == ("cloud-a", 0, True)
    assert stage.breakers.report("r", 0.0).wanted_spilled == {}


async def test_the_origin_goes_along_and_never_a_key() -> None:
    stage = spilling()
    body = {**HELLO, "max_tokens": 20, "metadata": {"session_id": "s1", "data_class": "sg", "task_type": "batch"}}
    await run(stage, body, traceparent=TRACE, x_grix_total_timeout="60s", x_grix_queue_timeout="2s")
    ((_, call),) = stage.agents.calls
    origin = call.origin
    assert origin is not None and replace(origin, carry=b"") == Origin(
        tenant="acme",
        residency=frozenset({"any"}),
        data_class="sg",
        traceparent=TRACE,
        session="s1",
        batch=True,
        tokens_wanted=stage.journal.records[0].tokens_reserved or 0,
        deadline_s=60.0,
        queue_s=2.0,
    )
    assert origin.hops == 1
    assert BEARER["authorization"].split()[1] not in repr(call)


async def test_a_later_attempt_has_what_is_left() -> None:
    stage = Stage(
        scripts=[refused("upstream_failed"), refused("upstream_failed"), GOOD],
        snapshot=picture({"health": "ejected"}),
    )
    await run(stage, x_grix_total_timeout="20s")
    assert [call.origin.deadline_s for _, call in stage.agents.calls if call.origin] == [20.0, 19.5, 18.0]
    assert {call.origin.queue_s for _, call in stage.agents.calls if call.origin} == {10.0}


async def test_a_request_is_admitted_once_however_many_regions_are_tried() -> None:
    limited = Tenant("acme", a_table().tenants[0].keys, frozenset({"any"}), limits=TenantLimits(concurrent=1))
    stage = spilling(refused("upstream_failed"), GOOD, table=a_table(tenants=(limited,)))
    assert (await run(stage)).status == 200
    assert (regions(stage), stage.journal.records[0].limits_by) == (["cloud-b", "cloud-a"], "router")
    stage.agents.calls.clear()
    assert (await run(stage)).status == 200


def test_how_long_an_attempt_may_take() -> None:
    limits = Timeouts(queue_s=10.0, first_byte_s=30.0)
    here, there = two_regions().targets[0], two_regions().targets[2]

    def times(target: Target, *, spared: bool = False) -> tuple[float, float, float, str]:
        found = attempts._patience(target, "cloud-a", limits, is_spared=spared)
        return round(found.queue_s, 2), found.accepted_s, found.head_s, found.late

    assert times(here) == (10.0, 10.0, 30.0, "queue_timeout")
    # The peer keeps the limit of its queue itself.
    assert times(there) == (10.0, 2.0, 40.0, "no_target")
    # A target that has to prove itself has less time, where another could answer; its queue has always less than that.
    assert times(here, spared=True) == (3.33, 10.0, 10.0, "queue_timeout")
    assert times(there, spared=True) == (3.33, 2.0, 10.0, "no_target")


async def test_a_peer_that_does_not_admit_in_time_has_failed() -> None:
    stage = spilling((failed("peer_silent"),), GOOD)
    assert (await run(stage)).headers["x-grix-region"] == "cloud-a"
    assert [a["result"] for a in stage.journal.records[0].attempts] == ["peer_silent", "started"]
    outcomes = stage.breakers.report("r", 0.0).outcomes
    assert {target: (o.succeeded, o.failed) for target, o in outcomes.items()} == {CHAT_B: (0, 1), CHAT_A: (1, 0)}


async def test_a_gateway_of_ours_that_is_stuck_is_no_fault_of_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "GATEWAY_LIMIT_S", 0.0)
    stage = spilling(("hang",), GOOD)
    assert (await run(stage)).headers["x-grix-region"] == "cloud-a"
    assert [a["result"] for a in stage.journal.records[0].attempts] == ["no_target", "started"]
    assert stage.breakers.report("r", 0.0).outcomes.keys() == {CHAT_A}


async def test_the_last_silent_peer_is_told_as_itself() -> None:
    stage = Stage(scripts=[(failed("peer_silent"),)], snapshot=picture({"health": "ejected"}))
    answer = await run(stage)
    assert (answer.status, code(answer), "retry-after" in answer.headers) == (503, "peer_silent", True)
    assert (len(stage.agents.calls), stage.clock.slept_s, stage.agents.closed) == (3, [0.5, 1.5], 3)


@pytest.mark.parametrize("reason", ["residency", "requests_limit", "batch_limit", "body_too_large", "model_not_found"])
async def test_what_another_region_refuses_is_asked_here(reason: str) -> None:
    stage = spilling(refused(reason), GOOD)
    assert (await run(stage)).headers["x-grix-region"] == "cloud-a"
    assert stage.breakers.report("r", 0.0).outcomes.keys() == {CHAT_A}


async def test_what_another_region_refuses_is_not_what_a_request_fails_of_when_it_failed_here() -> None:
    stage = Stage(scripts=[refused("upstream_failed"), refused("residency")], snapshot=picture())
    answer = await run(stage)
    assert (answer.status, code(answer)) == (502, "upstream_failed")
    alone = Stage(scripts=[refused("residency")], snapshot=picture({"health": "ejected"}))
    assert code(await run(alone)) == "residency"


async def test_rte_30_no_peer_is_asked_by_a_region_that_has_room() -> None:
    """Both healthy, both willing: a hundred requests stay."""
    stage = Stage(snapshot=picture({"load": Load(10.0, waiting=0, running=3)}))
    for _ in range(100):
        await run(stage)
    assert set(regions(stage)) == {"cloud-a"}


async def test_rte_16_a_full_queue_opens_nothing_and_traffic_is_back_at_once() -> None:
    stage = Stage(scripts=[refused("overloaded")] * 60 + [GOOD])
    for _ in range(60):
        assert (await run(stage)).status == 503
        stage.clock.time_s += 0.05
    assert (await run(stage)).status == 200
    assert stage.breakers.report("r", 0.0).trips == ()


async def test_rte_24_a_limit_of_ours_is_a_429_and_says_nothing_about_a_target() -> None:
    limited = Tenant("acme", a_table().tenants[0].keys, frozenset({"any"}), limits=TenantLimits(requests_per_minute=1))
    stage = Stage(table=a_table(tenants=(limited,)))
    assert (await run(stage)).status == 200
    refused_ = await run(stage)
    assert (refused_.status, "retry-after" in refused_.headers) == (429, True)
    outcomes = stage.breakers.report("r", 0.0).outcomes
    assert {t: (o.succeeded, o.failed) for t, o in outcomes.items()} == {CHAT_A: (1, 0)}


async def test_rte_31_a_target_that_fails_every_generation_is_left_alone_until_one_succeeds() -> None:
    """Its health is green all the time."""
    stage = Stage(scripts=[refused("upstream_failed"), GOOD] * 10 + [GOOD], snapshot=picture({"health": "healthy"}))
    for _ in range(5):
        assert (await run(stage)).headers["x-grix-region"] == "cloud-b"
    assert stage.journal.records[-1].tripped == ["cloud-a"]
    stage.agents.calls.clear()
    stage.agents.scripts[:] = [GOOD]
    for _ in range(20):
        await run(stage)
    assert set(regions(stage)) == {"cloud-b"}
    stage.clock.time_s += 30.0
    stage.agents.calls.clear()
    await run(stage)
    await run(stage)
    assert regions(stage) == ["cloud-a", "cloud-a"]


async def test_rte_23_what_one_router_found_out_holds_for_the_next() -> None:
    first = Stage(scripts=[refused("upstream_failed"), GOOD] * 10, snapshot=picture())
    for _ in range(10):
        await run(first)
    shared = SharedBreakers()
    shared.take(first.breakers.report("r1", first.clock.time_s), 500.0)
    seen = picture({"breaker": shared.state(CHAT_A, 500.3)})
    second = Stage(snapshot=seen)
    assert (await run(second)).headers["x-grix-region"] == "cloud-b"
    assert second.journal.records[0].candidates[-1]["dropped"] == "its breaker is open"


async def test_rte_22_everybody_in_a_cool_down_is_told_until_when() -> None:
    stage = Stage(scripts=[refused("upstream_failed")])
    for _ in range(5):
        await run(stage)
    assert len(stage.agents.calls) == 13
    # Each request counts once. The second attempt of the fifth would have come 0.5 s after it opened the breaker.
    opened_s = stage.clock.time_s - 0.5
    stage.clock.time_s = opened_s + 20.0
    answer = await run(stage)
    assert (answer.status, code(answer), answer.headers["retry-after"]) == (503, "no_target", "10")
    assert len(stage.agents.calls) == 13
    stage.clock.time_s = opened_s + 30.0
    await run(stage)
    assert len(stage.agents.calls) == 14


async def test_rte_22_what_the_region_knows_about_it_is_told() -> None:
    out = {"breaker": "open"}
    other = "cloud-c/qwen-chat@00000000"
    seen = picture(out, out, open_for_s={CHAT_A: 28.0, CHAT_B: 29.0, other: 2.0})
    answer = await run(Stage(snapshot=seen))
    # What does not concern this request is back sooner.
    assert (answer.status, code(answer), answer.headers["retry-after"]) == (503, "no_target", "28")
    later = Stage(snapshot=replace(seen, received_s=70.0))
    later.clock.time_s = 90.0
    assert (await run(later)).headers["retry-after"] == "8"
    later.clock.time_s = 200.0
    assert (await run(later)).headers["retry-after"] == "1"
    unknown = await run(Stage(snapshot=picture(out, out)))
    assert unknown.headers["retry-after"] == "5"


class Opening(KnownTargets):
    """The breaker of the second region opens while the first one is asked."""

    def begin(self, target: Target, now_s: float) -> Entry | None:
        if target.region == "cloud-a":
            for _ in range(10):
                self.breakers.failed(CHAT_B, "upstream_failed", now_s)
        return super().begin(target, now_s)


@pytest.mark.parametrize("others", [1, 0])
async def test_a_breaker_that_opens_while_a_request_waits_is_heeded(others: int) -> None:
    made = picture()
    third = tuple(replace(t, region="cloud-c", cloud="cloud-c", gpu_hour_usd=3.0) for t in made.targets[2:])
    stage = Stage(scripts=[refused("overloaded"), GOOD], snapshot=replace(made, targets=made.targets + third * others))
    stage.path.attempts.targets = Opening(stage.breakers, lambda: None)
    answer = await run(stage)
    if others:
        assert (answer.headers["x-grix-region"], regions(stage)) == ("cloud-c", ["cloud-a", "cloud-c"])
    else:
        # Nobody is left: what the first one said.
        assert (answer.status, code(answer), regions(stage)) == (503, "overloaded", ["cloud-a"])


async def test_a_probe_is_one_request_and_the_next_one_goes_elsewhere() -> None:
    half = picture({"breaker": "probing"}, lent=frozenset({CHAT_A}))
    stage = Stage(scripts=[(Accepted("t", "r"), "hang"), GOOD], snapshot=half)
    probe = asyncio.ensure_future(run(stage))
    while not stage.agents.calls:
        await asyncio.sleep(0)
    assert (await run(stage)).headers["x-grix-region"] == "cloud-b"
    assert regions(stage) == ["cloud-a", "cloud-b"]
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    # The client left: nothing was found out, and the next request may.
    assert stage.breakers.report("r", 0.0).probes == ()
    assert (await run(stage)).headers["x-grix-region"] == "cloud-a"
    assert [p.passed for p in stage.breakers.report("r", 0.0).probes] == [True]


async def test_a_probe_that_is_not_streamed_has_passed_with_its_first_token() -> None:
    half = picture({"breaker": "probing"}, lent=frozenset({CHAT_A}))
    stage = Stage(scripts=[(Accepted("t", "r"), Head(max_tokens=9), "hang"), GOOD], snapshot=half)
    probe = asyncio.ensure_future(run(stage))
    while not stage.breakers.is_urgent:
        await asyncio.sleep(0)
    assert [p.passed for p in stage.breakers.report("r", 0.0).probes] == [True]
    assert (await run(stage)).headers["x-grix-region"] == "cloud-a"
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe


async def test_what_fails_after_its_first_token_has_failed_as_a_call_not_as_a_probe() -> None:
    half = picture({"breaker": "probing"}, lent=frozenset({CHAT_A}))
    broken = (Accepted("t", "r"), Head(max_tokens=9), failed("upstream_failed"))
    stage = Stage(scripts=[broken, GOOD], snapshot=half)
    assert (await run(stage)).headers["x-grix-region"] == "cloud-b"
    report = stage.breakers.report("r", 0.0)
    assert ([p.passed for p in report.probes], report.trips) == ([True], ())
    assert (report.outcomes[CHAT_A].succeeded, report.outcomes[CHAT_A].failed) == (1, 1)


async def test_a_failed_probe_costs_its_request_nothing() -> None:
    stage = Stage(
        scripts=[refused("first_byte_timeout"), GOOD],
        snapshot=picture({"breaker": "probing"}, lent=frozenset({CHAT_A})),
    )
    answer = await run(stage)
    assert (answer.status, answer.headers["x-grix-region"]) == (200, "cloud-b")
    report = stage.breakers.report("r", stage.clock.time_s)
    assert report.trips == (Trip(CHAT_A, 30.0, "still open"),)
    assert stage.journal.records[0].tripped == ["cloud-a"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "script", [GOOD, STREAMED, CUT, (failed("overloaded"),), (failed("upstream_failed"),), refused("bad_request")]
)
async def test_whatever_happens_nothing_stays_in_flight(script: tuple[Step, ...], stream: bool) -> None:
    stage = spilling(script)
    await drained(await run(stage, {**HELLO, "stream": stream}))
    known = stage.targets.known(stage.snapshot or picture(), 0.0)
    assert all(n == 0 for n in known.in_flight.values())


async def test_a_client_that_leaves_midway_says_nothing_about_a_target() -> None:
    stage = spilling((Accepted("t", "r"), Head(max_tokens=9), Body(b"data: 1\n\n"), "hang"))
    answer = await run(stage, {**HELLO, "stream": True})
    assert not isinstance(answer.body, bytes)
    assert await anext(answer.body) == b"data: 1\n\n"
    await answer.body.aclose()
    outcome = stage.breakers.report("r", 0.0).outcomes[CHAT_B]
    assert (outcome.succeeded, outcome.failed) == (1, 0)
    assert all(n == 0 for n in stage.targets.known(stage.snapshot or picture(), 0.0).in_flight.values())


async def test_a_stream_that_breaks_midway_counts_against_its_target() -> None:
    stage = spilling(CUT)
    assert b"upstream_failed" in await drained(await run(stage, {**HELLO, "stream": True}))
    outcome = stage.breakers.report("r", 0.0).outcomes[CHAT_B]
    assert (outcome.succeeded, outcome.failed) == (1, 1)
    for _ in range(9):
        await drained(await run(stage, {**HELLO, "stream": True}))
    # Each began well: no row, but half of them failed.
    assert stage.breakers.blocked(CHAT_B, stage.clock.time_s)


async def test_the_tail_of_a_peer_is_read_like_ones_own() -> None:
    stage = spilling((*GOOD[:3], Tail("success", "length", None, 12.0, 30.0)))
    await run(stage)
    (record,) = stage.journal.records
    assert (record.finish_reason, record.queue_wait_ms, record.first_token_ms) == ("length", 12.0, 30.0)


async def test_bad_request_counts_against_nobody() -> None:
    stage = spilling(refused("bad_request"))
    for _ in range(30):
        assert (await run(stage)).status == 400
    assert stage.breakers.report("r", 0.0).outcomes == {}
