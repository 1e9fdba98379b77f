"""What a region is refused for before anything of it is started."""

from __future__ import annotations

import pytest

from cluster_configs.schema import Region
from serve_app.cli.say import BAD_USAGE, Failed
from serve_app.cli.start_region import check_exposure
from serve_app.edge import ray_cluster


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
