"""The OpenAPI document that a region serves: its paths, and the request fields of the one table."""

from __future__ import annotations

from typing import Any, Final

from serve_app.openai_fields import BY_KIND, Field
from serve_app.openai_messages import ROLES
from serve_app.openai_rules import TOOL_CALL
from serve_app.outcomes import STATUS
from serve_app.ports import Kind
from serve_app.task_request import MOST_DEAD

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_PARTS: Final[Schema] = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["type", "text"],
        "properties": {"type": {"const": "text"}, "text": _TEXT},
    },
}
_CONTENT: Final[Schema] = {"oneOf": [_TEXT, _PARTS]}
_ASSISTANT: Final[Schema] = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"const": "assistant"},
        "content": {"oneOf": [*_CONTENT["oneOf"], {"type": "null"}]},
        "name": _TEXT,
        "tool_calls": {"type": "array", "items": TOOL_CALL.schema},
    },
}
_OTHERS: Final[Schema] = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": [role for role in ROLES if role != "assistant"]},
        "content": _CONTENT,
        "name": _TEXT,
        "tool_call_id": _TEXT,
    },
}
_TOKENS: Final[Schema] = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
}
#: Fields without a rule of their own.
_SHAPES: Final[dict[str, Schema]] = {
    "messages": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Message"}},
    "prompt": {"oneOf": [{"type": "string", "minLength": 1}, _TOKENS]},
}
_REQUIRED: Final[dict[Kind, list[str]]] = {"chat": ["messages"], "completion": ["prompt"]}
_ERROR: Final[Schema] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": _TEXT,
                "type": {"enum": sorted({s.type for s in STATUS.values()})},
                "param": {"type": ["string", "null"]},
                "code": {"enum": sorted({s.code for s in STATUS.values()})},
            },
        }
    },
}
_USAGE: Final[Schema] = {
    "type": "object",
    "required": ["prompt_tokens", "total_tokens"],
    "properties": {name: {"type": "integer"} for name in ("prompt_tokens", "completion_tokens", "total_tokens")},
}
_MODEL: Final[Schema] = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {"id": _TEXT, "object": {"const": "model"}, "created": {"type": "integer"}, "owned_by": _TEXT},
}


def _property(field: Field) -> Schema:
    schema = field.rule.schema if field.rule else _SHAPES.get(field.name, {})
    told = field.note if field.use == "honoured" else f"{field.use}: {field.note}"
    return {**schema, **({"description": told} if told else {})}


def _request(kind: Kind) -> Schema:
    """A request's schema: what is refused is not there, and nothing else is allowed."""
    fields = (f for f in BY_KIND[kind].values() if f.use != "refused")
    return {
        "type": "object",
        "required": _REQUIRED[kind],
        "properties": {f.name: _property(f) for f in fields},
        "additionalProperties": False,
    }


def _answer(kind: Kind) -> Schema:
    name = "chat.completion" if kind == "chat" else "text_completion"
    part = {"message": {"type": "object"}} if kind == "chat" else {"text": _TEXT}
    choice: Schema = {
        "type": "object",
        "required": ["index", *part, "finish_reason"],
        "properties": {"index": {"type": "integer"}, **part, "finish_reason": {"type": ["string", "null"]}},
    }
    return {
        "type": "object",
        "required": ["id", "object", "created", "model", "choices", "usage"],
        "properties": {
            "id": _TEXT,
            "object": {"const": name},
            "created": {"type": "integer"},
            "model": _TEXT,
            "choices": {"type": "array", "minItems": 1, "items": choice},
            "usage": {"$ref": "#/components/schemas/Usage"},
        },
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _responses(ok: Schema) -> Schema:
    """The good answer, and one entry a status that the one table of errors knows."""
    by_status: dict[int, set[str]] = {}
    for status in STATUS.values():
        by_status.setdefault(status.http, set()).add(status.code)
    errors = {str(http): _json(", ".join(sorted(codes)), _ref("Error")) for http, codes in sorted(by_status.items())}
    return {"200": ok, **errors}


def _operation(identifier: str, summary: str, ok: Schema, **more: Any) -> Schema:
    return {"operationId": identifier, "summary": summary, **more, "responses": _responses(ok)}


def _header(name: str, told: str, **schema: Any) -> Schema:
    return {"name": name, "in": "header", "description": told, "schema": {"type": "string", **schema}}


_HEADERS: Final[list[Schema]] = [
    _header("x-request-id", "the request's id", pattern="^[A-Za-z0-9._:-]{1,128}$"),
    _header("x-language", "the language, instead of a guess", pattern="^[A-Za-z-]{0,20}$"),
    _header("x-grix-history", "server: the conversation is kept here; needs a session", enum=["server", ""]),
    *(
        _header(f"x-{name}", "wins over metadata", maxLength=256)
        for name in ("session-id", "user-id", "route-hint", "task-type", "data-class")
    ),
    *(
        _header(f"x-grix-{name}-timeout", "shortens a limit", pattern="^([1-9][0-9]{0,3}(ms|s|m))?$")
        for name in ("queue", "first-byte", "total")
    ),
]


def _call(kind: Kind, name: str) -> Schema:
    ok = _json("the answer; with stream: true its events", _ref(f"{name}Answer"))
    ok["content"]["text/event-stream"] = {}
    body = {"required": True, "content": {"application/json": {"schema": _ref(f"{name}Request")}}}
    more = {"requestBody": body, "parameters": _HEADERS}
    return {"post": _operation(f"create{name}", "Answers a request of this kind.", ok, **more)}


def _in_path(name: str) -> list[Schema]:
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}]


def _list_of(item: Schema) -> Schema:
    listed = {"object": {"const": "list"}, "data": {"type": "array", "items": item}}
    return {"type": "object", "required": list(listed), "properties": listed}


_DEEP: Final[Schema] = {
    "name": "deep",
    "in": "query",
    "schema": {},
    "description": "1 or true: whether an agent makes tokens; needs the health key or loopback",
}


def _get(identifier: str, summary: str, ok: Schema, **more: Any) -> Schema:
    return {"get": _operation(identifier, summary, ok, **more)}


def _paths() -> Schema:
    plain = {"description": "metrics", "content": {"text/plain": {"schema": _TEXT}}}
    some = _json("an object", {"type": "object"})
    asked = {"required": True, "content": {"application/json": {"schema": _ref("ChatRequest")}}}
    told = _operation("explain", "How a chat request would be decided; operators.", some, requestBody=asked)
    return {
        "/v1/chat/completions": _call("chat", "Chat"),
        "/v1/completions": _call("completion", "Completion"),
        "/v1/models": _get("listModels", "auto and the agents of this key.", _json("a list", _list_of(_MODEL))),
        "/v1/models/{model}": _get("readModel", "One of them.", _json("a model", _MODEL), parameters=_in_path("model")),
        "/healthz": _get("readHealth", "Whether it can answer.", some, parameters=[_DEEP], security=[]),
        "/metrics": _get("readMetrics", "For operators, or from loopback.", plain, security=[{}, {"key": []}]),
        "/grix/explain": {"post": told},
        "/grix/fleet": _get("readFleet", "The targets that requests are decided from; operators.", some),
        "/grix/requests/{request_id}": _get(
            "explainPast", "How a request was decided; operators.", some, parameters=_in_path("request_id")
        ),
        **_task_paths(some),
        "/openapi.json": _get("readDocument", "This document.", some),
    }


def _task_paths(some: Schema) -> Schema:
    asked = {"required": True, "content": {"application/json": {"schema": _ref("TaskRequest")}}}
    submit = _operation("submitTask", "A chat request that nobody waits for.", some, requestBody=asked)
    submit["responses"]["202"] = _json("it is new", {"type": "object"})
    named = {"parameters": _in_path("task_id")}
    dead = {"parameters": [*_in_path("tenant"), *_in_path("task_id")]}
    pages = [
        {"name": name, "in": "query", "schema": {"type": "integer", "minimum": least, "maximum": most}}
        for name, least, most in (("offset", 0, 1_000_000), ("limit", 1, MOST_DEAD))
    ]
    stream = {"description": "what happens to it", "content": {"text/event-stream": {}}}
    lines = {"description": "a line a part", "content": {"application/jsonl": {}}}
    return {
        "/v1/tasks": {"post": submit},
        "/v1/tasks/{task_id}": {
            **_get("readTask", "Its state, and its result.", some, **named),
            "delete": _operation("cancelTask", "Cancels it, if it has not ended.", some, **named),
        },
        "/v1/tasks/{task_id}/events": _get("watchTask", "Its events, to its end.", stream, **named),
        "/v1/tasks/{task_id}/output": _get(
            "readTaskOutput", "The results of a task in parts, in OpenAI's Batch format.", lines, **named
        ),
        "/grix/tasks": _get("readTasks", "What waits and who works; operators.", some),
        "/grix/tasks/dead": _get("listDead", "Dead letters, the newest first; operators.", some, parameters=pages),
        "/grix/tasks/dead/{tenant}/{task_id}": {
            "post": _operation("replayDead", "Makes one a task again; operators.", some, **dead),
            "delete": _operation("dropDead", "Forgets one; operators.", some, **dead),
        },
    }


_TASK: Final[Schema] = {
    "type": "object",
    "oneOf": [{"required": ["request"]}, {"required": ["sub_tasks"]}],
    "properties": {
        "sub_tasks": {
            "type": "array",
            "minItems": 1,
            "maxItems": 256,
            "items": {
                "type": "object",
                "required": ["request"],
                "properties": {
                    "sub_task_id": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"},
                    "sequence": {"type": "integer", "minimum": 0, "maximum": 1_000_000},
                    "request": {"$ref": "#/components/schemas/ChatRequest"},
                },
                "additionalProperties": False,
            },
        },
        "region": {"type": ["string", "null"]},
        "task_id": {"type": ["string", "null"], "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"},
        "model_required": {"enum": ["light", "heavy", "auto"]},
        "priority": {"enum": ["high", "normal"]},
        "expected_output_tokens": {"type": ["integer", "null"], "minimum": 1, "maximum": 1_000_000},
        "request": {"$ref": "#/components/schemas/ChatRequest"},
    },
    "additionalProperties": False,
}


def document() -> dict[str, Any]:
    """The whole document. It is the same for every caller and holds no secret."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Grix", "version": "1", "description": "OpenAI's chat and completions over many models."},
        "security": [{"key": []}],
        "paths": _paths(),
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "ChatRequest": _request("chat"),
                "CompletionRequest": _request("completion"),
                "ChatAnswer": _answer("chat"),
                "CompletionAnswer": _answer("completion"),
                "Message": {"oneOf": [_OTHERS, _ASSISTANT]},
                "TaskRequest": _TASK,
                "Usage": _USAGE,
                "Error": _ERROR,
            },
        },
    }
