"""Texts that broke language detectors of others, decided by the shipped model through the product's own loader."""

from __future__ import annotations

import pytest

from serve_app.core.language import LANGUAGES, decide
from serve_app.core.scripts import count_scripts
from serve_app.edge.language_id import LanguageId


@pytest.fixture(scope="module")
def model() -> LanguageId:
    return LanguageId()


def language(model: LanguageId, text: str, session: str | None = None) -> str:
    return decide(text, model.predict, session).language


@pytest.mark.parametrize("text", ["Hello\nworld", "Hello\r\nworld", "Hello\u2028world", "Hello\x0bworld", "\nHello\n"])
def test_lid_02_the_shipped_detector_reads_more_than_one_line(model: LanguageId, text: str) -> None:
    assert language(model, text) == "en"


CAPITALS = [
    ("PLEASE RESET MY ACCOUNT TODAY", "en"),
    ("WHERE IS MY ORDER", "en"),
    ("POR FAVOR RESTABLEZCA MI CUENTA HOY", "es"),
    ("TOLONG RESET AKUN SAYA HARI INI", "id"),
    ("XIN CHÀO BẠN KHỎE KHÔNG", "vi"),
]


@pytest.mark.parametrize(("text", "code"), CAPITALS)
def test_lid_03_capitals_are_the_same_language(model: LanguageId, text: str, code: str) -> None:
    assert language(model, text) == language(model, text.lower()) == code


@pytest.mark.parametrize("text", ["PLEASE RESET", "ACCOUNT", "OK", "ÜBER ALLES", "ПРИВЕТ", "STRASSE", "HELP!!", "XQZT"])
@pytest.mark.parametrize("session", [None, "en"])
def test_lid_03_no_han_label_without_han(model: LanguageId, text: str, session: str | None) -> None:
    assert count_scripts(text).get("Hani", 0) == 0
    assert language(model, text, session) not in ("zh", "zh-Hant", "ja", "yue")


@pytest.mark.parametrize("session", LANGUAGES)
def test_lid_04_a_comma_moves_no_session_differently(model: LanguageId, session: str) -> None:
    assert language(model, "blue kiwi, throw it") == language(model, "blue kiwi throw it") == "en"
    for comma, plain in (("blast, mango", "blast mango"), ("kiwi, bo", "kiwi bo"), ("ok, wifi", "ok wifi")):
        assert language(model, comma, session) == language(model, plain, session)


# --- More of the kind.


BORROWED = ["wifi", "Paris", "Nguyen", "lol", "w", "y?", "email", "COVID-19", "Mr. Kim", "asap", "app"]


@pytest.mark.parametrize("text", BORROWED)
@pytest.mark.parametrize("session", ["ja", "ko", "zh", "th", "ar", "es", "vi"])
def test_more_langid_a_word_that_every_language_borrows_moves_no_session(
    model: LanguageId, text: str, session: str
) -> None:
    assert language(model, text, session) == session


def test_more_langid_a_sentence_still_moves_a_session(model: LanguageId) -> None:
    assert language(model, "please answer me in English from now on", "ja") == "en"
    assert language(model, "¿dónde está mi pedido?", "ja") == "es"
    assert language(model, "我的订单在哪里", "en") == "zh"
    assert language(model, "سلام", "ja") == "ar"


LETTERLESS = ["", " ", "👍", "🎉🎉🎉", "🇯🇵", "1️⃣", "12345", "4111 1111 1111", "!?", "！？", "\x00", "¿"]


@pytest.mark.parametrize("text", LETTERLESS)
@pytest.mark.parametrize("session", [None, "th"])
def test_more_langid_no_letters_are_no_language(model: LanguageId, text: str, session: str | None) -> None:
    assert language(model, text, session) == (session or "und")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nfor i in range(10):\n    print(i)\n```\n这段代码是什么意思？", "zh"),
        ("https://example.com/where/is/my/order 이거 뭐예요?", "ko"),
        ("user@example.com へ送ってください", "ja"),
        ('{"error": "not found"} là lỗi gì vậy?', "vi"),
        ("SELECT * FROM users; ¿por qué no funciona esta consulta?", "es"),
    ],
)
def test_more_langid_code_and_addresses_say_nothing(model: LanguageId, text: str, code: str) -> None:
    assert language(model, text) == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("\ufeffwhere is my order", "en"),
        ("he\u200bllo wor\u200bld my friend", "en"),
        ("مرحبا\u200f كيف حالك", "ar"),
        ("\u202eسلام\u202c", "ar"),
        ("ＨＥＬＬＯ how are you today", "en"),
        ("ｱﾘｶﾞﾄｳ", "ja"),
    ],
)
def test_more_langid_marks_nobody_sees_change_nothing(model: LanguageId, text: str, code: str) -> None:
    assert language(model, text) == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("translate 'où est ma commande' into english", "en"),
        ("what does 你好 mean?", "en"),
        ("my name is 田中 and I need help with my order", "en"),
        ("Docker container 一直 restart，log 里说 OOM", "zh"),
        ("server down อีกแล้ว ใครมี log บ้าง", "th"),
    ],
)
def test_more_langid_a_quoted_word_does_not_decide(model: LanguageId, text: str, code: str) -> None:
    assert language(model, text) == code


def test_more_langid_kanji_alone_keep_a_japanese_session(model: LanguageId) -> None:
    assert language(model, "了解", "ja") == "ja"
    assert language(model, "発送日", "ja") == "ja"


@pytest.mark.parametrize(("simplified", "traditional"), [("发票", "發票"), ("谢谢", "謝謝"), ("总结三点", "總結三點")])
def test_more_langid_the_two_ways_to_write_chinese_are_told_apart(
    model: LanguageId, simplified: str, traditional: str
) -> None:
    assert (language(model, simplified), language(model, traditional)) == ("zh", "zh-Hant")


@pytest.mark.parametrize("text", ["bonjour, où est ma commande ?", "wo ist meine bestellung", "привет дела", "नमस्ते"])
def test_more_langid_a_language_that_is_not_served_is_never_a_blind_english(model: LanguageId, text: str) -> None:
    assert language(model, text) == "und"
    assert language(model, text, "ko") == "ko"


@pytest.mark.parametrize("blank", [" " * 5000, "\n\t" * 5000, "\u3000" * 5000], ids=["spaces", "lines", "wide"])
def test_more_langid_white_space_before_a_text_hides_it_from_nobody(model: LanguageId, blank: str) -> None:
    assert language(model, f"{blank}返品したい") == "ja"
    assert language(model, f"{blank}where is my order") == "en"


ENDLESS = ["x" * 200_000, "a\u0301" * 50_000, "\U000e0041" * 1000, "{[" * 50_000, "\ud83e" * 1000]


@pytest.mark.parametrize("text", ENDLESS, ids=range(len(ENDLESS)))
def test_more_langid_no_length_and_no_marks_break_it(model: LanguageId, text: str) -> None:
    assert language(model, text, "es") == "es"
