"""Documents against each other, paths, and what a whole set needs."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster_configs.load import (
    SHIPPED,
    Bundle,
    ConfigError,
    bundle,
    chosen,
    engine_owner,
    from_bundle,
    load_paths,
    local_paths,
    to_documents,
    validate,
)
from cluster_configs.schema import AgentPolicy, Tenant

Check = Callable[..., list[str]]


def _federation(**changes: Any) -> dict[str, Any]:
    region = {"name": "cloud-a", "cloud": "cloud-a", "location": "sea", "gpuHourUsd": 1, "role": "primary"}
    other = {**region, "name": "r2", "cloud": "cloud-b", "role": "secondary", "residency": ["eu"], "gateway": "h:2"}
    spec = {"coordinator": {"address": "h:1"}, "regions": [{**region, "gateway": "h:3"}, other], **changes}
    return {"apiVersion": "grix.io/v1", "kind": "Federation", "metadata": {"name": "f"}, "spec": spec}


def _agent(name: str = "qwen-chat", **changes: Any) -> dict[str, Any]:
    spec = {
        "version": "1",
        "duty": "chat",
        "model": "M",
        "storage": {"modelPath": "smollm2"},
        "engine": {"kvCacheMemory": "1Gi"},
        **changes,
    }
    return {"apiVersion": "grix.io/v1", "kind": "AgentPolicy", "metadata": {"name": name}, "spec": spec}


def _alias(name: str, of: str, **changes: Any) -> dict[str, Any]:
    spec = {"version": "1", "duty": "chat", "engineOf": of, **changes}
    return {"apiVersion": "grix.io/v1", "kind": "AgentPolicy", "metadata": {"name": name}, "spec": spec}


def _confirmed_by(agent: str) -> dict[str, Any]:
    made = _routes()
    made["spec"]["languages"]["confirm"] = agent
    return made


def _routes(*rules: dict[str, Any], **target: Any) -> dict[str, Any]:
    last = {"name": "last", "match": {}, "target": {"agent": "qwen-chat", "langTemplate": "en", **target}}
    spec = {"rules": [*rules, last], "languages": {"tokenRatio": {"en": 1.0}}}
    return {"apiVersion": "grix.io/v1", "kind": "RouteTable", "metadata": {"name": "r"}, "spec": spec}


def _tenant(name: str = "acme", digit: str = "a", **changes: Any) -> dict[str, Any]:
    spec = {"keys": [{"id": "k", "sha256": digit * 64}], "residency": ["any"], **changes}
    return {"apiVersion": "grix.io/v1", "kind": "Tenant", "metadata": {"name": name}, "spec": spec}


def _template(code: str = "en") -> dict[str, Any]:
    spec = {"version": "1", "language": code, "register": "plain", "system": "Be brief."}
    return {"apiVersion": "grix.io/v1", "kind": "PromptTemplate", "metadata": {"name": code}, "spec": spec}


def _faults(*documents: dict[str, Any]) -> list[str]:
    """Faults without the file; the line is the document's position."""
    kinds = {d.get("kind") for d in documents}
    base = [_federation(), _agent(), _routes(), _template()]
    rest = [d for d in base if d["kind"] not in kinds]
    try:
        load_paths([], {}, [*documents, *rest])
    except ConfigError as error:
        return [str(fault).removeprefix("(generated):") for fault in error.faults]
    return []


CASES: list[tuple[list[dict[str, Any]], list[str]]] = [
    ([_agent(), _alias("doc", "qwen-chta")],
     ["2: spec.engineOf: there is no agent 'qwen-chta' (did you mean 'qwen-chat'?); known: doc, qwen-chat"]),
    ([_agent(), _alias("a", "qwen-chat"), _alias("b", "a")],
     ["3: spec.engineOf: 'a' uses the engine of qwen-chat itself; write engineOf: qwen-chat"]),
    ([_agent(), _alias("a", "a")],
     ["2: spec.engineOf: 'a' is this agent itself; allowed: another agent that has an engine"]),
    ([_agent(engine={"kvCacheMemory": "1Gi", "maxModelLen": 4096}), _alias("a", "qwen-chat", maxTokensDefault=4096)],
     ["2: spec.maxTokensDefault: 4096 leaves no room for a prompt in maxModelLen 4096 of qwen-chat; allowed: less than "
      "that"]),
    ([_agent(clusterSelector={"cloud": ["cloud-c"]})],
     ["1: spec.clusterSelector.cloud[0]: there is no cloud 'cloud-c' (did you mean 'cloud-b'?); known: cloud-a, "
      "cloud-b"]),
    ([_agent(clusterSelector={"cloud": ["cloud-a"], "role": ["secondary"]})],
     ["1: spec.clusterSelector: no region has all of these labels, so nothing can carry the agent; allowed: labels of "
      "one region"]),
    ([_agent(clusterSelector={"region": ["r2"]}, languageAffinity={"ja": "cloud-a", "ko": "tokyo"})],
     ["1: spec.languageAffinity.ja: 'cloud-a' is not selected by clusterSelector, so the agent is never there; "
      "allowed: cloud-b",
      "1: spec.languageAffinity.ko: there is no cloud 'tokyo'; known: cloud-a, cloud-b"]),
    ([_federation(regions=[{"name": "a", "cloud": "c", "location": "l", "gpuHourUsd": 1, "role": "primary",
                            "tasks": {"light": {"agent": "qwen-chta"}}}])],
     ["1: spec.regions[0].tasks.light.agent: there is no agent 'qwen-chta' (did you mean 'qwen-chat'?); "
      "known: qwen-chat"]),
    ([_routes(agent="chat", langTemplate="ja", preferredCloud="mars")],
     ["1: spec.rules[0].target.agent: there is no agent 'chat' (did you mean 'qwen-chat'?); known: qwen-chat",
      "1: spec.rules[0].target.langTemplate: there is no template 'ja'; known: en",
      "1: spec.rules[0].target.preferredCloud: there is no cloud 'mars'; known: cloud-a, cloud-b"]),
    ([_agent(), _confirmed_by("qwen-chta")],
     ["2: spec.languages.confirm: there is no agent 'qwen-chta' (did you mean 'qwen-chat'?); known: qwen-chat"]),
    ([_agent(), _confirmed_by("qwen-chat")], []),
    ([_agent(), _agent("big", clusterSelector={"cloud": ["cloud-b"]}),
      _alias("doc", "big", clusterSelector={"cloud": ["cloud-a"]}), _confirmed_by("doc")],
     ["4: spec.languages.confirm: no region carries the agent doc, so it is never asked: its clusterSelector chooses "
      "cloud-a, that of its engine big r2; allowed: an agent that a region carries"]),
    ([_agent(), _agent("doc", clusterSelector={"cloud": ["cloud-a"], "role": ["secondary"]}), _confirmed_by("doc")],
     ["2: spec.clusterSelector: no region has all of these labels, so nothing can carry the agent; allowed: labels of "
      "one region"]),
    ([_agent(clusterSelector={"cloud": ["cloud-b"]}), _routes(preferredCloud="cloud-a")],
     ["2: spec.rules[0].target.preferredCloud: 'cloud-a' never carries the agent qwen-chat, whose clusterSelector "
      "leaves it out; allowed: cloud-b"]),
    ([_routes({"name": "t", "match": {"tenant": "acne"}, "target": {"agent": "qwen-chat"}}), _tenant()],
     ["1: spec.rules[0].match.tenant: there is no tenant 'acne' (did you mean 'acme'?); known: acme"]),
    ([_routes({"name": "t", "match": {"tenant": "acne"}, "target": {"agent": "qwen-chat"}})], []),
    ([_tenant(agents=["qwen-chat", "gpt"], residency=["eu", "sg"])],
     ["1: spec.agents[1]: there is no agent 'gpt'; known: qwen-chat",
      "1: spec.residency[1]: no region lies in the zone 'sg'; known: eu, any"]),
    ([_tenant(), _tenant("other")],
     ["2: spec.keys[0].sha256: tenant acme has a key with this hash too; each key belongs to one tenant"]),
    ([_tenant(), _tenant(digit="b")],
     ["2: metadata.name: there is a Tenant 'acme' already, at (generated):1; names are unique"]),
    ([_federation(), _federation()],
     ["2: metadata.name: a second Federation ('f'); the first is at (generated):1; allowed: one in a set"]),
    ([_routes(), _routes()],
     ["2: metadata.name: a second RouteTable ('r'); the first is at (generated):1; allowed: one in a set"]),
    ([_tenant(limits={}, role=None)],
     ["1: spec.limits: the block is empty, which would wipe its defaults; remove it or write its keys",
      "1: spec.role: the key has no value, which would wipe its default; remove the line or write a value"]),
    # A document with a fault of its own is no reason to call its name unknown.
    ([_agent(minReplicas="two"), _alias("doc", "qwen-chat")],
     ["1: spec.minReplicas: 'two' is not a whole number; allowed: a whole number"]),
    ([_federation(regions=[]), _agent(clusterSelector={"cloud": ["x"]})], ["1: spec.regions: 0 entries; allowed: at "
                                                                           "least 1"]),
]  # fmt: skip


@pytest.mark.parametrize(("documents", "faults"), CASES)
def test_documents_against_each_other(documents: list[dict[str, Any]], faults: list[str]) -> None:
    assert _faults(*documents) == faults


def test_what_is_lacking_is_said() -> None:
    with pytest.raises(ConfigError) as caught:
        load_paths([], {}, [_agent()])
    assert [str(fault) for fault in caught.value.faults] == [
        "(generated):1: (documents): there is no Federation in what was read; add the file that has it: regions/ or "
        "local.yaml",
        "(generated):1: (documents): there is no PromptTemplate in what was read; add the file that has it: templates/",
        "(generated):1: (documents): there is no RouteTable in what was read; add the file that has it: routes.yaml",
    ]


def test_generated_documents_are_taken_as_they_are_and_not_changed() -> None:
    given = _template()
    given["spec"]["system"] = "costs ${PRICE}"
    config = load_paths(local_paths()[:2], {}, [given, _template("ja")])
    assert config.templates["en"].spec.system == "costs ${PRICE}"
    assert given["spec"]["system"] == "costs ${PRICE}"


def test_omitted_bounds_and_triggers_follow_what_is_written() -> None:
    def spec(**changes: Any) -> Any:
        return AgentPolicy.model_validate(_agent(**changes)).spec

    assert spec(minReplicas=0).max_replicas == 1
    assert spec(minReplicas=3).max_replicas == 3
    assert [(t.metric, t.above, t.below, t.cooldown_s) for t in spec(maxQueueMs=1000).scale_triggers] == [
        ("queue_ms", 1000.0, None, None),
        ("kv_cache_used", 0.85, None, None),
        ("queue_ms", None, 200.0, 1800.0),
    ]
    assert AgentPolicy.model_validate(_alias("a", "b")).spec.scale_triggers == ()


def test_models_refuse_contradictions_without_the_loader() -> None:
    with pytest.raises(ValueError, match=r"spec\.maxReplicas: 2 is less than minReplicas 3; allowed: minReplicas"):
        AgentPolicy.model_validate(_agent(minReplicas=3, maxReplicas=2))
    with pytest.raises(ValueError, match="Instance is frozen"):
        Tenant.model_validate(_tenant()).spec.priority = 1  # type: ignore[misc]


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    template = (SHIPPED / "templates" / "en.yaml").read_text("utf-8")
    for name in ("set/a/en.yaml", "set/.hidden/en.yaml", "set/local.yaml", "set/notes.txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(template, "utf-8")
    Path("empty").mkdir()
    Path("set/b.yml").symlink_to("a/en.yaml")
    # The same file by two names is one document; hidden and local files in a directory are not part of it.
    assert validate([Path("set/a"), Path("set/a/en.yaml"), Path("set/b.yml")], {}) == []
    assert validate([Path("gone"), Path("empty"), Path("nul\0")], {}) == [
        "empty:1: (file): there is no document in this directory; allowed: a directory with *.yaml or *.yml files",
        "gone:1: (file): there is no such file or directory; name one that exists",
        "nul\0:1: (file): there is no such file or directory; name one that exists",
    ]
    Path("set/a/de.yml").write_text(template.replace("name: en", "name: de"), "utf-8")
    assert validate([Path("set/a")], {}) == [
        "set/a/de.yml:6: spec.language: 'en' is not the template's name 'de'; both must be the same"
    ]


def test_a_folder_that_cannot_be_read_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set" / "closed").mkdir(parents=True)
    template = (SHIPPED / "templates" / "en.yaml").read_text("utf-8")
    Path("set/en.yaml").write_text(template, "utf-8")
    scandir = os.scandir

    def closed(path: Any) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    assert validate([Path("set")], {}) == ["set/closed:1: (file): cannot be read: Permission denied"]


def test_faults_of_several_files_are_sorted_by_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("b.yaml").write_text("a: 1\n---\nb:\n", "utf-8")
    Path("a.yaml").write_text("x\n", "utf-8")
    places = [line.split(" ")[0] for line in validate([Path("b.yaml"), Path("a.yaml")], {})]
    assert places == ["a.yaml:1:", "b.yaml:1:", "b.yaml:1:", "b.yaml:3:", "b.yaml:3:", "b.yaml:3:"]


def test_an_unreadable_file_makes_no_name_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text("a: [\n", "utf-8")
    faults = validate([*local_paths()[:2], Path("bad.yaml")], {})
    assert [line.split(" ")[0] for line in faults] == ["bad.yaml:2:"]


def test_a_directory_with_a_local_set_has_that_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "en.yaml").write_text((SHIPPED / "templates" / "en.yaml").read_text("utf-8"), "utf-8")
    (tmp_path / "local.yaml").write_text("kind: Tenant\n", "utf-8")
    assert [line.split(": ")[1] for line in validate([tmp_path], {})] == ["apiVersion", "metadata", "spec"]


def test_an_engine_is_eager_on_a_cpu_and_where_it_is_written() -> None:
    def eager(**changes: Any) -> bool:
        return AgentPolicy.model_validate(_agent(**changes)).spec.eager

    gpu = {"vramRequired": "40Gi"}
    assert eager() and eager(engine={"kvCacheMemory": "1Gi", "enforceEager": True})
    assert not eager(gpu=gpu, engine={}) and not eager(gpu=gpu, engine={"enforceEager": False})
    assert eager(gpu=gpu, engine={"enforceEager": True})


def _copied(folder: Path, *names: str) -> Path:
    for name in names:
        source, target = SHIPPED / name, folder / name
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    return folder


def test_a_folder_with_local_yaml_is_a_whole_set(tmp_path: Path) -> None:
    folder = _copied(tmp_path, "local.yaml", "routes.yaml", "templates", "reference.yaml")
    (folder / "helper.yaml").write_text(yaml.safe_dump(_alias("helper", "qwen-chat")), "utf-8")
    taken, left = chosen([folder])
    config = load_paths(taken, {})
    assert (config.federation.metadata.name, "helper" in config.agents, left) == ("local", True, [])
    assert validate([folder], {}) == []


def test_local_yaml_stands_in_for_the_fleet_beside_it(tmp_path: Path) -> None:
    folder = _copied(tmp_path, *("local.yaml", "routes.yaml", "templates", "regions", "policies", "tenants.yaml"))
    taken, left = chosen([folder])
    config = load_paths(taken, {})
    assert (config.federation.metadata.name, dict(config.tenants)) == ("local", {})
    assert left == [folder / "regions", folder / "policies", folder / "tenants.yaml"]
    assert validate([folder], {}) == []
    # Both sets are looked at: a fault of either is told.
    (folder / "regions" / "federation.yaml").write_text("kind: Federation\n", "utf-8")
    (folder / "local.yaml").write_text("kind: Federation\n", "utf-8")
    files = {fault.split(":")[0] for fault in validate([folder], {})}
    assert files == {str(folder / "local.yaml"), str(folder / "regions" / "federation.yaml")}


def test_tenants_beside_local_yaml_alone_are_its_own(tmp_path: Path) -> None:
    folder = _copied(tmp_path, "local.yaml", "routes.yaml", "templates")
    (folder / "tenants.yaml").write_text(yaml.safe_dump(_tenant()), "utf-8")
    taken, left = chosen([folder])
    assert (set(load_paths(taken, {}).tenants), left) == ({"acme"}, [])


def test_without_local_yaml_paths_are_what_they_are(tmp_path: Path) -> None:
    folder = _copied(tmp_path, "routes.yaml", "templates")
    assert chosen([folder, SHIPPED / "local.yaml"]) == ([folder, SHIPPED / "local.yaml"], [])
    with pytest.raises(ConfigError, match="there is no Federation in what was read; add the file that has it"):
        load_paths([folder], {})


@pytest.fixture(params=["production", "local"])
def config(request: pytest.FixtureRequest) -> Any:
    return load_paths([SHIPPED] if request.param == "production" else local_paths(), {})


def test_documents_and_bundle_are_read_back_to_the_same(config: Any) -> None:
    assert load_paths([], {}, to_documents(config)) == config
    there = bundle(config)
    back = from_bundle(there)
    assert back == Bundle(config.agents, config.routes, config.tenants, config.templates)
    assert bundle(back) == there
    assert pickle.loads(pickle.dumps(config)) == config
    assert {name: t.digest for name, t in back.templates.items()} == {
        name: t.digest for name, t in config.templates.items()
    }


def test_an_alias_has_the_engine_of_another() -> None:
    agents = load_paths(local_paths(), {}).agents
    assert engine_owner(agents, "qwen-doc").metadata.name == "qwen-chat"
    assert engine_owner(agents, "qwen-chat").metadata.name == "qwen-chat"


def test_a_wrong_bundle_is_refused() -> None:
    good = bundle(load_paths(local_paths(), {}))
    for wrong, message in (
        ({**good, "more": 1}, "has agents, more, routes, templates, tenants; allowed: exactly agents, routes, tenants, "
                              "templates"),
        ({k: v for k, v in good.items() if k != "routes"}, "has agents, templates, tenants; allowed: exactly agents, "
                                                           "routes, tenants, templates"),
        ({**good, "agents": 1}, "is not a list; allowed: a list of documents"),
        ({**good, "routes": good["templates"][0], "templates": []}, "is no RouteTable; allowed: a document of kind "
                                                                    "RouteTable"),
        ({**good, "agents": good["agents"][:1]}, "there is no agent 'qwen-chat' (did you mean 'edge-chat'?); known: "
                                                 "edge-chat"),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            from_bundle(wrong)
        assert message in {fault.message for fault in caught.value.faults}
