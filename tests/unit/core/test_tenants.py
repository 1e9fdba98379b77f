"""Keys: who they belong to, how they are compared, and what a refusal gives away."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from serve_app.core.table import Tenant, TenantKey
from serve_app.core.tenants import ANYBODY, KeyIndex, check_residency, hash_key, identify
from serve_app.outcomes import GrixError
from tests.fakes import KEY, OPERATOR_KEY, a_table

TABLE = a_table()
INDEX = KeyIndex.of(TABLE.tenants)


def refusal(authorization: str | None, index: KeyIndex = INDEX) -> tuple[str, str]:
    with pytest.raises(GrixError) as caught:
        identify(TABLE, index, authorization, "2026-11-30")
    return caught.value.reason, caught.value.message


def test_a_key_is_kept_as_its_sha_256() -> None:
    assert hash_key("abc") == hashlib.sha256(b"abc").hexdigest()
    assert len(hash_key("\ud83e")) == 64


@pytest.mark.parametrize(
    ("authorization", "name"),
    [
        (f"Bearer {KEY}", "acme"),
        (f"bearer {KEY}", "acme"),
        (f"  BEARER   {KEY}  ", "acme"),
        (f"Bearer {OPERATOR_KEY}", "ops"),
    ],
)
def test_the_key_finds_its_tenant(authorization: str, name: str) -> None:
    assert identify(TABLE, INDEX, authorization, "2026-11-30").tenant.name == name


@pytest.mark.parametrize("authorization", [None, "", " ", KEY, "Bearer", "Bearer  ", f"Basic {KEY}", f"Bearer:{KEY}"])
def test_without_a_bearer_key_one_is_asked_for(authorization: str | None) -> None:
    assert refusal(authorization) == ("no_api_key", "Send an API key as 'Authorization: Bearer KEY'.")


@pytest.mark.parametrize("key", ["x", KEY.upper(), KEY + "x", f"{KEY} {KEY}", hash_key(KEY)])
def test_unknown_keys_are_all_refused_alike(key: str) -> None:
    assert refusal(f"Bearer {key}") == ("bad_api_key", "This API key is not known here.")


def test_a_tenant_may_have_two_keys_and_one_of_them_expired() -> None:
    old = TenantKey("old", hash_key("old"), "2026-11-29")
    last_day = TenantKey("new", hash_key("new"), "2026-11-30")
    index = KeyIndex.of([Tenant("acme", (old, last_day), frozenset({"any"}))])
    assert identify(TABLE, index, "Bearer new", "2026-11-30").tenant.name == "acme"
    assert refusal("Bearer old", index) == refusal("Bearer never", index)


def test_the_decision_is_a_comparison_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[str, str]] = []

    def compare(known: str, given: str) -> bool:
        compared.append((known, given))
        return known == given

    monkeypatch.setattr("serve_app.core.tenants.hmac.compare_digest", compare)
    assert INDEX.find(hash_key(KEY)) is not None
    assert INDEX.find(hash_key("guess")) is None
    # A miss compares too, and both compare 64 characters with 64.
    assert [(len(known), len(given)) for known, given in compared] == [(64, 64)] * 2
    assert compared[1][1] == hash_key("guess")


def test_open_access_is_anybody_and_no_operator() -> None:
    tenant = identify(replace(TABLE, open_access=True), INDEX, None, "2026-11-30").tenant
    assert (tenant, tenant.operator, tenant.residency) == (ANYBODY, False, frozenset({"any"}))


@pytest.mark.parametrize("data_class", [None, "eu"])
def test_a_region_without_zones_sees_bound_data_never(data_class: str | None) -> None:
    assert check_residency(Tenant("t", (), frozenset({"eu"})), frozenset(), data_class) is False


def test_a_tenant_without_zones_is_served_nowhere() -> None:
    assert check_residency(Tenant("t", (), frozenset()), frozenset({"eu"}), None) is False
    assert check_residency(Tenant("t", (), frozenset({"any"})), frozenset({"eu"}), "eu") is True
