"""RegionAgent's work without Ray: long polls that wake at once, lent probes, status, and life without a coordinator."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster_configs.load import load_paths
from serve_app.core.preempt import PENDING_S, Change
from serve_app.core.reports import FailedStart, FleetRegion, Plan, ReplicaReport, RouterReport, Trip
from serve_app.core.snapshots import Load, Snapshot
from serve_app.edge import config_keeper
from serve_app.edge.desired_config import ConfigWriter
from serve_app.edge.region_service import WATCH_S, RegionService
from serve_app.edge.serve_config import render
from serve_app.edge.trial_runner import RunSmoke
from tests.region_fakes import FEDERATION, beat
from tests.unit.edge.test_desired_config import TOP
from tests.unit.edge.test_preemption import DOC, Cluster, engine


class Now:
    """A clock moved by hand."""

    def __init__(self) -> None:
        self.time_s = 100.0

    def __call__(self) -> float:
        return self.time_s


@pytest.fixture(scope="module")
def user_config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "fleet.yaml").write_text(FEDERATION)
    made = render(load_paths([folder / "fleet.yaml"], {}), "cloud-a", http_host="127.0.0.1", http_port=8000)
    config: dict[str, Any] = made["applications"][-1]["deployments"][1]["user_config"]
    return {**config, "pkiFolder": str(folder / "nothing-here")}


async def passes(revision: str, tests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Smoke tests that find nothing."""
    return []


@asynccontextmanager
async def service(
    user_config: dict[str, Any],
    now: Now | None = None,
    folder: Path | None = None,
    failed: list[FailedStart] | None = None,
    run_smoke: RunSmoke = passes,
    **more: Any,
) -> AsyncIterator[RegionService]:
    made = RegionService(
        now_s=now or Now(),
        unix_s=lambda: 1_800_000_000.9,
        jitter=lambda: 0.0,
        nodes=lambda cloud, region: (),
        folder=folder,
        on_failed_start=([] if failed is None else failed).append,
        run_smoke=run_smoke,
        **more,
    )
    made.configure(user_config)
    try:
        yield made
    finally:
        await made.close()


def push(user_config: dict[str, Any], **load: Any) -> ReplicaReport:
    digest = user_config["engines"]["qwen-chat"]
    return ReplicaReport(f"qwen-chat--{digest[:8]}", "r1", digest, True, Load(**load))


async def first(made: RegionService, router: str = "router-1") -> Snapshot:
    snapshot = await made.watch(router, (0, 0))
    assert snapshot is not None
    return snapshot


async def test_the_first_poll_answers_at_once_with_the_own_targets(user_config: dict[str, Any]) -> None:
    async with service(user_config) as made:
        snapshot = await first(made)
        assert (snapshot.epoch, [(t.agent, t.health) for t in snapshot.targets]) == (
            1_800_000_000,
            [("qwen-chat", "unknown"), ("qwen-doc", "unknown")],
        )


async def test_a_router_that_waits_is_woken_by_what_turns(user_config: dict[str, Any]) -> None:
    async with service(user_config) as made:
        snapshot = await first(made)
        waiting = asyncio.create_task(made.watch("router-1", (snapshot.epoch, snapshot.generation)))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert made.push_replica(push(user_config, waiting=2)) == 0.0
        async with asyncio.timeout(0.2):
            news = await waiting
        assert news is not None
        assert [(t.health, t.load.waiting) for t in news.targets] == [("healthy", 2), ("healthy", 2)]
        assert news.generation > snapshot.generation


async def test_a_start_that_failed_is_counted_and_told_at_once(
    user_config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    counted: list[FailedStart] = []
    async with service(user_config, failed=counted) as made:
        made.push_replica(push(user_config))
        snapshot = await first(made)
        waiting = asyncio.create_task(made.watch("router-1", (snapshot.epoch, snapshot.generation)))
        await asyncio.sleep(0)
        report = FailedStart(push(user_config).app, "r2", "warm_up", "the engine does not get warm")
        made.push_failed_start(report)
        async with asyncio.timeout(5):
            news = await waiting
        assert news is not None
        why = "a replica failed to start once: the engine does not get warm"
        assert [(t.health, t.why) for t in news.targets] == [("healthy", why)] * 2
        assert counted == [report]
        said = f"replica r2 of {report.app} failed to start (warm_up): the engine does not get warm"
        assert said in caplog.messages


async def test_a_poll_without_news_ends_with_none(user_config: dict[str, Any]) -> None:
    now = Now()
    async with service(user_config, now) as made:
        snapshot = await first(made)
        waiting = asyncio.create_task(made.watch("router-1", (snapshot.epoch, snapshot.generation)))
        await asyncio.sleep(0)
        now.time_s += WATCH_S
        assert await waiting is None


async def test_the_one_probe_goes_to_one_router(user_config: dict[str, Any]) -> None:
    now = Now()
    async with service(user_config, now) as made:
        target = (await first(made)).targets[0].id
        made.push_router(RouterReport("router-1", trips=(Trip(target, 5.0, "x"),)))
        now.time_s += 6.0
        lent = [(await first(made, router)).lent for router in ("router-1", "router-2")]
        assert lent == [frozenset({target}), frozenset()]


async def test_a_router_from_a_later_epoch_is_outranked(user_config: dict[str, Any]) -> None:
    async with service(user_config) as made:
        snapshot = await made.watch("router-1", (1_800_003_600, 5))
        assert snapshot is not None and snapshot.epoch == 1_800_003_601


async def test_the_gateways_views_become_targets_and_it_gets_the_own_summary(user_config: dict[str, Any]) -> None:
    async with service(user_config) as made:
        made.push_replica(push(user_config, running=1))
        state = made.exchange((beat(),))
        assert (state.region, state.health) == ("cloud-a", "healthy")
        assert {t.region for t in (await first(made)).targets} == {"cloud-a", "cloud-b"}


async def test_without_certificates_it_serves_and_says_what_is_missing(user_config: dict[str, Any]) -> None:
    async with service(user_config) as made:
        async with asyncio.timeout(5):
            while "ca.pem" not in made.status()["coordinator"]["fault"]:
                await asyncio.sleep(0.01)
        assert made.fault() is None
        assert made.status()["coordinator"]["up"] is False


async def test_the_status_is_plain_json(user_config: dict[str, Any]) -> None:
    async with service(user_config) as made:
        made.exchange((beat(),))
        made.push_router(RouterReport("router-1"))
        status = json.loads(json.dumps(made.status()))
        assert sorted(status) == [
            "coordinator",
            "peers",
            "plan",
            "region",
            "regions",
            "routers",
            "snapshot",
            "targets",
        ]
        assert status["routers"] == {"router-1": 0.0}
        assert status["peers"] == [
            {"region": "cloud-b", "silent_s": 0.1, "network_ms": 12.0, "fault": "", "age_s": 0.0}
        ]
        assert status["targets"][-1]["id"] == "cloud-b/qwen-chat@cccccccc"


async def test_a_router_that_reports_hears_how_old_the_plan_is(user_config: dict[str, Any]) -> None:
    now = Now()
    async with service(user_config, now) as made:
        assert made.push_router(RouterReport("router-1")) is None
        made._on_plan(Plan(9, 4, ()))
        now.time_s += 0.5
        assert made.push_router(RouterReport("router-1")) == 0.5


@pytest.mark.parametrize("first_is", ["look", "push", "watch"])
async def test_an_agent_that_stood_still_has_seen_nobody_fail(user_config: dict[str, Any], first_is: str) -> None:
    now = Now()
    async with service(user_config, now) as made:
        made.push_replica(push(user_config))
        made.exchange((beat(),))
        now.time_s += 8.0
        if first_is == "look":
            made._look()
        elif first_is == "push":
            made.push_router(RouterReport("router-1"))
        snapshot = await first(made)
        assert {(t.health, t.weight) for t in snapshot.targets} == {("healthy", 1.0)}
        for _ in range(8):
            now.time_s += 0.5
            made._look()
        assert {t.health for t in (await first(made)).targets} == {"stale"}


async def test_other_agents_are_taken_in_place(user_config: dict[str, Any]) -> None:
    async with service(user_config) as made:
        made.push_replica(push(user_config))
        engines = {"qwen-chat": user_config["engines"]["qwen-chat"]}
        made.configure({**user_config, "engines": engines})
        assert [(t.agent, t.health) for t in (await first(made)).targets] == [("qwen-chat", "healthy")]


@pytest.mark.parametrize("broken", ["federationDocument", "engines", "pkiFolder"])
async def test_a_config_that_is_none_is_refused_and_the_old_one_stays(
    user_config: dict[str, Any], broken: str, tmp_path: Path
) -> None:
    async with service(user_config) as made:
        with pytest.raises(KeyError, match=broken):
            made.configure({k: v for k, v in user_config.items() if k != broken})
        assert len((await first(made)).targets) == 2


async def test_a_drain_outlives_the_agent_even_without_a_coordinator(
    user_config: dict[str, Any], tmp_path: Path
) -> None:
    drained = Plan(9, 4, (FleetRegion("cloud-a", "drained", "by ops", drained=True),))
    async with service(user_config, folder=tmp_path) as made:
        made._on_plan(drained)
        assert (await first(made)).targets[0].drained
    assert (tmp_path / "drains.json").stat().st_mode & 0o777 == 0o600
    async with service(user_config, folder=tmp_path) as made:
        assert (await first(made)).targets[0].drained
        # A replayed plan of before the drain is older than what is remembered.
        made._on_plan(Plan(9, 3, (FleetRegion("cloud-a", "ready", ""),)))
        assert (await first(made)).targets[0].drained
        made._on_plan(Plan(9, 5, (FleetRegion("cloud-a", "ready", ""),)))
        assert not (await first(made)).targets[0].drained


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"order": [1], "drained": {}}', '{"order": [1, 2], "drained": []}'])
async def test_a_file_of_drains_that_is_none_is_left_aside(
    user_config: dict[str, Any], tmp_path: Path, text: str
) -> None:
    (tmp_path / "drains.json").write_text(text)
    async with service(user_config, folder=tmp_path) as made:
        assert not (await first(made)).targets[0].drained


async def test_who_lacks_room_and_who_gives_way_are_told(
    user_config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_keeper, "LOOK_S", 0.01)
    monkeypatch.setattr(config_keeper, "POLL_S", 0.01)
    chat = f"qwen-chat--{user_config['engines']['qwen-chat'][:8]}"
    cluster = Cluster({chat: engine(chat, 100), DOC: engine(DOC, 50)})
    # Two are wanted, and only one can be had.
    cluster.replicas = {chat: (1, 0, 2), DOC: (2, 0, 0)}
    told: list[tuple[Change | None, Mapping[str, int]]] = []
    now, writer = Now(), ConfigWriter(cluster, tmp_path)  # type: ignore[arg-type]
    more = {"writer": writer, "resources": lambda: {"CPU": 4.0, "gpu_slot": 3.0}}
    more["on_room"] = lambda change, missing: told.append((change, missing))
    async with service({**user_config, "top": TOP}, now, tmp_path, **more) as made, asyncio.timeout(10):
        while not told:
            await asyncio.sleep(0.01)
        made.push_replica(push(user_config))
        now.time_s += PENDING_S
        while not (cluster.puts and told[-1][1]["qwen-chat"]):
            await asyncio.sleep(0.01)
            now.time_s += 0.1
        made.push_replica(push(user_config))
        region = made.status()["region"]
        assert [change for change, _ in told if change is not None] == [Change(DOC, 2, 1, chat)]
        assert (cluster.most(DOC), region["lowered"]) == (1, {"doc": "at most 1 replica, for qwen-chat"})
        assert [(t["agent"], t["missing"]) for t in region["targets"]] == [("qwen-chat", 1), ("qwen-doc", 1)]
        assert (
            region["why"] == "doc has at most 1 replica, for qwen-chat; qwen-chat wants 1 more than there is room for"
        )
        assert {t.short for t in (await first(made)).targets} == {True}


async def test_nobody_makes_room_for_an_engine_of_which_start_after_start_fails(
    user_config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_keeper, "LOOK_S", 0.01)
    monkeypatch.setattr(config_keeper, "POLL_S", 0.01)
    chat = push(user_config).app
    cluster = Cluster({chat: engine(chat, 100), DOC: engine(DOC, 50)})
    cluster.replicas = {chat: (1, 1, 1), DOC: (1, 0, 0)}
    looks = list[Change | None]()
    now, writer = Now(), ConfigWriter(cluster, tmp_path)  # type: ignore[arg-type]
    more: dict[str, Any] = {"writer": writer, "resources": lambda: {"CPU": 4.0, "gpu_slot": 3.0}}
    more["on_room"] = lambda change, missing: looks.append(change)
    async with service({**user_config, "top": TOP}, now, tmp_path, **more) as made, asyncio.timeout(10):
        while not looks:
            await asyncio.sleep(0.01)
        for replica in ("r7", "r8", "r9"):
            made.push_failed_start(FailedStart(chat, replica, "load", "out of memory"))
        while "qwen-chat starts in vain, nobody makes room for it" not in made.status()["region"]["why"]:
            await asyncio.sleep(0.01)
