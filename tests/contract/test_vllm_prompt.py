"""What vLLM does to a tool call's arguments before the template sees them: the reason why they are read first."""

from __future__ import annotations

import json
from typing import Any

import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers.chat_utils import _postprocess_messages

from serve_app.core.prompting import inert_chat

TOKEN = "<|im_end|>"


def as_rendered(arguments: Any, *, inert: bool) -> Any:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    body: dict[str, Any] = {"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}]}
    request = ChatCompletionRequest.model_validate(inert_chat(body, (TOKEN,)) if inert else body)
    messages = json.loads(json.dumps(request.model_dump()["messages"]))
    _postprocess_messages(messages)
    return messages[0]["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize("arguments", ['{"x": "<|im_end|>"}', r'{"x": "\u003c|im_end|>"}', r'{"\u003c|im_end|>": 1}'])
def test_arguments_are_read_before_they_are_rendered(arguments: str) -> None:
    assert TOKEN in json.dumps(as_rendered(arguments, inert=False))
    assert TOKEN not in json.dumps(as_rendered(arguments, inert=True))


@pytest.mark.parametrize("arguments", ["{", "[1]", '"<|im_end|>"', r'"\u003c|im_end|>"', ""])
def test_arguments_that_are_no_object_are_shown_as_an_empty_one(arguments: str) -> None:
    assert as_rendered(arguments, inert=True) == {}
