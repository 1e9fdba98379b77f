"""Two regions and a coordinator, as ``grix up`` starts them: one service, whatever part of it is away."""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster_configs.load import SHIPPED
from tests.e2e.conftest import LiveRegion, grix, of_this_region
from tests.e2e.test_region import eventually, is_loopback
from tests.e2e.test_security_listeners import STRANGER, documented, sockets

EU_KEY = "grix-key-of-a-tenant-whose-data-stays-in-europe"
EU_TENANT = f"""\
---
apiVersion: grix.io/v1
kind: Tenant
metadata: {{name: europeans}}
spec:
  keys: [{{id: k1, sha256: {hashlib.sha256(EU_KEY.encode()).hexdigest()}}}]
  residency: [eu]
"""
JA, KO, EN = "返品したい", "배송 기간을 알려 주세요", "How do I reset my password?"
#: Long enough to keep a slot while others come.
LONG = {"max_tokens": 200, "ignore_eos": True}


@dataclass(frozen=True)
class Federation:
    """Both regions, and the folder ``grix`` was started in."""

    a: LiveRegion
    b: LiveRegion
    folder: Path

    def grix(self, *arguments: str, check: bool = True) -> Any:
        return grix(self.folder, *arguments, check=check)

    def plan(self) -> dict[str, dict[str, Any]]:
        """Each region as the coordinator has it."""
        told = json.loads(self.grix("status", "--json", check=False).stdout)
        return {r["name"]: r for r in told["coordinator"]["plan"]["regions"]}

    def target(self, entry: LiveRegion, region: str) -> dict[str, Any]:
        """The chat agent of a region in the eyes of another one."""
        _, _, told = entry.ask("GET", "/grix/fleet")
        rows = [t for t in told["snapshot"]["targets"] if t["region"] == region and t["agent"] == "qwen-chat"]
        return dict(rows[0]) if rows else {}


def documents(folder: Path) -> list[str]:
    """The shipped set for one machine, with small engines, so that a few requests are an overload."""
    text = (SHIPPED / "local.yaml").read_text()
    assert "maxNumSeqs: 16 " in text
    file = folder / "set.yaml"
    file.write_text(text.replace("maxNumSeqs: 16 ", "maxNumSeqs: 2 ") + EU_TENANT)
    return [str(file), str(SHIPPED / "routes.yaml"), str(SHIPPED / "templates")]


@pytest.fixture(scope="module")
def federation() -> Iterator[Federation]:
    with tempfile.TemporaryDirectory(prefix="grix-fed-") as name:
        folder = Path(name)
        try:
            grix(folder, "up", "--config", *documents(folder))
            state = json.loads((folder / ".grix/state.json").read_text())
            key = (folder / ".grix/api_key").read_text().strip()
            made = {r["name"]: LiveRegion(r["url"], key, folder, r) for r in state["regions"]}
            yield Federation(made["cloud-a"], made["cloud-b"], folder)
            state = json.loads((folder / ".grix/state.json").read_text())
        finally:
            grix(folder, "down")
        parts = [*state["regions"], state["coordinator"], state["links"]]
        assert [p.cmdline() for part in parts for p in of_this_region(part["temp_dir"])] == []
        assert [part["temp_dir"] for part in parts if Path(part["temp_dir"]).exists()] == []
        assert not (folder / ".grix").exists()


def served(answer: tuple[int, dict[str, str], Any]) -> tuple[int, str | None, str | None]:
    status, headers, _ = answer
    return status, headers.get("x-grix-region"), headers.get("x-grix-hops")


def test_a_language_is_served_in_its_region_from_every_entry(federation: Federation) -> None:
    a, b = federation.a, federation.b
    assert served(a.chat(JA)) == (200, "cloud-a", "0")
    assert served(b.chat(JA)) == (200, "cloud-a", "1")
    assert served(b.chat(KO)) == (200, "cloud-b", "0")
    status, headers, body = a.chat(KO, stream=True)
    assert served((status, headers, None)) == (200, "cloud-b", "1")
    assert body.endswith(b"data: [DONE]\n\n") and body.count(b'"content"') > 1


def test_the_status_shows_the_whole_federation(federation: Federation) -> None:
    plan = federation.plan()
    assert {name: (r["phase"], r["health"]) for name, r in plan.items()} == {
        "cloud-a": ("ready", "healthy"),
        "cloud-b": ("ready", "healthy"),
    }
    assert all(peer["silent_s"] < 1.0 for r in plan.values() for peer in r["peers"])
    told = federation.grix("status").stdout
    assert "coordinator 127.0.0.1:" in told and "answers; plan (" in told
    assert "cloud-b/qwen-chat" in told and "GlobalCoordinator" not in told


def test_a_session_stays_where_it_is_from_both_entries(federation: Federation) -> None:
    homes = set()
    for number in range(6):
        headers = {"x-session-id": f"s-{number}"}
        answers = [served(entry.chat(EN, headers=headers)) for entry in (federation.a, federation.b, federation.a)]
        assert {status for status, _, _ in answers} == {200}
        homes.add(tuple(region for _, region, _ in answers))
    assert all(len(set(home)) == 1 for home in homes), homes


def test_residency_is_kept_over_affinity_and_over_spill(federation: Federation) -> None:
    headers = {"authorization": f"Bearer {EU_KEY}"}
    assert served(federation.b.chat(JA, headers=headers)) == (200, "cloud-b", "0")
    assert served(federation.a.chat(JA, headers=headers)) == (200, "cloud-b", "1")
    federation.grix("region", "drain", "cloud-b")
    try:
        eventually(lambda: federation.target(federation.a, "cloud-b")["drained"], 10, "cloud-b is drained")
        status, told, body = federation.a.chat(JA, headers=headers)
        # Better no answer than one from where its data may not be.
        assert (status, told.get("x-grix-region")) != (200, "cloud-a") and status in (403, 503), body
    finally:
        federation.grix("region", "undrain", "cloud-b")
    eventually(lambda: not federation.target(federation.a, "cloud-b")["drained"], 10, "cloud-b is back")


def test_a_drained_region_gets_nothing_new_and_comes_back(federation: Federation) -> None:
    assert "cloud-b is drained" in federation.grix("region", "drain", "cloud-b").stdout
    eventually(lambda: federation.target(federation.a, "cloud-b")["drained"], 10, "cloud-a knows of the drain")
    assert {served(federation.a.chat(KO)) for _ in range(5)} == {(200, "cloud-a", "0")}
    eventually(lambda: federation.b.ask("GET", "/healthz")[0] == 503, 10, "DNS is told to take it out")
    federation.grix("region", "undrain", "cloud-b")
    eventually(lambda: served(federation.a.chat(KO)) == (200, "cloud-b", "1"), 30, "Korean goes to cloud-b again")
    eventually(lambda: federation.b.ask("GET", "/healthz")[0] == 200, 10, "DNS is told to take it in")


def test_what_a_federation_adds_listens_on_loopback_and_wants_a_certificate(federation: Federation) -> None:
    state = json.loads((federation.folder / ".grix/state.json").read_text())
    told: dict[str, set[str]] = {}
    for record in (state["coordinator"], state["links"], federation.a.record):
        for one in sockets(record):
            assert one.kind == "replica-grpc" or is_loopback(one.ip)
            # A line that nobody listens at the end of is reset; that is no answer.
            if one.kind in ("coordinator", "coordinator-metrics", "relay", "gateway"):
                told.setdefault(one.kind, set()).add(STRANGER[one.kind](one.port))
        assert {one.kind for one in sockets(record)} <= set(documented())
    assert told == {kind: {documented()[kind]} for kind in ("coordinator", "coordinator-metrics", "relay", "gateway")}


def test_an_overload_spills_and_nobody_spills_it_again(federation: Federation) -> None:
    """Two slots in cloud-a, and eight people who ask for long answers one after the other, until one is spilled.

    On a slow machine some wait in the engine for longer than a queue may: these are told to come back.
    """
    answers: list[tuple[int, str | None, str | None]] = []
    until_s = time.monotonic() + 240

    def ask_on(_: int) -> None:
        while time.monotonic() < until_s and not any(hops == "1" for _, _, hops in answers):
            answers.append(served(federation.a.chat(JA, **LONG)))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask_on, range(8)))
    assert {status for status, _, _ in answers} <= {200, 503}
    good = {(region, hops) for status, region, hops in answers if status == 200}
    assert good == {("cloud-a", "0"), ("cloud-b", "1")}


def talking(federation: Federation, act: Callable[[], Any]) -> list[tuple[int, str | None, str | None]]:
    """What requests at both entries get while ``act`` runs."""
    ended, answers = threading.Event(), []

    def talk(entry: LiveRegion) -> None:
        while not ended.is_set():
            answers.append(served(entry.chat(KO)))
            time.sleep(0.1)

    threads = [threading.Thread(target=talk, args=(entry,)) for entry in (federation.a, federation.b)]
    for thread in threads:
        thread.start()
    try:
        act()
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    return answers


def drilled(federation: Federation, *arguments: str) -> tuple[dict[str, Any], Any]:
    """One run of a drill that kept its promises, and what the command said beside it.

    How soon most are served again (p95) is for a machine that has nothing else to do; all other bounds hold on any.
    """
    done = federation.grix("drill", *arguments, "--json", check=False)
    told = json.loads(done.stdout)
    (run,) = told["runs"]
    assert told["drill"] == arguments[0]
    broken = [line for line in done.stderr.splitlines() if line.startswith("BROKEN PROMISE")]
    assert done.returncode == (1 if broken else 0), done.stderr
    # A stream that was cut without an error in it is among these.
    assert [line for line in broken if "at p95" not in line] == [], done.stderr
    assert run["failover_s"] is not None, done.stderr
    assert max(run["failover_s"], 10.0) == 10.0, f"served again later than 10 s: {done.stderr}"
    return run, done


def test_a_partition_is_noticed_by_the_peers_and_fails_nobody(federation: Federation) -> None:
    run, done = drilled(federation, "partition", "--region", "cloud-a")
    assert run["detector"] in ("peer", "passive"), done.stderr
    assert run["failed_before_first_byte"] == run["hung"] == run["lost_entry"] == 0, done.stderr
    assert run["recovered_s"] is not None, done.stderr
    assert run["recovered_s"] > 0.0, done.stderr
    assert max(run["recovered_s"], 30.0) == 30.0, f"in its full share again later than 30 s: {done.stderr}"


def test_nobody_notices_that_the_coordinator_dies(federation: Federation) -> None:
    before = federation.plan()["cloud-a"]["seen"]
    run, done = drilled(federation, "kill-coordinator")
    assert run["requests"] > 20
    failed = {run[name] for name in ("failed_before_first_byte", "failed_mid_stream", "hung", "lost_entry")}
    assert failed == {0}, done.stderr

    def has_seen_another_epoch() -> bool:
        seen = federation.plan()["cloud-a"]["seen"]
        return seen is not None and seen[0] > before[0]

    eventually(has_seen_another_epoch, 30, "the coordinator is back, and the region has heard it")


def test_a_peer_that_stalls_in_mid_air_is_left_once_it_was_silent_for_too_long(federation: Federation) -> None:
    """The lines between the regions alone are stalled; the coordinator still hears both."""
    try:
        federation.grix("link", "cloud-a", "cloud-b", "--stall")
        federation.grix("link", "cloud-b", "cloud-a", "--stall")
        eventually(lambda: federation.target(federation.a, "cloud-b")["health"] == "ejected", 5, "cloud-b is left")
        assert served(federation.a.chat(KO)) == (200, "cloud-a", "0")
        assert {r["phase"] for r in federation.plan().values()} <= {"ready", "slow"}
    finally:
        federation.grix("link", "cloud-a", "cloud-b", "--open")
        federation.grix("link", "cloud-b", "cloud-a", "--open")
    answers = talking(
        federation,
        lambda: eventually(lambda: federation.target(federation.a, "cloud-b")["weight"] == 1.0, 40, "full share again"),
    )
    assert {status for status, _, _ in answers} == {200}


def test_a_rollback_under_load_serves_the_release_before_everywhere_and_fails_nobody(federation: Federation) -> None:
    """The drill rolls a template out over both regions first. How fast the way back was is for the drill to judge."""
    done = federation.grix("drill", "rollback", "--json", check=False)
    told = json.loads(done.stdout)
    assert (told["rolled_back"], told["failed_requests"]) == (True, 0), done.stderr
    assert told["reached_regions"] == ["cloud-a", "cloud-b"], done.stderr
    assert told["served_old_everywhere_s"] is not None, done.stderr
    past = json.loads(federation.grix("rollout", "history", "--json").stdout)
    assert [one["outcome"] for one in past] == ["done", "done"]
    assert federation.grix("drift").stdout == "every region serves what the plan says\n"


def test_a_release_with_a_wrong_instruction_reaches_nobody(federation: Federation) -> None:
    done = federation.grix("drill", "bad-release", "--json", check=False)
    told = json.loads(done.stdout)
    assert (told["rolled_back"], told["failed_requests"], told["reached_user_ratio"]) == (True, 0, 0.0), done.stderr
    last = json.loads(federation.grix("rollout", "history", "--json").stdout)[-1]
    # The secondary region comes first.
    assert (last["outcome"], last["why"]) == (
        "rolled_back",
        "cloud-b: smoke tests: ja: the template's instruction is in ko",
    )


def scaling_documents(folder: Path) -> list[str]:
    """The same set, where the chat agent may have a second engine and gives it back after 15 quiet seconds."""
    file, *others = documents(folder)
    found = list(yaml.safe_load_all(Path(file).read_text()))
    (chat,) = (d["spec"] for d in found if (d["kind"], d["metadata"]["name"]) == ("AgentPolicy", "qwen-chat"))
    chat["maxReplicas"] = 2
    chat["scaleTriggers"] = [
        {"metric": "queue_ms", "above": 250, "action": "scale_up"},
        {"metric": "queue_ms", "below": 50, "action": "scale_down", "cooldown": "15s"},
    ]
    Path(file).write_text(yaml.safe_dump_all(found))
    return [file, *others]


def test_a_queue_brings_a_second_engine_and_quiet_takes_it_back_and_nobody_fails(federation: Federation) -> None:
    """Four people whose data stays in cloud-b, so that nothing spills, ask for long answers on its two slots.

    Last, because the documents stay as they are then.
    """
    federation.grix("apply", *scaling_documents(federation.folder))
    answers: list[tuple[int, str | None, str | None]] = []
    busy = threading.Event()
    seen: dict[str, float] = {}

    def ask_on(number: int) -> None:
        while number < 1 or busy.is_set():
            headers = {"authorization": f"Bearer {EU_KEY}"}
            answers.append(served(federation.b.chat(KO, headers=headers, **LONG)))
            if "one" in seen:
                return

    def engines() -> tuple[int, float]:
        """Engines that serve in cloud-b, and the 95th percentile of what their users waited lately."""
        (target,) = (t for t in federation.plan()["cloud-b"]["targets"] if t["agent"] == "qwen-chat")
        return target["replicas"], target["load"]["queue_wait_p95_ms"] or 0.0

    busy.set()
    began_s = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        callers = [pool.submit(ask_on, number) for number in range(4)]
        try:
            eventually(lambda: engines()[1] > 250.0, 60, "people wait")
            seen["waited"] = time.monotonic() - began_s
            eventually(lambda: engines()[0] == 2, 600, "a second engine serves")
            seen["two"] = time.monotonic() - began_s
            eventually(lambda: engines()[1] < 250.0, 60, "nobody waits any more")
            seen["calm"] = time.monotonic() - began_s
            busy.clear()
            eventually(lambda: engines()[0] == 1, 120, "the second engine is given back while one goes on asking")
        finally:
            busy.clear()
            seen["one"] = time.monotonic() - began_s
    for caller in callers:
        caller.result()
    print({what: round(at_s, 1) for what, at_s in seen.items()})
    assert set(answers) == {(200, "cloud-b", "0")}
