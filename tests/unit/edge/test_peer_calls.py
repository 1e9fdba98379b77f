"""A call of another region, served here: what is checked again, what is refused, and that limits are settled."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import pytest

from serve_app.core import table
from serve_app.core.admission import Ask, Bucket
from serve_app.edge.limits import LocalLimits
from serve_app.edge.peer_calls import PeerCalls, Served
from serve_app.outcomes import GrixError
from serve_app.ports import Accepted, AgentCall, Body, Failure, Head, Origin, Packet, Tail, Usage
from tests.fakes import FakeAgents, FakeClock, Step, a_table

ORIGIN = Origin("acme", frozenset({"sg"}), None, "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "s1", False, 30, 60.0, 5.0)
CALL = AgentCall("r1", "chat", "qwen-chat", {"messages": []}, True, 64, 100, origin=ORIGIN)
GOOD: tuple[Step, ...] = (
    Accepted("inner", "inner"),
    Head(max_tokens=64),
    Body(b"one"),
    Body(b"two"),
    Tail("success", "stop", Usage(7, 3)),
)
LIMITED = table.Tenant(
    "acme", (), frozenset({"sg", "eu"}), priority=70, limits=table.TenantLimits(tokens_per_minute=60, concurrent=1)
)
TABLE = a_table(tenants=(LIMITED,))
ME = "cloud-a/qwen-chat@abcdef12"
RELEASE = TABLE.agents["qwen-chat"].release


@dataclass
class Stand:
    """PeerCalls over faked agents and real limits."""

    script: tuple[Step, ...] = GOOD
    accepts_spill: bool = True
    table: table.Table = TABLE
    clock: FakeClock = field(default_factory=FakeClock)
    kept: list[tuple[str, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.agents = FakeAgents([self.script])
        self.limits = LocalLimits(self.clock.now_s)
        served = Served.of(self.table, ("cloud-a", "cloud-b"), self.accepts_spill)
        self.calls = PeerCalls(
            lambda: served,
            self.agents,
            lambda: self.limits,
            self.clock,
            lambda key, carry: self.kept.append((key, carry)),
        )

    async def run(self, call: AgentCall = CALL) -> list[Packet]:
        return [packet async for packet in self.calls.run("cloud-b", call)]

    async def refusal(self, call: AgentCall = CALL) -> Failure | None:
        packets = await self.run(call)
        assert len(packets) == 1 and len(packets[0]) == 2 and self.agents.calls == []
        head, tail = packets[0]
        assert isinstance(head, Head) and isinstance(tail, Tail) and tail.outcome == "rejected"
        return head.failure


async def test_a_call_is_admitted_at_once_and_served_by_this_regions_engine() -> None:
    stand = Stand()
    assert await stand.run() == [
        (Accepted(ME, RELEASE),),
        (Head(max_tokens=64), Body(b"one")),
        (Body(b"two"),),
        (Tail("success", "stop", Usage(7, 3)),),
    ]
    target, inner = stand.agents.calls[0]
    assert (target.id, target.app) == (ME, "qwen-chat--12345678")
    assert (inner.target, inner.release, inner.enqueued_unix_s, inner.origin) == (ME, RELEASE, 1_800_000_100.0, None)
    assert inner.queue_s == ORIGIN.queue_s
    assert (inner.request_id, inner.body, inner.max_tokens) == ("r1", {"messages": []}, 64)
    assert stand.agents.closed == 1


async def test_the_head_of_a_whole_answer_does_not_wait_for_the_answer() -> None:
    running = Stand((*GOOD[:2], "hang")).calls.run("cloud-b", replace(CALL, stream=False))
    assert await anext(running) == (Accepted(ME, RELEASE),)
    async with asyncio.timeout(5.0):
        assert await anext(running) == (Head(max_tokens=64),)
    await running.aclose()


async def test_what_was_reserved_and_not_used_comes_back() -> None:
    stand = Stand()
    await stand.run()
    assert stand.limits.live == {}
    assert stand.limits._buckets["acme"] == (None, Bucket(50.0, 100.0))


async def test_slots_are_held_while_it_runs_and_another_region_is_told_to_come_later() -> None:
    stand = Stand((*GOOD[:2], "hang"))
    running = stand.calls.run("cloud-b", CALL)
    assert await anext(running) == (Accepted(ME, RELEASE),)
    (refused,) = [p async for p in stand.calls.run("cloud-b", CALL)]
    failure = refused[0].failure  # type: ignore[union-attr]
    assert failure == Failure(
        "overloaded", "Region cloud-a takes no more of this tenant's requests now: concurrency_limit.", None, 1.0
    )
    await running.aclose()
    assert stand.limits.live == {}


async def test_a_tenants_tokens_count_here_too() -> None:
    stand = Stand()
    await stand.limits.admit(Ask("acme", 60, tokens_per_minute=60))
    failure = await stand.refusal()
    said = "Region cloud-a takes no more of this tenant's requests now: tokens_limit."
    assert failure == Failure("overloaded", said, None, 30.0)


@pytest.mark.parametrize(
    ("origin", "said"),
    [
        ({"hops": 2}, "A request makes 1 hop between regions, this one came with 2."),
        ({"hops": 0}, "A request makes 1 hop between regions, this one came with 0."),
        ({"tenant": "nobody"}, "Region cloud-a does not know this tenant."),
        ({"residency": frozenset({"eu"})}, "The data of this request may not be in region cloud-a."),
        ({"residency": frozenset()}, "The data of this request may not be in region cloud-a."),
        ({"data_class": "eu"}, "The data of this request may not be in region cloud-a."),
        ({"data_class": "secret"}, "The data of this request may not be in region cloud-a."),
    ],
)
async def test_what_may_not_be_served_here_is_sent_elsewhere(origin: dict[str, object], said: str) -> None:
    failure = await Stand().refusal(replace(CALL, origin=replace(ORIGIN, **origin)))  # type: ignore[arg-type]
    assert failure == Failure("no_target", said)


async def test_the_entry_regions_word_does_not_widen_where_data_may_be() -> None:
    mine = a_table(tenants=(replace(LIMITED, residency=frozenset({"eu"})),))
    failure = await Stand(table=mine).refusal(replace(CALL, origin=replace(ORIGIN, residency=frozenset({"any"}))))
    assert failure == Failure("no_target", "The data of this request may not be in region cloud-a.")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"model": "qwen-poet"}, "Region cloud-a does not serve this agent."),
        ({"release": "other"}, "Region cloud-a serves another release of qwen-chat."),
    ],
)
async def test_an_agent_or_release_that_is_not_here(call: dict[str, str], said: str) -> None:
    assert await Stand().refusal(replace(CALL, **call)) == Failure("no_target", said)  # type: ignore[arg-type]


async def test_a_region_that_takes_no_spill_and_one_that_ends() -> None:
    said = "Region cloud-a takes no requests of other regions."
    assert await Stand(accepts_spill=False).refusal() == Failure("no_target", said)
    stand = Stand()
    stand.calls.draining = True
    assert await stand.refusal() == Failure("no_target", "Region cloud-a is ending.")


async def test_a_tenant_uses_only_its_agents() -> None:
    mine = a_table(tenants=(replace(LIMITED, agents=frozenset({"qwen-doc"})),))
    failure = await Stand(table=mine).refusal()
    assert failure == Failure("no_target", "In region cloud-a this tenant may not use qwen-chat.")


async def test_without_api_keys_anybody_is_known_only_where_that_is_so_too() -> None:
    anybody = replace(CALL, origin=replace(ORIGIN, tenant="anybody"))
    assert (await Stand().refusal(anybody)) == Failure("no_target", "Region cloud-a does not know this tenant.")
    packets = await Stand(table=a_table(open_access=True)).run(anybody)
    assert packets[0] == (Accepted(ME, RELEASE),)


@pytest.mark.parametrize(("asked", "given"), [(100, 70), (10, 10)])
async def test_a_peer_may_lower_a_priority_and_not_raise_it(asked: int, given: int) -> None:
    stand = Stand()
    await stand.run(replace(CALL, priority=asked))
    assert stand.agents.calls[0][1].priority == given


async def test_a_session_that_moves_is_kept_under_its_tenants_key() -> None:
    stand = Stand()
    await stand.run(replace(CALL, origin=replace(ORIGIN, carry=b"{}")))
    assert stand.kept == [("acme//s1", b"{}")]
    await stand.run()
    assert len(stand.kept) == 1


async def test_a_failure_before_the_head_is_a_head_and_after_it_a_tail() -> None:
    lost = Failure("replica_lost", "gone")
    before = await Stand((GOOD[0], GrixError("replica_lost", "gone"))).run()
    assert before[1:] == [(Head(failure=lost), Tail("failed", failure=lost))]
    after = await Stand((*GOOD[:3], GrixError("replica_lost", "gone"))).run()
    assert after[1:] == [(Head(max_tokens=64), Body(b"one")), (Tail("failed", failure=lost),)]
    between = await Stand((*GOOD[:2], GrixError("replica_lost", "gone"))).run()
    assert between[1:] == [(Head(max_tokens=64),), (Tail("failed", failure=lost),)]


async def test_an_engines_own_refusal_passes_as_it_is() -> None:
    failure = Failure("context_length", "too long", "messages")
    refusal: tuple[Step, ...] = (GOOD[0], Head(failure=failure), Tail("failed", failure=failure))
    stand = Stand(refusal)
    assert (await stand.run())[1:] == [(Head(failure=failure),), (Tail("failed", failure=failure),)]
    assert stand.limits._buckets["acme"] == (None, Bucket(60.0, 100.0))


@pytest.mark.parametrize(
    ("script", "origin", "reason"),
    [
        (("hang",), {"queue_s": 0.01}, "queue_timeout"),
        (("hang",), {"deadline_s": 0.01}, "total_timeout"),
        ((GOOD[0], "hang"), {"deadline_s": 0.01}, "total_timeout"),
        ((GOOD[0],), {}, "upstream_failed"),
        ((), {}, "upstream_failed"),
        ((GOOD[1],), {}, "upstream_invalid"),
    ],
)
async def test_nothing_waits_for_ever(script: tuple[Step, ...], origin: dict[str, float], reason: str) -> None:
    stand = Stand(script)
    packets = await stand.run(replace(CALL, origin=replace(ORIGIN, **origin)))  # type: ignore[arg-type]
    assert packets[0] == (Accepted(ME, RELEASE),)
    head = packets[1][0]
    assert isinstance(head, Head) and head.failure is not None and head.failure.reason == reason
    assert (stand.agents.closed, stand.limits.live) == (1, {})


async def test_who_leaves_frees_the_engine_and_its_place(caplog: pytest.LogCaptureFixture) -> None:
    stand = Stand((*GOOD[:3], "hang"))

    async def read() -> None:
        async with aclosing(stand.calls.run("cloud-b", CALL)) as packets:
            async for _ in packets:
                pass

    with caplog.at_level(logging.INFO, "ray.serve"):
        reading = asyncio.ensure_future(read())
        while not stand.agents.calls:
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait({reading})
    assert (stand.agents.closed, stand.limits.live) == (1, {})
    assert '"request_id": "r1", "from": "cloud-b", "tenant": "acme"' in caplog.text
    assert '"outcome": "cancelled"' in caplog.text and "a" * 32 in caplog.text
