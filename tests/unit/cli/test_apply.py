"""What changes, in words."""

from __future__ import annotations

from typing import Any

from serve_app.cli.apply import difference, text_of


def document(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "grix.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def test_documents_that_come_go_and_change() -> None:
    before = [
        document("Tenant", "acme", residency=["eu"], limits={"concurrent": 5, "requestsPerMinute": 60}),
        document("AgentPolicy", "old", version="1"),
        document("PromptTemplate", "en", system="Be brief."),
    ]
    after = [
        document("PromptTemplate", "en", system="Be brief."),
        document("Tenant", "acme", residency=["eu", "sg"], limits={"concurrent": 6}),
        document("AgentPolicy", "new", version="1"),
    ]
    assert list(difference(before, after)) == [
        "- AgentPolicy old",
        "+ AgentPolicy new",
        "~ Tenant acme spec.limits.concurrent: 5 -> 6",
        "~ Tenant acme spec.limits.requestsPerMinute: 60 -> nothing",
        '~ Tenant acme spec.residency: ["eu"] -> ["eu", "sg"]',
    ]
    assert list(difference(before, before)) == []


def test_an_item_of_a_list_is_named_by_its_place_and_long_values_are_cut() -> None:
    before = [document("Federation", "f", regions=[{"name": "a", "gpuHourUsd": 1.0}, {"name": "b", "gpuHourUsd": 1.0}])]
    after = [document("Federation", "f", regions=[{"name": "a", "gpuHourUsd": 1.0}, {"name": "b", "gpuHourUsd": 2.5}])]
    assert list(difference(before, after)) == ["~ Federation f spec.regions[1].gpuHourUsd: 1.0 -> 2.5"]
    (line,) = difference([document("PromptTemplate", "x", s="")], [document("PromptTemplate", "x", s="ü" * 100)])
    assert line == f'~ PromptTemplate x spec.s: "" -> "{"ü" * 58}…'


def test_what_people_are_told() -> None:
    told = {"revision": "r2", "changes": [], "regions": ["a", "b"], "dry_run": False, "drift_unknown": ["qwen-doc"]}
    assert text_of(told).splitlines() == [
        "nothing changes",
        "drift is not told of qwen-doc: their weights are not on this machine",
        "revision r2 is in force in a, b",
    ]
    dry = {**told, "dry_run": True, "changes": None}
    assert text_of(dry).splitlines() == [
        "nothing was applied before: regions have what they were started with",
        "revision r2 would be applied; nothing was",
    ]
