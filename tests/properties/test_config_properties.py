"""Whatever is done to a shipped document, the answer is a configuration or a ConfigError, and nothing else."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_configs.assemble import assemble
from cluster_configs.load import (
    SHIPPED,
    Bundle,
    Config,
    ConfigError,
    bundle,
    from_bundle,
    load_paths,
    local_paths,
    to_documents,
)
from cluster_configs.yaml_source import read

TEXTS = [p.read_text("utf-8") for p in sorted(SHIPPED.rglob("*.yaml")) if "templates" not in p.parts]
TEXTS.append((SHIPPED / "templates" / "ja.yaml").read_text("utf-8"))
CONFIGS: dict[str, Config] = {"production": load_paths([SHIPPED], {}), "local": load_paths(local_paths(), {})}
LOCAL = to_documents(CONFIGS["local"])
#: One line each, whatever stands in the document.
LINE = re.compile(r"f\.yaml:[1-9]\d*: \S.*: \S[^\n\r]*")

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["5s", "24Gi", "0s", "any", "no", "${X}", "${", "qwen-chat", "<|", "smollm2", "a" * 70, "h:1"]),
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=6,
)


def _looked_at(text: str) -> None:
    """Every answer is a set without faults or faults that have a place and a reason."""
    sources, faults = read(text, "f.yaml", {"X": "x"})
    for fault in assemble(sources, faults).faults:
        assert LINE.fullmatch(str(fault)), fault


@given(st.sampled_from(TEXTS), st.data())
def test_a_text_changed_anywhere(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        end = min(len(text), at + data.draw(st.integers(0, 12)))
        junk = st.sampled_from(["\t", "\n", "---\n", ": ", "- ", "{", "}", "*a", "&a ", "${X}", "!!x ", "\x00", "<<: "])
        text = text[:at] + data.draw(st.one_of(st.text(max_size=6), junk)) + text[end:]
    _looked_at(text)


@given(st.binary(max_size=200))
def test_any_bytes(content: bytes) -> None:
    sources, faults = read(content, "f.yaml", {})
    assert assemble(sources, faults).faults or sources == []


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, part in inner for place in _places(part, (*path, key)))]


def _mutated(documents: list[Any], data: st.DataObject) -> list[Any]:
    documents = copy.deepcopy(documents)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(_places(documents)[1:] or [(0,)]))
        parent: Any = documents
        for part in place[:-1]:
            parent = parent[part]
        how = data.draw(st.sampled_from(["replace", "remove", "add"]))
        if how == "remove" and parent:
            parent.pop(place[-1])
        elif how == "add" and isinstance(parent, dict):
            parent[data.draw(st.text(max_size=8))] = data.draw(_VALUES)
        elif place[-1] in parent if isinstance(parent, dict) else len(parent) > place[-1]:
            parent[place[-1]] = data.draw(_VALUES)
    return documents


@given(st.sampled_from(sorted(CONFIGS)), st.data())
def test_documents_changed_anywhere(which: str, data: st.DataObject) -> None:
    documents = _mutated(to_documents(CONFIGS[which]), data)
    try:
        got = load_paths([], {}, documents)
    except ConfigError as error:
        assert error.faults and all(f.line >= 1 and f.path and f.message for f in error.faults)
    else:
        # What is accepted is accepted again after it has travelled.
        assert load_paths([], {}, to_documents(got)) == got
        assert from_bundle(json.loads(json.dumps(bundle(got)))) == Bundle(
            got.agents, got.routes, got.tenants, got.templates
        )


@settings(max_examples=30)
@given(st.sampled_from(sorted(CONFIGS)), st.data())
def test_yaml_changed_anywhere(which: str, data: st.DataObject) -> None:
    documents = _mutated(to_documents(CONFIGS[which])[:6], data)
    _looked_at(yaml.safe_dump_all(documents, allow_unicode=True))


@settings(max_examples=40)
@given(st.sampled_from(sorted(CONFIGS)), st.data())
def test_bundles_changed_anywhere(which: str, data: st.DataObject) -> None:
    [there] = _mutated([bundle(CONFIGS[which])], data) or [{}]
    if not isinstance(there, dict):
        return
    try:
        from_bundle(there)
    except ConfigError as error:
        assert error.faults


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_bundle_is_plain_json_and_its_own_inverse(config: Config) -> None:
    there = bundle(config)
    assert json.loads(json.dumps(there)) == there
    assert bundle(from_bundle(there)) == there


_AGENT = st.fixed_dictionaries(
    {
        "version": st.sampled_from(["1", "2026.1"]),
        "duty": st.sampled_from(["chat", "worker", "coder", "embedding", "rerank", "edge"]),
        "model": st.just("M"),
        "storage": st.fixed_dictionaries({"modelPath": st.sampled_from(["smollm2", "embedded:x", "s3://bkt/x/"])}),
        "gpu": st.fixed_dictionaries({"vramRequired": st.integers(1, 4096).map(lambda n: f"{n}Mi")}),
    },
    optional={
        "minReplicas": st.integers(0, 5),
        "maxReplicas": st.integers(5, 9),
        "maxQueueMs": st.integers(1, 10_000),
        "priority": st.integers(0, 1000),
        "timeouts": st.fixed_dictionaries({"total": st.integers(30_000, 10**8).map(lambda n: f"{n}ms")}),
        "languageAffinity": st.dictionaries(st.sampled_from(["no", "ja", "zh-Hant"]), st.just("cloud-a")),
    },
)


@settings(max_examples=40)
@given(_AGENT)
def test_every_valid_policy_survives_the_bundle(spec: dict[str, Any]) -> None:
    document = {"apiVersion": "grix.io/v1", "kind": "AgentPolicy", "metadata": {"name": "one"}, "spec": spec}
    config = load_paths([], {}, [*LOCAL, document])
    assert from_bundle(json.loads(json.dumps(bundle(config)))).agents == config.agents
