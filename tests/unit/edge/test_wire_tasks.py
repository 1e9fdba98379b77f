"""What regions ask each other about tasks, over the wire and back, and what is refused by the name of its field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from serve_app.edge.protos import grix_pb2 as pb
from serve_app.edge.wire import WireError
from serve_app.edge.wire_tasks import part_message, part_of, task_call_of, task_message
from serve_app.openai_request import MAX_BODY_BYTES
from serve_app.task_forward import TaskCall, TaskPart

ZONES = frozenset({"eu", "sg"})
CALL = TaskCall("submit", "acme", ZONES, "t1", b'{"a": 1}', {"x-data-class": "eu"}, {"priority": "high"})
WATCH = TaskCall("events", "acme", frozenset(), "t1", headers={"last-event-id": "1-0"})


@pytest.mark.parametrize("call", [CALL, WATCH])
def test_a_call_arrives_as_it_left(call: TaskCall) -> None:
    assert task_call_of(pb.TaskRequest.FromString(task_message(call).SerializeToString())) == call


@pytest.mark.parametrize("part", [TaskPart(202, {"location": "/v1/tasks/t1"}), TaskPart(data=b"\xff\x00")])
def test_a_part_arrives_as_it_left(part: TaskPart) -> None:
    assert part_of(pb.TaskPart.FromString(part_message(part).SerializeToString())) == part


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tenant": "x" * 513}, r"^tenant: is longer than 512 characters$"),
        ({"task_id": "x" * 513}, r"^task_id: is longer"),
        ({"body": bytes(MAX_BODY_BYTES + 1)}, r"^body: has \d+ bytes; at most \d+ are allowed$"),
        ({"residency": frozenset(map(str, range(1001)))}, r"^residency"),
        ({"headers": {str(n): "" for n in range(17)}}, r"^headers"),
        ({"query": {"task_id": "x" * 513}}, r"^query: has a name or a value that is longer than 512 characters$"),
    ],
)
def test_what_is_too_large_is_not_sent(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(WireError, match=said):
        task_message(replace(CALL, **changes))


def test_a_foreign_protocol_and_an_unknown_verb_are_refused() -> None:
    message = task_message(CALL)
    message.verb = "seance"
    with pytest.raises(WireError, match=r"^verb: 'seance' is not understood here; allowed: cancel, events, get"):
        task_call_of(message)
    message.protocol = 9
    with pytest.raises(WireError, match=r"^protocol: 9"):
        task_call_of(message)
