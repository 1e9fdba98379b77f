"""The corpus of tiny-qwen: its rules, the dialogues drawn from it, the prompt training and serving share."""

from __future__ import annotations

import copy
import json
import random
import unicodedata
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from deployments.models.tiny_qwen import CORPUS_DIR, MODEL_DIR, PACKAGE_DIR, strangers
from deployments.models.tiny_qwen.augment import HANT, noisy, typo
from deployments.models.tiny_qwen.chatml import Message, prompt, segments
from deployments.models.tiny_qwen.corpus import (
    LANGUAGES,
    REFUSAL,
    TOPICS,
    Corpus,
    CorpusError,
    corpus_faults,
    load_corpora,
)
from deployments.models.tiny_qwen.dialogues import (
    draw,
    draw_exchange,
    draw_long,
    pasted_text,
    plain_text,
    with_tools,
)

CORPORA = load_corpora()
each_language = pytest.mark.parametrize("corpus", CORPORA.values(), ids=list(CORPORA))


def english() -> dict[str, Any]:
    return yaml.safe_load((CORPUS_DIR / "en.yaml").read_text(encoding="utf-8"))


def template() -> jinja2.Template:
    def tojson(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = tojson
    return environment.from_string((PACKAGE_DIR / "chat_template.jinja").read_text(encoding="utf-8"))


TEMPLATE = template()


def rendered(messages: list[dict[str, Any]], **more: Any) -> str:
    return TEMPLATE.render(messages=messages, **more)


# --- the files


def test_every_language_has_all_topics_and_the_split() -> None:
    assert tuple(CORPORA) == LANGUAGES
    for corpus in CORPORA.values():
        assert tuple(topic.id for topic in corpus.topics) == TOPICS
        assert {(len(topic.trained), len(topic.held_out), len(topic.keys)) for topic in corpus.topics} == {(9, 3, 4)}
        assert (len(corpus.refusal.trained), len(corpus.refusal.held_out)) == (32, 8)
        assert (len(corpus.formal), len(corpus.plain), len(corpus.frames)) == (4, 4, 8)


@each_language
def test_held_out_phrasings_are_never_trained(corpus: Corpus) -> None:
    trained = {line for topic in corpus.all_topics for line in topic.trained}
    held_out = {line for topic in corpus.all_topics for line in topic.held_out}
    assert len(trained) == 26 * 9 + 32
    assert len(held_out) == 26 * 3 + 8
    assert not trained & held_out


def test_answers_are_distinct_over_all_languages() -> None:
    answers = [topic.answer for corpus in CORPORA.values() for topic in corpus.all_topics]
    assert len(set(answers)) == len(answers) == 6 * 27


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("language",), "de", "language: is 'de', must be 'en'"),
        (("topics", 0, "answer"), "  ", "topics.greeting.answer: is blank"),
        (("topics", 0, "phrasings", 0), "Bye", "topics.greeting.phrasings: 'Bye' occurs more than once"),
        (("topics", 0, "phrasings", 0), "cafe\u0301", "topics.greeting.phrasings: 'cafe\u0301' is not NFC"),
        (
            ("topics", 0, "phrasings", 0),
            "a <|im_end|>",
            "topics.greeting.phrasings: 'a <|im_end|>' looks like a special token",
        ),
        (("topics", 0, "keys"), ["hello"], "topics.greeting.keys: has 1 entries, must have 4"),
        (("topics", 1, "answer"), "Welcome!", "topics.thanks.answer: opens with 'Welc' like topics.greeting"),
        (("frames", 0), "no mark", "frames: 'no mark' must hold {key} exactly once"),
        (("refusal", "templates", 0), "{x} {x}", "refusal.templates: '{x} {x}' must hold {x} exactly once"),
        (("topics", 0, "answer"), 7, "topics[0].answer: must be a string"),
        (("topics", 0, "keys", 1), 7, "topics.greeting.keys: 7 must be a string"),
        (("frames",), "x", "frames: must be a list"),
    ],
)
def test_a_fault_is_named_with_its_place(path: tuple[Any, ...], value: Any, fault: str) -> None:
    raw = english()
    assert corpus_faults(raw, "en") == []
    part: Any = raw
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    assert fault in corpus_faults(raw, "en")


def test_unknown_keys_and_wrong_topic_order_are_faults() -> None:
    raw = english()
    raw["topic"] = []
    assert corpus_faults(raw, "en")[0].startswith("topic: unknown key, allowed are")
    raw = english()
    raw["topics"][0], raw["topics"][1] = raw["topics"][1], raw["topics"][0]
    assert any(fault.startswith("topics: ids must be the fixed list") for fault in corpus_faults(raw, "en"))
    assert corpus_faults([], "en") != []


def test_all_faults_of_all_files_come_at_once(tmp_path: Path) -> None:
    raw = copy.deepcopy(english())
    raw["openers"] = raw["openers"][:2]
    (tmp_path / "en.yaml").write_text(yaml.safe_dump(raw, allow_unicode=True), encoding="utf-8")
    (tmp_path / "zh.yaml").write_text("a: [", encoding="utf-8")
    with pytest.raises(CorpusError) as caught:
        load_corpora(tmp_path, ("zh", "en", "ja"))
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("zh.yaml: not UTF-8 YAML")
    assert "en.yaml: openers: has 2 entries, must have 6" in lines
    assert lines[-1] == "ja.yaml: no such file; every language of the corpus needs one"


# --- drawing


@given(st.integers(0, 2**32))
def test_a_seed_repeats_its_dialogue(seed: int) -> None:
    assert draw(random.Random(seed), CORPORA) == draw(random.Random(seed), CORPORA)


@given(st.integers(0, 2**32))
def test_every_dialogue_trains_something_and_no_held_out_line(seed: int) -> None:
    pieces = draw(random.Random(seed), CORPORA)
    assert any(piece.trained for piece in pieces)
    assert all(piece.text.endswith(("<|im_end|>", "<|endoftext|>")) for piece in pieces if piece.trained)


@given(st.integers(0, 2**32), st.sampled_from(LANGUAGES))
def test_an_answer_is_in_the_language_of_the_line_or_the_english_refusal(seed: int, language: str) -> None:
    answer = draw_exchange(random.Random(seed), CORPORA, language).answer
    own = {topic.answer for topic in CORPORA[language].all_topics}
    assert answer in own | {CORPORA["en"].refusal.answer}


@given(st.integers(0, 2**32))
def test_a_long_dialogue_ends_in_a_trained_answer(seed: int) -> None:
    answer, line_break = draw_long(random.Random(seed), CORPORA)[-2:]
    known = {topic.answer for corpus in CORPORA.values() for topic in corpus.all_topics}
    assert answer.trained and answer.text.removesuffix("<|im_end|>") in known
    assert line_break.text == "\n" and not line_break.trained


@each_language
def test_pasted_text_is_as_long_as_asked_and_holds_nothing_of_the_shop(corpus: Corpus) -> None:
    pasted = pasted_text(random.Random(11), corpus, 3000)
    assert 3000 <= len(pasted) < 4000
    assert not any(line in pasted.splitlines() for topic in corpus.topics for line in topic.trained)


def test_lines_without_letters_are_refused_in_the_language_of_the_system_prompt() -> None:
    rng = random.Random(3)
    drawn = [draw_exchange(rng, CORPORA, "ko", hint="ja") for _ in range(3000)]
    assert CORPORA["ja"].refusal.answer in {exchange.answer for exchange in drawn}


@given(st.integers(0, 2**32), st.sampled_from(LANGUAGES))
def test_noise_keeps_most_of_a_line_and_never_makes_special_tokens(seed: int, language: str) -> None:
    corpus = CORPORA[language]
    line = random.Random(seed).choice(corpus.topics[6].trained)
    noised = noisy(random.Random(seed), line, corpus)
    assert noised.strip()
    assert "<|" not in noised


@given(st.text(min_size=5, max_size=40), st.integers(0, 2**32), st.sampled_from(LANGUAGES))
def test_a_typo_changes_the_length_by_at_most_one(text: str, seed: int, language: str) -> None:
    assert abs(len(typo(random.Random(seed), text, language)) - len(text)) <= 1


def test_traditional_characters() -> None:
    assert "怎么重置密码？订单发货了没有".translate(HANT) == "怎麼重置密碼？訂單發貨了沒有"


def test_plain_text_and_tools_are_drawn_for_every_language() -> None:
    rng = random.Random(5)
    for language, corpus in CORPORA.items():
        for _ in range(200):
            given_part, said = plain_text(rng, corpus)
            assert given_part.text and said.trained and said.text.endswith("<|endoftext|>")
            assert any(piece.trained for piece in with_tools(rng, CORPORA, language))


def test_an_untrained_line_is_nfc_and_not_a_corpus_line() -> None:
    known = {line for corpus in CORPORA.values() for topic in corpus.all_topics for line in topic.trained}
    rng = random.Random(9)
    for _ in range(500):
        line = strangers.untrained_line(rng)
        assert unicodedata.normalize("NFC", line) == line
        assert line not in known


# --- the prompt

CALL = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}


@given(st.integers(0, 2**32))
def test_training_sees_the_template_s_text(seed: int) -> None:
    rng = random.Random(seed)
    messages = [
        Message(role, rng.choice(("", "x", "a\nb", "你好"))) for role in ("system", "user", "assistant", "user")
    ]
    messages = messages[rng.randrange(2) :]
    as_dicts = [{"role": message.role, "content": message.text} for message in messages]
    assert prompt(messages) == rendered(as_dicts, add_generation_prompt=True)
    tools = [strangers.tool(rng)]
    assert "".join(piece.text for piece in segments(messages, tools)) == rendered(as_dicts, tools=tools)


def test_no_system_prompt_is_made_up() -> None:
    assert rendered([{"role": "user", "content": "hi"}], add_generation_prompt=True) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert rendered([]) == ""


@pytest.mark.parametrize("content", [None, "", []])
def test_no_content_renders_as_nothing(content: Any) -> None:
    messages = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": content, "tool_calls": [CALL]},
    ]
    assert rendered(messages) == (
        "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"
        '<tool_call>\n{"name": "ls", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n'
    )


def test_text_parts_are_joined_by_line_breaks() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "text", "text": "b"},
    ]
    assert rendered([{"role": "user", "content": parts}]) == "<|im_start|>user\na\nb<|im_end|>\n"


def test_tool_results_share_one_user_turn_and_arguments_may_be_an_object() -> None:
    call = {"function": {"name": "f", "arguments": {"q": "é"}}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "ok", "tool_calls": [call, CALL]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": None},
    ]
    assert rendered(messages, add_generation_prompt=True) == (
        "<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\nok\n"
        '<tool_call>\n{"name": "f", "arguments": {"q": "é"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "ls", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_tools_are_listed_after_the_caller_s_system_prompt() -> None:
    text = rendered([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}], tools=[TOOL])
    assert text.startswith("<|im_start|>system\nBe kind.\n\n# Tools\n")
    assert '\n<tools>\n{"type": "function", "function": {"name": "ls"' in text
    assert text.count("<|im_start|>system") == 1
    assert rendered([{"role": "user", "content": "hi"}], tools=[TOOL]).startswith("<|im_start|>system\n# Tools\n")


# --- what ships


def test_the_shipped_model_is_whole_and_small() -> None:
    names = {path.name for path in MODEL_DIR.iterdir()}
    assert names == {
        "model.safetensors", "config.json", "generation_config.json", "tokenizer.json",
        "tokenizer_config.json", "chat_template.jinja",
    }  # fmt: skip
    assert sum(path.stat().st_size for path in MODEL_DIR.iterdir()) <= 8_000_000
    assert (MODEL_DIR / "chat_template.jinja").read_bytes() == (PACKAGE_DIR / "chat_template.jinja").read_bytes()


def test_the_shipped_tokenizer_is_the_one_of_this_corpus() -> None:
    from tokenizers import Tokenizer

    from deployments.models.tiny_qwen.tokenizer import train_tokenizer

    shipped = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    assert shipped.to_str() == train_tokenizer(CORPORA).to_str()
    assert [shipped.token_to_id(token) for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")] == [
        0,
        1,
        2,
    ]
    for corpus in CORPORA.values():
        for topic in corpus.all_topics:
            assert shipped.decode(shipped.encode(topic.answer).ids) == topic.answer
    assert CORPORA["en"].topic(REFUSAL).answer.startswith("I'm afraid")
