"""What changes, in words."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.cli import apply, control
from serve_app.cli.apply import difference, text_of
from serve_app.cli.say import Failed, Progress


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


def test_nobody_waits_for_regions_that_have_tried_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    why = {"phase": "ready", "state_why": "revision r2 is refused: out of memory"}
    a = {"name": "a", "linked": True, "revision": "r1", "refused": "", "phase": "ready", "state_why": "starting"}
    b = {**a, "name": "b", "refused": "r2", **why}
    gone = {**a, "name": "c", "linked": False}
    answers = [[a, b, gone], [{**a, "revision": "r2"}, b, gone]]
    monkeypatch.setattr(control, "ask", lambda *_: {"regions": answers.pop(0)})
    monkeypatch.setattr(apply, "POLL_S", 0.0)
    said = "revision r2 is applied, and what is in force stays so: b has r1 (revision r2 is refused: out of memory)"
    with pytest.raises(Failed) as failed:
        apply._wait(object(), "r2", 600.0, Progress(), is_new=True)
    assert str(failed.value) == said and answers == []


def test_the_same_documents_again_are_waited_for_although_they_were_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {"name": "a", "linked": True, "revision": "r1", "refused": "r2", "phase": "ready", "state_why": "refused"}
    answers = [[before], [{**before, "revision": "r2", "refused": ""}]]
    monkeypatch.setattr(control, "ask", lambda *_: {"regions": answers.pop(0)})
    monkeypatch.setattr(apply, "POLL_S", 0.0)
    assert apply._wait(object(), "r2", 600.0, Progress(), is_new=False) == ["a"]
