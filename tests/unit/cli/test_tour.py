"""What passes on the tour, and what does not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployments.models.tiny_qwen.corpus import load_corpora
from serve_app.cli import demo
from serve_app.cli.corpus_answers import EMBEDDED_MODEL, corpus_answers
from serve_app.cli.demo import HEAD, row
from serve_app.cli.start_region import Wanted
from serve_app.cli.state import Home, empty
from serve_app.cli.tour import STOPS, TOOL_NAME, TOOL_SCHEMA, Seen, Stop, check, schema_faults, script_fault

BY_NAME = {s.name: s for s in STOPS}
ANSWERS = corpus_answers()
CORPORA = load_corpora()
ASKED = [s for s in STOPS if s.kind in ("chat", "stream")]


def _seen(language: str, text: str, **more: Any) -> Seen:
    told: dict[str, Any] = {"finish_reason": "stop", "usage": {"completion_tokens": 5}, "record": {}, **more}
    return Seen(200, {"x-grix-language": language}, text, **told)


def test_the_tour_is_what_was_promised() -> None:
    languages = set().union(*(s.languages for s in STOPS))
    assert {"zh", "en", "ja", "ko", "id", "ar"} <= languages
    kinds = [s.kind for s in STOPS]
    assert [kinds.count(k) for k in ("stream", "tool", "bad", "stranger")] == [1, 1, 1, 1]
    assert len(BY_NAME) == len(STOPS)


def test_the_answers_are_those_of_the_corpus() -> None:
    assert {code: {t.id: t.answer for t in c.topics} for code, c in CORPORA.items()} == ANSWERS
    assert EMBEDDED_MODEL == "embedded:tiny-qwen"


@pytest.mark.parametrize("stop", [s for s in ASKED if s.name != "mixed zh+en"], ids=lambda s: s.name)
def test_the_tour_asks_what_the_model_is_trained_on(stop: Stop) -> None:
    assert stop.topic is not None
    assert stop.text in {t for code in stop.languages & set(CORPORA) for t in CORPORA[code].topic(stop.topic).trained}


def test_the_mixed_stop_is_a_trained_line_with_a_product_in_it() -> None:
    stop, zh = BY_NAME["mixed zh+en"], CORPORA["zh"]
    plain = stop.text.replace(" iPhone ", "").rstrip("？")
    assert any(plain == opener + line for opener in zh.openers for line in zh.topic(str(stop.topic)).trained)


@pytest.mark.parametrize("stop", ASKED, ids=lambda s: s.name)
def test_only_the_answer_of_the_topic_passes(stop: Stop) -> None:
    code = min(stop.languages)
    right = ANSWERS[code][str(stop.topic)]
    assert check(stop, _seen(code, right), ANSWERS) == []
    other = ANSWERS[code]["gift_card"]
    assert check(stop, _seen(code, other)) == []
    assert check(stop, _seen(code, other), ANSWERS) == [
        f"the answer is gift_card in {code}, expected {stop.topic} in {code}: wanted {right!r}, got {other!r}"
    ]


def test_an_answer_is_word_for_word() -> None:
    right = ANSWERS["zh"]["return_item"]
    assert check(BY_NAME["zh short"], _seen("zh", right[:-1]), ANSWERS) == [
        f"the answer is none of the corpus, expected return_item in zh: wanted {right!r}, got {right[:-1]!r}"
    ]


def test_a_topic_in_another_language_is_no_answer() -> None:
    english = ANSWERS["en"]["return_item"]
    faults = check(BY_NAME["zh short"], _seen("zh", english), ANSWERS)
    assert faults[0] == "the answer is 0% han, which is not zh"
    assert faults[1].startswith("the answer is return_item in en, expected return_item in zh: wanted '免费退货")


def test_a_tool_call_has_no_topic() -> None:
    good = json.dumps({"order_id": "12345", "notify": "sms"})
    assert check(BY_NAME["en named tool"], _call(TOOL_NAME, good), ANSWERS) == []


@pytest.mark.parametrize(
    ("text", "language", "right"),
    [
        ("免费退货期限为 30 天 PDF", "zh", True),
        ("返品は30日以内なら無料です。", "zh", False),
        ("返品は30日以内なら無料です。", "ja", True),
        ("免费退货期限", "ja", False),
        ("일반 배송은 3일에서 5일", "ko", True),
        ("التوصيل العادي", "ar", True),
        ("Returns are free", "en", True),
        ("Returns are free", "ko", False),
        ("12345", "en", False),
    ],
)
def test_script_fault(text: str, language: str, right: bool) -> None:
    assert (script_fault(text, language) is None) is right


def test_a_right_answer_passes() -> None:
    assert check(BY_NAME["zh short"], _seen("zh", "免费退货期限为 30 天")) == []


def test_each_wrong_part_is_named() -> None:
    good = _seen("zh", "免费退货期限为 30 天")
    stop = BY_NAME["zh short"]
    assert check(stop, replace(good, headers={"x-grix-language": "ja"}))[0] == "language ja, expected zh"
    assert check(stop, replace(good, finish_reason="length")) == ["finish_reason length, expected stop"]
    assert check(stop, replace(good, usage=None)) == ["no tokens in usage"]
    assert check(stop, replace(good, record=None)) == ["the region keeps no record of it"]
    assert check(stop, replace(good, text=" ")) == ["the answer is empty"]
    assert check(stop, replace(good, answer_language="ja")) == ["the answer is in ja, expected zh"]
    assert check(stop, replace(good, fault="no answer")) == ["no answer"]
    assert check(stop, Seen(500, {}, error={"message": "x"})) == ["status 500, expected 200: x"]


def test_refusals_need_status_envelope_and_param() -> None:
    stop = BY_NAME["bad request"]
    error = {"message": "m", "type": "t", "param": "temperature", "code": "c"}
    assert check(stop, Seen(400, {}, error=error)) == []
    assert check(stop, Seen(400, {}, error={**error, "param": None})) == ["error.param is None, expected temperature"]
    assert check(stop, Seen(200, {})) == [
        "status 200, expected 400",
        "the error envelope lacks message, type, param, code",
    ]


def _call(name: str, arguments: str) -> Seen:
    return _seen("en", "", tool_calls=({"function": {"name": name, "arguments": arguments}},))


def test_tool_call() -> None:
    stop = BY_NAME["en named tool"]
    good = json.dumps({"order_id": "12345", "notify": "sms"})
    assert check(stop, _call(TOOL_NAME, good)) == []
    assert check(stop, _call("other", good)) == [f"tool other, expected {TOOL_NAME}"]
    assert check(stop, _call(TOOL_NAME, "{"))[0].startswith("the tool's arguments are no JSON")
    assert check(stop, replace(_call(TOOL_NAME, good), tool_calls=())) == ["0 tool calls, expected 1"]


def test_schema_faults() -> None:
    assert schema_faults([], TOOL_SCHEMA) == ["the tool's arguments are no object"]
    assert schema_faults({"order_id": "1", "notify": 2, "x": 3}, TOOL_SCHEMA) == [
        "argument x is unknown",
        "argument order_id is '1', allowed: ^[0-9]{5}$",
        "argument notify is no string",
    ]


def test_a_row_has_a_cell_for_each_head() -> None:
    stop = BY_NAME["zh short"]
    assert len(row(stop, _seen("zh", "好"), [])) == len(HEAD)
    assert row(stop, _seen("zh", "好"), ["x"])[0] == "FAILED"


@pytest.mark.parametrize(
    ("models", "status", "right"),
    [(["embedded:tiny-qwen"], 1, 3), (["smollm2"], 0, 17), (["embedded:tiny-qwen", "smollm2"], 0, 17), (None, 0, 17)],
)
def test_the_demo_wants_the_corpus_only_of_a_region_with_its_model_alone(
    models: list[str] | None,
    status: int,
    right: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    (tmp_path / "key").write_text("k\n")
    record = {"name": "cloud-a", "url": "http://127.0.0.1:1", "key_file": str(tmp_path / "key"), "models": models}
    monkeypatch.setattr(demo, "up", lambda *_: ({**empty(), "regions": [record]}, True))
    monkeypatch.setattr(demo, "visit", lambda _, stop: _off_topic(stop))
    assert demo.run(Wanted(), Home(tmp_path / ".grix"), keep=False, as_json=False) == status
    told = capfdbinary.readouterr().out.decode()
    assert f"{right} of 17 requests came out as they should" in told
    fault = "FAILED zh short: the answer is gift_card in zh, expected return_item in zh: wanted"
    assert (fault in told) is bool(status)


def _off_topic(stop: Stop) -> Seen:
    """Everything right but the topic."""
    if stop.kind in ("bad", "stranger"):
        param, status = ("temperature", 400) if stop.kind == "bad" else (None, 401)
        return Seen(status, {}, error={"message": "m", "type": "t", "param": param, "code": "c"})
    if stop.kind == "tool":
        return _call(TOOL_NAME, json.dumps({"order_id": "12345", "notify": "sms"}))
    code = min(stop.languages)
    return _seen(code, ANSWERS[code]["gift_card"])
