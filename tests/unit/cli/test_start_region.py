"""What a region is refused for before anything of it is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster_configs.schema import Region
from serve_app.cli import clusters, region_redis, start_region
from serve_app.cli import documents as cli_documents
from serve_app.cli.say import BAD_USAGE, Failed, Progress
from serve_app.cli.start_region import Wanted, as_before, check_exposure, check_nodes
from serve_app.cli.state import Home
from serve_app.edge import ray_cluster
from serve_app.edge.fleet_documents import config_of
from tests.control import documents


def region(**http: object) -> Region:
    return Region.model_validate(
        {
            **{"name": "cloud-a", "cloud": "cloud-a", "location": "x", "gpuHourUsd": 1, "role": "primary"},
            **{"residency": ["eu"], "http": http},
        }
    )


def test_fast_is_refused_where_others_reach_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "only_loopback", lambda: False)
    with pytest.raises(Failed) as refused:
        check_exposure(region(profile="fast"))
    assert refused.value.code == BAD_USAGE
    said = str(refused.value)
    assert said.startswith("cloud-a: http.profile fast opens HAProxy's statistics and the Routers on every interface")
    for allowed in ("a network namespace of its own", "http.exposeHaproxyPorts: true", "profile: standard"):
        assert allowed in said


@pytest.mark.parametrize(
    ("loopback_alone", "http"),
    [
        (True, {"profile": "fast"}),
        (False, {"profile": "fast", "exposeHaproxyPorts": True}),
        (False, {"profile": "standard"}),
        (False, {}),
    ],
    ids=["own-network", "written", "standard", "default"],
)
def test_nothing_else_is_refused(
    monkeypatch: pytest.MonkeyPatch, loopback_alone: bool, http: dict[str, object]
) -> None:
    monkeypatch.setattr(ray_cluster, "only_loopback", lambda: loopback_alone)
    check_exposure(region(**http))


def told_and_refused(
    gpu: dict[str, Any] | None, *resources: dict[str, float], labels: dict[str, str] | None = None, **spec: Any
) -> tuple[list[str], str]:
    """What a region is told whose nodes have these, and whose chat agent wants this GPU in cloud-a and cloud-b."""
    some = documents()
    (owner,) = (d for d in some if d["kind"] == "AgentPolicy" and "engineOf" not in d["spec"])
    owner["spec"] |= {"clusterSelector": {"cloud": ["cloud-a", "cloud-b"]}, **spec}
    if gpu is not None:
        owner["spec"] |= {"gpu": gpu, "engine": {"maxModelLen": 4096}}
    config = config_of(some)
    regions = {r.name: r for r in config.federation.spec.regions}
    nodes = [
        {"NodeID": "n", "NodeName": name, "Alive": True, "Resources": has, "Labels": labels or {}}
        for name, has in zip(("box", "box-2"), resources, strict=False)
    ]
    told: list[str] = []
    progress = Progress(lambda text: told.append(text.split(" s  ", 1)[1]), lambda: 0.0)
    # A region that runs none of it is not asked for anything.
    check_nodes(config, regions["edge-1"], [node | {"Resources": {}} for node in nodes], progress)
    try:
        check_nodes(config, regions["cloud-a"], nodes, progress)
    except Failed as error:
        assert error.code == BAD_USAGE
        return told, str(error)
    return told, ""


def refusal(gpu: dict[str, Any] | None, resources: dict[str, float], labels: dict[str, str] | None = None) -> str:
    told, refused = told_and_refused(gpu, resources, labels=labels)
    assert told == []
    return refused


def test_what_the_node_of_a_region_can_carry_is_not_refused() -> None:
    assert refusal(None, {"CPU": 4.0, "memory": 1.0 * (1 << 30)}) == ""
    gpus = {"CPU": 4.0, "GPU": 1.0, "accelerator_type:L4": 1.0}
    assert refusal({"vramRequired": "24Gi"}, gpus) == ""
    # What Ray does not know a label says.
    unknown = {"CPU": 4.0, "GPU": 1.0}
    assert refusal({"vramRequired": "32Gi"}, unknown, {"grix.io/vram-per-gpu": "32Gi"}) == ""


def test_what_it_cannot_carry_is_refused_by_agent_requirement_and_node_though_another_region_could() -> None:
    where = "nearest is node cloud-a/box of cloud-a"
    assert refusal(None, {"CPU": 0.0, "memory": 1.0 * (1 << 30)}) == (
        f"qwen-chat: engine.cpuThreads wants 1, it has 0; {where}"
    )
    assert refusal({"vramRequired": "40Gi"}, {"CPU": 4.0, "GPU": 1.0, "accelerator_type:L4": 1.0}) == (
        f"qwen-chat: gpu.vramRequired wants 40Gi, it has 24Gi; {where}"
    )
    assert refusal({"vramRequired": "40Gi"}, {"CPU": 4.0}) == (
        f"qwen-chat: gpu wants 1, it has 0; {where}\nqwen-chat: gpu.vramRequired wants 40Gi, it has 0Gi; {where}"
    )


LABEL = """to tell its label: RAY_OVERRIDE_LABELS='{"grix.io/vram-per-gpu": "80Gi"}' grix up"""


@pytest.mark.parametrize(
    ("model", "wanted", "has"),
    [("NEW", "40Gi", "0Gi"), ("", "40Gi", "0Gi"), ("A100", "60Gi", "40Gi"), ("V100", "32Gi", "16Gi")],
)
def test_what_its_gpus_may_carry_for_all_that_is_known_is_told_with_the_label_and_not_refused(
    model: str, wanted: str, has: str
) -> None:
    named = {f"accelerator_type:{model}": 1.0} if model else {}
    said = f"cloud-a: qwen-chat: gpu.vramRequired wants {wanted}, it has {has}; nearest is node cloud-a/box of cloud-a"
    gpus = {"CPU": 4.0, "GPU": 1.0, **named}
    assert told_and_refused({"vramRequired": wanted}, gpus) == ([f"{said}, for all that is known; {LABEL}"], "")


def test_the_node_that_may_carry_it_is_told_of_and_not_one_that_cannot() -> None:
    known = {"CPU": 4.0, "GPU": 1.0, "accelerator_type:L4": 1.0}
    told, refused = told_and_refused({"vramRequired": "40Gi"}, known, {"CPU": 4.0, "GPU": 1.0})
    assert refused == "" and [text.partition(",")[0] for text in told] == [
        "cloud-a: qwen-chat: gpu.vramRequired wants 40Gi"
    ]
    assert "it has 0Gi; nearest is node cloud-a/box-2 of cloud-a" in told[0]


def test_what_is_known_to_be_too_small_is_refused() -> None:
    where = "nearest is node cloud-a/box of cloud-a"
    a100 = {"CPU": 4.0, "GPU": 1.0, "accelerator_type:A100": 1.0}
    assert refusal({"vramRequired": "81Gi"}, a100) == (f"qwen-chat: gpu.vramRequired wants 81Gi, it has 80Gi; {where}")
    assert refusal({"vramRequired": "60Gi"}, a100, {"grix.io/vram-per-gpu": "40Gi"}) == (
        f"qwen-chat: gpu.vramRequired wants 60Gi, it has 40Gi; {where}"
    )
    unknown = {"CPU": 4.0, "GPU": 1.0}
    assert refusal({"vramRequired": "40Gi", "migSlice": "3g.40gb"}, unknown) == (
        f"qwen-chat: gpu.migSlice 3g.40gb wants 1, it has 0; {where}"
    )


def test_an_agent_of_which_none_starts_is_told_of_and_not_refused() -> None:
    asleep = {"minReplicas": 0, "maxReplicas": 1}
    rest = "nearest is node cloud-a/box of cloud-a; it has minReplicas: 0, so none starts now"
    assert told_and_refused({"vramRequired": "40Gi"}, {"CPU": 4.0}, **asleep) == (
        [
            f"cloud-a: qwen-chat: {said}; {rest}"
            for said in ("gpu wants 1, it has 0", "gpu.vramRequired wants 40Gi, it has 0Gi")
        ],
        "",
    )


@pytest.mark.parametrize("labels", ['{"grix.io/vram-per-gpu": "80Gi"}', None])
def test_a_region_comes_back_with_its_labels_in_another_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labels: str | None
) -> None:
    """Up to where its head process starts, which is what reads them."""
    home, environments = Home(tmp_path / ".grix"), list[Any]()

    def start(cluster: Any, record: dict[str, Any], home: Home, environment: dict[str, str]) -> None:
        environments.append(environment)
        cluster.temp_dir.rmdir()
        raise Failed("far enough")

    monkeypatch.setattr(clusters, "start", start)
    monkeypatch.setattr(
        cli_documents, "render", lambda *given: {"applications": [{"name": "a", "args": {}, "deployments": []}]}
    )
    monkeypatch.setattr(region_redis, "begin", lambda *given, **more: None)
    monkeypatch.setattr(region_redis, "use", lambda *given: None)

    def started(wanted: Wanted) -> dict[str, Any]:
        with pytest.raises(Failed, match="far enough"):
            clusters.together([start_region.start_region("cloud-a", wanted, home, Progress(lambda _: None))])
        (record,) = home.read()["regions"]
        return dict(record)

    if labels is None:
        monkeypatch.delenv("RAY_OVERRIDE_LABELS", raising=False)
    else:
        monkeypatch.setenv("RAY_OVERRIDE_LABELS", labels)
    record = started(Wanted(region="cloud-a"))
    monkeypatch.setenv("RAY_OVERRIDE_LABELS", '{"of": "another shell"}')
    assert started(as_before(record))["node_labels"] == labels
    assert [environment.get("RAY_OVERRIDE_LABELS") for environment in environments] == [labels, labels]
    assert all("PATH" in environment for environment in environments)
