"""The one table of request fields: every field of OpenAI's chat and completions and of vLLM's, and what becomes of it.

Parsing, the served OpenAPI document and the README's table are made from it. A field that is not here is a mistake of
the caller's and is refused as ``unknown_parameter``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from serve_app import openai_rules as rules
from serve_app.core.json_schemas import MOST_ITEMS, MOST_TIMES
from serve_app.openai_rules import BOOLEAN, OBJECT, Rule, number
from serve_app.ports import Kind

MAX_CHOICES: Final = 16
#: Integers a double holds exactly: JSON's own limit of what is safe.
_BIG: Final = 2**53

#: ``honoured``: does what OpenAI says. ``read``: an input of Grix, no engine sees it. ``ignored``: accepted, changes
#: nothing. ``refused``: 400 ``unsupported_parameter`` unless ``null``.
Use = Literal["honoured", "read", "ignored", "refused"]
_BOTH: Final[tuple[Kind, ...]] = get_args(Kind)
_CHAT: Final[tuple[Kind, ...]] = ("chat",)
_TEXT: Final[tuple[Kind, ...]] = ("completion",)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of one or both kinds. Without a ``rule`` a value is checked elsewhere, or not at all."""

    name: str
    kinds: tuple[Kind, ...]
    use: Use
    note: str
    rule: Rule | None = None


def _f(name: str, kinds: tuple[Kind, ...], use: Use, note: str, rule: Rule | None = None) -> Field:
    return Field(name, kinds, use, note, rule)


_WHOLE: Final = number(1, _BIG, integer=True)
_ONE: Final = number(1, 1, integer=True)

FIELDS: Final[tuple[Field, ...]] = (
    # What is asked, and of whom.
    _f("messages", _CHAT, "honoured", "a list of at least one message with text; images, sound and files are refused"),
    _f("prompt", _TEXT, "honoured", "one prompt: a string, a list of one string, or a list of token ids"),
    _f("model", _BOTH, "honoured", "`auto` (also when absent) or an agent's name; else 404", rules.text(200)),
    # How it is answered.
    _f("stream", _BOTH, "honoured", "server-sent events", BOOLEAN),
    _f(
        "stream_options",
        _BOTH,
        "honoured",
        "with `stream: true` only; `include_usage`, `continuous_usage_stats`; `include_obfuscation` changes nothing",
        rules.STREAM_OPTIONS,
    ),
    _f("max_completion_tokens", _CHAT, "honoured", "wins over `max_tokens`", _WHOLE),
    _f("max_tokens", _BOTH, "honoured", "a cap, see Token budgets", _WHOLE),
    _f("n", _BOTH, "honoured", "choices", number(1, MAX_CHOICES, integer=True)),
    _f("stop", _BOTH, "honoured", f"a string or up to {rules.MAX_STOPS} of them", rules.STOP),
    _f("seed", _BOTH, "honoured", "repeats a sampled answer of one release", number(-(2**63), 2**63 - 1, integer=True)),
    _f("temperature", _BOTH, "honoured", "", number(0, 2)),
    _f("top_p", _BOTH, "honoured", "", number(1e-9, 1)),
    _f("presence_penalty", _BOTH, "honoured", "", number(-2, 2)),
    _f("frequency_penalty", _BOTH, "honoured", "", number(-2, 2)),
    _f("logit_bias", _BOTH, "honoured", f"up to {rules.MAX_LOGIT_BIAS} token ids, each -100 to 100", rules.LOGIT_BIAS),
    _f("logprobs", _CHAT, "honoured", "", BOOLEAN),
    _f("logprobs", _TEXT, "honoured", "how many of the likeliest tokens", number(0, 20, integer=True)),
    _f("top_logprobs", _CHAT, "honoured", "with `logprobs: true` only", number(0, 20, integer=True)),
    _f(
        "response_format",
        _BOTH,
        "honoured",
        f"`text`, `json_object`, or `json_schema` with a schema of at most {rules.MAX_SCHEMA_SIZE} members and items, "
        f"that asks for at most {MOST_ITEMS} items and repeats a part of a pattern at most {MOST_TIMES} times",
        rules.FORMAT,
    ),
    _f(
        "tools",
        _CHAT,
        "honoured",
        f"1 to {rules.MAX_TOOLS} functions of at most {rules.MAX_TOOLS_SIZE} members and items in all; no custom tools",
        rules.TOOLS,
    ),
    _f("tool_choice", _CHAT, "honoured", "`none`, `auto`, `required`, or a function of `tools`", rules.TOOL_CHOICE),
    _f("parallel_tool_calls", _CHAT, "honoured", "`false`: at most one call", BOOLEAN),
    _f("echo", _TEXT, "honoured", "the prompt comes before the answer", BOOLEAN),
    # vLLM's extras that are safe to pass on.
    _f("top_k", _BOTH, "honoured", "vLLM's; -1 and 0: all tokens", number(-1, 10_000, integer=True)),
    _f("min_p", _BOTH, "honoured", "vLLM's", number(0, 1)),
    _f("repetition_penalty", _BOTH, "honoured", "vLLM's", number(0.01, 10)),
    _f("min_tokens", _BOTH, "honoured", "vLLM's; at most the cap", number(0, _BIG, integer=True)),
    _f("ignore_eos", _BOTH, "honoured", "vLLM's; runs to the cap", BOOLEAN),
    _f(
        "stop_token_ids",
        _BOTH,
        "honoured",
        f"vLLM's; up to {rules.MAX_STOP_TOKEN_IDS} ids of the model",
        rules.STOP_TOKEN_IDS,
    ),
    _f("skip_special_tokens", _BOTH, "honoured", "vLLM's", BOOLEAN),
    # Grix's own inputs.
    _f("metadata", _BOTH, "read", "Grix's inputs, see above", OBJECT),
    _f("user", _BOTH, "read", "the user's id when `metadata` has none", rules.text(100_000)),
    # Accepted, because clients send them as a matter of course and an answer is right without.
    _f("modalities", _CHAT, "ignored", '`["text"]` only', rules.MODALITIES),
    _f("best_of", _TEXT, "ignored", "1 only, which changes nothing", _ONE),
    _f("store", _BOTH, "ignored", "nothing is stored"),
    _f("service_tier", _BOTH, "ignored", "a tenant's document says its priority"),
    _f("priority", _BOTH, "ignored", "vLLM's; a tenant's document says its priority"),
    _f("safety_identifier", _BOTH, "ignored", "no such service"),
    _f("prompt_cache_key", _BOTH, "ignored", "prefixes are cached without it"),
    _f("prompt_cache_options", _BOTH, "ignored", "prefixes are cached without it"),
    _f("prompt_cache_retention", _BOTH, "ignored", "prefixes are cached without it"),
    _f("reasoning_effort", _BOTH, "ignored", "these models do not reason apart"),
    _f("verbosity", _BOTH, "ignored", "the prompt template says the register"),
    _f("prediction", _BOTH, "ignored", "a hint for speed only"),
    # Refused: to ignore these would give another answer than was asked for.
    _f("functions", _CHAT, "refused", "send `tools`"),
    _f("function_call", _CHAT, "refused", "send `tool_choice`"),
    _f("audio", _CHAT, "refused", "text only"),
    _f("web_search_options", _CHAT, "refused", "no search"),
    _f("moderation", _CHAT, "refused", "no moderation here"),
    _f("suffix", _TEXT, "refused", "these models do not fill in the middle"),
)

#: vLLM's fields that no caller may set here, and why.
_ENGINE_ONLY: Final[Mapping[str, str]] = {
    "echo": "chat has no prompt to repeat",
    "use_beam_search": "costs many answers",
    "length_penalty": "of beam search",
    "watermarking": "the operator's choice",
    "include_stop_str_in_output": "send `stop`, then add the word",
    "spaces_between_special_tokens": "not offered",
    "truncate_prompt_tokens": "a prompt is never cut unseen",
    "truncation_side": "a prompt is never cut unseen",
    "prompt_logprobs": "costs the vocabulary for each prompt token",
    "logprob_token_ids": "send `top_logprobs`",
    "allowed_token_ids": "send `logit_bias` or `response_format`",
    "bad_words": "send `logit_bias`",
    "structured_outputs": "send `response_format`",
    "thinking_token_budget": "send `max_tokens`",
    "include_reasoning": "these models do not reason apart",
    "chat_template": "templates are the operator's",
    "chat_template_kwargs": "templates are the operator's",
    "add_generation_prompt": "templates are the operator's",
    "continue_final_message": "templates are the operator's",
    "add_special_tokens": "templates are the operator's",
    "documents": "send them as messages",
    "media_io_kwargs": "text only",
    "mm_processor_kwargs": "text only",
    "mm_payload": "text only",
    "return_mm_kwargs": "text only",
    "prompt_embeds": "text only",
    "request_id": "send the header `x-request-id`",
    "session_id": "send `metadata.session_id` or the header `x-session-id`",
    "cache_salt": "the engine's own",
    "return_tokens_as_token_ids": "the engine's own",
    "return_token_ids": "the engine's own",
    "return_token_offsets": "the engine's own",
    "return_prompt_text": "the engine's own",
    "routed_experts_prompt_start": "the engine's own",
    "kv_transfer_params": "the engine's own",
    "ec_transfer_params": "the engine's own",
    "vllm_xargs": "the engine's own",
    "repetition_detection": "the engine's own",
    "stream_interval": "the engine's own",
}


def _by_name(kind: Kind) -> dict[str, Field]:
    engine_only = (Field(name, _BOTH, "refused", why) for name, why in _ENGINE_ONLY.items())
    return {f.name: f for f in (*engine_only, *FIELDS) if kind in f.kinds}


#: The table as parsing reads it.
BY_KIND: Final[Mapping[Kind, Mapping[str, Field]]] = {kind: _by_name(kind) for kind in _BOTH}


def names(kind: Kind, *uses: Use) -> frozenset[str]:
    """The fields of a kind that are used in one of these ways."""
    return frozenset(f.name for f in BY_KIND[kind].values() if f.use in uses)


#: Fields an engine may see, by kind.
HONOURED: Final[Mapping[Kind, frozenset[str]]] = {kind: names(kind, "honoured") for kind in _BOTH}


_SAID: Final = {-(2**63): "-2^63", 2**63 - 1: "2^63-1", _BIG: "2^53", 1e-9: "above 0"}


def _allowed(rule: Rule | None) -> str:
    """A rule in words, where its schema is short enough to be said so."""
    schema = rule.schema if rule else {}
    if schema.get("type") == "boolean":
        return "`true`, `false`"
    if "minimum" not in schema or schema["minimum"] == schema["maximum"] or rule is _WHOLE:
        return ""
    low, high = (_SAID.get(schema[k], f"{schema[k]:g}") for k in ("minimum", "maximum"))
    return f"{'whole, ' if schema['type'] == 'integer' else ''}{low} to {high}"


def _row(name: str) -> str:
    """One row: what each kind makes of a field, then its values and notes; what both kinds share is said once."""
    rows = [BY_KIND[kind].get(name) for kind in _BOTH]
    told = ["; ".join(t for t in (_allowed(r.rule), r.note) if t) if r else "" for r in rows]
    told_apart = "; ".join(f"{k}: {t}" for k, t in zip(("chat", "completions"), told, strict=True) if t)
    note = told_apart if len({*told} - {""}) > 1 else max(told)
    return f"| `{name}` | {' | '.join(r.use if r else '–' for r in rows)} | {note} |"


def markdown() -> str:
    """The table of README.md: one row a field, kinds side by side; refused extras of vLLM together at the end."""
    lines = ["| field | chat completions | completions | |", "|---|---|---|---|"]
    lines += [_row(name) for name in dict.fromkeys(f.name for f in FIELDS)]
    extras = " ".join(f"`{name}`" for name in _ENGINE_ONLY if name != "echo")
    return "\n".join([*lines, f"| {extras} | refused | refused | vLLM's; the error says why or what to send instead |"])
