"""What a region is refused for before anything of it is started."""

from __future__ import annotations

from typing import Any

import pytest

from cluster_configs.schema import Region
from serve_app.cli.say import BAD_USAGE, Failed
from serve_app.cli.start_region import check_exposure, check_nodes
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


def refusal(gpu: dict[str, Any] | None, resources: dict[str, float], labels: dict[str, str] | None = None) -> str:
    """What a region is told whose one node has these, and whose chat agent wants this GPU in cloud-a and cloud-b."""
    some = documents()
    (owner,) = (d for d in some if d["kind"] == "AgentPolicy" and "engineOf" not in d["spec"])
    owner["spec"] |= {"clusterSelector": {"cloud": ["cloud-a", "cloud-b"]}}
    if gpu is not None:
        owner["spec"] |= {"gpu": gpu, "engine": {"maxModelLen": 4096}}
    config = config_of(some)
    regions = {r.name: r for r in config.federation.spec.regions}
    node = {"NodeID": "n", "NodeName": "box", "Alive": True, "Resources": resources, "Labels": labels or {}}
    # A region that runs none of it is not asked for anything.
    check_nodes(config, regions["edge-1"], [node | {"Resources": {}}])
    try:
        check_nodes(config, regions["cloud-a"], [node])
    except Failed as error:
        assert error.code == BAD_USAGE
        return str(error)
    return ""


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
