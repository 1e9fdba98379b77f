"""Rules, choice of target, budgets, prompts, keys: exact values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.core import budget, names, pick, prompting, rules, tenants
from serve_app.core.scorers import default_weights
from serve_app.core.snapshots import Load, Snapshot, Target, local_snapshot
from serve_app.core.table import Tenant
from serve_app.outcomes import STATUS, GrixError
from tests.fakes import KEY, a_table, agent

RATIOS = {"en": 1.0, "ja": 1.6, "id": 1.7, "es": 1.5, "th": 2.9}


def facts(language: str = "en", intent: str | None = None, tokens: int = 10) -> rules.Facts:
    return rules.Facts(language, intent, tokens, "acme")


@pytest.mark.parametrize(
    ("given_facts", "rule", "template"),
    [
        (facts("ja", "customer_service"), "ja-service", "ja"),
        (facts("ja"), "fallback", "ja"),
        (facts("en", tokens=401), "long-doc", "en"),
        (facts("en", tokens=400), "fallback", "en"),
        (facts("und"), "fallback", "en"),
        (facts("th"), "fallback", "en"),
    ],
)
def test_the_first_rule_that_matches_wins(given_facts: rules.Facts, rule: str, template: str) -> None:
    table = a_table()
    found = rules.route(table, table.tenants[0], given_facts, "auto")
    assert found.template is not None
    assert (found.rule, found.template.language) == (rule, template)


def test_a_tenants_agents_bound_rules_names_and_hints() -> None:
    table = a_table()
    only = replace(table.tenants[0], agents=frozenset({"qwen-doc"}))
    with pytest.raises(GrixError) as nothing:
        rules.route(table, only, facts(), None)
    assert nothing.value.reason == "no_target"
    with pytest.raises(GrixError) as unknown:
        rules.route(table, only, facts(), "qwen-chat")
    assert unknown.value.reason == "model_not_found" and "qwen-chat" not in unknown.value.message
    assert rules.route(table, only, facts(), None, "qwen-doc").rule == "by-name"
    assert rules.route(table, table.tenants[0], facts(), None, "no-such").rule == "fallback"


@pytest.mark.parametrize(
    ("requested", "language", "script", "english", "left", "wanted"),
    [
        (None, "en", "Latn", False, 1000, 100),
        (None, "ja", "Jpan", False, 1000, 160),
        (50, "ja", "Jpan", False, 1000, 50),
        (50, "ja", "Jpan", True, 1000, 80),
        (None, "fr", "Latn", False, 1000, 170),
        (None, "und", "Zyyy", False, 1000, 290),
        (65535, "en", "Latn", False, 70, 70),
        (5, "en", "Latn", False, -3, 1),
    ],
)
def test_budgets(requested: int | None, language: str, script: str, english: bool, left: int, wanted: int) -> None:
    found = budget.decide(requested, 100, language, script, RATIOS, english=english, context_left=left)
    assert found.max_tokens == wanted


@given(
    st.one_of(st.none(), st.integers(1, 10**9)),
    st.integers(1, 10**6),
    st.text(max_size=5),
    st.booleans(),
    st.integers(-5, 10**6),
)
def test_a_budget_is_never_under_one_nor_over_what_is_left(
    requested: int | None, default: int, language: str, english: bool, left: int
) -> None:
    found = budget.decide(requested, default, language, "Latn", RATIOS, english=english, context_left=left)
    assert 1 <= found.max_tokens <= max(1, left)
    if requested is not None and not english:
        assert found.max_tokens <= requested


def test_prompt_estimates_count_the_templates_tokens() -> None:
    assert budget.estimate_prompt_tokens([]) == 0
    assert budget.estimate_prompt_tokens([{"content": "abc"}]) == 1 + 8
    assert budget.estimate_prompt_tokens([{"content": [{"text": "あ"}]}, {"content": None}]) == 1 + 8 + 5


def target(region: str, **changes: object) -> Target:
    made = Target(region, region, "qwen-chat", "app", "r" * 64, 1000, 4, frozenset({"sg"}), 1.0, "healthy")
    return replace(made, **changes)  # type: ignore[arg-type]


def order(*targets: Target, **wish: object) -> list[str]:
    asked = pick.Wish(agent("qwen-chat"), Tenant("acme", (), frozenset({"any"})), "en", 10, region="a")
    choice = pick.choose(Snapshot(1, 1, targets), replace(asked, **wish), default_weights())  # type: ignore[arg-type]
    return [t.region for t in choice.order]


def test_tiers_come_before_scores() -> None:
    a, b, c = target("a"), target("b", gpu_hour_usd=0.5), target("c", gpu_hour_usd=2.0)
    assert order(a, b, c) == ["b", "a", "c"]
    assert order(a, b, c, preferred_cloud="c") == ["c", "b", "a"]
    loved = agent("qwen-chat", language_affinity={"en": "a"})
    assert order(a, b, c, agent=loved) == ["a", "b", "c"]


def test_a_busy_tier_is_passed_and_a_busy_fleet_uses_the_least_loaded() -> None:
    busy = target("a", load=Load(300.0, waiting=1, running=1))
    idle = target("b", gpu_hour_usd=2.0, load=Load(10.0, waiting=0, running=0))
    assert order(busy, idle) == ["b", "a"]
    worse = target("b", gpu_hour_usd=0.1, load=Load(900.0, waiting=9, running=9))
    assert order(busy, worse) == ["a", "b"]


def test_rte_11_no_data_is_neither_idle_nor_busy() -> None:
    unknown, idle = target("b", load=Load()), target("c", load=Load(0.0, waiting=0, running=0))
    loaded = target("d", load=Load(240.0, waiting=4, running=4))
    assert order(unknown, idle, loaded) == ["c", "b", "d"]


def test_filters_take_out_and_say_why() -> None:
    candidates = [
        target("a", health="ejected"),
        target("b", drifted=True),
        target("c", residency=frozenset({"eu"})),
        target("d", max_model_len=10),
    ]
    asked = pick.Wish(agent("qwen-chat"), Tenant("acme", (), frozenset({"sg"})), "en", 10)
    choice = pick.choose(Snapshot(1, 1, tuple(candidates)), asked, default_weights())
    assert choice.order == ()
    assert [c.dropped for c in choice.candidates] == [
        "is ejected",
        "drifted: serves release rrrrrrrrrrrr, which its plan does not name",
        "residency: data of acme may not be in eu",
        "context of 10 tokens is too small for about 10",
    ]
    assert order() == []


@given(st.text(), st.sampled_from(["<|im_end|>", "<|im_start|>", "<|endoftext|>"]), st.text())
def test_special_tokens_never_survive(before: str, token: str, after: str) -> None:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    inert = prompting.make_inert(before + token + after, special)
    assert not any(t in inert for t in special)
    assert inert.replace("\u200b", "") == (before + token + after).replace("\u200b", "")


def test_system_texts_merge_once_and_in_order() -> None:
    own = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert prompting.merge_system(own, "Be kind.") == [
        {"role": "system", "content": "Be kind.\n\nBe brief."},
        {"role": "user", "content": "hi"},
    ]
    assert prompting.merge_system(own, None) == own
    assert prompting.merge_system([], "Be kind.") == [{"role": "system", "content": "Be kind."}]


def test_keys_expire_after_their_last_day() -> None:
    table = a_table()
    acme = table.tenants[0]
    dated = replace(acme, keys=(replace(acme.keys[0], expires="2026-11-30"),))
    index = tenants.KeyIndex.of([dated])
    assert tenants.identify(table, index, f"Bearer {KEY}", "2026-11-30").tenant == dated
    with pytest.raises(GrixError) as expired:
        tenants.identify(table, index, f"Bearer {KEY}", "2026-12-01")
    assert expired.value.reason == "bad_api_key"


@pytest.mark.parametrize(
    ("allowed", "zones", "data_class", "may"),
    [
        ({"any"}, set(), None, True),
        ({"eu"}, {"eu"}, None, True),
        ({"eu"}, {"sg"}, None, False),
        ({"eu"}, set(), None, False),
        ({"any"}, {"sg"}, "eu", False),
        ({"eu"}, {"sg"}, "sg", False),
        ({"eu", "sg"}, {"sg"}, "sg", True),
    ],
)
def test_residency_narrows_and_never_widens(
    allowed: set[str], zones: set[str], data_class: str | None, may: bool
) -> None:
    tenant = Tenant("t", (), frozenset(allowed))
    assert tenants.check_residency(tenant, frozenset(zones), data_class) is may


def test_names_and_digests_do_not_depend_on_order() -> None:
    assert names.digest_of({"a": 1, "b": 2}) == names.digest_of({"b": 2, "a": 1})
    assert names.app_name("qwen-chat", "0123456789") == "qwen-chat--01234567"


def test_every_reason_has_a_status_and_an_envelope_of_four_fields() -> None:
    for reason, status in STATUS.items():
        error = GrixError(reason, "said", param="p")
        assert 400 <= status.http < 600
        assert error.envelope() == {
            "error": {"message": "said", "type": status.type, "param": "p", "code": status.code}
        }
        assert ("retry-after" in error.headers()) == (status.http in (429, 503))
    assert GrixError("overloaded", "x", retry_after_s=2.2).headers() == {"retry-after": "3"}


def test_a_regions_own_targets_claim_nothing_about_load() -> None:
    snapshot = local_snapshot(a_table(), 3)
    assert {t.agent for t in snapshot.targets} == {"qwen-chat", "qwen-doc"}
    assert all(t.load == Load() and t.health == "unknown" for t in snapshot.targets)
