"""A call to another region and its frames as messages of ``grix.proto``, and back.

A call's ``target`` and ``enqueued_unix_s`` do not travel: the serving region knows its targets, and counts queue wait
by its own clock.
"""

from __future__ import annotations

import json
from typing import Any, Final, get_args

from serve_app.core.reports import PROTOCOL
from serve_app.edge.protos import grix_pb2 as pb
from serve_app.edge.wire import WireError, at_most, at_most_bytes, check_protocol, number, seconds, short
from serve_app.openai_request import MAX_BODY_BYTES
from serve_app.outcomes import STATUS, Outcome
from serve_app.ports import Accepted, AgentCall, Body, Failure, Frame, Head, Kind, Origin, Packet, Tail, Usage

#: A body as an entry accepts it, and the template's words that it has gained.
MOST_CALL_BODY_BYTES: Final = MAX_BODY_BYTES + 1024 * 1024
#: Of what of a session moves with a call.
MOST_CARRY_BYTES: Final = 256 * 1024
#: Of one gRPC message between gateways.
MOST_PEER_BYTES: Final = MOST_CALL_BODY_BYTES + MOST_CARRY_BYTES + 64 * 1024
MOST_ZONES: Final = 1000
_NAMES: Final = ("request_id", "agent", "release", "tenant", "data_class", "traceparent", "session")

_KINDS: Final = frozenset(get_args(Kind))
_OUTCOMES: Final = frozenset(get_args(Outcome))


def call_message(call: AgentCall) -> pb.CallRequest:
    """A call that has an ``origin``.

    Raises:
        WireError: when the body is larger than a peer takes.
    """
    origin = call.origin
    assert origin is not None
    body = json.dumps(call.body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    message = pb.CallRequest(
        protocol=PROTOCOL,
        request_id=call.request_id,
        kind=call.kind,
        agent=call.model,
        release=call.release,
        body=body,
        stream=call.stream,
        max_tokens=call.max_tokens,
        priority=call.priority,
        tenant=origin.tenant,
        residency=sorted(origin.residency),
        data_class=origin.data_class,
        hops=origin.hops,
        deadline_s=origin.deadline_s,
        queue_s=origin.queue_s,
        traceparent=origin.traceparent,
        session=origin.session,
        session_carry=origin.carry,
        batch=origin.batch,
        tokens_wanted=origin.tokens_wanted,
    )
    _check(message)
    return message


def _check(message: pb.CallRequest) -> None:
    short(message, *_NAMES)
    at_most_bytes("body", message.body, MOST_CALL_BODY_BYTES)
    at_most_bytes("session_carry", message.session_carry, MOST_CARRY_BYTES)
    at_most("residency", message.residency, MOST_ZONES)


def call_of(message: pb.CallRequest) -> AgentCall:
    """A peer's call.

    Raises:
        WireError: a foreign protocol, or a part that is too large or makes no sense.
    """
    check_protocol(message.protocol)
    _check(message)
    if message.kind not in _KINDS:
        raise WireError("kind", f"{message.kind[:40]!a} is not understood here; allowed: {', '.join(sorted(_KINDS))}")
    kind: Any = message.kind
    return AgentCall(
        request_id=message.request_id,
        kind=kind,
        model=message.agent,
        body=_body_of(message.body),
        stream=message.stream,
        max_tokens=message.max_tokens,
        priority=message.priority,
        release=message.release,
        origin=Origin(
            tenant=message.tenant,
            residency=frozenset(message.residency),
            data_class=message.data_class or None,
            traceparent=message.traceparent or None,
            session=message.session or None,
            batch=message.batch,
            tokens_wanted=message.tokens_wanted,
            deadline_s=seconds("deadline_s", message.deadline_s),
            queue_s=seconds("queue_s", message.queue_s),
            hops=message.hops,
            carry=message.session_carry,
        ),
    )


def _body_of(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise WireError("body", "is no JSON") from None
    if not isinstance(value, dict):
        raise WireError("body", "is no JSON object")
    return value


def _failure_message(failure: Failure | None) -> pb.Failure | None:
    if failure is None:
        return None
    return pb.Failure(
        reason=failure.reason, message=failure.message, param=failure.param, retry_after_s=failure.retry_after_s
    )


def _failure_of(message: Any) -> Failure | None:
    if not message.HasField("failure"):
        return None
    said = message.failure
    reason: Any = said.reason if said.reason in STATUS else "upstream_failed"
    return Failure(reason, said.message, said.param or None, number(said, "retry_after_s"))


def _frame_message(frame: Frame) -> pb.Frame:
    match frame:
        case Body(data):
            return pb.Frame(body=pb.Body(data=data))
        case Accepted(target, release):
            return pb.Frame(accepted=pb.Accepted(target=target, release=release))
        case Head(max_tokens, failure, queued):
            return pb.Frame(head=pb.Head(max_tokens=max_tokens, failure=_failure_message(failure), queued=queued))
        case Tail(outcome, finish_reason, usage, queue_wait_ms, first_token_ms, failure):
            counted = (
                None
                if usage is None
                else pb.Usage(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens)
            )
            return pb.Frame(
                tail=pb.Tail(
                    outcome=outcome,
                    finish_reason=finish_reason,
                    usage=counted,
                    queue_wait_ms=queue_wait_ms,
                    first_token_ms=first_token_ms,
                    failure=_failure_message(failure),
                )
            )


def _tail_of(message: pb.Tail) -> Tail:
    outcome: Any = message.outcome if message.outcome in _OUTCOMES else "failed"
    usage = Usage(message.usage.prompt_tokens, message.usage.completion_tokens) if message.HasField("usage") else None
    return Tail(
        outcome=outcome,
        finish_reason=message.finish_reason if message.HasField("finish_reason") else None,
        usage=usage,
        queue_wait_ms=number(message, "queue_wait_ms"),
        first_token_ms=number(message, "first_token_ms"),
        failure=_failure_of(message),
    )


def _frame_of(message: pb.Frame) -> Frame | None:
    match message.WhichOneof("frame"):
        case "body":
            return Body(message.body.data)
        case "accepted":
            return Accepted(message.accepted.target, message.accepted.release)
        case "head":
            return Head(number(message.head, "max_tokens"), _failure_of(message.head), message.head.queued)
        case "tail":
            return _tail_of(message.tail)
        case _:
            return None


def packet_message(packet: Packet) -> pb.Packet:
    return pb.Packet(frames=map(_frame_message, packet))


def packet_of(message: pb.Packet) -> Packet:
    """The frames of a packet; those of a newer protocol, which nobody here waits for, are left out."""
    return tuple(frame for frame in map(_frame_of, message.frames) if frame is not None)
