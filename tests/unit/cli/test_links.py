"""The lines of a federation on one machine: who dials whom where, and that nothing of them stays."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from cluster_configs.bundle import Config
from cluster_configs.load import load_paths, local_paths
from serve_app.cli import links, regions
from serve_app.cli.say import Failed
from serve_app.cli.start_region import Wanted
from serve_app.cli.state import Home, tenant_document, write_private
from serve_app.cli.up import _names

FEDERATION = """\
apiVersion: grix.io/v1
kind: Federation
metadata: {name: two}
spec:
  coordinator: {address: "HOST:17443"}
  regions:
    - {name: a, cloud: a, location: x, gpuHourUsd: 1, role: primary, residency: [sg], gateway: "HOST:17543"}
    - {name: b, cloud: b, location: y, gpuHourUsd: 1, role: secondary, residency: [eu], gateway: "HOST:17643"}
    - {name: edge, cloud: e, location: z, gpuHourUsd: 1, role: edge, acceptsSpill: false}
"""
POLICY = """\
---
apiVersion: grix.io/v1
kind: AgentPolicy
metadata: {name: qwen-chat}
spec:
  version: "1"
  duty: chat
  model: tiny-qwen
  storage: {modelPath: "embedded:tiny-qwen"}
  engine: {kvCacheMemory: 128Mi}
---
apiVersion: grix.io/v1
kind: RouteTable
metadata: {name: default}
spec:
  languages: {tokenRatio: {en: 1}}
  rules: [{name: all, match: {}, target: {agent: qwen-chat, langTemplate: en}}]
"""


def config_of(folder: Path, host: str = "127.0.0.1", **renamed: str) -> Config:
    text = FEDERATION.replace("HOST", host)
    for old, new in renamed.items():
        text = text.replace(f"name: {old},", f"name: {new},")
    file = folder / "set.yaml"
    file.write_text(text + POLICY)
    return load_paths([file, local_paths()[-1]], {}, [tenant_document("k")])


NAMES = [
    *("*>a", "b>a", "edge>a"),
    *("*>b", "a>b", "edge>b"),
    *("*>coordinator", "a>coordinator", "b>coordinator", "edge>coordinator"),
]


def test_a_line_for_everybody_who_dials_and_none_to_whom_nobody_dials(tmp_path: Path) -> None:
    made = links.wanted(config_of(tmp_path), {"b>a": 4711})
    assert list(made) == NAMES
    assert made["*>b"] == {"listen": ["127.0.0.1:17643", "127.0.0.1:0"], "target": "127.0.0.1:1"}
    assert made["a>b"]["listen"] == ["127.0.0.1:0"]
    assert made["b>a"]["listen"] == ["127.0.0.1:4711", "127.0.0.1:0"]


def test_each_part_sees_the_others_at_the_end_of_its_own_lines(tmp_path: Path) -> None:
    record = {"ports": {name: 100 + i for i, name in enumerate(NAMES)}}
    config = config_of(tmp_path)
    spec = links.seen_by(config, record, "b", "127.0.0.1:5").federation.spec
    told = {r.name: (r.gateway, r.gateway_listen) for r in spec.regions}
    assert told == {"a": ("127.0.0.1:101", None), "b": ("127.0.0.1:103", "127.0.0.1:5"), "edge": (None, None)}
    assert spec.coordinator is not None
    assert (spec.coordinator.address, spec.coordinator.listen) == ("127.0.0.1:108", None)
    spec = links.seen_by(config, record, links.COORDINATOR, "127.0.0.1:6").federation.spec
    assert [r.gateway for r in spec.regions] == ["127.0.0.1:100", "127.0.0.1:103", None]
    assert spec.coordinator is not None
    assert (spec.coordinator.address, spec.coordinator.listen) == ("127.0.0.1:106", "127.0.0.1:6")
    assert links.address_of(record, "a") == "127.0.0.1:100"
    assert links.around(record, "a") == ["*>a", "b>a", "edge>a", "a>b", "a>coordinator"]


def test_only_a_federation_on_loopback_is_joined_by_a_relay(tmp_path: Path) -> None:
    assert links.on_this_machine(config_of(tmp_path))
    assert links.on_this_machine(config_of(tmp_path, "localhost"))
    assert not links.on_this_machine(config_of(tmp_path, "10.0.0.7"))


@pytest.mark.parametrize("name", ["control", "pki", "store", "coordinator"])
def test_a_region_may_not_be_called_like_a_part_of_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(Failed, match=f"region {name}: grix up has this name for itself") as refused:
        links.check_names(config_of(tmp_path, b=name))
    assert refused.value.code == 2


def test_what_is_brought_up(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    assert _names(config, Wanted()) == ["control", "a", "b", "edge"]
    assert _names(config, Wanted(region="b")) == ["b"]
    assert _names(config, Wanted(control=True)) == ["control"]
    with pytest.raises(Failed, match="--control: --region is given too"):
        _names(config, Wanted(control=True, region="a"))
    far = config_of(tmp_path, "10.0.0.7")
    assert _names(far, Wanted(region="b")) == ["b"]
    with pytest.raises(Failed, match="addresses are of several machines; allowed here: --region a or --region b"):
        _names(far, Wanted())


def test_the_relay_comes_leads_and_goes(tmp_path: Path) -> None:
    home, config = Home(tmp_path / ".grix"), config_of(tmp_path)
    try:
        record = links.begin(config, home)
        assert home.read()["links"] == record and regions.is_alive(record)
        assert list(record["ports"]) == NAMES and links.covers(config, record)
        with socket.create_server(("127.0.0.1", 0)) as gateway:
            gateway.settimeout(10)
            links.lead(record, "b", f"127.0.0.1:{gateway.getsockname()[1]}")
            for name in ("a>b", "*>b", "edge>b"):
                with socket.create_connection(("127.0.0.1", record["ports"][name])) as near:
                    far, _ = gateway.accept()
                    near.sendall(b"x")
                    assert far.recv(1) == b"x"
                    far.close()
            # A relay that died comes back where everybody dials it, and leads to who is there.
            home.remember({"name": "b", "listen": f"127.0.0.1:{gateway.getsockname()[1]}"})
            assert links.begin(config, home)["ports"] == record["ports"]
            with socket.create_connection(("127.0.0.1", record["ports"]["a>b"])):
                gateway.accept()[0].close()
        assert not Path(record["temp_dir"]).exists()
        told = links.set_line(home, "a", "b", {"delay_ms": 20.0, "flow": "stalled"})
        assert (told["a>b"]["flow"], told["a>b"]["delay_ms"], told["b>a"]["flow"]) == ("stalled", 20.0, "open")
        assert "a>b" in links.text_of(told) and "stalled" in links.text_of(told)
        with pytest.raises(Failed, match="there is no link a>c") as refused:
            links.set_line(home, "a", "c", {"flow": "cut"})
        assert refused.value.code == 2
        home.forget("b")
    finally:
        write_private(home.pki / "ca.pem", "x")
        links.end(home)
    assert not home.root.exists()
    with pytest.raises(Failed, match="no federation with lines between its parts"):
        links.set_line(home, "a", "b", {})
    with pytest.raises(Failed, match="the relay between regions does not answer"):
        links.change(record, {})
