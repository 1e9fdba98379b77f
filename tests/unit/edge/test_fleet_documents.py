"""What documents ask of the fleet: needs of engines, and the very releases that regions will compute for themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster_configs.load import load_paths, local_paths
from cluster_configs.table import table_of
from serve_app.core.fleet_events import KnownRegion
from serve_app.core.nodes import Needs
from serve_app.edge.fleet_documents import begun_with, config_of, expected, parsed, revision_of, wanted_of
from serve_app.edge.model_files import embedded
from serve_app.edge.model_store import address_of, open_store, push
from serve_app.edge.serve_config import render
from serve_app.edge.store_types import Limits
from tests.control import documents


def test_expected_releases_are_those_that_regions_render() -> None:
    config = load_paths(local_paths(), {})
    found = expected(config)
    for region in config.federation.spec.regions:
        rendered = render(config, region.name, http_host="127.0.0.1", http_port=8000)
        (router,) = [d for a in rendered["applications"] for d in a["deployments"] if d["name"] == "Router"]
        table = table_of(router["user_config"])
        mine = {agent: release for (name, agent), release in found.items() if name == region.name}
        assert mine == {name: agent.release for name, agent in table.agents.items()}


def test_of_a_model_that_is_not_here_nothing_is_expected(tmp_path: Path) -> None:
    some = documents()
    owner = next(d for d in some if d["kind"] == "AgentPolicy" and "engineOf" not in d["spec"])
    owner["spec"]["storage"] = {"modelPath": f"file://{tmp_path}/none"}
    config = config_of(some)
    assert expected(config) == {}
    # What replaces every model is here.
    assert expected(config, "tiny-qwen") == expected(config_of(documents()))


def test_weights_in_a_store_are_known_by_what_its_manifest_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIX_CACHE", str(tmp_path / "cache"))
    address = address_of(f"file://{tmp_path}/store/v1")
    push(embedded("tiny-qwen"), address, open_store(address, Limits()), Limits(), lambda said: None)
    some = documents()
    owner = next(d for d in some if d["kind"] == "AgentPolicy" and "engineOf" not in d["spec"])
    owner["spec"]["storage"] = {"modelPath": address.uri}
    assert expected(config_of(some)) == expected(config_of(documents())) != {}


def test_needs_are_those_of_engines_and_not_of_who_borrows_one() -> None:
    some = documents()
    owner = next(d for d in some if d["kind"] == "AgentPolicy" and "engineOf" not in d["spec"])
    name = owner["metadata"]["name"]
    assert wanted_of(config_of(some)).needs == (Needs(name, ("cloud-a", "cloud-b", "edge-1"), 1.0, 128 << 20),)
    owner["spec"] |= {"gpu": {"vramRequired": "40Gi"}, "engine": {"tensorParallelSize": 2, "maxModelLen": 4096}}
    owner["spec"] |= {"clusterSelector": {"cloud": ["cloud-a", "cloud-b"]}}
    found = wanted_of(config_of(some)).needs
    assert found == (Needs(name, ("cloud-a", "cloud-b"), gpus=2, vram_per_gpu_bytes=40 << 30),)
    owner["spec"] |= {"gpu": {"vramRequired": "20Gi", "migSlice": "3g.40gb"}, "engine": {"maxModelLen": 4096}}
    (sliced,) = wanted_of(config_of(some)).needs
    assert (sliced.gpus, sliced.mig_slice) == (1, "3g.40gb")
    owner["spec"] |= {"gpu": {"vramRequired": "20Gi", "share": True, "fraction": 0.25}}
    owner["spec"] |= {"engine": {"maxModelLen": 4096, "gpuMemoryUtilization": 0.2}}
    (shared,) = wanted_of(config_of(some)).needs
    assert (shared.gpus, shared.vram_per_gpu_bytes) == (1, 80 << 30)


def test_a_region_nobody_reaches_takes_no_spill_and_health_is_the_federation_s() -> None:
    some = documents()
    some[0]["spec"]["regions"][0] |= {"acceptsSpill": True, "gateway": "127.0.0.1:7543"}
    wanted = begun_with(config_of(some))
    assert wanted.regions == (KnownRegion("cloud-a"), KnownRegion("cloud-b", False), KnownRegion("edge-1", False))
    assert (wanted.heartbeat_s, wanted.missed_heartbeats, wanted.revision, wanted.documents) == (0.2, 3, "", "")
    assert wanted.silence_s == pytest.approx(0.6)
    assert wanted.needs == wanted_of(config_of(some)).needs != ()


def test_what_is_stored_comes_back_as_the_same_set() -> None:
    config = config_of(documents())
    wanted = wanted_of(config)
    assert wanted_of(parsed(wanted.documents)) == wanted
    assert wanted.revision == revision_of(config)
    other = documents()
    other[0]["spec"]["regions"][0]["gpuHourUsd"] = 2.0
    assert revision_of(config_of(other)) != wanted.revision
