"""Smoke tests: what an answer must be, and what is said of one that is not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from serve_app.core.smoke import SmokeTest, to_ask, wrong_answer, wrong_instruction
from serve_app.core.table import Languages, Template
from tests.fakes import a_table

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
    assert wrong_instruction(JA, table()) == ""
    assert wrong_instruction(JA, wrong) == "ja: the template's instruction is in ko"
    assert wrong_instruction(replace(JA, own_instruction=False), wrong) == ""
    assert wrong_instruction(replace(JA, language="ko"), wrong) == "ko: there is no template of this language"


def test_only_languages_of_the_service_are_asked() -> None:
    documents = [{"language": code, "ask": "?", "markers": [], "ownInstruction": True} for code in ("ja", "th")]
    assert [test.language for test in to_ask(documents, table())] == ["ja"]
    assert json.loads(JA.body) == {"messages": [{"role": "user", "content": "返品したい"}], "temperature": 0}
