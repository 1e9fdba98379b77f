"""The pinned vLLM has no request field that the table does not speak of."""

from __future__ import annotations

import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest

from serve_app.openai_fields import BY_KIND
from serve_app.ports import Kind


@pytest.mark.parametrize(("kind", "model"), [("chat", ChatCompletionRequest), ("completion", CompletionRequest)])
def test_every_field_of_the_engine_is_in_the_table(kind: Kind, model: type) -> None:
    assert set(model.model_fields) - BY_KIND[kind].keys() == set()  # type: ignore[attr-defined]
