"""Smoke tests: what an answer must be, and what is said of one that is not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serve_app.core.smoke import QUESTIONS, SmokeTest, to_ask, wrong_answer, wrong_before
from serve_app.core.table import Languages, Rule, Table, Template
from tests.fakes import a_table, agent

JA = SmokeTest("ja", "返品したい", ("です", "ます"))
LANGUAGES = Languages({"en": 1.0, "ja": 1.6, "ko": 1.8, "zh": 1.1}, 0.5, (), frozenset())
POLITE, BLUNT = "返品は三十日以内に承っております。", "返品は三十日以内だよ。"


def table(system: str = "あなたは担当者です。丁寧にお答えください。"):  # type: ignore[no-untyped-def]
    return replace(a_table(), languages=LANGUAGES, templates={"ja": Template("ja", "1", "d", system)})


def body(text: str, reason: str = "stop") -> bytes:
    return json.dumps({"choices": [{"index": 0, "message": {"content": text}, "finish_reason": reason}]}).encode()


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (200, body(POLITE), ""),
        (500, b"", "ja: answered with status 500"),
        (200, b"<html>", "ja: is no answer: The engine's answer is not a JSON object."),
        (200, body("  "), "ja: the answer is empty"),
        (200, body(POLITE, "length"), "ja: the answer is cut short"),
        (200, body("반품은 삼십 일 이내에 가능합니다."), "ja: the answer is in ko"),
        (200, body(BLUNT), "ja: the register is wrong: the answer has none of です, ます"),
    ],
)
def test_an_answer(status: int, answer: bytes, said: str) -> None:
    assert wrong_answer(JA, status, answer, table()) == said


def test_a_template_speaks_its_own_language_unless_the_test_says_otherwise() -> None:
    wrong = table("고객에게 항상 한국어로 정중하게 답변하세요.")
    assert wrong_before(JA, table()) == ""
    assert wrong_before(JA, wrong) == "ja: the template's instruction is in ko"
    assert wrong_before(replace(JA, own_instruction=False), wrong) == ""
    assert wrong_before(replace(JA, language="ko"), wrong) == "ko: there is no template of this language"


def test_a_language_that_nobody_has_a_question_of_is_not_passed_unasked() -> None:
    said = "ja: there is no question to ask; write one into rollout.smoke"
    assert wrong_before(SmokeTest("ja", ""), table()) == said


def test_a_test_names_its_agent_and_its_language() -> None:
    assert json.loads(JA.body("qwen-doc")) == {
        "model": "qwen-doc",
        "messages": [{"role": "user", "content": "返品したい"}],
        "temperature": 0,
    }
    assert JA.headers == {"x-language": "ja"}


#: What was written by an operator: another question of Japanese, and one of a language that is not served.
WRITTEN = [{"language": code, "ask": "?", "markers": [], "ownInstruction": True} for code in ("ja", "fr")]
THAI_ONLY = Rule("thai", 0, "qwen-doc", frozenset({"th"}))
KOREAN_ONLY = Rule("korean", 0, "qwen-doc", frozenset({"ko"}))


def of(digest: str = "d", release: str = "r1", rules: tuple[Rule, ...] = (), **codes: str) -> Table:
    """A table of two agents with templates of English, Japanese, Korean and Thai; ``codes`` have other digests."""
    templates = {code: Template(code, "1", codes.get(code, digest), "?") for code in ("en", "ja", "ko", "th")}
    agents = {name: agent(name, release=release) for name in ("qwen-chat", "qwen-doc")}
    languages = replace(LANGUAGES, named=frozenset({"th"}))
    return replace(a_table(), languages=languages, templates=templates, agents=agents, rules=rules)


def languages_asked(tried: Table, documents: Any = ()) -> dict[str, list[str]]:
    return {name: [t.language for t in tests] for name, tests in to_ask(documents, of(), tried).items()}


def test_each_changed_agent_is_asked_in_each_changed_language_and_in_japanese_and_korean() -> None:
    changed = of(release="r2", th="other")
    assert languages_asked(changed) == {"qwen-chat": ["ja", "ko", "th"], "qwen-doc": ["ja", "ko", "th"]}
    assert languages_asked(of(release="r2")) == {"qwen-chat": ["ja", "ko"], "qwen-doc": ["ja", "ko"]}
    assert languages_asked(of(th="other")) == {}
    one = replace(changed, agents={**changed.agents, "qwen-chat": agent("qwen-chat", release="r1")})
    assert languages_asked(one) == {"qwen-doc": ["ja", "ko", "th"]}
    away = replace(changed, agents={**changed.agents, "qwen-doc": agent("qwen-doc", app="", release="")})
    assert languages_asked(away) == {"qwen-chat": ["ja", "ko", "th"]}


def test_an_agent_is_asked_in_languages_that_rules_send_to_it() -> None:
    everything = Rule("chat", 0, "qwen-chat")
    thai = languages_asked(of(release="r2", rules=(THAI_ONLY, everything), th="other"))
    assert thai == {"qwen-chat": ["ja", "ko", "th"], "qwen-doc": ["th"]}
    korean = languages_asked(of(release="r2", rules=(KOREAN_ONLY, everything), th="other"))
    assert korean["qwen-doc"] == ["ko"]
    # Nothing of what it serves has changed: it is asked in what it serves, and does not pass unasked.
    assert languages_asked(of(release="r2", rules=(THAI_ONLY, everything)))["qwen-doc"] == ["th"]


def test_a_written_question_is_asked_in_place_of_the_own_one() -> None:
    asked = to_ask(WRITTEN, of(), of(release="r2", en="other"))["qwen-chat"]
    assert [(test.language, test.ask) for test in asked] == [
        ("en", "I want to return an item"),
        ("ja", "?"),
        ("ko", "배송 기간을 알려 주세요"),
    ]


def test_a_new_language_without_a_question_is_a_test_that_fails() -> None:
    tried = of(release="r2")
    tried = replace(tried, templates={**tried.templates, "sw": Template("sw", "1", "d", "?")})
    assert [(t.language, t.ask) for t in to_ask([], of(), tried)["qwen-chat"]][-1] == ("sw", "")


def test_every_shipped_template_has_a_question() -> None:
    shipped = Path(__file__).parents[3] / "cluster_configs" / "templates"
    assert QUESTIONS.keys() == {file.stem for file in shipped.glob("*.yaml")}
