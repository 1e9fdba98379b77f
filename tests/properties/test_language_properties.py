"""What holds for every string, whatever the model says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serve_app.core.language import LANGUAGES, decide, last_user_text
from serve_app.core.scripts import READ_CHARS, clean, count_scripts

CODES = ("en", "es", "id", "ms", "vi", "fr", "tl", "zh", "ja", "ko", "ar", "fa", "arz", "th", "ru", "hi")
# Every code point, lone surrogates included, mixed with what has broken detectors before.
ANY_TEXT = st.one_of(
    st.text(st.characters(codec=None, categories=None), max_size=300),
    st.lists(
        st.sampled_from(
            [
                "\n",
                "\r\n",
                "\x00",
                "\ud83e",
                "\udd14",
                "👍",
                "PLEASE",
                "的",
                "の",
                "ㅋ",
                "ة",
                "ก",
                "é",
                "{",
                ";",
                "`",
                "''",
            ]
        ),
        max_size=60,
    ).map("".join),
)
ANSWERS = st.dictionaries(st.sampled_from(CODES), st.floats(0.0, 1.0), max_size=10).map(
    lambda answer: sorted(answer.items(), key=lambda item: -item[1])
)
SESSIONS = st.none() | st.sampled_from((*LANGUAGES, "ms", "xx"))
MATRICES = st.sets(st.sampled_from(("en", "zh", "zh-Hant", "ja", "ko", "ar", "id", "ms", "vi", "es", "th", "fr", "ru")))


@given(ANY_TEXT, ANSWERS, SESSIONS, MATRICES, st.floats(0.0, 1.0))
def test_decide_answers_within_the_matrix(text, answer, session, languages, floor):
    guess = decide(text, lambda _: answer, session, languages=languages, min_confidence=floor)
    assert guess.language in languages | {"und"}
    assert 0.0 <= guess.confidence <= 1.0
    if guess.source in ("script", "model"):
        assert guess.confidence >= floor
    if guess.source == "none":
        assert guess.language == "und"
        assert session not in languages
    if guess.source == "session":
        assert guess.language == session
    assert (guess.language == "und") == (guess.source == "none")
    assert decide(text, lambda _: answer, session, languages=languages, min_confidence=floor) == guess


@given(ANY_TEXT, ANSWERS)
def test_the_model_gets_one_clean_line(text, answer):
    asked = []
    decide(text, lambda line: asked.append(line) or answer, None)
    for line in asked:
        assert line == line.lower()
        assert line.encode("utf-8")
        assert len(line.splitlines()) == 1
        assert not set(line) & {"\x00", "\n", "\ufeff"}


@given(ANY_TEXT)
def test_clean_is_bounded_and_countable(text):
    cleaned = clean(text)
    assert len(cleaned) <= READ_CHARS
    assert cleaned == " ".join(cleaned.split())
    counts = count_scripts(cleaned)
    assert sum(counts.values()) <= len(cleaned)
    assert all(letters > 0 for letters in counts.values())


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=10)
    | st.sampled_from(["user", "role", "content", "text"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text"]) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(JSON | st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": JSON}), max_size=3))
def test_last_user_text_takes_anything(messages):
    assert isinstance(last_user_text(messages), str)
