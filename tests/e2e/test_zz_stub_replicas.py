"""One of two replicas dies or freezes: what had no first token goes to the other; without any, nobody waits long."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.test_region import eventually
from tests.stub_region import Reply, StubRegion

#: Longer than it takes to see that a replica died: its calls must not end by themselves before.
SLOW: list[list[Any]] = [["accepted"], ["wait", 2.0], ["head"], ["say", "one "], ["say", "two"], ["end"]]
OPEN: list[list[Any]] = [["accepted"], ["head"], ["say", "one "], ["hang"]]


def replicas(region: StubRegion, agent: str) -> set[int]:
    """Processes of the running replicas of an agent."""
    apps = region.rest.details()["applications"]
    rows = [r for n, a in apps.items() if n.startswith(agent) for r in a["deployments"]["QwenAgent"]["replicas"]]
    return {r["pid"] for r in rows if r["state"] == "RUNNING"}


def whole_again(region: StubRegion, agent: str, count: int, but: int) -> None:
    eventually(lambda: len(replicas(region, agent) - {but}) == count, 60.0, "the lost replica is replaced")


def called(region: StubRegion, request_id: str) -> list[int]:
    return [line["pid"] for line in region.seen(request_id) if line["what"] == "called"]


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_what_had_no_first_token_is_answered_by_the_other_replica(
    stub_region: StubRegion, fault: signal.Signals
) -> None:
    whole_again(stub_region, "qwen-chat", 2, 0)
    victim = min(replicas(stub_region, "qwen-chat"))
    with ThreadPoolExecutor(16) as pool:
        # Retries are earned by requests before.
        list(pool.map(lambda _: stub_region.ask(), range(60)))
        ids = [stub_region.new_id("lost") for _ in range(8)]
        asked = [pool.submit(stub_region.ask, SLOW, headers={"x-request-id": i}) for i in ids]
        eventually(lambda: all(called(stub_region, i) for i in ids), 10.0, "all calls are at work")
        at_victim = [i for i in ids if called(stub_region, i) == [victim]]
        assert at_victim
        os.kill(victim, fault)
        late = [pool.submit(stub_region.ask) for _ in range(8)]
        replies: list[Reply] = [future.result(60)[1] for future in asked + late]
    assert {(reply.status, reply.text) for reply in replies} == {(200, "one two")}
    assert max(reply.took_s for reply in replies) < 20.0
    whole_again(stub_region, "qwen-chat", 2, victim)


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_stream_past_its_head_ends_in_band(stub_region: StubRegion, fault: signal.Signals) -> None:
    request_id = stub_region.new_id("open")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stub_region.ask, OPEN, headers={"x-request-id": request_id})
        (victim,) = eventually(lambda: called(stub_region, request_id), 10.0, "the call is at work")
        time.sleep(0.5)
        os.kill(victim, fault)
        reply = asked.result(30)[1]
    assert reply.status == 200 and "[DONE]" not in reply.events
    assert '"replica_lost"' in reply.events[-1] and "one " in reply.events[-2]
    whole_again(stub_region, "qwen-chat", 2, victim)


def test_without_any_replica_nobody_waits_for_the_queue_limit(stub_region: StubRegion) -> None:
    (victim,) = replicas(stub_region, "qwen-doc")
    working, _ = stub_region.room("qwen-doc")
    with ThreadPoolExecutor(working + 4) as pool:
        # So many are at work, the others wait at the handle, as long as a call may.
        ids = [stub_region.new_id("none") for _ in range(working + 4)]
        hang: list[list[Any]] = [["accepted"], ["hang"]]
        headers = [{"x-request-id": i, "x-grix-first-byte-timeout": "9s"} for i in ids]
        asked = [pool.submit(stub_region.ask, hang, model="qwen-doc", headers=h) for h in headers]
        eventually(lambda: sum(bool(called(stub_region, i)) for i in ids) == working, 10.0, "the replica is full")
        os.kill(victim, signal.SIGKILL)
        began_s = time.monotonic()
        replies = [future.result(60)[1] for future in asked]
        took_s = time.monotonic() - began_s
    told = [(reply.status, reply.json["error"]["code"], "retry-after" in reply.headers) for reply in replies]
    # A third attempt may have found the next replica.
    assert set(told) <= {(503, "no_target", True), (503, "replica_lost", True), (504, "first_byte_timeout", False)}
    assert (503, "no_target", True) in told
    # Three attempts at most, each within its limit for a first byte.
    assert min(reply.took_s for reply in replies) < 9.0 and took_s < 3 * 9.0
    whole_again(stub_region, "qwen-doc", 1, victim)
