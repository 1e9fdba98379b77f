"""One writer of a region's Serve config: foreign changes are undone, documents come into force in the right order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cluster_configs.bundle import Config, to_documents
from cluster_configs.load import load_paths
from serve_app.core.preempt import Decision
from serve_app.edge import config_keeper
from serve_app.edge.config_keeper import IDLE_S, LOOK_S, REFUSED_S, ConfigKeeper
from serve_app.edge.desired_config import ConfigWriter, Desired, rendered_with
from serve_app.edge.preemption import Preemption
from serve_app.edge.serve_apps import by_name, steps
from serve_app.edge.serve_config import render, use_redis, use_task_secret
from serve_app.edge.serve_rest import ServeRestError
from tests.region_fakes import FEDERATION

TOP = {"proxy_location": "HeadOnly"}
#: What is said of a revision whose engines were started once and failed.
ONCE = "; starts in vain: 1, the next 60 s after the last"


def app(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "deployments": [{"name": "D", "graceful_shutdown_timeout_s": 20.0}], **changes}


@dataclass
class FakeServe:
    """Serve's REST interface: what is put is in force, with a key of its own; an app may be told never to run."""

    apps: dict[str, dict[str, Any]] = field(default_factory=dict)
    puts: list[list[str]] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    starting: set[str] = field(default_factory=set)
    away: bool = False
    gone_after_put: bool = False
    #: What becomes of each app that is put.
    takes: Callable[[dict[str, Any]], dict[str, Any]] = lambda app: {**app, "logging_config": "from Serve"}

    def put_config(self, config: dict[str, Any]) -> None:
        if self.away:
            raise ServeRestError("no answer")
        assert {k: v for k, v in config.items() if k != "applications"} == TOP
        self.apps = {a["name"]: self.takes(deepcopy(a)) for a in config["applications"]}
        self.puts.append(sorted(self.apps))
        self.away, self.gone_after_put = self.gone_after_put, False

    def details(self) -> dict[str, Any]:
        if self.away:
            raise ServeRestError("no answer")
        status = {name: "DEPLOYING" if name in self.starting else "RUNNING" for name in self.apps}
        status |= dict.fromkeys(self.broken, "DEPLOY_FAILED")
        return {
            "applications": {
                n: {"status": status[n], "message": self.broken.get(n, ""), "deployed_app_config": deepcopy(a)}
                for n, a in self.apps.items()
            }
        }


def writer(serve: FakeServe, folder: Path | None = None) -> ConfigWriter:
    made = ConfigWriter(serve, folder)  # type: ignore[arg-type]
    made.begin()
    return made


# ---- the writer ----


def test_the_first_start_takes_what_is_in_force_and_keeps_it(tmp_path: Path) -> None:
    serve = FakeServe({"grix": app("grix")})
    assert writer(serve, tmp_path).desired == Desired({"grix": app("grix")}, {"grix": app("grix")})
    serve.apps["grix"]["args"] = "changed while nobody looked"
    again = writer(serve, tmp_path)
    assert again.put_back(TOP) == ["grix"]
    assert "args" not in serve.apps["grix"]
    assert (tmp_path / "desired.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "[]", '{"applications": 1}', '{"applications": {}}'])
def test_a_file_that_is_none_of_ours_is_left_aside(tmp_path: Path, text: str) -> None:
    (tmp_path / "desired.json").write_text(text)
    apps = {"grix": app("grix")}
    assert writer(FakeServe(apps), tmp_path).desired == Desired(apps, apps)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda apps: apps.update(stranger=app("stranger")), ["stranger"]),
        (lambda apps: apps.pop("chat--1"), ["chat--1"]),
        (lambda apps: apps["grix"]["deployments"][0].update(num_replicas=9), ["grix"]),
        (lambda apps: (apps.pop("grix"), apps["chat--1"].update(args={})), ["chat--1", "grix"]),
    ],
)
def test_a_foreign_change_is_put_back_once(change: Callable[[Any], Any], names: list[str]) -> None:
    serve = FakeServe({"grix": app("grix"), "chat--1": app("chat--1")})
    made = writer(serve)
    before = deepcopy(serve.apps)
    assert made.put_back(TOP) == [] and serve.puts == []
    change(serve.apps)
    assert made.put_back(TOP) == names
    assert {n: {**a, "logging_config": "from Serve"} for n, a in before.items()} == serve.apps
    assert made.put_back(TOP) == [] and len(serve.puts) == 1


def test_a_serve_that_knows_no_configs_for_a_moment_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    serve = FakeServe({"grix": app("grix")})
    made = writer(serve)
    vague = {"grix": {"status": "RUNNING", "deployed_app_config": None}}
    monkeypatch.setattr(serve, "details", lambda: {"applications": vague})
    assert made.put_back(TOP) == [] and serve.puts == []


@pytest.mark.parametrize("status", [None, "DELETING"])
def test_who_removes_everything_has_it_put_back(monkeypatch: pytest.MonkeyPatch, status: str | None) -> None:
    serve = FakeServe({"grix": app("grix"), "grix-region": app("grix-region")})
    made = writer(serve)
    left = {} if status is None else {n: {"status": status, "deployed_app_config": None} for n in serve.apps}
    seen = iter([{"applications": left}])
    details = serve.details
    monkeypatch.setattr(serve, "details", lambda: next(seen, None) or details())
    assert made.put_back(TOP) == ["grix", "grix-region"]
    assert serve.puts == [["grix", "grix-region"]]


def test_an_app_that_somebody_runs_without_a_config_hinders_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    serve = FakeServe({"grix": app("grix")})
    made = writer(serve)
    serve.apps["grix"]["args"] = 1
    told = serve.details()
    told["applications"]["stranger"] = {"status": "RUNNING", "deployed_app_config": None}
    seen = iter([told])
    details = serve.details
    monkeypatch.setattr(serve, "details", lambda: next(seen, None) or details())
    assert made.put_back(TOP) == ["grix"]


def test_nothing_is_taken_from_a_serve_that_does_not_answer() -> None:
    serve = FakeServe(away=True)
    made = ConfigWriter(serve, None)  # type: ignore[arg-type]
    with pytest.raises(ServeRestError):
        made.begin()
    assert made.desired is None


def test_what_was_kept_before_a_put_that_failed_is_put_by_the_next_one(tmp_path: Path) -> None:
    serve = FakeServe({"grix": app("grix")})
    made = writer(serve, tmp_path)
    serve.away = True
    with pytest.raises(ServeRestError):
        made.put({"grix": app("grix", args={"n": 2})}, TOP)
    serve.away = False
    again = writer(serve, tmp_path)
    assert again.put_back(TOP) == []
    assert serve.apps["grix"]["args"] == {"n": 2} and len(serve.puts) == 1
    assert again.put_back(TOP) == [] and len(serve.puts) == 1


def test_a_put_that_came_through_unseen_is_not_put_again(tmp_path: Path) -> None:
    serve = FakeServe({"grix": app("grix")})
    made = writer(serve, tmp_path)
    serve.gone_after_put = True
    with pytest.raises(ServeRestError):
        made.put({"grix": app("grix", args={"n": 2})}, TOP)
    serve.away = False
    assert made.put_back(TOP) == [] and len(serve.puts) == 1
    serve.apps["grix"]["args"] = {"n": 3}
    assert made.put_back(TOP) == ["grix"]


# ---- the way from one config to another ----


def test_new_engines_first_then_routers_then_the_old_engines() -> None:
    old = {"grix": app("grix"), "chat--1": app("chat--1"), "doc--1": app("doc--1")}
    new = {"grix": app("grix", args=2), "chat--2": app("chat--2"), "doc--1": app("doc--1")}
    assert [(sorted(s), s["grix"].get("args")) for s in steps(old, new)] == [
        (["chat--1", "chat--2", "doc--1", "grix"], None),
        (["chat--1", "chat--2", "doc--1", "grix"], 2),
        (["chat--2", "doc--1", "grix"], 2),
    ]


def test_without_another_engine_there_is_one_step_and_nothing_to_clean() -> None:
    old, new = (
        {"grix": app("grix"), "chat--1": app("chat--1")},
        {"grix": app("grix", args=2), "chat--1": app("chat--1")},
    )
    assert steps(old, new) == [new, new]


# ---- documents ----


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("fleet") / "fleet.yaml"
    file.write_text(FEDERATION)
    return file


@cache
def loaded(fleet: Path, *changes: tuple[str, str]) -> Config:
    """The fleet's documents with texts replaced."""
    text = FEDERATION
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file = fleet.with_name("changed.yaml")
    file.write_text(text)
    return load_paths([file], {})


def start(fleet: Path, *changes: tuple[str, str]) -> dict[str, Any]:
    """The region's config as it is started."""
    return render(loaded(fleet, *changes), "cloud-a", http_host="127.0.0.1", http_port=8123)


def user_config(rendered: dict[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = rendered["applications"][-1]["deployments"][1]["user_config"]
    return config


def documents(fleet: Path, *changes: tuple[str, str]) -> str:
    return json.dumps(to_documents(loaded(fleet, *changes)))


def test_the_documents_of_the_start_give_the_config_of_the_start(fleet: Path) -> None:
    began = start(fleet)
    assert rendered_with(user_config(began), documents(fleet)) == began


def test_addresses_certificates_and_redis_stay_where_they_were(fleet: Path) -> None:
    relay = ('"127.0.0.1:7643"', '"127.0.0.1:17643"'), ('"127.0.0.1:7443"', '"127.0.0.1:17443"')
    pki = ("  regions:\n", "  pki: {folder: /srv/pki}\n  regions:\n")
    began = start(fleet, *relay, pki)
    use_redis(began, "redis://127.0.0.1:7000", "/r/password", log=False)
    made = rendered_with(user_config(began), documents(fleet))
    assert made == began


def test_tasks_are_refused_where_the_regions_own_redis_would_lose_them(fleet: Path) -> None:
    tasks = ("residency: [sg, jp],", "residency: [sg, jp], tasks: {light: {agent: qwen-chat}},")
    began = start(fleet)
    use_redis(began, "redis://127.0.0.1:7000", "/r/password", log=False)
    with pytest.raises(ValueError, match=r"region cloud-a: tasks: .* allowed: grix down cloud-a, then grix up cloud-a"):
        rendered_with(user_config(began), documents(fleet, tasks))
    # One that began with tasks may lose and get them.
    began = start(fleet, tasks)
    use_redis(began, "redis://127.0.0.1:7000", "/r/password", log=True)
    use_task_secret(began, "/r/secret")
    without = rendered_with(user_config(began), documents(fleet))
    assert not [app for app in without["applications"] if app["name"].startswith("grix-tasks")]
    assert rendered_with(user_config(without), documents(fleet, tasks)) == began


def test_what_documents_change_comes_into_force(fleet: Path) -> None:
    began = start(fleet)
    dearer = rendered_with(user_config(began), documents(fleet, ("gpuHourUsd: 1,", "gpuHourUsd: 2,")))
    assert user_config(dearer)["region"]["gpuHourUsd"] == 2.0
    assert dearer["http_options"]["port"] == 8123


def test_a_region_that_is_no_longer_named_refuses(fleet: Path) -> None:
    began = start(fleet)
    text = documents(fleet, ("cloud-a, cloud: cloud-a", "cloud-z, cloud: cloud-a"))
    with pytest.raises(LookupError, match=r"region cloud-a: is not in federation two; allowed: cloud-z"):
        rendered_with(user_config(began), text)


# ---- the keeper ----


class Stage:
    """A keeper over a fake Serve that runs the config of the start; time passes with each sleep."""

    def __init__(self, began: dict[str, Any], folder: Path | None = None) -> None:
        self._began, self._folder = began, folder
        self.serve = FakeServe(by_name(deepcopy(began["applications"])))
        self.now_s = 100.0
        self.idle = True
        self.revisions: list[str] = []
        self.put_back: list[int] = []
        self.slept_s = 0.0
        self.resources: dict[str, float] = {}
        self.decisions: list[Decision] = []
        self.on_sleep: Callable[[], None] = lambda: None
        self.restart()

    def restart(self) -> None:
        """The RegionAgent is replaced by another one, which knows what the file says and asks for nothing yet."""
        made = ConfigWriter(self.serve, self._folder)  # type: ignore[arg-type]
        self.keeper = ConfigKeeper(
            made,
            now_s=lambda: self.now_s,
            sleep=self.sleep,
            is_idle=lambda app: self.idle,
            on_revision=self.revisions.append,
            on_put_back=self.put_back.append,
            preemption=Preemption(
                made, now_s=lambda: self.now_s, resources=lambda: self.resources, on_decision=self.decided
            ),
        )
        self.keeper.configure({**user_config(self._began), "top": TOP})

    def decided(self, decision: Decision) -> None:
        self.decisions.append(decision)

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept_s += seconds
        self.on_sleep()

    @property
    def engines(self) -> list[str]:
        return sorted(name for name in self.serve.apps if "--" in name)


async def test_a_foreign_change_is_told_for_a_minute(fleet: Path) -> None:
    stage = Stage(start(fleet))
    await stage.keeper.turn()
    assert (stage.revisions, stage.keeper.told()) == ([""], "")
    del stage.serve.apps["grix"]
    await stage.keeper.turn()
    assert stage.put_back == [1]
    assert stage.keeper.told() == "a foreign change of the Serve config was put back: grix"
    assert "grix" in stage.serve.apps
    stage.now_s += 60.1
    assert stage.keeper.told() == ""


async def test_documents_without_another_engine_are_put_once(fleet: Path) -> None:
    stage = Stage(start(fleet))
    stage.keeper.want("r1", documents(fleet, ("gpuHourUsd: 1,", "gpuHourUsd: 2,")))
    await stage.keeper.turn()
    assert stage.revisions == ["", "r1"]
    assert len(stage.serve.puts) == 1
    router = stage.serve.apps["grix"]["deployments"][0]
    assert router["user_config"]["region"]["gpuHourUsd"] == 2.0
    await stage.keeper.turn()
    assert len(stage.serve.puts) == 1


async def test_another_engine_starts_first_and_the_old_one_leaves_when_it_is_idle(fleet: Path) -> None:
    stage = Stage(start(fleet))
    (old,) = stage.engines
    stage.keeper.want("r2", documents(fleet, ("maxModelLen: 4096", "maxModelLen: 2048")))
    stage.idle = False

    def later() -> None:
        # It becomes idle only a while after the new one runs.
        stage.idle = stage.slept_s > 8.0

    stage.on_sleep = later
    await stage.keeper.turn()
    (new,) = stage.engines
    assert new != old
    assert stage.serve.puts == [
        ["grix", "grix-region", *sorted([old, new])],
        ["grix", "grix-region", *sorted([old, new])],
        ["grix", "grix-region", new],
    ]
    assert stage.slept_s >= 8.0 + IDLE_S
    assert stage.revisions == ["", "r2"]


async def test_an_old_engine_that_is_never_idle_leaves_after_the_longest_request(fleet: Path) -> None:
    stage = Stage(start(fleet))
    stage.keeper.want("r2", documents(fleet, ("maxModelLen: 4096", "maxModelLen: 2048")))
    stage.idle = False
    await stage.keeper.turn()
    assert len(stage.engines) == 1
    assert 600.0 <= stage.slept_s <= 605.0


async def test_an_engine_that_does_not_start_takes_everything_back_and_is_told(fleet: Path) -> None:
    stage = Stage(start(fleet))
    before = stage.engines
    text = documents(fleet, ("maxModelLen: 4096", "maxModelLen: 2048"))
    stage.keeper.want("r3", text)
    new = next(n for n in by_name(rendered_with(user_config(start(fleet)), text)["applications"]) if "--" in n)
    stage.serve.broken[new] = "trace\nout of memory"
    await stage.keeper.turn()
    assert stage.engines == before
    assert stage.revisions == [""]
    assert stage.keeper.told() == f"revision r3 is refused: {new} is DEPLOY_FAILED: out of memory{ONCE}"
    await stage.keeper.turn()
    assert len(stage.serve.puts) == 2


SMALLER = ("maxModelLen: 4096", "maxModelLen: 2048")


class Way(Stage):
    """On the way to documents with another engine, which takes its time to start."""

    def __init__(self, fleet: Path, folder: Path) -> None:
        began = start(fleet)
        super().__init__(began, folder)
        self.documents = documents(fleet, SMALLER)
        (self.old,) = self.engines
        apps = by_name(rendered_with(user_config(began), self.documents)["applications"])
        (self.new,) = (name for name in apps if "--" in name)
        self.serve.starting = {self.new}
        self.keeper.want("r2", self.documents)

    @property
    def routed(self) -> list[str]:
        """The engines that Routers name."""
        digests = self.serve.apps["grix"]["deployments"][0]["user_config"]["engines"].values()
        return sorted({name for name in (self.old, self.new) for d in digests if name.endswith(d[:8])})

    async def is_cut_short(self, how: str) -> None:
        """The turn ends while the new engine starts: Serve does not answer, or the RegionAgent ends."""
        if how == "away":
            self.serve.gone_after_put = True
            with pytest.raises(ServeRestError):
                await self.keeper.turn()
            self.serve.away = False
            return

        def end() -> None:
            raise asyncio.CancelledError

        self.on_sleep = end
        with pytest.raises(asyncio.CancelledError):
            await self.keeper.turn()
        self.on_sleep = lambda: None
        self.restart()
        self.keeper.want("r2", self.documents)


@pytest.mark.parametrize("how", ["away", "restart"])
async def test_routers_go_to_an_engine_that_runs_however_the_way_there_was_cut_short(
    fleet: Path, tmp_path: Path, how: str
) -> None:
    way = Way(fleet, tmp_path)
    await way.is_cut_short(how)
    assert (way.engines, way.routed) == (sorted([way.old, way.new]), [way.old])
    seen: list[tuple[bool, list[str]]] = []

    def later() -> None:
        seen.append((way.new in way.serve.starting, way.routed))
        if len(seen) == 5:
            way.serve.starting.clear()

    way.on_sleep = later
    await way.keeper.turn()
    assert seen[:5] == [(True, [way.old])] * 5
    assert (way.engines, way.routed, way.revisions[-1]) == ([way.new], [way.new], "r2")


@pytest.mark.parametrize("how", ["away", "restart"])
async def test_a_way_that_was_cut_short_and_fails_goes_back_to_what_ran_before_it(
    fleet: Path, tmp_path: Path, how: str
) -> None:
    way = Way(fleet, tmp_path)
    await way.is_cut_short(how)
    way.serve.broken[way.new] = "out of memory"
    await way.keeper.turn()
    assert (way.engines, way.routed) == ([way.old], [way.old])
    assert way.keeper.told() == f"revision r2 is refused: {way.new} is DEPLOY_FAILED: out of memory{ONCE}"


async def test_a_way_that_was_cut_short_after_the_routers_does_not_take_them_back(fleet: Path, tmp_path: Path) -> None:
    way = Way(fleet, tmp_path)
    way.serve.starting.clear()
    put_config = way.serve.put_config

    def put(config: dict[str, Any]) -> None:
        put_config(config)
        if way.routed == [way.new]:
            way.serve.put_config = put_config  # type: ignore[method-assign]
            raise asyncio.CancelledError

    way.serve.put_config = put  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await way.keeper.turn()
    way.restart()
    way.keeper.want("r2", way.documents)
    way.on_sleep = lambda: pytest.fail("Routers went back") if way.routed != [way.new] else None
    await way.keeper.turn()
    assert (way.engines, way.revisions[-1]) == ([way.new], "r2")


async def test_an_old_engine_leaves_though_the_region_agent_was_replaced_meanwhile(fleet: Path, tmp_path: Path) -> None:
    way = Way(fleet, tmp_path)
    way.serve.starting.clear()

    def end() -> None:
        if way.revisions[-1] == "r2":
            raise asyncio.CancelledError

    way.on_sleep = end
    with pytest.raises(asyncio.CancelledError):
        await way.keeper.turn()
    assert way.engines == sorted([way.old, way.new])
    way.restart()
    way.on_sleep = lambda: None
    way.keeper.want("r2", way.documents)
    await way.keeper.turn()
    assert (way.engines, way.revisions[-1], way.keeper.told()) == ([way.new], "r2", "")


async def test_who_goes_back_to_the_old_documents_on_the_way_has_the_old_state_again(
    fleet: Path, tmp_path: Path
) -> None:
    way = Way(fleet, tmp_path)
    await way.is_cut_short("restart")
    way.keeper.want("", documents(fleet))
    await way.keeper.turn()
    assert (way.engines, way.routed) == ([way.old], [way.old])


async def test_a_revision_that_was_refused_is_tried_again_some_time_later(fleet: Path, tmp_path: Path) -> None:
    way = Way(fleet, tmp_path)
    way.serve.broken[way.new] = "out of memory"
    await way.keeper.turn()
    puts = len(way.serve.puts)
    way.serve.broken.clear()
    way.serve.starting.clear()
    way.now_s += REFUSED_S - 1.0
    await way.keeper.turn()
    assert (len(way.serve.puts), way.revisions[-1]) == (puts, "")
    way.now_s += 1.0
    await way.keeper.turn()
    assert (way.engines, way.revisions[-1], way.keeper.told()) == ([way.new], "r2", "")


async def test_an_engine_that_never_starts_is_started_ever_more_seldom_until_the_documents_change(
    fleet: Path, tmp_path: Path
) -> None:
    way = Way(fleet, tmp_path)
    way.serve.broken[way.new] = "out of memory"
    began_s: list[float] = []
    for _ in range(500):
        puts = len(way.serve.puts)
        await way.keeper.turn()
        if len(way.serve.puts) > puts:
            began_s.append(way.now_s)
        way.now_s += LOOK_S
    between_s = [b - a for a, b in pairwise(began_s)]
    assert [round(s / REFUSED_S) for s in between_s] == [1, 2, 4, 8]
    assert (way.engines, way.keeper.refused) == ([way.old], "r2")
    assert way.keeper.told().endswith("out of memory; starts in vain: 5, the next 960 s after the last")
    # Other documents are tried at once.
    way.serve.broken.clear()
    way.serve.starting.clear()
    way.keeper.want("r3", way.documents)
    await way.keeper.turn()
    assert (way.engines, way.revisions[-1], way.keeper.refused) == ([way.new], "r3", "")


async def test_a_refused_revision_is_left_alone_by_the_next_region_agent_too(fleet: Path, tmp_path: Path) -> None:
    way = Way(fleet, tmp_path)
    way.serve.broken[way.new] = "out of memory"
    for _ in range(3):
        await way.keeper.turn()
        way.now_s += 1000.0
    way.restart()
    way.keeper.want("r2", way.documents)
    puts, told = len(way.serve.puts), f"{way.new} is DEPLOY_FAILED: out of memory; starts in vain: 3, the next 240 s"
    await way.keeper.turn()
    assert (way.keeper.refused, way.keeper.told()) == ("r2", f"revision r2 is refused: {told} after the last")
    way.now_s += 4 * REFUSED_S - 1.0
    await way.keeper.turn()
    assert len(way.serve.puts) == puts
    # It comes into force, and then nobody remembers that it did not.
    way.serve.broken.clear()
    way.serve.starting.clear()
    way.now_s += 1.0
    await way.keeper.turn()
    assert (way.engines, way.keeper.refused) == ([way.new], "")
    way.restart()
    way.keeper.want("r2", way.documents)
    await way.keeper.turn()
    assert way.keeper.refused == ""


async def test_a_revision_is_remembered_as_refused_though_the_way_back_is_cut_short(
    fleet: Path, tmp_path: Path
) -> None:
    way = Way(fleet, tmp_path)
    way.serve.broken[way.new] = "out of memory"
    put_config = way.serve.put_config

    def put(config: dict[str, Any]) -> None:
        if way.new not in {app["name"] for app in config["applications"]}:
            way.serve.put_config = put_config  # type: ignore[method-assign]
            raise ServeRestError("no answer")
        put_config(config)

    way.serve.put_config = put  # type: ignore[method-assign]
    with pytest.raises(ServeRestError):
        await way.keeper.turn()
    await way.keeper.turn()
    assert (way.engines, way.keeper.refused) == ([way.old], "r2")
    assert way.keeper.told().endswith(ONCE)


async def test_a_revision_whose_config_serve_refuses_is_refused_and_not_put_again_and_again(
    fleet: Path, tmp_path: Path
) -> None:
    way = Way(fleet, tmp_path)
    put_config, refused_s = way.serve.put_config, list[float]()

    def put(config: dict[str, Any]) -> None:
        if way.new in {app["name"] for app in config["applications"]}:
            refused_s.append(way.now_s)
            raise ServeRestError("PUT: 400 no such field", 400)
        put_config(config)

    way.serve.put_config = put  # type: ignore[method-assign]
    for _ in range(100):
        await way.keeper.turn()
        way.now_s += LOOK_S
    assert [round((b - a) / REFUSED_S) for a, b in pairwise(refused_s)] == [1, 2]
    assert (way.engines, way.routed, way.keeper.refused) == ([way.old], [way.old], "r2")
    assert way.keeper.told().startswith("revision r2 is refused: PUT: 400 no such field; starts in vain: 3, ")


async def test_a_foreign_change_is_put_back_while_an_engine_starts(fleet: Path, tmp_path: Path) -> None:
    way = Way(fleet, tmp_path)

    def meddle() -> None:
        if way.slept_s == 3.0:
            way.serve.apps["grix"]["args"] = "theirs"
        if way.slept_s == 5.0:
            assert "theirs" not in way.serve.apps["grix"].values()
            way.serve.starting.clear()

    way.on_sleep = meddle
    await way.keeper.turn()
    assert (way.put_back, way.engines) == ([1], [way.new])


async def test_documents_that_start_nothing_are_looked_at_again_each_minute(fleet: Path) -> None:
    stage = Stage(start(fleet))
    stage.keeper.want("r4", "[]")
    said = set()
    for _ in range(4):
        await stage.keeper.turn()
        said.add((stage.keeper.told(), stage.keeper._is_refused()))
        stage.now_s += REFUSED_S
        assert not stage.keeper._is_refused()
    assert len(said) == 1 and "starts in vain" not in stage.keeper.told()


@pytest.mark.parametrize(("written", "limit_s"), [("", 1800.0), ("timeouts: {start: 5m}\n  ", 300.0)])
async def test_rte_33_an_engine_has_its_own_time_to_start_and_is_told_as_starting(
    fleet: Path, tmp_path: Path, written: str, limit_s: float
) -> None:
    way = Way(fleet, tmp_path)
    changes = (SMALLER, ("engine: {", f"{written}engine: {{"))
    way.keeper.want("r3", documents(fleet, *changes))
    told: set[str] = set()
    way.on_sleep = lambda: told.add(way.keeper.told())
    await way.keeper.turn()
    assert way.keeper.told() == f"revision r3 is refused: {way.new} not running after {limit_s:.0f} s{ONCE}"
    assert limit_s < way.slept_s <= limit_s + 5.0
    assert f"revision r3: step 1 of 3: starting {way.new}" in told
    assert (way.engines, way.routed) == ([way.old], [way.old])


@pytest.mark.parametrize("text", ["[]", "{}", "no json", '[{"kind": "Tenant"}]'])
async def test_documents_that_are_none_change_nothing(fleet: Path, text: str) -> None:
    stage = Stage(start(fleet))
    stage.keeper.want("r4", text)
    await stage.keeper.turn()
    assert stage.serve.puts == []
    assert stage.keeper.told().startswith("revision r4 is refused: ")


async def test_a_dashboard_that_is_away_is_asked_again_and_the_way_goes_on(fleet: Path) -> None:
    stage = Stage(start(fleet))
    await stage.keeper.turn()
    stage.serve.away = True
    stage.keeper.want("r5", documents(fleet, ("gpuHourUsd: 1,", "gpuHourUsd: 2,")))
    with pytest.raises(ServeRestError):
        await stage.keeper.turn()
    stage.serve.away = False
    await stage.keeper.turn()
    assert stage.revisions == ["", "r5"]


async def test_room_is_looked_for_while_an_engine_starts_and_while_another_ends(fleet: Path, tmp_path: Path) -> None:
    way = Way(fleet, tmp_path)
    way.resources = {"CPU": 4.0}
    way.idle = False

    def later() -> None:
        way.idle = way.slept_s > 12.0
        if way.slept_s > 5.0:
            way.serve.starting = set()

    way.on_sleep = later
    way.keeper.want("r2", way.documents)
    await way.keeper.turn()
    assert way.engines == [way.new]
    assert len(way.decisions) == 1 + way.slept_s > 12


async def test_a_fault_of_ours_does_not_end_the_keeper(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(start(fleet))
    monkeypatch.setattr(config_keeper, "LOOK_S", 0.0)
    monkeypatch.setattr(stage.serve, "details", lambda: {"applications": 1})
    task = asyncio.create_task(stage.keeper.run())
    try:
        await asyncio.sleep(0.05)
        assert not task.done()
        monkeypatch.undo()
        async with asyncio.timeout(5):
            while stage.revisions != [""]:
                await asyncio.sleep(0.01)
    finally:
        task.cancel()


async def test_new_documents_wake_the_keeper(fleet: Path) -> None:
    stage = Stage(start(fleet))
    task = asyncio.create_task(stage.keeper.run())
    try:
        async with asyncio.timeout(5):
            while stage.revisions != [""]:
                await asyncio.sleep(0.01)
            stage.keeper.want("r6", documents(fleet, ("gpuHourUsd: 1,", "gpuHourUsd: 2,")))
            while stage.revisions != ["", "r6"]:
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
