"""One agent's release is brought back, and what others were given since stays."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.core.taken_back import taken_back

Documents = list[dict[str, Any]]
POLICY = {"kind": "AgentPolicy", "metadata": {"name": "chat"}, "spec": {}}


def rule(name: str, agent: str = "chat", **match: Any) -> dict[str, Any]:
    return {"name": name, "match": match, "target": {"agent": agent}}


LAST = rule("last")


def data(*rules: dict[str, Any], score: float = 1.0, **systems: str) -> Documents:
    """Routes and a template for each language."""
    routes = {"kind": "RouteTable", "metadata": {"name": "all"}, "spec": {"rules": list(rules), "score": score}}
    return [
        routes,
        *({"kind": "PromptTemplate", "metadata": {"name": n}, "spec": {"system": s}} for n, s in systems.items()),
    ]


def told(documents: Documents) -> tuple[dict[str, str], list[tuple[str, str]], float]:
    """Templates by language, rules with their agent, and what belongs to no release."""
    (routes,) = (d["spec"] for d in documents if d["kind"] == "RouteTable")
    systems = {d["metadata"]["name"]: d["spec"]["system"] for d in documents if d["kind"] == "PromptTemplate"}
    return systems, [(r["name"], r["target"]["agent"]) for r in routes["rules"]], routes["score"]


def back(now: Documents, before: Documents, brought: Documents | None) -> Any:
    made = taken_back("chat", [POLICY, *now], before, brought)
    assert made.documents[0] == POLICY
    return made.faults or told(made.documents)


def test_a_template_that_was_applied_since_stays() -> None:
    before, brought = data(LAST, ja="old", th="old"), data(LAST, ja="new", th="old")
    now = data(LAST, ja="new", th="applied", vi="applied")
    assert back(now, before, brought) == ({"ja": "old", "th": "applied", "vi": "applied"}, [("last", "chat")], 1.0)
    assert back(before, before, brought) == ({"ja": "old", "th": "old"}, [("last", "chat")], 1.0)


def test_a_template_that_came_goes_and_one_that_went_comes() -> None:
    before, brought = data(LAST, ja="old"), data(LAST, ko="new")
    assert back(brought, before, brought)[0] == {"ja": "old"}


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (data(LAST, ja="newer"), ["PromptTemplate ja: was changed once more since"]),
        (data(LAST), ["PromptTemplate ja: was changed once more since"]),
        (data(rule("last", lang="ja"), ja="new"), ["rule last: was changed once more since"]),
    ],
)
def test_what_was_changed_once_more_is_named(now: Documents, said: list[str]) -> None:
    assert back(now, data(rule("last", "doc"), ja="old"), data(LAST, ja="new")) == said


def test_rules_of_other_agents_and_what_is_in_no_release_stay() -> None:
    before = data(rule("one"), rule("two", "doc"), LAST)
    brought = data(rule("one", lang="ja"), rule("two", "doc", lang="th"), LAST, score=0.5)
    made = taken_back("chat", brought, before, brought)
    assert made.faults == [] and told(made.documents)[2] == 0.5
    (routes,) = (d for d in made.documents if d["kind"] == "RouteTable")
    assert routes["spec"]["rules"] == [rule("one"), rule("two", "doc", lang="th"), LAST]


def test_a_rule_that_was_given_to_another_agent_comes_back_and_one_that_came_goes() -> None:
    before = data(rule("one"), rule("two"), LAST)
    brought = data(rule("one", "doc"), rule("three"), LAST)
    assert back(brought, before, brought)[1] == [("one", "chat"), ("two", "chat"), ("last", "chat")]
    # Rules that others were given since keep their places.
    now = data(rule("one", "doc"), rule("four", "doc"), rule("three"), LAST)
    assert [name for name, _ in back(now, before, brought)[1]] == ["one", "two", "four", "last"]


def test_an_order_that_a_rollout_changed_comes_back_unless_it_was_changed_since() -> None:
    before, brought = data(rule("one"), rule("two"), LAST), data(rule("two"), rule("one"), LAST)
    assert [name for name, _ in back(brought, before, brought)[1]] == ["one", "two", "last"]
    now = data(rule("two"), rule("new", "doc"), rule("one"), LAST)
    assert back(now, before, brought) == ["rules: their order was changed since"]


def test_a_release_that_is_named_has_all_its_templates_and_its_agent_s_rules() -> None:
    release = data(rule("one"), LAST, ja="old", th="old")
    now = data(rule("one", lang="ja"), rule("two"), rule("three", "doc"), LAST, ja="new", th="applied", vi="applied")
    rules = [("one", "chat"), ("three", "doc"), ("last", "chat")]
    assert back(now, release, None) == ({"ja": "old", "th": "old"}, rules, 1.0)


def test_a_named_release_takes_no_rule_from_another_agent_and_gives_it_none() -> None:
    release = data(rule("one"), rule("two", "doc"), LAST)
    now = data(rule("one", "coder"), rule("two"), LAST)
    assert back(now, release, None) == ["rule one: is of coder too", "rule two: is of doc too"]
