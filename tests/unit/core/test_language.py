"""Decisions about language with a model that says what the test wants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from serve_app.core import language
from serve_app.core.han import count_forms
from serve_app.core.language import LanguageGuess, decide, is_doubtful, last_user_text
from serve_app.core.latin import count_function_words, spelling_scores
from serve_app.core.readings import Reading
from serve_app.core.scripts import READ_CHARS, clean, count_scripts

NO_FEATURES = [("en", 0.1245), ("ca", 0.0859), ("de", 0.0803)]


def says(*answer: tuple[str, float]) -> Any:
    return lambda text: list(answer)


def never(text: str) -> list[tuple[str, float]]:
    raise AssertionError(f"the model was asked about {text!r}")


class Listener:
    """A model that keeps what it was asked."""

    def __init__(self, *answer: tuple[str, float]) -> None:
        self.answer = list(answer)
        self.asked: list[str] = []

    def __call__(self, text: str) -> list[tuple[str, float]]:
        self.asked.append(text)
        return self.answer


@pytest.mark.parametrize(
    ("text", "code", "script"),
    [
        ("これ手伝って", "ja", "Jpan"),
        ("えーと", "ja", "Jpan"),
        ("ﾃｽﾄです", "ja", "Jpan"),
        ("東京都庁前駅", "ja", "Jpan"),
        ("図書館の円卓", "ja", "Jpan"),
        ("注文", "ja", "Jpan"),
        ("你好", "zh", "Hans"),
        ("总结成三点", "zh", "Hans"),
        ("第三条", "zh", "Hans"),
        ("鲜の每日", "zh", "Hans"),
        ("こんにちは是什么意思", "zh", "Hans"),
        ("翻譯成英文", "zh-Hant", "Hant"),
        ("不是這個，是另外一個", "zh-Hant", "Hant"),
        ("我張單去咗邊", "zh-Hant", "Hant"),
        ("고마워요", "ko", "Kore"),
        ("ㅋㅋㅋㅋㅋ", "ko", "Kore"),
        ("한자 漢字 공부", "ko", "Kore"),
        ("안녕하세요是什么意思", "zh", "Hans"),
        ("สวัสดีครับ", "th", "Thai"),
        ("أين طلبي", "ar", "Arab"),
        ("ممكن تعمل review للـ code ده", "ar", "Arab"),
        ("DockerのbuildがエラーでFailする", "ja", "Jpan"),
        ("Docker container 一直 restart，log 里说 OOM", "zh", "Hans"),
        ("meeting 改到下午三點 OK 嗎", "zh-Hant", "Hant"),
        ("server down อีกแล้ว ใครมี log บ้าง", "th", "Thai"),
    ],
)
def test_script_decides_without_the_model(text: str, code: str, script: str) -> None:
    predict = never if text not in ("第三条",) else says(("zh", 0.9))
    guess = decide(text, predict, None)
    assert (guess.language, guess.script, guess.source) == (code, script, "script")
    assert guess.top == code
    assert guess.confidence >= 0.6


@pytest.mark.parametrize(
    "text",
    [
        "", "   ", "👍👍👍", "👩‍👩‍👧‍👦", "🇯🇵", "1234567890", "。。。",
        "(╯°□°)╯︵ ┻━┻", '{"a": [1, 2, null]}', "\ud83e", "\x00\n\ufeff",
        "SELECT * FROM users WHERE id = 1;", "```\nprint(1)\n```", "https://example.org/a?b=c", "a.b@example.org",
    ],
)  # fmt: skip
def test_no_words_is_und_without_the_model(text: str) -> None:
    assert decide(text, never, None) == LanguageGuess("und", "Zyyy", 0.0, "none", "und")
    assert decide(text, never, "ja") == LanguageGuess("ja", "Zyyy", 0.0, "session", "und")


@pytest.mark.parametrize("text", ["jajaja", "wkwkwk", "hahaha", "hihi", "Jajaja HAHA"])
def test_laughter_belongs_to_no_language(text: str) -> None:
    assert decide(text, never, None).language == "und"
    assert decide(text, never, "es").language == "es"


def test_many_scripts_at_once_are_und() -> None:
    assert decide("привет hello 你好 مرحبا", never, None).language == "und"


def test_the_model_is_given_one_clean_lower_case_line() -> None:
    model = Listener(("en", 0.9))
    decide("PLEASE RESET\r\nMY\u2028ACCOUNT\x00 TODAY\u200b 👍 https://x.org/y 42\ud83e", model, None)
    assert model.asked == ["please reset my account today"]


def test_capitals_read_as_words_and_han_is_impossible_without_han() -> None:
    guess = decide("PLEASE RESET MY ACCOUNT TODAY", says(("zh", 0.6), ("ja", 0.3), ("en", 0.05)), None)
    assert (guess.language, guess.script, guess.source) == ("en", "Latn", "model")


def test_no_features_is_not_english() -> None:
    guess = decide("xqzt", says(*NO_FEATURES), None)
    assert (guess.language, guess.source) == ("und", "none")
    assert guess.confidence < 0.5
    assert decide("xqzt", says(*NO_FEATURES), "vi").language == "vi"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("hola", "es"),
        ("gracias", "es"),
        ("terima kasih", "id"),
        ("cảm ơn", "vi"),
        ("thanks", "en"),
        ("order status", "en"),
        ("ｈｅｌｌｏ", "en"),
    ],
)
def test_spelling_tells_short_words_that_the_model_has_no_features_for(text: str, code: str) -> None:
    assert decide(text, says(*NO_FEATURES), None).language == code


def test_a_language_outside_the_matrix_is_und() -> None:
    french = says(("fr", 0.97), ("en", 0.01), ("es", 0.01))
    guess = decide("bonjour, où est ma commande ?", french, None)
    assert (guess.language, guess.source) == ("und", "none")
    served = decide("bonjour, où est ma commande ?", french, None, languages=("en", "es", "fr"))
    assert (served.language, served.source) == ("fr", "model")


@pytest.mark.parametrize(
    ("text", "answer", "languages", "code", "top"),
    [
        ("привіт, як справи", [("uk", 0.8), ("ru", 0.2)], ("en", "ru"), "und", "uk"),
        ("привет, как дела", [("ru", 0.9), ("uk", 0.1)], ("en", "ru"), "ru", "ru"),
        ("मेरा ऑर्डर कहाँ है", [("hi", 0.9), ("mr", 0.1)], ("en", "hi"), "hi", "hi"),
        ("من کجا هستم", [("fa", 0.9)], ("en", "ar"), "und", "fa"),
        ("من کجا هستم", [("fa", 0.9)], ("en", "ar", "fa"), "fa", "fa"),
        ("میرا آرڈر کہاں ہے", [], ("en", "ar", "ur"), "ur", "ur"),
        ("مرحبا", [("fa", 0.6), ("ar", 0.3)], ("en", "ar", "fa"), "ar", "ar"),
        ("γειά σου", [], ("en", "el"), "el", "el"),
        ("สวัสดี", [], ("en",), "und", "th"),
    ],
)
def test_scripts_of_several_languages(
    text: str, answer: list[tuple[str, float]], languages: tuple[str, ...], code: str, top: str
) -> None:
    guess = decide(text, says(*answer), None, languages=languages)
    assert (guess.language, guess.top) == (code, top)


def test_kanji_alone_keep_a_japanese_session_and_are_chinese_otherwise() -> None:
    undecided = says(("ja", 0.6), ("zh", 0.4))
    assert decide("三行", undecided, "ja").language == "ja"
    assert decide("三行", undecided, None).language == "zh"
    assert decide("三行", undecided, "zh-Hant").language == "zh-Hant"
    assert decide("三行", says(("ja", 0.999), ("zh", 0.001)), None).language == "ja"
    assert decide("订单在哪里", never, "ja").language == "zh"


def test_one_chinese_serves_both_scripts_when_the_matrix_has_one() -> None:
    assert decide("翻譯成英文", never, None, languages=("en", "zh")) == LanguageGuess(
        "zh", "Hant", 0.95, "script", "zh-Hant"
    )
    assert decide("翻译成英文", never, None, languages=("en", "zh-Hant")).language == "zh-Hant"


def test_a_comma_does_not_move_a_session() -> None:
    """The model's two answers for one text with and without a comma, both doubtful, keep what the session has."""
    for answer in (says(("fr", 0.23), ("en", 0.19), ("es", 0.18)), says(("en", 0.25), ("fr", 0.22), ("es", 0.17))):
        guess = decide("Bo Ka", answer, "es")
        assert (guess.language, guess.source) == ("es", "session")
        assert guess.confidence < language.MOVE_CONFIDENCE


def test_a_clear_guess_and_a_script_move_a_session() -> None:
    assert decide("where is my order", says(("en", 0.98)), "ja").language == "en"
    assert decide("これ手伝って", never, "es").language == "ja"


def test_floor_and_hysteresis_boundaries(monkeypatch: pytest.MonkeyPatch) -> None:
    for confidence, session, expected, source in [
        (0.49, None, "und", "none"),
        (0.49, "fr", "und", "none"),
        (0.49, "ja", "ja", "session"),
        (0.50, None, "es", "model"),
        (0.59, "ja", "ja", "session"),
        (0.59, "es", "es", "model"),
        (0.60, "ja", "es", "model"),
    ]:
        reading = Reading("es", "Latn", confidence, "model")
        monkeypatch.setattr(language, "read_latin", lambda *_, reading=reading: reading)
        guess = decide("hola buenos dias", never, session)
        assert (guess.language, guess.source, guess.confidence, guess.top) == (expected, source, confidence, "es")


def test_indonesian_and_malay_are_one_language() -> None:
    malay = says(("ms", 0.5), ("id", 0.4))
    guess = decide("tolong batalkan tempahan saya", malay, None)
    assert guess.language == "id"
    assert guess.confidence > 0.9
    both = ("en", "id", "ms")
    assert decide("tolong batalkan tempahan saya", malay, "ms", languages=both).language == "ms"
    assert decide("tolong batalkan tempahan saya", malay, None, languages=("en", "ms")).language == "ms"


def test_words_in_another_script_are_quoted_when_latin_words_hold_the_sentence() -> None:
    model = Listener(("en", 0.9))
    assert decide("what does 你好 mean?", model, None).language == "en"
    assert model.asked == ["what does mean"]


@pytest.mark.parametrize(
    ("text", "guess", "session", "doubt"),
    [
        ("si claro", LanguageGuess("es", "Latn", 0.55, "model", "es"), None, True),
        ("si claro", LanguageGuess("und", "Latn", 0.3, "none", "it"), None, True),
        # Sure enough to move a session, and in a language that the table does not have.
        ("si claro", LanguageGuess("es", "Latn", 0.6, "model", "es"), None, False),
        ("si claro", LanguageGuess("und", "Latn", 0.95, "none", "it"), None, False),
        # A session, a caller or the writing has decided.
        ("si claro", LanguageGuess("es", "Latn", 0.3, "session", "it"), "es", False),
        ("si claro", LanguageGuess("es", "Latn", 0.55, "model", "es"), "es", False),
        ("si claro", LanguageGuess("es", "Latn", 1.0, "header", "es"), None, False),
        ("ですか", LanguageGuess("ja", "Jpan", 0.4, "script", "ja"), None, False),
        # Nothing to read, or no detector that read it; words enough.
        ("12 + 3 = ?", LanguageGuess("und", "Zyyy", 0.0, "none"), None, False),
        ("si claro", LanguageGuess("und", "Zyyy", 0.0, "none"), None, False),
        ("a" * 40, LanguageGuess("und", "Latn", 0.3, "none", "it"), None, True),
        ("a" * 41, LanguageGuess("und", "Latn", 0.3, "none", "it"), None, False),
    ],
)
def test_few_words_that_nothing_decides_are_in_doubt(
    text: str, guess: LanguageGuess, session: str | None, doubt: bool
) -> None:
    assert is_doubtful(guess, text, session, 0.5) is doubt


def test_what_a_table_with_a_high_floor_does_not_believe_is_in_doubt() -> None:
    guess = LanguageGuess("und", "Latn", 0.8, "none", "es")
    assert [is_doubtful(guess, "si claro", None, floor) for floor in (0.5, 0.8, 0.81)] == [False, False, True]


def test_an_empty_matrix_and_an_unknown_session_are_no_error() -> None:
    assert decide("hello there", says(("en", 0.9)), None, languages=()).language == "und"
    assert decide("hello there", says(("en", 0.9)), "xx").language == "en"


def test_shipped_route_table_and_defaults_agree() -> None:
    path = Path(language.__file__).parents[2] / "cluster_configs" / "routes.yaml"
    spec = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]["languages"]
    assert set(spec["tokenRatio"]) == set(language.LANGUAGES)
    assert spec["minConfidence"] == language.MIN_CONFIDENCE
    assert [set(group) for group in spec["equivalent"]] == [set(group) for group in language.EQUIVALENT]


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([], ""),
        (None, ""),
        ("hello", ""),
        ({"role": "user"}, ""),
        ([{"role": "system", "content": "Be brief."}], ""),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "a"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "b"),
        ([{"role": "user", "content": []}], ""),
        ([{"role": "user", "content": None}], ""),
        ([{"role": "user"}], ""),
        ([{"role": "user", "content": 7}], ""),
        ([None, 3, {"role": "user", "content": "a"}, "x"], "a"),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "¿Qué hora es?"}, {"type": "text", "text": "Gracias"}],
                }
            ],
            "¿Qué hora es?\nGracias",
        ),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {}}, {"type": "text", "text": None}, None],
                }
            ],
            "",
        ),
        (
            [
                {"role": "user", "content": "list"},
                {"role": "assistant", "content": None},
                {"role": "tool", "content": "t"},
            ],
            "list",
        ),
    ],
)
def test_last_user_text(messages: object, text: str) -> None:
    assert last_user_text(messages) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("don’t 'worry'; be happy", "don't worry be happy"),
        ("see https://x.y/z?q=a or mail b@c.de now", "see or mail now"),
        ("foo_bar(x) broke in main.py, why?", "broke in why"),
        ("Dockerのbuildがエラー=failする", "Dockerのbuildがエラー する"),
        ("Hola.Necesito ayuda", "Hola Necesito ayuda"),
        ("ｈｅｌｌｏ　ｗｏｒｌｄ", "hello world"),
        ("cafe\u0301", "caf\u00e9"),
        ("a\ud83eb\x00c\nd", "a b c d"),
        ("नमस्ते दुनिया", "नमस्ते दुनिया"),
    ],
)
def test_clean_leaves_words(text: str, words: str) -> None:
    assert clean(text) == words


def test_clean_reads_the_first_characters_only() -> None:
    assert len(clean("word " * 40_000)) <= READ_CHARS
    assert clean("\n" * 100 + "x" * 500) == "x" * READ_CHARS
    assert len(clean("ﷺ" * 100_000)) <= READ_CHARS


def test_count_scripts() -> None:
    assert dict(count_scripts(clean("Dockerのbuildが 漢字 123"))) == {"Latn": 11, "Kana": 2, "Hani": 2}
    assert count_scripts("") == {}


def test_han_forms_are_proof_in_one_direction_only() -> None:
    traditional = count_forms("這張發票")
    simplified = count_forms("这张发票")
    assert (traditional.simplified, traditional.traditional) == (0, 3)
    assert (simplified.simplified, simplified.traditional) == (3, 0)
    assert count_forms("東京都庁前駅").japanese == 2
    assert count_forms("后里台云余面人口").simplified == 0


def test_spelling_scores_prefer_the_language_of_the_words() -> None:
    for text, code in [("where is my order", "en"), ("dónde está mi pedido", "es"), ("đơn hàng của tôi", "vi")]:
        scores = spelling_scores(text)
        assert max(scores, key=lambda key: scores[key]) == code
    assert count_function_words("what does mean") >= 2
    assert count_function_words("docker container restart") == 0
