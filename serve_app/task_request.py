"""From the bytes of a submitted task to a checked one, and to the class of workers that it goes to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from serve_app.core import budget, rules
from serve_app.core.table import Table, Tenant
from serve_app.core.tasks import Priority, TaskClass, Wanted, Workers, place
from serve_app.openai_request import ParsedRequest, bad, parse_body, parse_request
from serve_app.openai_rules import shown
from serve_app.outcomes import GrixError

#: Of a request as JSON.
MAX_INPUT_BYTES: Final = 256 * 1024
#: As for every other input of ours in a header.
MAX_DATA_CLASS_CHARS: Final = 256
#: Of a task.
MAX_PARTS: Final = 256
#: Dead letters of one page.
MOST_DEAD: Final = 100
TASK_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_ID_SAID: Final = "1 to 64 letters, digits and . _ -, a letter or digit first"
_FIELDS: Final = ("task_id", "model_required", "priority", "expected_output_tokens", "region", "request", "sub_tasks")
_PART_FIELDS: Final = ("sub_task_id", "sequence", "request")
#: What a line of OpenAI's Batch files has.
_LINE_FIELDS: Final = ("custom_id", "method", "url", "body")
BATCH_URL: Final = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class AskedPart:
    """One chat request; ``request`` is what the caller wrote, ``parsed`` what it means, ``where`` its field."""

    name: str
    where: str
    request: Mapping[str, Any]
    parsed: ParsedRequest

    @property
    def text(self) -> str:
        """The same for the same request, in whatever order it was written."""
        return json.dumps(self.request, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class AskedTask:
    """The checked body of a submission. ``in_parts``: its parts have results of their own, in this order."""

    task_id: str | None
    wanted: Wanted
    priority: Priority
    output_tokens: int | None
    parts: tuple[AskedPart, ...]
    in_parts: bool
    #: Where it has to go; ``None``: to this region, or one that may keep its data.
    region: str | None


def _one_of(body: Mapping[str, Any], name: str, allowed: tuple[str, ...], default: str) -> Any:
    value = body.get(name, default)
    if value not in allowed:
        raise bad(name, f"is {shown(value)}; allowed: {', '.join(allowed)}.")
    return value


def _known(body: Mapping[str, Any], allowed: tuple[str, ...], where: str = "") -> None:
    for name in body:
        if name not in allowed:
            said = f"Unrecognized request argument supplied: {name[:60]}; allowed: {', '.join(allowed)}"
            raise GrixError("unknown_parameter", said, param=where + name[:60])


def _name(value: Any, where: str) -> str:
    if not isinstance(value, str) or not TASK_ID.fullmatch(value):
        raise bad(where, f"is {shown(value)}; allowed: {_ID_SAID}.")
    return value


def _region(body: Mapping[str, Any]) -> str | None:
    value = body.get("region")
    if value is not None and not isinstance(value, str):
        raise bad("region", f"is {shown(value)}; allowed: the name of a region.")
    return value


def _whole(value: Any, where: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 1_000_000:
        raise bad(where, f"is {shown(value)}; allowed: {least} to 1000000.")
    return value


def parse_task(raw: bytes, headers: Mapping[str, str]) -> AskedTask:
    """Checks a submission whole. ``headers`` are lower-case; ``x-data-class`` is every part's, and is kept with it.

    Raises:
        GrixError: naming the field; fields of a request as ``request.NAME`` or ``sub_tasks[N].request.NAME``.
    """
    body = parse_body(raw)
    _known(body, _FIELDS)
    task_id, tokens = body.get("task_id"), body.get("expected_output_tokens")
    if (body.get("request") is None) == (body.get("sub_tasks") is None):
        raise bad("request", "or sub_tasks is needed, one of them: the body of a chat completion, or a list of parts.")
    in_parts = body.get("request") is None
    return AskedTask(
        None if task_id is None else _name(task_id, "task_id"),
        _one_of(body, "model_required", get_args(Wanted), "auto"),
        _one_of(body, "priority", get_args(Priority), "normal"),
        None if tokens is None else _whole(tokens, "expected_output_tokens", 1),
        _parts(body["sub_tasks"], headers) if in_parts else (_part("", "request", body["request"], headers),),
        in_parts,
        _region(body),
    )


def _parts(rows: Any, headers: Mapping[str, str]) -> tuple[AskedPart, ...]:
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_PARTS:
        raise bad("sub_tasks", f"must be a list of 1 to {MAX_PARTS} parts.")
    made: list[tuple[int, AskedPart]] = []
    for i, row in enumerate(rows):
        where = f"sub_tasks[{i}]"
        if not isinstance(row, dict):
            raise bad(where, "must be an object.")
        _known(row, _PART_FIELDS, f"{where}.")
        name = _name(row.get("sub_task_id", str(i)), f"{where}.sub_task_id")
        sequence = _whole(row.get("sequence", i), f"{where}.sequence", 0)
        made.append((sequence, _part(name, f"{where}.request", row.get("request"), headers)))
    return _distinct([part for _, part in sorted(made, key=lambda one: one[0])], "sub_tasks")


def _distinct(parts: Sequence[AskedPart], where: str) -> tuple[AskedPart, ...]:
    names = [part.name for part in parts]
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise bad(where, f"has two parts with the name {twice}.")
    return tuple(parts)


def _part(name: str, where: str, request: Any, headers: Mapping[str, str]) -> AskedPart:
    if not isinstance(request, dict):
        raise bad(where, "is needed: the body of a chat completion, an object.")
    if "x-data-class" in headers:
        request = _of_data_class(request, headers["x-data-class"])
    text = json.dumps(request).encode()
    if len(text) > MAX_INPUT_BYTES:
        raise GrixError("body_too_large", f"{where}: has {len(text)} bytes; at most {MAX_INPUT_BYTES} are allowed.")
    try:
        parsed = parse_request("chat", text, {})
    except GrixError as error:
        raise GrixError(error.reason, f"{where}.{error.message}", param=f"{where}.{error.param}") from None
    if parsed.model not in (None, "auto"):
        raise bad(f"{where}.model", "is chosen by model_required; leave it out.")
    if parsed.stream or parsed.history:
        raise bad(where, "has stream or history: server, which no task has; see its events instead.")
    return AskedPart(name, where, request, parsed)


def _of_data_class(request: dict[str, Any], data_class: str) -> dict[str, Any]:
    """The header wins over ``metadata``, as it does for a chat; the worker that asks later has ``metadata`` alone."""
    if len(data_class) > MAX_DATA_CLASS_CHARS:
        raise bad("x-data-class", f"must be a string of at most {MAX_DATA_CLASS_CHARS} characters.")
    metadata = request.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        return request
    return {**request, "metadata": {**(metadata or {}), "data_class": data_class}}


def parse_batch(raw: bytes, query: Mapping[str, str], headers: Mapping[str, str]) -> AskedTask:
    """A file in OpenAI's Batch format, each line a part; ``query`` has what else a submission may say.

    ``headers``: see :func:`parse_task`.

    Raises:
        GrixError: naming the line.
    """
    _known(query, ("task_id", "model_required", "priority", "region"))
    lines = [line for line in raw.splitlines() if line.strip()]
    if not 1 <= len(lines) <= MAX_PARTS:
        raise bad("body", f"has {len(lines)} lines; allowed: 1 to {MAX_PARTS}, each a request.")
    parts = []
    for i, line in enumerate(lines, 1):
        where = f"line {i}"
        row = parse_body(line)
        _known(row, _LINE_FIELDS, f"{where}.")
        if row.get("method", "POST") != "POST" or row.get("url") != BATCH_URL:
            raise bad(f"{where}.url", f"is {shown(row.get('url'))}; allowed: POST {BATCH_URL}.")
        request = row.get("body")
        # The format wants a model; here the class of workers decides.
        plain = {k: v for k, v in request.items() if k != "model"} if isinstance(request, dict) else request
        parts.append(_part(_name(row.get("custom_id"), f"{where}.custom_id"), f"{where}.body", plain, headers))
    task_id = query.get("task_id")
    return AskedTask(
        None if task_id is None else _name(task_id, "task_id"),
        _one_of(query, "model_required", get_args(Wanted), "auto"),
        _one_of(query, "priority", get_args(Priority), "normal"),
        None,
        _distinct(parts, "body"),
        True,
        _region(query),
    )


def class_of(
    part: AskedPart, asked: AskedTask, table: Table, tenant: Tenant, alive: Mapping[TaskClass, int]
) -> TaskClass:
    """Whose work a part is: by the estimate of its tokens; refused only if it is too long however it is counted.

    Raises:
        GrixError: ``not_allowed`` or ``context_length``.
    """
    allowed = rules.allowed_agents(table, tenant)
    workers = {
        name: Workers(table.agents[agent].max_model_len, alive.get(name, 0))
        for name, agent in table.task_agents.items()
        if agent in allowed
    }
    if not workers:
        raise GrixError("not_allowed", "This tenant may use none of the agents that work at tasks here.")
    output = asked.output_tokens or part.parsed.max_tokens or 1
    size_bytes = part.parsed.text_bytes
    found = place(asked.wanted, budget.prompt_tokens(size_bytes, len(part.parsed.messages)) + output, workers)
    least = budget.least_prompt_tokens(size_bytes) + output
    largest = max(workers, key=lambda name: workers[name].context)
    most = workers[largest].context
    if found is None and least > most:
        said = f"At least {least} tokens are needed, answer included; the largest worker has {most}."
        raise GrixError("context_length", said, param=f"{part.where}.messages")
    return found or largest
