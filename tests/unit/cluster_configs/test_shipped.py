"""Shipped YAML and the code's defaults agree, and what is shipped is what the service needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from cluster_configs.explain import annotation_at
from cluster_configs.faults import dotted
from cluster_configs.kind_agent import AgentSpec
from cluster_configs.load import SHIPPED, load_paths, local_paths, validate
from cluster_configs.scale_trigger import default_triggers
from cluster_configs.schema import KINDS
from cluster_configs.yaml_source import Source, read

LANGUAGES = ["ar", "en", "es", "id", "ja", "ko", "th", "vi", "zh", "zh-Hant"]
AGENTS = ["edge-chat", "qwen-chat", "qwen-chat-7b", "qwen-coder", "qwen-doc"]
FILES = sorted(SHIPPED.rglob("*.yaml"))


def _sources(file: Path) -> list[Source]:
    sources, faults = read(file.read_bytes(), file.name, {})
    assert faults == []
    return sources


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _paths(part, (*path, key))
    elif isinstance(value, list):
        for i, part in enumerate(value):
            yield from _paths(part, (*path, i))


def _default(source: Source, path: tuple[str | int, ...]) -> tuple[bool, Any]:
    """Whether the field at a path has a default that is a value, and that default as plain JSON."""
    model = annotation_at(KINDS[source.value["kind"]], path[:-1])
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return False, None
    name, field = next((n, f) for n, f in model.model_fields.items() if f.alias == path[-1])
    if path[-1] in ("apiVersion", "kind"):
        return False, None
    written = source.value
    for part in path[:-1]:
        written = written[part]
    without = {key: value for key, value in written.items() if key != path[-1]}
    if field.is_required():
        return False, None
    built = model.model_validate(without)
    default = built.model_dump(mode="json", by_alias=True, exclude_none=True).get(str(field.alias))
    assert getattr(built, name) is not None or default is None
    return default is not None, default


def _same(written: Any, default: Any) -> bool:
    if isinstance(default, list) and default and isinstance(default[0], dict):
        return [dict(d, **w) == d for w, d in zip(written, default, strict=True)] == [True] * len(default)
    return bool(written == default)


def _value(source: Source, path: tuple[str | int, ...]) -> Any:
    value = source.value
    for part in path:
        value = value[part]
    return value


def _comments(file: Path) -> dict[int, str]:
    found = {}
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        comment = re.search(r" # (default|required|optional)\b", line)
        if comment:
            found[number] = comment[1]
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SHIPPED)))
def test_what_is_called_default_is_the_default(file: Path) -> None:
    comments, seen = _comments(file), set()
    for source in _sources(file):
        for path in _paths(source.value):
            line = source.lines[path]
            if not path or isinstance(path[-1], int) or comments.get(line) != "default":
                continue
            # Of several paths on a line the outermost is meant.
            if line in seen:
                continue
            seen.add(line)
            has, default = _default(source, path)
            assert has and _same(_value(source, path), default), f"{file}:{line}: {dotted(path)}: {default!r}"
    assert seen == {line for line, word in comments.items() if word == "default"}


def test_reference_has_every_field_and_says_what_it_is() -> None:
    file = SHIPPED / "reference.yaml"
    comments = _comments(file)
    written: set[tuple[type[BaseModel], str]] = set()
    for source in _sources(file):
        kind = KINDS[source.value["kind"]]
        for path in _paths(source.value):
            model = annotation_at(kind, path[:-1]) if path else None
            if not path or not (isinstance(model, type) and issubclass(model, BaseModel)):
                continue
            written.add((model, str(path[-1])))
            value = _value(source, path)
            if isinstance(value, dict | list) and value:
                continue
            said = comments.get(source.lines[path], "")
            has, _ = _default(source, path)
            field = next(f for f in model.model_fields.values() if f.alias == path[-1])
            if path[-1] in ("model", "modelPath", "apiVersion", "kind") or field.is_required():
                assert said == "required" or value == {}, f"{source.lines[path]}: {dotted(path)}"
            else:
                assert said == ("default" if has else "optional"), f"{source.lines[path]}: {dotted(path)}"
    models = {model for model, _ in written}
    assert {(m, str(f.alias)) for m in models for f in m.model_fields.values()} == written
    assert len(models) == len({id(m) for m in models}) and AgentSpec in models
    assert validate([file], {}) == []


def test_default_triggers_are_those_of_the_shipped_chat_policy() -> None:
    spec = load_paths([SHIPPED], {}).agents["qwen-chat"].spec
    assert spec.scale_triggers == default_triggers(spec.max_queue_ms)


def test_shipped_sets_have_no_fault() -> None:
    assert validate([SHIPPED], {}) == []
    assert validate(local_paths(), {}) == []
    for file in FILES:
        assert validate([file], {}) == []


def test_production_names_the_real_models() -> None:
    config = load_paths([SHIPPED], {})
    assert {name: a.spec.model for name, a in sorted(config.agents.items())} == {
        "edge-chat": "Qwen2.5-3B-Instruct-GPTQ-Int4",
        "qwen-chat": "Qwen2.5-14B-Instruct",
        "qwen-chat-7b": "Qwen2.5-7B-Instruct",
        "qwen-coder": "Qwen2.5-Coder-32B-Instruct",
        "qwen-doc": "Qwen2.5-72B-Instruct-AWQ",
    }
    assert [r.name for r in config.federation.spec.regions] == ["cloud-a", "cloud-b", "edge-1"]
    assert sorted(config.tenants) == ["acme", "sakura"]
    assert all(a.spec.gpu is not None for a in config.agents.values())


def test_local_is_one_small_engine_that_every_agent_uses() -> None:
    config = load_paths(local_paths(), {})
    spec = config.agents["qwen-chat"].spec
    assert spec.storage is not None and spec.storage.model_path == "embedded:tiny-qwen"
    engine = spec.engine
    assert (engine.max_model_len, engine.max_num_seqs, engine.cpu_threads) == (4096, 16, 1)
    assert (engine.kv_cache_memory_bytes, config.agents["qwen-chat"].spec.eager) == (128 << 20, True)
    owners = {name: policy.spec.engine_of for name, policy in config.agents.items()}
    assert owners == {
        "qwen-chat": None, "qwen-doc": "qwen-chat", "qwen-coder": "qwen-chat", "edge-chat": "qwen-chat"
    }  # fmt: skip
    assert all((a.spec.min_replicas, a.spec.max_replicas) == (1, 1) for a in config.agents.values())
    assert config.agents["qwen-chat"].spec.language_affinity == {"ja": "cloud-a", "ko": "cloud-b"}
    spec = config.federation.spec
    assert spec.coordinator is not None and spec.coordinator.address == "127.0.0.1:7443"
    assert [(r.name, r.http.host, r.http.port, r.gateway) for r in spec.regions] == [
        ("cloud-a", "127.0.0.1", 8000, "127.0.0.1:7543"),
        ("cloud-b", "127.0.0.1", 8001, "127.0.0.1:7643"),
    ]
    assert config.tenants == {}


def test_every_language_of_the_matrix_has_a_template_and_a_ratio() -> None:
    config = load_paths([SHIPPED], {})
    assert sorted(config.templates) == LANGUAGES
    assert sorted(config.routes.spec.languages.token_ratio) == LANGUAGES
    assert {c: t.spec.register_ for c, t in config.templates.items() if t.spec.register_ != "formal"} == {
        "en": "plain",
        "ja": "honorific",
        "ko": "honorific",
    }
    for code, template in config.templates.items():
        spec = template.spec
        assert "Grix Shop" in spec.system and len(re.findall(r"[.。!?]", spec.system)) <= 2, code
        assert sorted(spec.confirmations) == ["hold", "no", "yes"], code
    assert len({t.digest for t in config.templates.values()}) == len(LANGUAGES)


SCRIPTS = {
    "ja": r"[\u3040-\u30ff]",
    "ko": r"[\uac00-\ud7a3]",
    "ar": r"[\u0600-\u06ff]",
    "th": r"[\u0e00-\u0e7f]",
    "zh": r"[\u4e00-\u9fff]",
    "zh-Hant": r"[\u4e00-\u9fff]",
    "vi": r"[ạ-ỹ]",
}


@pytest.mark.parametrize(("code", "script"), SCRIPTS.items())
def test_templates_are_written_in_their_own_script(code: str, script: str) -> None:
    spec = load_paths([SHIPPED], {}).templates[code].spec
    assert all(re.search(script, text) for text in (spec.system, *spec.confirmations.values()))
