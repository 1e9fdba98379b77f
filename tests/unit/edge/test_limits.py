"""One Router's own limits: what it counts, and what comes back."""

from __future__ import annotations

from serve_app.core.admission import Ask, Refused, Slot, Spent
from serve_app.edge.limits import HELD_GUESS_S, LocalLimits
from serve_app.ports import Grant
from tests.fakes import FakeClock

SLOT = Slot("tenant/acme", 1, "concurrency_limit")


def made(share: int = 1) -> tuple[LocalLimits, FakeClock]:
    clock = FakeClock()
    return LocalLimits(clock.now_s, share), clock


async def granted(limits: LocalLimits, ask: Ask) -> Grant:
    answer = await limits.admit(ask)
    assert isinstance(answer, Grant)
    return answer


async def test_what_was_not_used_comes_back_and_what_was_used_above_is_owed() -> None:
    limits, _ = made()
    ask = Ask("acme", 80, None, 100)
    limits.settle(await granted(limits, ask), Spent(True, 30, 1.0))
    limits.settle(await granted(limits, Ask("acme", 70, None, 100)), Spent(True, 170, 1.0))
    assert await limits.admit(Ask("acme", 1, None, 100)) == Refused("tokens_limit", (1 + 100) * 60 / 100)


async def test_a_request_that_never_started_gives_all_back() -> None:
    limits, _ = made()
    ask = Ask("acme", 100, 1, 100, (SLOT,))
    for _ in range(5):
        limits.settle(await granted(limits, ask), Spent(False, None, 9.0))
    assert limits.live == {} and limits.slot_free_s() == HELD_GUESS_S


async def test_tenants_do_not_share() -> None:
    limits, _ = made()
    await granted(limits, Ask("acme", 1, 1))
    assert isinstance(await limits.admit(Ask("acme", 1, 1)), Refused)
    await granted(limits, Ask("sakura", 1, 1))


async def test_a_slot_is_held_until_it_is_settled() -> None:
    limits, _ = made()
    grant = await granted(limits, Ask("acme", 1, slots=(SLOT,)))
    assert await limits.admit(Ask("acme", 1, slots=(SLOT,))) == Refused("concurrency_limit", HELD_GUESS_S)
    limits.settle(grant, Spent(True, 1, 21.0))
    assert limits.slot_free_s() == 3.0
    await granted(limits, Ask("acme", 1, slots=(SLOT,)))


async def test_requests_that_redis_admitted_hold_slots_here_too() -> None:
    limits, _ = made()
    grant = limits.grant(Ask("acme", 1, slots=(SLOT,)), "region", "g1")
    assert isinstance(await limits.admit(Ask("acme", 1, slots=(SLOT,))), Refused)
    limits.settle(grant, Spent(True, 1, 1.0))
    await granted(limits, Ask("acme", 1, slots=(SLOT,)))


async def test_what_redis_admitted_is_taken_here_too_so_that_its_loss_is_no_second_allowance() -> None:
    limits, _ = made()
    limits.grant(Ask("acme", 250, 2, 100), "region", "g1")
    assert await limits.admit(Ask("acme", 1, 2, 100)) == Refused("tokens_limit", (1 + 150) * 60 / 100)
    # One of several Routers may have had more than its part while all shared: that is no debt.
    limits, _ = made(share=2)
    limits.grant(Ask("acme", 250, 2, 100), "region", "g1")
    assert await limits.admit(Ask("acme", 1, 2, 100)) == Refused("requests_limit", 60.0)
    assert await limits.admit(Ask("acme", 5, None, 100)) == Refused("tokens_limit", 5 * 60 / 50)


async def test_a_bucket_refills_with_time() -> None:
    limits, clock = made(share=2)
    await granted(limits, Ask("acme", 1, 2))
    assert await limits.admit(Ask("acme", 1, 2)) == Refused("requests_limit", 60.0)
    clock.time_s += 60.0
    await granted(limits, Ask("acme", 1, 2))
