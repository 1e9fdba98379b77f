"""LangChain's ChatOpenAI, as its users write it, against the real region."""

from __future__ import annotations

from typing import Literal

import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

from tests.e2e.conftest import LiveRegion
from tests.e2e.test_openai_client import answer_and_question


@tool
def order_status(order_id: Literal["A1024", "B2048"]) -> str:
    """Where an order is."""
    return f"{order_id} is on its way"


class Delivery(BaseModel):
    """Whether and how fast something is delivered."""

    delivers: Literal["yes", "no"]
    days: int = Field(ge=1, le=9)


@pytest.fixture(scope="module")
def model(region: LiveRegion) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=f"{region.url}/v1", api_key=region.key, model="auto", temperature=0, max_retries=0, timeout=120
    )


def test_invoke_and_stream_say_the_same(model: ChatOpenAI) -> None:
    answer, question = answer_and_question("ja")
    told = model.invoke(question)
    assert told.content == answer
    assert told.response_metadata["finish_reason"] == "stop"
    assert told.usage_metadata is not None and told.usage_metadata["output_tokens"] > 0
    chunks = list(model.stream(question, stream_usage=True))
    assert "".join(str(c.content) for c in chunks) == answer
    assert [c.usage_metadata["output_tokens"] > 0 for c in chunks if c.usage_metadata] == [True]


def test_a_conversation_with_a_bound_tool(model: ChatOpenAI) -> None:
    bound = model.bind_tools([order_status], tool_choice="order_status")
    asked = bound.invoke("Where is order A1024?", max_tokens=128)
    (call,) = asked.tool_calls
    assert call["name"] == "order_status"
    assert call["args"]["order_id"] in ("A1024", "B2048")
    result = order_status.invoke(call)
    told = model.bind_tools([order_status]).invoke([("user", "Where is order A1024?"), asked, result], max_tokens=32)
    assert told.response_metadata["finish_reason"] in ("stop", "length", "tool_calls")


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(model: ChatOpenAI, method: Literal["json_schema", "function_calling"]) -> None:
    told = model.with_structured_output(Delivery, method=method).invoke("Do you deliver?")
    assert isinstance(told, Delivery)
    assert told.delivers in ("yes", "no") and 1 <= told.days <= 9
