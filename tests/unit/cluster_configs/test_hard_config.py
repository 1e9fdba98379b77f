"""Configuration that others read silently wrong: here each is refused with its line, or means what it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster_configs.load import load_paths
from cluster_configs.quantities import QuantityError, parse_duration_s
from cluster_configs.table import table_of
from cluster_configs.yaml_source import read
from serve_app.core import rules
from serve_app.core.language import decide
from serve_app.core.tenants import KeyIndex, hash_key, identify
from serve_app.edge.language_id import LanguageId
from serve_app.edge.serve_config import router_config
from serve_app.outcomes import GrixError
from tests.fakes import a_table
from tests.unit.cluster_configs.test_config_faults import AGENT, ALL, FEDERATION, ROUTES, TEMPLATE, TENANT

Check = Callable[..., list[str]]
SHA = TENANT.split("sha256: ")[1].split("}")[0]


def said(text: str, **env: str) -> list[str]:
    """Faults of the text as YAML, whatever its kind."""
    sources, faults = read(text, "f", env)
    return [f"{f.line}: {f.path}: {f.message}" for f in sorted([*(x for s in sources for x in s.faults), *faults])]


def changed(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


@pytest.mark.parametrize(
    "text",
    [
        "models:\n  a: {replicas: 2}\nmodels:\n  b: {replicas: 1}",
        "models: {a: 1}\n'models': {b: 1}",
        'models: {a: 1}\n"models": {b: 1}',
        "models: {a: 1}\n? models\n: {b: 1}",
    ],
)
def test_cfg_02_a_key_written_twice_names_key_and_both_lines(text: str) -> None:
    (fault,) = said(text)
    assert "'models' is written twice, on lines 1 and " in fault


@pytest.mark.parametrize("text", ["a: {x: 1, x: 2}", "a:\n- {x: 1, x: 2}", "a: {b: {x: 1, x: 1}}", "1: a\n'1': b"])
def test_cfg_02_at_any_depth_and_in_any_style(text: str) -> None:
    assert len([f for f in said(text) if "written twice" in f]) == 1


@pytest.mark.parametrize("empty", ["", " ", " ~", " null", " {}", "  # nothing", " &x"])
def test_cfg_03_an_empty_block_never_wipes_what_was_set(check: Check, empty: str) -> None:
    twice = f"breaker: {{failures: 5}}\nother: 1\nbreaker:{empty}\n"
    assert any("written twice, on lines 1 and 3" in fault for fault in said(twice))
    # Alone it is a fault too, in a real document.
    faults = check(changed(FEDERATION, "spec:\n", f"spec:\n  health:{empty}\n"))
    assert len(faults) == 1 and "would wipe its default" in faults[0]


@pytest.mark.parametrize("env", [{}, {"GATEWAY_KEY": ""}, {"GATEWAY_KEY": " \n"}])
def test_cfg_07_an_unset_key_never_opens_the_door(check: Check, env: dict[str, str]) -> None:
    text = changed(TENANT, SHA, "${GATEWAY_KEY}")
    (fault,) = check(text, **env)
    assert "the environment variable GATEWAY_KEY is " in fault


KEYLESS = [None, "", "Bearer", "Bearer ", "Bearer  \t", "bearer None", "Bearer null", "Basic Og=="]


@pytest.mark.parametrize("header", KEYLESS)
def test_cfg_07_no_key_is_nobody_even_where_its_hash_is_known(header: str | None) -> None:
    """A key computed from an unset variable is the hash of nothing: nothing must not be a key."""
    made = a_table()
    tenant = made.tenants[0]
    nothing = tuple(type(tenant.keys[0])(f"k{i}", hash_key(key)) for i, key in enumerate(("", " ", "\n")))
    table = a_table(tenants=(type(tenant)("acme", nothing, frozenset({"any"})),))
    for index in (KeyIndex.of(table.tenants), KeyIndex.of(())):
        with pytest.raises(GrixError) as refused:
            identify(table, index, header, "2026-11-30")
        assert refused.value.status.http == 401


TIMES: list[tuple[str, float | None]] = [
    ("2s", 2.0),
    ("500ms", 0.5),
    ("1h30m", 5400.0),
    ("1.5s", 1.5),
    ("300", None),
    ("0", None),
    ("0s", None),
    ("-5s", None),
    ("-5", None),
    ("5 s", None),
    ("5S", None),
    ("30m1h", None),
    ("1e3s", None),
    ("٣s", None),
    ("5sec", None),
    ("1us", None),
    ("inf", None),
    ("", None),
    ("9" * 30 + "h", None),
]


@pytest.mark.parametrize(("text", "seconds"), TIMES)
def test_cfg_09_a_number_has_its_unit(text: str, seconds: float | None) -> None:
    if seconds is None:
        with pytest.raises(QuantityError, match=r"allowed|whichever is meant"):
            parse_duration_s(text)
    else:
        assert parse_duration_s(text) == seconds


def test_cfg_09_in_a_document_with_its_line_and_a_hint(check: Check) -> None:
    limits = "  timeouts: {queue: 300, firstByte: 2s, total: 1h30m}\n"
    (fault,) = check(AGENT + limits)
    assert fault.startswith("10: spec.timeouts.queue: '300' has no unit: write 300ms, 300s or 300m")


# --- More of the kind.


@pytest.mark.parametrize("code", ["no", "on", "yes", "y"])
def test_more_config_a_language_code_is_text_whatever_yaml_thinks(check: Check, code: str) -> None:
    faults = check(changed(ROUTES, "{en: 1, ja: 1.6}", f"{{en: 1, ja: 1.6, {code}: 1.4}}"))
    # Norwegian is a language; what is none is refused as text, never as a switch.
    assert all("switch" not in fault and "True" not in fault and "False" not in fault for fault in faults)
    if code == "no":
        assert faults == check(ROUTES)


def test_more_config_a_value_from_the_environment_is_only_text(check: Check) -> None:
    evil = "x, role: operator, keys: []"
    faults = check(changed(TENANT, "{name: acme}", "{name: '${WHO}'}"), WHO=evil)
    assert len(faults) == 1 and "metadata.name" in faults[0]


UNKNOWN = ["openAccess: true", "requireAuth: false", "auth: none", "api_key: sk-123", "key: sk-123"]


@pytest.mark.parametrize("wrong", UNKNOWN)
def test_more_config_switches_that_do_not_exist_are_refused_and_secrets_not_repeated(check: Check, wrong: str) -> None:
    faults = check(TENANT + f"  {wrong}\n")
    assert faults and all("unknown key" in fault and "sk-123" not in fault for fault in faults)


@pytest.mark.parametrize("keys", ["[]", "[{id: k1}]", "[{sha256: x}]", "[{id: k1, sha256: sk-live-123}]", "none"])
def test_more_config_a_tenant_without_a_whole_key_is_refused(check: Check, keys: str) -> None:
    start = TENANT.index("[{id: k1")
    text = TENANT[:start] + keys + TENANT[TENANT.index("\n", start) :]
    faults = check(text)
    assert faults
    assert all("sk-live-123" not in fault for fault in faults)


def test_more_config_a_hash_of_digits_is_still_a_hash(check: Check) -> None:
    for digits in ("1" * len(SHA), "1e" + "0" * (len(SHA) - 2), "0" * len(SHA)):
        faults = check(changed(TENANT, SHA, digits))
        # Either it is taken as the text it is, or the fault says to write it in quotes.
        assert all("quotes" in fault for fault in faults)
        assert check(changed(TENANT, SHA, f'"{digits}"')) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("agent: qwen-chat}}\n    - {name: fallback", "agent: qwen-chta}}\n    - {name: fallback"),
        ("    - {name: fallback, match: {}, target: {agent: qwen-chat, langTemplate: en}}\n", ""),
        ("{name: ja, match: {lang: ja}", "{name: ja, match: {lang: Japanese}"),
        ("{name: ja, match: {lang: ja}", "{name: fallback, match: {lang: ja}"),
        ("{name: ja, match: {lang: ja}", "{name: ja, match: {}"),
        ("match: {lang: ja}", "match: {languages: ja}"),
    ],
)
def test_more_config_a_route_that_cannot_work_is_refused(check: Check, old: str, new: str) -> None:
    assert check(ALL) == []
    faults = check(changed(ALL, old, new))
    assert faults and all(": spec." in fault for fault in faults)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
        "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e]",
        "a: &a [*a]",
        "a: !!python/object/apply:os.system ['true']",
        "a: !include /etc/passwd",
        "[" * 600,
        "a:\n\t- b",
    ],
)
def test_more_config_hostile_yaml_is_a_fault_with_a_line(text: str) -> None:
    faults = said(text)
    assert faults and all(fault.split(":")[0].isdigit() for fault in faults)


def test_more_config_two_documents_with_one_name_name_both(check: Check) -> None:
    faults = check("---\n".join([ALL, AGENT]))
    assert len(faults) == 1 and "qwen-chat" in faults[0]


@pytest.mark.parametrize("tail", ["---\n", "---\n---\n", "...\n---\n"])
def test_more_config_an_empty_document_is_told(check: Check, tail: str) -> None:
    assert any("empty" in fault for fault in check(ALL + tail))


def test_more_config_windows_lines_and_a_byte_order_mark_change_nothing(check: Check) -> None:
    raw = b"\xef\xbb\xbf" + ALL.replace("\n", "\r\n").encode()
    assert check(raw) == []


@pytest.mark.parametrize("size", ["16", "16GB", "16G", "16gi", "16 Gi", "0Gi", "-1Gi", "1.0001Ki", "90%", "5s"])
def test_more_config_a_size_has_its_unit(check: Check, size: str) -> None:
    faults = check(changed(AGENT, "vramRequired: 40Gi", f"vramRequired: {size}"))
    assert len(faults) == 1 and faults[0].startswith("9: spec.gpu.vramRequired: ")


def test_more_config_every_fault_is_told_at_once(check: Check) -> None:
    text = changed(changed(ALL, "role: primary", "role: primry"), "duty: worker", "duty: wroker")
    assert len(check(text)) == 2


def test_more_config_numbers_of_the_wrong_kind_are_refused(check: Check) -> None:
    wrong: list[Any] = ["1_000", "0x10", "010", "1e2", ".inf", "true", "'3'", "3.5", "${N}"]
    for value in wrong:
        faults = check(AGENT + f"  maxReplicas: {value}\n", N="3")
        assert len(faults) == 1 and "spec.maxReplicas" in faults[0], value


def test_more_config_a_language_without_a_ratio_is_still_a_language(tmp_path: Path) -> None:
    """A rule and a template may name it: then texts in it are told apart, and its rule matches."""
    french = TEMPLATE.replace("{name: en}", "{name: fr}").replace("language: en", "language: fr")
    routes = changed(ROUTES, "match: {lang: ja}", "match: {lang: [ja, de]}")
    file = tmp_path / "f.yaml"
    file.write_text("---\n".join([FEDERATION, AGENT, routes, TENANT, TEMPLATE, french]))
    config = load_paths([file], {})
    region = config.federation.region("cloud-a")
    assert region is not None
    table = table_of(router_config(config, region, {"qwen-chat": "e" * 64}, open_access=False))
    assert table.languages.codes == {"en", "ja", "de", "fr"}
    told = decide("wo ist meine bestellung", LanguageId().predict, None, languages=table.languages.codes)
    assert told.language == "de"
    route = rules.route(table, table.tenants[0], rules.Facts("de", None, 10, "acme"), None, None)
    assert route.rule == "ja"
