"""ChatML as segments: the same text as `chat_template.jinja`, with what the model is trained to say marked.

A test renders both and compares, so training and serving see the same prompts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
TOOL_CALL_START = "<tool_call>"
TOOL_CALL_END = "</tool_call>"

TOOLS_HEAD = "# Tools\n\nFunctions you may call:\n<tools>"
TOOLS_TAIL = (
    "\n</tools>\n\nTo call one, answer with its name and arguments as JSON:\n"
    '<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call>'
)


@dataclass(frozen=True)
class Segment:
    """A run of text that is tokenized by itself; `trained` says whether the loss looks at it."""

    text: str
    trained: bool = False


@dataclass(frozen=True)
class Message:
    """One turn.

    `given` is the start of an assistant's text that is not trained: a grammar forces it, or it is not ours.
    """

    role: str
    text: str
    given: str = ""


def segments(messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> tuple[Segment, ...]:
    """The dialogue in order; an assistant turn's `text` and its <|im_end|> are trained, all else is not."""
    pieces: list[Segment] = []
    rest = list(messages)
    if tools:
        system = rest.pop(0).text + "\n\n" if rest and rest[0].role == "system" else ""
        listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
        pieces.append(Segment(f"{IM_START}system\n{system}{TOOLS_HEAD}{listed}{TOOLS_TAIL}{IM_END}\n"))
    for message in rest:
        if message.role == "assistant":
            pieces.append(Segment(f"{IM_START}assistant\n{message.given}"))
            trained = bool(message.text)
            pieces.append(Segment(message.text + IM_END, trained))
            pieces.append(Segment("\n"))
        elif message.role == "tool":
            response = f"\n<tool_response>\n{message.text}\n</tool_response>"
            pieces.append(Segment(f"{IM_START}user{response}{IM_END}\n"))
        else:
            pieces.append(Segment(f"{IM_START}{message.role}\n{message.text}{IM_END}\n"))
    return tuple(pieces)


def prompt(messages: Sequence[Message]) -> str:
    """The prompt whose continuation is the assistant's answer."""
    return "".join(piece.text for piece in segments(messages)) + f"{IM_START}assistant\n"
