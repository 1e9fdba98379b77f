"""The official OpenAI client against the real region."""

from __future__ import annotations

import json
import re
from pathlib import Path

import openai
import pytest
import yaml

from tests.e2e.conftest import LiveRegion

CORPUS = Path(__file__).resolve().parents[2] / "deployments/models/tiny_qwen/corpus"
LANGUAGES = ("zh", "en", "ja", "ko", "id", "ar")
TOOL = {
    "type": "function",
    "function": {
        "name": "order_status",
        "parameters": {
            "type": "object",
            "properties": {"order_id": {"type": "string", "maxLength": 12}},
            "required": ["order_id"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def client(region: LiveRegion) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{region.url}/v1", api_key=region.key, max_retries=0, timeout=120)


def answer_and_question(language: str, topic: str = "reset_password") -> tuple[str, str]:
    corpus = yaml.safe_load((CORPUS / f"{language}.yaml").read_text(encoding="utf-8"))
    found = next(t for t in corpus["topics"] if t["id"] == topic)
    return found["answer"], found["phrasings"][0]


@pytest.mark.parametrize("language", LANGUAGES)
def test_people_are_answered_in_their_language(client: openai.OpenAI, language: str) -> None:
    wanted, question = answer_and_question(language)
    raw = client.chat.completions.with_raw_response.create(
        model="auto", messages=[{"role": "user", "content": question}], temperature=0
    )
    completion = raw.parse()
    assert completion.choices[0].message.content == wanted
    assert completion.choices[0].finish_reason == "stop"
    assert completion.model == "qwen-chat"
    assert completion.usage is not None and completion.usage.completion_tokens > 0
    assert raw.headers["x-grix-language"] == language
    assert raw.headers["x-grix-agent"] == "qwen-chat"
    assert raw.headers["x-grix-region"] == "cloud-a"
    assert raw.headers["x-grix-hops"] == "0"
    assert raw.headers.get_list("x-request-id") == [raw.headers["x-request-id"]]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_stream_says_the_same(client: openai.OpenAI, language: str) -> None:
    wanted, question = answer_and_question(language)
    stream = client.chat.completions.create(
        model="auto", messages=[{"role": "user", "content": question}], temperature=0, stream=True
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == wanted
    assert [c for c in chunks if c.usage is not None] == []
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_usage_comes_once_when_asked_for(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="auto",
            messages=[{"role": "user", "content": "Hello"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert [i for i, c in enumerate(chunks) if c.usage is not None] == [len(chunks) - 1]
    assert chunks[-1].choices == []


def test_an_alias_answers_under_its_own_name(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(model="qwen-doc", messages=[{"role": "user", "content": "Hello"}])
    assert completion.model == "qwen-doc"


def test_models_are_auto_and_the_agents(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["auto", "edge-chat", "qwen-chat", "qwen-coder", "qwen-doc"]


def test_completions(client: openai.OpenAI) -> None:
    completion = client.completions.create(model="qwen-chat", prompt="Hello", max_tokens=4, temperature=0)
    assert completion.object == "text_completion"
    assert completion.usage is not None and completion.usage.completion_tokens <= 4


def test_a_cap_is_a_cap_and_is_told(client: openai.OpenAI) -> None:
    _, question = answer_and_question("ja")
    raw = client.chat.completions.with_raw_response.create(
        model="auto", messages=[{"role": "user", "content": question}], max_tokens=5
    )
    completion = raw.parse()
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage is not None and completion.usage.completion_tokens == 5
    assert raw.headers["x-grix-max-tokens"] == "5"


def test_the_default_grows_with_the_language(region: LiveRegion) -> None:
    told = {lang: region.chat(answer_and_question(lang)[1])[1]["x-grix-max-tokens"] for lang in ("en", "ja", "ko")}
    assert told == {"en": "1024", "ja": "1639", "ko": "1844"}


def test_a_named_tool_gets_arguments_of_its_schema(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(
        model="auto",
        messages=[{"role": "user", "content": "Where is order A1024?"}],
        tools=[TOOL],  # type: ignore[list-item]
        tool_choice={"type": "function", "function": {"name": "order_status"}},
        temperature=0,
        max_tokens=128,
    )
    calls = completion.choices[0].message.tool_calls
    assert calls is not None and len(calls) == 1
    assert calls[0].function.name == "order_status"
    arguments = json.loads(calls[0].function.arguments)
    assert list(arguments) == ["order_id"] and isinstance(arguments["order_id"], str)


def test_a_schema_is_followed(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"answer": {"enum": ["yes", "no"]}},
        "required": ["answer"],
        "additionalProperties": False,
    }
    completion = client.chat.completions.create(
        model="auto",
        messages=[{"role": "user", "content": "Do you deliver?"}],
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
        max_tokens=64,
    )
    assert json.loads(completion.choices[0].message.content or "")["answer"] in ("yes", "no")


def test_errors_are_the_clients_own_classes(client: openai.OpenAI, region: LiveRegion) -> None:
    hello = [{"role": "user", "content": "hi"}]
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="no-such-model", messages=hello)  # type: ignore[arg-type]
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as empty:
        client.chat.completions.create(model="auto", messages=[])
    assert (empty.value.type, empty.value.param) == ("invalid_request_error", "messages")
    stranger = openai.OpenAI(base_url=f"{region.url}/v1", api_key="grix-wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as wrong:
        stranger.models.list()
    assert wrong.value.code == "invalid_api_key"


def test_a_prompt_that_cannot_fit_is_counted_right(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="auto", messages=[{"role": "user", "content": "hello " * 6000}])
    assert error.value.code == "context_length_exceeded"
    assert isinstance(error.value.body, dict)
    limit, count, left, least, cut = (int(n) for n in re.findall(r"\d+", error.value.body["message"]))
    assert (limit, left, least) == (4096, 0, 1)
    assert cut == count + 1 - limit


def test_a_safety_cap_over_the_window_is_clamped_and_told(region: LiveRegion) -> None:
    status, headers, body = region.chat("hello " * 1500, max_tokens=65535)
    assert status == 200
    assert int(headers["x-grix-max-tokens"]) == 4096 - body["usage"]["prompt_tokens"]


def test_a_cut_emoji_is_not_an_error_of_ours(region: LiveRegion) -> None:
    raw = b'{"model":"auto","messages":[{"role":"user","content":"gute Idee \\ud83e"}],"max_tokens":8}'
    status, _, body = region.ask("POST", "/v1/chat/completions", raw)
    assert status == 200 and body["choices"]


def test_tool_round_trip_with_null_content(region: LiveRegion) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "list"}, {"type": "text", "text": "files"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
    ]
    status, _, body = region.ask("POST", "/v1/chat/completions", {"messages": messages, "max_tokens": 16})
    assert status == 200 and body["object"] == "chat.completion"


def test_special_tokens_of_a_user_are_text(region: LiveRegion) -> None:
    plain = region.chat("hello")[2]["usage"]["prompt_tokens"]
    odd = region.chat("hello<|im_end|>")[2]["usage"]["prompt_tokens"]
    # As a token it would be one more; as text it is several.
    assert odd > plain + 1


def test_a_session_keeps_its_language_through_a_short_turn(region: LiveRegion) -> None:
    _, question = answer_and_question("ko")
    session = {"x-session-id": "s-ko"}
    assert region.chat(question, headers=session)[1]["x-grix-language"] == "ko"
    assert region.chat("ok", headers=session)[1]["x-grix-language"] == "ko"
    assert region.chat("👍")[1]["x-grix-language"] == "und"
    assert region.chat("ok", headers={"x-language": "ja"})[1]["x-grix-language"] == "ja"
