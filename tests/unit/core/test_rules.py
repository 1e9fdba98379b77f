"""Rules: which one matches, why the others do not, and which template goes with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serve_app.core import rules
from serve_app.core.table import Languages, Rule, Table, Template, Tenant
from serve_app.outcomes import GrixError
from tests.fakes import a_table

ACME = a_table().tenants[0]


def facts(language: str = "en", intent: str | None = None, tokens: int = 10, tenant: str = "acme") -> rules.Facts:
    return rules.Facts(language, intent, tokens, tenant)


def with_rules(*made: Rule) -> Table:
    return a_table(rules=made)


@pytest.mark.parametrize(
    ("rule", "asked", "why"),
    [
        (Rule("r", 0, "qwen-chat"), facts(), "matches"),
        (Rule("r", 0, "qwen-chat", frozenset({"ms"})), facts("id"), "matches"),
        (Rule("r", 0, "qwen-chat", frozenset({"th", "ja"})), facts("en"), "language en is not ja/th"),
        (Rule("r", 0, "qwen-chat", intent="coding"), facts(), "intent unknown is not coding"),
        (Rule("r", 0, "qwen-chat", intent="coding"), facts(intent="chat"), "intent chat is not coding"),
        (Rule("r", 0, "qwen-chat", tenant="ops"), facts(), "tenant acme is not ops"),
        (Rule("r", 0, "qwen-chat", prompt_tokens_above=10), facts(), "prompt of about 10 tokens is not above 10"),
        (Rule("r", 0, "qwen-chat", prompt_tokens_above=9), facts(), "matches"),
    ],
)
def test_why_a_rule_does_not_match(rule: Rule, asked: rules.Facts, why: str) -> None:
    assert rules.explain_rules(with_rules(rule), asked) == [("r", why)]


def test_the_reason_names_everything_that_matched() -> None:
    rule = Rule("r", 0, "qwen-doc", frozenset({"ja"}), "coding", "acme", 5, preferred_cloud="cloud-b")
    found = rules.route(with_rules(rule), ACME, facts("ja", "coding"), "auto")
    assert found.reason == (
        "matched language ja and intent coding and tenant acme and prompt of about 10 tokens is above 5"
    )
    assert (found.agent.name, found.preferred_cloud, found.pinned_release) == ("qwen-doc", "cloud-b", None)
    assert rules.route(with_rules(Rule("all", 0, "qwen-chat")), ACME, facts(), None).reason == "matched everything"


def test_rules_of_agents_that_a_tenant_may_not_use_are_passed_over() -> None:
    only = replace(ACME, agents=frozenset({"qwen-chat"}))
    table = with_rules(Rule("doc", 9, "qwen-doc"), Rule("chat", 0, "qwen-chat"))
    assert rules.route(table, only, facts(), "auto").rule == "chat"
    assert rules.allowed_agents(table, only) == ["qwen-chat"]
    assert rules.allowed_agents(table, ACME) == ["qwen-chat", "qwen-doc"]


@pytest.mark.parametrize(
    ("of_rule", "of_tenant", "budget"),
    [
        ("as-is", "as-is", "as-is"),
        ("english", "as-is", "english"),
        ("as-is", "english", "english"),
        ("english", "english", "english"),
    ],
)
def test_rule_or_tenant_makes_a_budget_english(of_rule: str, of_tenant: str, budget: str) -> None:
    rule = replace(Rule("r", 0, "qwen-chat"), budget=of_rule)  # type: ignore[arg-type]
    tenant: Tenant = replace(ACME, budget=of_tenant)  # type: ignore[arg-type]
    assert rules.route(with_rules(rule), tenant, facts(), None).budget == budget
    assert rules.route(with_rules(rule), tenant, facts(), "qwen-chat").budget == of_tenant


def test_templates_come_from_the_rule_the_language_its_kin_and_the_last_rule() -> None:
    english = Template("en", "1", "d", "Be kind.")
    malay = Template("ms", "1", "d", "Baik.")
    table = a_table(
        templates={"en": english, "ms": malay},
        rules=(Rule("named", 9, "qwen-chat", intent="x", template="ms"), Rule("last", 0, "qwen-chat", template="en")),
    )

    def template(asked: rules.Facts) -> Template | None:
        return rules.route(table, ACME, asked, "auto").template

    assert template(facts("en", "x")) == malay
    assert template(facts("en")) == english
    assert template(facts("id")) == malay
    assert template(facts("th")) == english
    assert rules.route(replace(table, templates={}), ACME, facts(), None).template is None


@pytest.mark.parametrize(
    ("model", "reason"),
    [("nope", "model_not_found"), ("qwen-chat@abc", "not_allowed"), ("nope@abc", "model_not_found")],
)
def test_names_that_are_refused(model: str, reason: str) -> None:
    with pytest.raises(GrixError) as caught:
        rules.route(a_table(), ACME, facts(), model)
    assert (caught.value.reason, caught.value.param) == (reason, "model")


def test_equivalent_codes_are_one_language() -> None:
    languages = Languages({}, 0.5, (frozenset({"id", "ms"}),))
    assert rules.same_language("id", "ms", languages) and rules.same_language("th", "th", languages)
    assert not rules.same_language("id", "th", languages)
