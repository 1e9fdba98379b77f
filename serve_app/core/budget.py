"""How many tokens an answer may have: languages need different numbers of tokens to say the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from serve_app.core.language import LanguageGuess
from serve_app.core.rules import Route

#: ISO 15924 script by language: one without a ratio uses the largest of its script.
SCRIPT_OF: Final[Mapping[str, str]] = {
    **dict.fromkeys(("zh", "yue"), "Hans"),
    "zh-Hant": "Hant",
    "ja": "Jpan",
    "ko": "Kore",
    **dict.fromkeys(("ar", "fa", "ur"), "Arab"),
    "th": "Thai",
    **dict.fromkeys(("ru", "uk", "bg", "sr"), "Cyrl"),
    **dict.fromkeys(("hi", "mr", "ne"), "Deva"),
    **dict.fromkeys(
        ("en", "id", "ms", "vi", "es", "fr", "de", "it", "pt", "nl", "pl", "tr", "tl", "jv", "sv", "no", "da"), "Latn"
    ),
}
#: Scripts that share characters, so that one of them stands in for another.
_KIN: Final[Mapping[str, str]] = {"Hans": "Han", "Hant": "Han", "Hani": "Han"}

#: ChatML around messages: the first user turn with the generation prompt, and each further message.
FIRST_TURN_TOKENS: Final = 8
FURTHER_TURN_TOKENS: Final = 5
#: No language makes fewer tokens than one of so many bytes, over a text that is one.
MOST_BYTES_PER_TOKEN: Final = 8
#: Qwen's tokenizer makes at most one token of three UTF-8 bytes on average in all but a few scripts.
BYTES_PER_TOKEN: Final = 3


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """Tokens an answer may have, what was asked for (``None``: the agent's default), and why."""

    max_tokens: int
    requested: int | None
    ratio: float
    reason: str


def token_ratio(language: str, script: str, ratios: Mapping[str, float]) -> float:
    """Tokens against English. A language without a ratio uses the largest of its script, then of all; never under 1."""
    if language in ratios:
        return max(1.0, ratios[language])
    wanted = SCRIPT_OF.get(language, script)
    wanted = _KIN.get(wanted, wanted)
    same = [r for code, r in ratios.items() if _KIN.get(SCRIPT_OF.get(code, ""), SCRIPT_OF.get(code)) == wanted]
    largest: float = max([1.0, *(same or ratios.values())])
    return largest


def decide(
    requested: int | None,
    default: int,
    language: str,
    script: str,
    ratios: Mapping[str, float],
    *,
    english: bool,
    context_left: int,
) -> TokenBudget:
    """A caller's number is a hard cap unless ``english``; then, and for the default, it grows by the ratio.

    Never above ``context_left`` and never below 1 (``context_left`` under 1 is the caller's error to report first).
    """
    ratio = token_ratio(language, script, ratios)
    base = default if requested is None else requested
    if requested is not None and not english:
        wanted, reason = requested, "the caller's cap"
    else:
        wanted = math.ceil(base * ratio - 1e-9)
        source = "the agent's default" if requested is None else "the caller's English budget"
        reason = f"{source} {base} x {ratio:g} for {language}"
    if wanted > context_left:
        return TokenBudget(max(1, context_left), requested, ratio, f"{reason}, cut to what the context leaves")
    return TokenBudget(max(1, wanted), requested, ratio, reason)


def of_route(requested: int | None, route: Route, guess: LanguageGuess, ratios: Mapping[str, float]) -> TokenBudget:
    """The budget of a request that goes this way, by the language that its answer will be in."""
    return decide(
        requested,
        route.agent.max_tokens_default,
        guess.language,
        guess.script,
        ratios,
        english=route.budget == "english",
        context_left=route.agent.max_model_len,
    )


def text_bytes(content: Any) -> int:
    """UTF-8 bytes of a message's content: a string, a list of text parts, or nothing."""
    if isinstance(content, str):
        return len(content.encode("utf-8", "replace"))
    if isinstance(content, Sequence):
        return sum(text_bytes(p.get("text")) for p in content if isinstance(p, Mapping))
    return 0


def messages_bytes(messages: Iterable[Mapping[str, Any]]) -> int:
    """UTF-8 bytes of all messages' contents. A body of 8 MiB takes 10 ms and more: who parses it counts, once."""
    return sum(text_bytes(m.get("content")) for m in messages)


def prompt_tokens(size_bytes: int, messages: int) -> int:
    """About how many tokens a chat prompt has, template included: for rules and explanations, not for limits."""
    if not messages:
        return 0
    overhead = FIRST_TURN_TOKENS + FURTHER_TURN_TOKENS * (messages - 1)
    return math.ceil(size_bytes / BYTES_PER_TOKEN) + overhead


def estimate_prompt_tokens(messages: Sequence[Mapping[str, Any]]) -> int:
    """:func:`prompt_tokens` of messages that are short, or that nobody has counted yet."""
    return prompt_tokens(messages_bytes(messages), len(messages))


def least_prompt_tokens(size_bytes: int) -> int:
    """So many tokens a prompt has at least, whatever it is written in: what fits is never taken for too long."""
    return size_bytes // MOST_BYTES_PER_TOKEN
