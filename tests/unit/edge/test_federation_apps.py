"""What a coordinator adds: app grix-region with all that its parts decide from, and the control cluster's config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cluster_configs.bundle import Config
from cluster_configs.fleet import fleet_facts
from cluster_configs.load import load_paths
from cluster_configs.table import table_of
from serve_app.core.region_facts import RegionFacts
from serve_app.core.snapshots import local_snapshot
from serve_app.edge.serve_config import render, render_control, use_redis
from tests.region_fakes import FEDERATION


def federated(folder: Path, *changes: tuple[str, str]) -> Config:
    text = FEDERATION
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "fleet.yaml").write_text(text)
    return load_paths([folder / "fleet.yaml"], {})


def region_app(config: Config, name: str = "cloud-a", **options: Any) -> dict[str, Any]:
    made = render(config, name, http_host="127.0.0.1", http_port=8000, **options)
    assert json.loads(json.dumps(made)) == made
    app: dict[str, Any] = made["applications"][-1]
    return app


def parts(app: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    gateway, agent = app["deployments"]
    return gateway, agent


def test_a_region_of_a_federation_has_one_more_app(tmp_path: Path) -> None:
    app = region_app(federated(tmp_path))
    gateway, agent = parts(app)
    assert {k: v for k, v in app.items() if k != "deployments"} == {
        "name": "grix-region",
        "route_prefix": None,
        "import_path": "deployments.app:build_region",
        "args": {},
    }
    gateway.pop("user_config")
    agent.pop("user_config")
    assert gateway == {
        "name": "RegionGateway",
        "num_replicas": 1,
        "max_replicas_per_node": 1,
        "max_ongoing_requests": 10_000,
        "graceful_shutdown_timeout_s": 600.0,
        "health_check_period_s": 2.0,
        "ray_actor_options": {"num_cpus": 0.1},
    }
    assert agent == {
        "name": "RegionAgent",
        "num_replicas": 1,
        "max_ongoing_requests": 10_000,
        "graceful_shutdown_timeout_s": 5.0,
        "health_check_period_s": 2.0,
        "ray_actor_options": {"num_cpus": 0.1},
    }


def test_routers_know_which_other_regions_take_tasks_of_theirs(tmp_path: Path) -> None:
    def known(*changes: tuple[str, str]) -> dict[str, frozenset[str]]:
        user_config = parts(region_app(federated(tmp_path, *changes)))[0]["user_config"]
        return dict(table_of(user_config).task_regions)

    tasks = ("residency: [eu],", "residency: [eu], tasks: {light: {agent: qwen-chat}},")
    # Not those that take nothing of others, nor this one itself.
    edge = ("acceptsSpill: false}", "acceptsSpill: false, tasks: {light: {agent: qwen-chat}}}")
    own = ("residency: [sg, jp],", "residency: [sg, jp], tasks: {light: {agent: qwen-chat}},")
    assert known() == known(edge, own) == {}
    assert known(tasks, edge, own) == {"cloud-b": frozenset({"eu"})}


def test_without_a_coordinator_there_is_none(tmp_path: Path) -> None:
    alone = federated(tmp_path, ('  coordinator: {address: "127.0.0.1:7443"}\n', ""), (FEDERATION_B, ""))
    apps = render(alone, "cloud-a", http_host="127.0.0.1", http_port=8000)["applications"]
    assert [a["name"].partition("--")[0] for a in apps] == ["grix", "qwen-chat"]
    with pytest.raises(
        LookupError, match=r"^control: federation two has no coordinator; write spec.coordinator.address$"
    ):
        render_control(alone)


def test_the_gateway_decides_as_its_router_does_and_knows_its_peers(tmp_path: Path) -> None:
    config = federated(tmp_path)
    made = render(config, "cloud-a", http_host="127.0.0.1", http_port=8000)
    router = made["applications"][0]["deployments"][0]["user_config"]
    gateway = parts(made["applications"][-1])[0]["user_config"]
    assert {k: gateway[k] for k in router} == router
    assert {k: gateway[k] for k in gateway.keys() - router.keys() - {"federation"}} == {
        "pkiFolder": "/etc/grix/pki/region/cloud-a",
        "listen": "127.0.0.1:7543",
    }
    assert gateway["federation"]["name"] == "two"
    assert [r["name"] for r in gateway["federation"]["regions"]] == ["cloud-a", "cloud-b", "edge-1"]
    assert gateway["federation"]["health"]["peerSilence"] == "1s"


def test_a_region_that_nobody_dials_listens_nowhere(tmp_path: Path) -> None:
    assert parts(region_app(federated(tmp_path), "edge-1"))[0]["user_config"]["listen"] is None


def test_certificates_are_in_the_folder_of_the_identity(tmp_path: Path) -> None:
    config = federated(tmp_path, ("  regions:\n", "  pki: {folder: /srv/pki}\n  regions:\n"))
    for part in parts(region_app(config, "cloud-b")):
        assert part["user_config"]["pkiFolder"] == "/srv/pki/region/cloud-b"
    control = render_control(config)["applications"][0]["deployments"][0]
    assert control["user_config"]["pkiFolder"] == "/srv/pki/coordinator"


def test_the_region_agent_has_what_it_takes_to_render_the_same_again(tmp_path: Path) -> None:
    agent = parts(region_app(federated(tmp_path), open_access=True))[1]["user_config"]
    assert (agent["coordinator"], agent["again"]) == (
        "127.0.0.1:7443",
        {"http_host": "127.0.0.1", "http_port": 8000, "model": None, "open_access": True},
    )
    assert agent["federationDocument"]["kind"] == "Federation"


def test_the_facts_of_the_fleet_come_back_out_of_it(tmp_path: Path) -> None:
    facts = fleet_facts(parts(region_app(federated(tmp_path)))[1]["user_config"])
    assert (facts.me, sorted(facts.agents), facts.peer_silence_s, facts.plan_stale_s) == (
        "cloud-a",
        ["qwen-chat", "qwen-doc"],
        1.0,
        3.0,
    )
    assert facts.stale_s == 3.0
    slower = federated(tmp_path, ("  regions:\n", "  health: {staleAfter: 5s}\n  regions:\n"))
    assert fleet_facts(parts(region_app(slower))[1]["user_config"]).stale_s == 5.0
    assert facts.agents["qwen-doc"].app == facts.agents["qwen-chat"].app
    assert facts.regions == {
        "cloud-a": RegionFacts("cloud-a", "cloud-a", frozenset({"sg", "jp"}), 1.0),
        "cloud-b": RegionFacts("cloud-b", "cloud-b", frozenset({"eu"}), 1.15),
        "edge-1": RegionFacts("edge-1", "edge", frozenset(), 0.05, accepts_spill=False),
    }


def test_the_regions_own_redis_is_told_to_all_that_need_it(tmp_path: Path) -> None:
    made = render(federated(tmp_path), "cloud-a", http_host="127.0.0.1", http_port=8000)
    use_redis(made, "redis://127.0.0.1:7000", "/r/password", log=False)
    redis = {"url": "redis://127.0.0.1:7000", "passwordFile": "/r/password"}
    gateway, agent = parts(made["applications"][-1])
    router = made["applications"][0]["deployments"][0]
    assert [p["user_config"]["region"]["redis"] for p in (router, gateway, agent)] == [redis] * 3
    assert agent["user_config"]["again"]["redis"] == {**redis, "log": False}


def test_the_control_cluster_runs_the_coordinator_and_no_http(tmp_path: Path) -> None:
    made = render_control(federated(tmp_path), metrics="127.0.0.1:9100", model="tiny-qwen")
    (app,) = made["applications"]
    (deployment,) = app["deployments"]
    assert (made["proxy_location"], app["name"], app["import_path"]) == (
        "Disabled",
        "grix-control",
        "deployments.app:build_control",
    )
    config = deployment["user_config"]
    assert (deployment["name"], config["metrics"], config["model"]) == (
        "GlobalCoordinator",
        "127.0.0.1:9100",
        "tiny-qwen",
    )
    assert sorted({d["kind"] for d in config["documents"]}) == [
        "AgentPolicy",
        "Federation",
        "PromptTemplate",
        "RouteTable",
        "Tenant",
    ]


#: The regions besides the first.
FEDERATION_B = FEDERATION[FEDERATION.index("    - {name: cloud-b") : FEDERATION.index("---")]


def test_every_region_is_an_entry_to_the_agents_of_all_regions(tmp_path: Path) -> None:
    only_b = ("  minReplicas: 1\n  maxReplicas: 1\n---", "  minReplicas: 1\n  clusterSelector: {cloud: [cloud-b]}\n---")
    own = AGENT.replace("qwen-chat", "edge-chat")
    config = federated(tmp_path, only_b, ("---\napiVersion: grix.io/v1\nkind: RouteTable", own + ROUTES))
    router = render(config, "edge-1", http_host="127.0.0.1", http_port=8000)["applications"][0]["deployments"][0]
    table = table_of(router["user_config"])
    assert (sorted(table.agents), sorted(table.own_agents)) == (["edge-chat", "qwen-chat", "qwen-doc"], ["edge-chat"])
    away = table.agents["qwen-chat"]
    assert (away.app, away.release, away.max_model_len) == ("", "", 4096)
    assert [rule.agent for rule in table.rules] == ["qwen-chat"]
    assert [t.agent for t in local_snapshot(table, 1).targets] == ["edge-chat"]


ROUTES = "---\napiVersion: grix.io/v1\nkind: RouteTable"
AGENT = FEDERATION[FEDERATION.index("---\napiVersion: grix.io/v1\nkind: AgentPolicy\nmetadata: {name: qwen-chat}") :]
AGENT = AGENT[: AGENT.index("---", 3)]
