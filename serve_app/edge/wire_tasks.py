"""What regions ask each other about tasks as messages of ``grix.proto``, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from serve_app.core.reports import PROTOCOL
from serve_app.edge.protos import grix_pb2 as pb
from serve_app.edge.wire import MOST_NAME, WireError, at_most, at_most_bytes, check_protocol, short
from serve_app.edge.wire_calls import MOST_ZONES
from serve_app.openai_request import MAX_BODY_BYTES
from serve_app.task_desk import Verb
from serve_app.task_forward import TaskCall, TaskPart

_VERBS: Final = frozenset((*get_args(Verb), "submit"))
_MOST_HEADERS: Final = 16
#: Of one part of a body.
PART_BYTES: Final = 1 << 20


def task_message(call: TaskCall) -> pb.TaskRequest:
    """What is asked.

    Raises:
        WireError: when it is larger than a peer takes.
    """
    message = pb.TaskRequest(
        protocol=PROTOCOL,
        verb=call.verb,
        tenant=call.tenant,
        residency=sorted(call.residency),
        task_id=call.task_id,
        body=call.body,
        headers=call.headers,
        query=call.query,
    )
    _check(message)
    return message


def _check(message: pb.TaskRequest) -> None:
    short(message, "tenant", "task_id")
    at_most_bytes("body", message.body, MAX_BODY_BYTES)
    at_most("residency", message.residency, MOST_ZONES)
    for name in ("headers", "query"):
        _check_map(name, getattr(message, name))


def _check_map(name: str, values: Mapping[str, str]) -> None:
    at_most(name, values, _MOST_HEADERS)
    if any(len(key) > MOST_NAME or len(value) > MOST_NAME for key, value in values.items()):
        raise WireError(name, f"has a name or a value that is longer than {MOST_NAME} characters")


def task_call_of(message: pb.TaskRequest) -> TaskCall:
    """What a peer asks.

    Raises:
        WireError: a foreign protocol, or a part that is too large or makes no sense.
    """
    check_protocol(message.protocol)
    _check(message)
    if message.verb not in _VERBS:
        raise WireError("verb", f"{message.verb[:40]!a} is not understood here; allowed: {', '.join(sorted(_VERBS))}")
    verb: Any = message.verb
    maps = dict(message.headers), dict(message.query)
    residency = frozenset(message.residency)
    return TaskCall(verb, message.tenant, residency, message.task_id, message.body, *maps)


def part_message(part: TaskPart) -> pb.TaskPart:
    return pb.TaskPart(status=part.status, headers=part.headers, data=part.data)


def part_of(message: pb.TaskPart) -> TaskPart:
    return TaskPart(message.status, dict(message.headers), message.data)
