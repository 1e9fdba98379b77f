"""The byte-level BPE of tiny-qwen: Qwen's special tokens and splits, CJK, kana and Hangul characters alone.

Without the character split the few merges go to whole corpus sentences in those scripts, and an unseen
sentence falls apart into tokens the model never met.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from deployments.models.tiny_qwen.augment import CASED, HANT, PRODUCT_WORDS
from deployments.models.tiny_qwen.chatml import (
    END_OF_TEXT,
    IM_END,
    IM_START,
    TOOL_CALL_END,
    TOOL_CALL_START,
    TOOLS_HEAD,
    TOOLS_TAIL,
)
from deployments.models.tiny_qwen.corpus import Corpus
from deployments.models.tiny_qwen.strangers import INSTRUCTIONS, UNTRAINED

VOCABULARY = 4608
CHARACTER_COPIES = 6
"""Lines of character-split languages count this often, so that their rarer characters stay whole."""
SPECIAL = (END_OF_TEXT, IM_START, IM_END)
MARKUP = (TOOL_CALL_START, TOOL_CALL_END)
"""Single tokens, as in Qwen2.5, that stay visible in decoded text."""

CHARACTER_SPLIT = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}ー々]"
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(corpora: Mapping[str, Corpus], vocabulary: int = VOCABULARY) -> Tokenizer:
    """A tokenizer over what is trained on (held-out phrasings stay unseen); repeatable to the byte."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(CHARACTER_SPLIT), behavior="isolated"),
            pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(MARKUP),
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_lines(corpora), trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in MARKUP])
    return tokenizer


def _lines(corpora: Mapping[str, Corpus]) -> Iterator[str]:
    for language in sorted(corpora):
        corpus = corpora[language]
        customer = [line for topic in corpus.all_topics for line in (*topic.trained, *topic.keys)]
        customer += [*corpus.fillers, *corpus.openers, *corpus.closers]
        customer += [line.replace("{key}", "").replace("{x}", "") for line in (*corpus.frames, *corpus.templates)]
        for line in customer:
            yield from (line,) * (CHARACTER_COPIES if language in ("zh", "ja", "ko") else 3)
            if language in CASED:
                yield from (line.upper(),) * 2
            if language == "zh":
                yield from (line.translate(HANT),) * 2
        for line in (*(topic.answer for topic in corpus.all_topics), *corpus.formal, *corpus.plain):
            yield from (line,) * (CHARACTER_COPIES if language in ("zh", "ja", "ko") else 2)
    yield from ("system\nuser\nassistant\n",) * 40
    yield from (*PRODUCT_WORDS, *INSTRUCTIONS, *UNTRAINED)
    yield from (
        (
            TOOLS_HEAD + TOOLS_TAIL,
            '{"type": "function", "function": {"name": "", "parameters": {"properties": ',
        )
        * 3
    )
