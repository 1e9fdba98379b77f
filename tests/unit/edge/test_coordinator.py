"""The coordinator over real gRPC with real certificates: what regions and operators may do, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from serve_app.core.reports import PeerView, Plan
from serve_app.edge import coordinator, door, facts_store, shared_limits
from serve_app.edge.admin_client import Admin, NotAllowed, NotDone, Unreachable
from serve_app.edge.coordinator import settings_of
from serve_app.edge.coordinator_link import CoordinatorLink, Told
from serve_app.edge.coordinator_server import MOST_UP_BYTES
from serve_app.edge.grpc_tls import TlsFolder
from serve_app.edge.lease import LEASE_S, FileLease
from serve_app.edge.protos import grix_pb2 as pb
from serve_app.edge.wire_link import Up, up_message
from tests.control import Control, control, documents, node, state
from tests.pki import REGIONS, made
from tests.valkey_store import Store


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits a second for what happens in this process."""
    monkeypatch.setattr(coordinator, "AGAIN_S", 0.05)
    monkeypatch.setattr(coordinator, "RENEW_S", 0.05)
    # A machine that is busy with other things proves nothing about Redis.
    monkeypatch.setattr(shared_limits, "BACKGROUND_LIMIT_S", 5.0)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("pki"))


@pytest.fixture
async def hub(root: Path, tmp_path: Path) -> AsyncIterator[Control]:
    async with control(root, tmp_path / "facts") as made:
        yield made


def phases(plan: Plan) -> dict[str, str]:
    return {r.name: r.phase for r in plan.regions}


# ---- regions ----


async def test_regions_report_and_hear_one_plan(hub: Control) -> None:
    a, b, e = await hub.join(*REGIONS)
    for link in (a, b, e):
        plan = await link.hear()
        assert phases(plan) == dict.fromkeys(REGIONS, "ready")
        assert link.messages[0].full and plan.epoch == 5000
    await a.tell(state("cloud-a", "slow", "queue"))
    plan = await b.hear(lambda p: phases(p)["cloud-a"] == "slow")
    assert plan.generation == 2
    assert [r.name for r in b.messages[-1].regions] == ["cloud-a"]
    # Nothing changes: a heartbeat with nothing in it.
    hub.now_s += 0.2
    await b.hear(lambda _: not b.messages[-1].regions)
    assert b.messages[-1].generation == 2 and not b.messages[-1].HasField("documents")


async def test_a_heartbeat_without_news_is_a_sign_of_life_and_silence_is_the_end_of_a_half_open_link(
    hub: Control,
) -> None:
    a, b, _ = await hub.join(*REGIONS)
    await b.hear()
    await hub.passed(0.5)
    await b.tell()
    seen = (await hub.ask("status"))["regions"][1]
    assert (seen["name"], seen["heard_s_ago"]) == ("cloud-b", 0.0)
    await hub.passed(0.2)
    plan = await b.hear(lambda p: phases(p)["cloud-a"] == "lost")
    assert phases(plan)["cloud-b"] == "ready"
    assert await a.end() == (grpc.StatusCode.DEADLINE_EXCEEDED, "cloud-a says nothing on it")


async def test_a_silent_peer_is_noticed_at_once_and_so_is_its_return(hub: Control) -> None:
    links = await hub.join(*REGIONS)
    a, *others = links
    await a.hear()
    for silent_s, why in ((0.1, ""), (1.5, "partition: silent to cloud-a"), (0.1, "")) * 2:
        await a.tell(peers=(PeerView("edge-1", silent_s),))
        for link in others:
            await link.tell()
        told = sum(link.seq for link in links)
        await hub.until(lambda told=told: hub.coordinator.hub.counts["reports"] == told)  # type: ignore[misc, union-attr]
        # Peers are weighed once in a heartbeat.
        hub.now_s += 0.25
        await a.hear(lambda p, why=why: p.regions[2].why == why)  # type: ignore[misc]


async def test_a_region_that_dials_again_ends_its_old_link(hub: Control) -> None:
    (old,) = await hub.join("cloud-a")
    await hub.until(lambda: len(hub.coordinator.hub.links) == 1)  # type: ignore[union-attr]
    await hub.join("cloud-a")
    assert await old.end() == (grpc.StatusCode.ABORTED, "cloud-a dialled again")


@pytest.mark.parametrize("field", ["region", "state.region"])
async def test_a_report_for_another_region_is_refused_and_audited(hub: Control, field: str) -> None:
    name = "cloud-b" if field == "region" else "cloud-a"
    link = hub.dial(name, "region/cloud-a")
    await link.say(up_message(Up(name, 1, state("cloud-b"))))
    said = f"{field}: 'cloud-b' is not the region of this certificate; allowed: cloud-a"
    assert await link.end() == (grpc.StatusCode.PERMISSION_DENIED, said)
    (entry,) = await hub.audited("refused")
    assert (entry["who"], entry["why"]) == ("grix://demo/region/cloud-a", said)
    assert [r["heard_s_ago"] for r in (await hub.ask("status"))["regions"]] == [None] * 3


async def test_a_link_ends_with_the_certificate_it_was_dialled_with(
    hub: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = await hub.join("cloud-a")
    await hub.until(lambda: hub.coordinator.hub.counts["reports"] == 1)  # type: ignore[union-attr]
    stated = door._stated
    with monkeypatch.context() as later:
        later.setattr(door, "_stated", lambda pem: (stated(pem)[0], 1.0, ""))
        await a.tell()
        said = "has a certificate that ended on 1970-01-01 00:00:01Z"
        assert await a.end() == (grpc.StatusCode.PERMISSION_DENIED, said)
    (entry,) = await hub.audited("refused")
    assert (entry["who"], entry["region"], entry["why"]) == ("grix://demo/region/cloud-a", "cloud-a", said)


async def test_a_forged_name_in_the_middle_of_a_link_ends_it_and_changes_nothing(hub: Control) -> None:
    (a,) = await hub.join("cloud-a")
    await a.say(up_message(Up("cloud-b", 2, state("cloud-b", "ejected"))))
    assert (await a.end())[0] == grpc.StatusCode.PERMISSION_DENIED
    assert (await hub.ask("status"))["regions"][1]["phase"] == "joining"


@pytest.mark.parametrize(
    ("raw", "code", "said"),
    [
        (b"\xff" * 100, grpc.StatusCode.INVALID_ARGUMENT, "report: is no message of this protocol"),
        (
            b"\x00" * (MOST_UP_BYTES + 1),
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"report: has {MOST_UP_BYTES + 1} bytes; at most {MOST_UP_BYTES} are allowed",
        ),
        (
            pb.RegionUp(protocol=9, region="cloud-a").SerializeToString(),
            grpc.StatusCode.INVALID_ARGUMENT,
            "protocol: 9 is not understood here; allowed: 1 to 2",
        ),
        (
            pb.RegionUp(
                protocol=1, region="cloud-a", state=pb.RegionState(region="cloud-a", why="w" * 300_000)
            ).SerializeToString(),
            grpc.StatusCode.INVALID_ARGUMENT,
            "state.why: makes state ",
        ),
    ],
    ids=["garbage", "oversized", "protocol", "large state"],
)
async def test_what_makes_no_sense_ends_the_link_and_is_audited(
    hub: Control, raw: bytes, code: grpc.StatusCode, said: str
) -> None:
    link = hub.dial("cloud-a")
    await link.say(raw)
    ended, details = await link.end()
    assert ended == code and details.startswith(said)
    (entry,) = await hub.audited("refused")
    assert entry["why"] == details


async def test_replayed_and_older_messages_change_nothing(hub: Control) -> None:
    (a,) = await hub.join("cloud-a")
    await a.tell(state("cloud-a", "slow", "busy"))
    for seq in (1, 2, 0):
        await a.say(up_message(Up("cloud-a", seq, state("cloud-a", "ejected"))))
    await a.tell()
    await hub.until(lambda: hub.coordinator.hub.counts["reports"] == 6)  # type: ignore[union-attr]
    assert (await hub.ask("status"))["regions"][0]["health"] == "slow"


async def test_an_hour_of_skew_of_a_region_is_nothing_and_a_later_epoch_is_passed(hub: Control) -> None:
    """A region has no way to tell its time; what it can tell is the plan it has, of a coordinator an hour ahead."""
    a, *_ = await hub.join(*REGIONS)
    await a.tell(seen=(5000 + 3600, 12))
    plan = await a.hear(lambda p: p.epoch > 5000)
    assert plan.epoch == 8601
    stored = json.loads((hub.folder / "facts.json").read_text())
    assert stored["epoch"] == 8601


async def test_a_region_that_no_document_names_is_refused(root: Path, tmp_path: Path) -> None:
    two = documents()
    two[0]["spec"]["regions"] = two[0]["spec"]["regions"][:2]
    async with control(root, tmp_path, documents=two) as hub:
        (link,) = await hub.join("edge-1")
        said = "edge-1 is no region here; allowed: cloud-a, cloud-b"
        assert await link.end() == (grpc.StatusCode.PERMISSION_DENIED, said)


# ---- who may what ----


async def test_operators_open_no_links_and_regions_run_no_verbs(hub: Control, root: Path) -> None:
    link = hub.dial("cloud-a", "operator/admin")
    await link.tell(state("cloud-a"))
    code, said = await link.end()
    assert code == grpc.StatusCode.PERMISSION_DENIED and "may not call this; allowed: region" in said
    with pytest.raises(NotAllowed, match="may not call this; allowed: operator"):
        await Admin(hub.address, root / "region" / "cloud-a").ask("drain", region="cloud-b")
    refused = {e["who"] for e in await hub.audited("refused")}
    assert refused == {"grix://demo/operator/admin", "grix://demo/region/cloud-a"}
    assert not (await hub.ask("status"))["regions"][1]["drained"]


async def test_a_foreign_authority_reaches_nobody(hub: Control, tmp_path: Path) -> None:
    foreign = made(tmp_path / "foreign")
    with pytest.raises(Unreachable, match=rf"^coordinator {hub.address}: does not answer: "):
        await Admin(hub.address, foreign / "operator" / "admin", limit_s=2.0).ask("status")


async def test_errors_of_the_client_name_the_address_and_the_folder(root: Path, tmp_path: Path) -> None:
    with pytest.raises(NotAllowed, match=r"^no operator's certificate: .*cannot be read"):
        await asyncio.to_thread(Admin("127.0.0.1:1", tmp_path).do, "status")
    with pytest.raises(Unreachable, match=r"^coordinator 127\.0\.0\.1:1: does not answer: "):
        await asyncio.to_thread(Admin("127.0.0.1:1", root / "operator" / "admin", limit_s=2.0).do, "status")


# ---- verbs ----


async def test_a_drain_is_told_stored_audited_and_outlives_the_coordinator(hub: Control, root: Path) -> None:
    a, *_ = await hub.join(*REGIONS)
    await a.hear()
    assert await hub.ask("drain", region="cloud-b") == {"region": "cloud-b", "phase": "drained"}
    plan = await a.hear(lambda p: phases(p)["cloud-b"] == "drained")
    assert [r.why for r in plan.regions if r.drained] == ["drained by admin"]
    (call,) = await hub.audited("admin")
    assert (call["who"], call["region"], call["before"], call["after"]) == ("admin", "cloud-b", "drain", "done")
    await hub.end()
    # The clock of this machine went back an hour meanwhile.
    hub.unix_s -= 3600
    await hub.begin()
    links = await hub.join(*REGIONS)
    plan = await links[0].hear(lambda p: p.regions[0].phase == "ready")
    assert plan.epoch == 5001 and phases(plan)["cloud-b"] == "drained"
    await hub.ask("undrain", region="cloud-b")
    await links[0].hear(lambda p: phases(p)["cloud-b"] == "ready")


@pytest.mark.parametrize(
    ("verb", "fields", "said"),
    [
        ("fly", {}, "verb: 'fly' is not known; allowed: status, drain, undrain, apply, audit, backup, restore"),
        ("drain", {}, "drain: region: missing or unknown; allowed fields: region"),
        ("drain", {"region": "cloud-a", "now": 1}, "drain: now: missing or unknown; allowed fields: region"),
        ("drain", {"region": 3}, "region: is no text; allowed: the name of a region"),
        ("drain", {"region": "x"}, "refused\nregion: 'x' is not in the federation; allowed: cloud-a, cloud-b, edge-1"),
        ("audit", {"last": 0}, "last: '0' is no count of lines; allowed: 1 to 2000"),
        ("apply", {"documents": "x"}, "documents: is no list of objects; allowed: whole documents as JSON"),
        ("restore", {"backup": [1]}, "backup: is list; allowed: an object as `backup` gives it"),
        ("restore", {"backup": {"epoch": 1}}, "backup: begun, documents, drains, format, revision: "),
    ],
)
async def test_what_is_asked_wrongly_is_answered_with_what_is_allowed(
    hub: Control, verb: str, fields: dict[str, object], said: str
) -> None:
    with pytest.raises(NotDone) as error:
        await hub.ask(verb, **fields)
    assert str(error.value).startswith(said)
    assert (await hub.audited("admin"))[0]["after"] == "refused"


async def test_apply_names_every_fault_and_needs_a_ready_node(hub: Control) -> None:
    wrong = documents()
    agent = next(d for d in wrong if d["kind"] == "AgentPolicy")
    agent["spec"] |= {"clusterSelector": {"region": ["cloud-z"]}, "maxQueueMs": "soon"}
    with pytest.raises(NotDone) as error:
        await hub.ask("apply", documents=wrong)
    assert error.value.error == "the documents have faults" and len(error.value.faults) == 2
    assert any("there is no region 'cloud-z'" in fault for fault in error.value.faults)
    with pytest.raises(NotDone) as error:
        await hub.ask("apply", documents=documents())
    assert error.value.faults == ["qwen-chat: node: there is no Ready node in cloud-a, cloud-b, edge-1"]
    # So are the policies that it was started with, until there is one.
    assert (await hub.ask("status"))["held"] == [{"agent": "qwen-chat", "unmet": error.value.faults}]
    await hub.join("cloud-a")
    await hub.passed(0.2)
    await hub.until(lambda: not hub.coordinator.hub.fleet.held)  # type: ignore[union-attr]
    assert (await hub.ask("status"))["held"] == []


async def test_applied_documents_reach_regions_and_the_next_coordinator(hub: Control) -> None:
    a, *_ = await hub.join(*REGIONS)
    await a.hear()
    tried = await hub.ask("apply", documents=documents(), dry_run=True)
    assert (tried["changed"], tried["generation"]) == (True, 1)
    done = await hub.ask("apply", documents=documents())
    assert done == {**tried, "dry_run": False, "generation": 2} and done["drift_unknown"] == []
    plan = await a.hear(lambda p: p.revision == done["revision"])
    assert [d["kind"] for d in json.loads(plan.documents)][:2] == ["Federation", "RouteTable"]
    assert plan.expected == {}
    await a.tell(replace(state("cloud-a"), revision=done["revision"]))
    plan = await a.hear(lambda p: bool(p.expected))
    assert {region for region, _ in plan.expected} == {"cloud-a"} and plan.documents
    assert (await hub.ask("apply", documents=documents()))["changed"] is False
    await hub.end()
    await hub.begin()
    assert (await hub.ask("status"))["revision"] == done["revision"]
    # Whoever starts it with newer documents wants these.
    await hub.ask("drain", region="cloud-b")
    await hub.end()
    fewer = documents()
    fewer[0]["spec"]["regions"] = fewer[0]["spec"]["regions"][:2]
    hub.more["documents"] = fewer
    await hub.begin()
    status = await hub.ask("status")
    assert status["revision"] == "" and [r["name"] for r in status["regions"]] == ["cloud-a", "cloud-b"]
    assert status["regions"][1]["drained"]
    (entry,) = await hub.audited("documents")
    assert (entry["before"], entry["why"]) == (done["revision"], "it was started with other documents")


async def test_documents_of_another_federation_are_refused(hub: Control) -> None:
    other = documents()
    other[0]["metadata"]["name"] = "other"
    with pytest.raises(NotDone, match=r"metadata\.name: is 'other'; allowed: demo"):
        await hub.ask("apply", documents=other)


async def test_a_backup_brings_a_lost_store_back(hub: Control, root: Path, tmp_path: Path) -> None:
    await hub.join(*REGIONS)
    await hub.until(lambda: hub.coordinator.hub.counts["reports"] == 3)  # type: ignore[union-attr]
    revision = (await hub.ask("apply", documents=documents()))["revision"]
    await hub.ask("drain", region="edge-1")
    backup = (await hub.ask("backup"))["backup"]
    async with control(root, tmp_path / "fresh") as fresh:
        with pytest.raises(NotDone, match="backup: documents: is no list"):
            await fresh.ask("restore", backup=backup | {"documents": "{}"})
        with pytest.raises(NotDone, match="backup: documents: is no JSON"):
            await fresh.ask("restore", backup=backup | {"documents": "[" * 100_000})
        with pytest.raises(NotDone, match="the backup's documents have faults"):
            await fresh.ask("restore", backup=backup | {"documents": "[{}]"})
        with pytest.raises(NotDone, match="drains: 'x' is not in the federation"):
            await fresh.ask("restore", backup=backup | {"drains": {"x": "y"}})
        done = await fresh.ask("restore", backup=backup | {"epoch": 9000})
        assert done == {"revision": revision, "epoch": 9001, "drains": {"edge-1": "admin"}}
        status = await fresh.ask("status")
        assert status["epoch"] == 9001 and status["regions"][2]["phase"] == "drained"


# ---- lease ----


async def test_a_second_coordinator_waits_for_the_lease_and_begins_a_later_epoch(hub: Control, root: Path) -> None:
    second = Control(root, hub.folder)
    await second.begin(serves=False)
    assert second.coordinator is not None
    await second.until(lambda: second.coordinator.fault == "another coordinator holds the lease")  # type: ignore[union-attr]
    assert second.coordinator.hub is None
    await hub.end()
    await second.until(lambda: second.coordinator.hub is not None)  # type: ignore[union-attr]
    assert (await second.ask("status"))["epoch"] == 5001
    await second.end()


async def test_a_coordinator_that_loses_its_lease_stops_serving(hub: Control) -> None:
    (link,) = await hub.join("cloud-a")
    await hub.until(lambda: len(hub.coordinator.hub.links) == 1)  # type: ignore[union-attr]
    serving = hub.coordinator.hub  # type: ignore[union-attr]
    (hub.folder / "lease").unlink()
    await asyncio.wait_for(serving.stopped.wait(), 20)  # type: ignore[union-attr]
    assert await link.end() == (grpc.StatusCode.UNAVAILABLE, "this coordinator stops")


async def test_in_redis_as_in_a_folder(root: Path, tmp_path: Path) -> None:
    server = Store(tmp_path)
    server.begin()
    store = {"url": server.url, "passwordFile": server.password_file}
    try:
        async with control(root, tmp_path, store=store) as first:
            assert (await first.ask("drain", region="cloud-b"))["phase"] == "drained"
            second = Control(root, tmp_path, more={"store": store})
            await second.begin(serves=False)
            await second.until(lambda: second.coordinator.fault == "another coordinator holds the lease")  # type: ignore[union-attr]
            assert [e["before"] for e in await first.audited("admin")] == ["drain"]
        await second.until(lambda: second.coordinator.hub is not None)  # type: ignore[union-attr]
        status = await second.ask("status")
        assert status["epoch"] == 5001 and status["regions"][1]["phase"] == "drained"
        serving = second.coordinator.hub  # type: ignore[union-attr]
        server.end()
        # A Redis that is away stops nothing before the lease has run out.
        with pytest.raises(NotDone, match="it is in force, but not stored: Redis does not do it"):
            await second.ask("undrain", region="cloud-b")
        second.now_s += LEASE_S
        await asyncio.wait_for(serving.stopped.wait(), 20)  # type: ignore[union-attr]
        await second.end()
    finally:
        server.end()


async def test_a_cancellation_that_a_store_swallows_does_not_keep_it_from_closing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    class Deaf(FileLease):
        async def take(self) -> bool:
            asked.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return False

    monkeypatch.setattr(facts_store, "FileLease", Deaf)
    made = Control(root, tmp_path)
    await made.begin(serves=False)
    await asked.wait()
    await asyncio.wait_for(made.end(), 20)


async def test_what_trying_again_does_not_mend_is_told_to_who_watches(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "Fleet", lambda *_: 1 / 0)
    made = Control(root, tmp_path)
    await made.begin(serves=False)
    await made.until(lambda: made.coordinator.broken is not None)  # type: ignore[union-attr]
    assert repr(made.coordinator.broken) == "ZeroDivisionError('division by zero')"  # type: ignore[union-attr]
    await made.end()


async def test_a_broken_store_keeps_it_from_serving_and_says_why(root: Path, tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_text("{")
    made = Control(root, tmp_path)
    await made.begin(serves=False)
    await made.until(lambda: "facts.json" in made.coordinator.fault)  # type: ignore[union-attr]
    await made.end()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"colour": "red"}, "GlobalCoordinator: colour: missing or unknown; allowed: documents, listen, logLevel"),
        ({"store": {"url": "http://x"}}, "GlobalCoordinator: store: "),
        ({"store": None}, "GlobalCoordinator: nothing says where it keeps its facts"),
    ],
)
def test_settings_are_refused_by_their_key(change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError) as error:
        settings_of({"documents": documents(), "pkiFolder": "/x", **change})
    assert str(error.value).startswith(said)


async def test_nodes_are_in_the_status(hub: Control) -> None:
    await hub.join("cloud-a")
    await hub.until(lambda: hub.coordinator.hub.counts["reports"] == 1)  # type: ignore[union-attr]
    first = (await hub.ask("status"))["regions"][0]
    assert first["nodes"][0]["name"] == node("cloud-a").name and first["linked"]


async def test_a_region_s_own_link_finds_the_coordinator_again_after_its_restart(hub: Control, root: Path) -> None:
    plans: list[Plan] = []

    def told() -> Told:
        return Told(state("cloud-a"), (node("cloud-a"),), (), plans[-1].order if plans else (0, 0))

    port = hub.coordinator.port  # type: ignore[union-attr]
    tls = TlsFolder(root / "region" / "cloud-a")
    link = CoordinatorLink(hub.address, tls, heartbeat_s=0.05, told=told, on_plan=plans.append, jitter=lambda: 0.0)
    running = asyncio.create_task(link.run())
    await hub.join("cloud-b", "edge-1")
    await hub.until(lambda: bool(plans))
    assert (plans[-1].epoch, phases(plans[-1])["cloud-a"]) == (5000, "ready")
    await hub.end()
    hub.more["listen"] = f"127.0.0.1:{port}"
    await hub.begin()
    await hub.join("cloud-b", "edge-1")
    await hub.until(lambda: plans[-1].epoch == 5001)
    assert phases(plans[-1]) == dict.fromkeys(REGIONS, "ready")
    await hub.until(lambda: hub.coordinator.hub.fleet.members["cloud-a"].seen[0] == 5001)  # type: ignore[union-attr]
    running.cancel()
    await asyncio.wait([running])
