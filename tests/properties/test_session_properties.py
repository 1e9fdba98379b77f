"""Whatever is said, however often: what is kept is bounded, can be stored, and reads the same again."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.core.budget import estimate_prompt_tokens, messages_bytes
from serve_app.core.sessions import (
    CARRIED_TURNS,
    MAX_TURNS,
    PACKED_BYTES,
    SUMMARY_BYTES,
    TEXT_BYTES,
    TURNS_BYTES,
    Carry,
    History,
    add_turn,
    carry,
    merge,
    pack,
    unpack,
    with_history,
)
from serve_app.core.texts import clean_text, head, shorten

#: Any code points, lone surrogates and NUL among them; some texts are long.
SHORT = st.text(alphabet=st.characters() | st.characters(categories=["Cs", "Cc", "Mn"]), max_size=30)
TEXTS = st.builds(lambda text, times: text * times, SHORT, st.sampled_from([1, 1, 20, 300]))
TURNS = st.lists(st.tuples(TEXTS, TEXTS), max_size=12)


def talk(turns: list[tuple[str, str]], history: History | None = None) -> History:
    history = history or History()
    for user, answer in turns:
        history = add_turn(history, user, answer)
    return history


@given(TURNS)
def test_a_history_is_bounded_and_survives_its_packing(turns: list[tuple[str, str]]) -> None:
    history = talk(turns)
    assert history.count == len(turns)
    assert len(history.turns) <= MAX_TURNS
    assert sum(t.size_bytes for t in history.turns) <= TURNS_BYTES
    assert all(len(text.encode()) <= TEXT_BYTES for t in history.turns for text in (t.user, t.answer))
    assert len(history.summary.encode()) <= SUMMARY_BYTES
    packed = pack(history)
    assert len(packed) <= PACKED_BYTES
    assert unpack(packed) == Carry(None, history)


@settings(max_examples=40)
@given(TURNS, TURNS, st.sampled_from([None, "ja", "zh-Hant"]))
def test_a_carry_is_bounded_and_may_arrive_twice(
    mine: list[tuple[str, str]], theirs: list[tuple[str, str]], language: str | None
) -> None:
    own, packed = talk(mine), carry(talk(theirs), language)
    found = unpack(packed)
    assert found is not None and found.language == language
    assert len(packed) <= PACKED_BYTES and len(found.history.turns) <= CARRIED_TURNS
    once = merge(own, found.history)
    assert merge(once, found.history) == once
    assert once.count == max(own.count, len(theirs))


@settings(max_examples=40)
@given(TURNS, TEXTS, st.integers(0, 4000))
def test_the_context_is_respected(turns: list[tuple[str, str]], text: str, most_tokens: int) -> None:
    new = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": text}]
    made, whole = with_history(talk(turns), new, most_tokens, messages_bytes(new))
    assert made[0] == new[0] and made[-1] == new[-1]
    assert estimate_prompt_tokens(made) <= most_tokens or made == new
    assert 0 <= whole <= len(turns)


@given(TEXTS, st.integers(0, 200))
def test_a_cut_is_a_beginning_within_its_bytes(text: str, most_bytes: int) -> None:
    text = clean_text(text)
    begun = head(text, most_bytes)
    assert text.startswith(begun)
    assert len(begun.encode()) <= most_bytes or begun == text
    assert len(shorten(text, most_bytes).encode()) <= most_bytes


@given(st.binary(max_size=200))
def test_no_bytes_are_a_fault(packed: bytes) -> None:
    found = unpack(packed)
    assert found is None or len(pack(found.history)) <= PACKED_BYTES
