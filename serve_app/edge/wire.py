"""What a region says of itself as messages of ``grix.proto``, and back; and what holds for all messages.

What a newer protocol says and this one does not know becomes a safe value. A number that is none is "no data". A
message that is too large, or makes no sense, is refused by the name of its field. ``Load.network_ms`` does not travel:
it is the reader's own measurement. Plans are in ``wire_link``, calls and their frames in ``wire_calls``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from google.protobuf.message import Message

from serve_app.core.reports import PROTOCOL, RegionState, TargetReport
from serve_app.core.snapshots import Health, Load
from serve_app.core.trial import NO_TRIAL
from serve_app.edge.protos import grix_pb2 as pb
from serve_app.edge.wire_trial import MOST_COUNTS, report_message, report_of

#: Of one region's report; twenty targets take 4 kB.
MOST_STATE_BYTES: Final = 256 * 1024
MOST_TARGETS: Final = 1000
#: Characters of a name.
MOST_NAME: Final = 512

_HEALTH: Final = frozenset(get_args(Health))


class WireError(ValueError):
    """A message that is refused. ``field`` is the path of what is wrong with it."""

    def __init__(self, field: str, said: str) -> None:
        super().__init__(f"{field}: {said}")
        self.field = field


@dataclass(frozen=True, slots=True)
class Beat:
    """One beat between peers. ``held_s``: how long the beat ``echo`` was held. ``state`` ``None``: unchanged."""

    seq: int
    echo: int
    held_s: float
    state: RegionState | None = None


def check_protocol(theirs: int, ours: int = PROTOCOL) -> None:
    """N and N-1 interoperate, so a neighbour is one version older or newer.

    Raises:
        WireError: naming both versions.
    """
    if theirs < 1 or abs(theirs - ours) > 1:
        raise WireError("protocol", f"{theirs} is not understood here; allowed: {max(1, ours - 1)} to {ours + 1}")


def bounded(field: str, message: Message, most_bytes: int) -> None:
    """Refuses a message above ``most_bytes``, naming the largest of its fields.

    Raises:
        WireError: when it is larger.
    """
    size = message.ByteSize()
    if size <= most_bytes:
        return
    name, _ = max(message.ListFields(), key=lambda found: _size(found[1]))
    raise WireError(f"{field}.{name.name}", f"makes {field} {size} bytes; at most {most_bytes} are allowed")


def _size(value: Any) -> int:
    if isinstance(value, Message):
        return value.ByteSize()
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_size(k) + _size(v) for k, v in value.items())
    return sum(map(_size, value)) if isinstance(value, Iterable) else 8


def at_most(field: str, values: Any, most: int) -> None:
    """Refuses a list with more than ``most`` entries.

    Raises:
        WireError: naming the list.
    """
    if len(values) > most:
        raise WireError(field, f"has {len(values)} entries; at most {most} are allowed")


def short(message: Any, *fields: str) -> None:
    """Refuses names that are longer than :data:`MOST_NAME` characters.

    Raises:
        WireError: naming the field.
    """
    for field in fields:
        if len(getattr(message, field)) > MOST_NAME:
            raise WireError(field, f"is longer than {MOST_NAME} characters")


def at_most_bytes(field: str, value: bytes, most: int) -> None:
    """Refuses a part that is larger.

    Raises:
        WireError: naming the part.
    """
    if len(value) > most:
        raise WireError(field, f"has {len(value)} bytes; at most {most} are allowed")


def seconds(field: str, value: float) -> float:
    """A time that must be there and be one.

    Raises:
        WireError: for less than 0, infinity, or no number.
    """
    if not math.isfinite(value) or value < 0:
        raise WireError(field, f"{value} is no time; allowed: seconds from 0 on")
    return value


def number(message: Message, name: str) -> Any:
    """An optional number; what is not finite or below 0 is no data."""
    if not message.HasField(name):
        return None
    value = getattr(message, name)
    # It is asked a hundred thousand times a second in a large fleet; what is no number compares as false.
    return value if 0 <= value < math.inf else None


def _load_message(load: Load) -> pb.Load:
    return pb.Load(
        queue_wait_p95_ms=load.queue_wait_p95_ms,
        oldest_wait_ms=load.oldest_wait_ms,
        waiting=load.waiting,
        running=load.running,
        kv_cache_used_ratio=load.kv_cache_used_ratio,
        first_token_p95_ms=load.first_token_p95_ms,
        error_ratio=load.error_ratio,
    )


def _load_of(message: pb.Load) -> Load:
    return Load(
        queue_wait_p95_ms=number(message, "queue_wait_p95_ms"),
        oldest_wait_ms=number(message, "oldest_wait_ms"),
        waiting=number(message, "waiting"),
        running=number(message, "running"),
        kv_cache_used_ratio=number(message, "kv_cache_used_ratio"),
        first_token_p95_ms=number(message, "first_token_p95_ms"),
        error_ratio=number(message, "error_ratio"),
    )


def _target_message(target: TargetReport) -> pb.TargetReport:
    return pb.TargetReport(
        agent=target.agent,
        app=target.app,
        release=target.release,
        engine_digest=target.engine_digest,
        health=target.health,
        why=target.why,
        replicas=target.replicas,
        slots=target.slots,
        max_model_len=target.max_model_len,
        load=_load_message(target.load),
        missing=target.missing,
        canary=target.canary,
    )


def _target_of(message: pb.TargetReport) -> TargetReport:
    return TargetReport(
        agent=message.agent,
        app=message.app,
        release=message.release,
        engine_digest=message.engine_digest,
        health=_health(message.health),
        why=message.why,
        replicas=message.replicas,
        slots=message.slots,
        max_model_len=message.max_model_len,
        load=_load_of(message.load),
        missing=message.missing,
        canary=message.canary,
    )


def _health(said: str) -> Any:
    return said if said in _HEALTH else "unknown"


def state_message(state: RegionState) -> pb.RegionState:
    return pb.RegionState(
        region=state.region,
        health=state.health,
        why=state.why,
        targets=[_target_message(t) for t in state.targets],
        revision=state.revision,
        age_s=state.age_s,
        spilled_rps=state.spilled_rps,
        refused=state.refused,
        lowered=state.lowered,
        trial=report_message(state.trial),
    )


def state_of(message: pb.RegionState) -> RegionState:
    """A region's report.

    Raises:
        WireError: when it is too large or its age is none.
    """
    bounded("state", message, MOST_STATE_BYTES)
    at_most("state.targets", message.targets, MOST_TARGETS)
    at_most("state.trial.counts", message.trial.counts, MOST_COUNTS)
    return RegionState(
        region=message.region,
        health=_health(message.health),
        why=message.why,
        targets=tuple(map(_target_of, message.targets)),
        revision=message.revision,
        age_s=seconds("state.age_s", message.age_s),
        spilled_rps={k: v for k, v in message.spilled_rps.items() if math.isfinite(v) and v >= 0},
        refused=message.refused,
        lowered=dict(message.lowered),
        trial=report_of(message.trial) if message.HasField("trial") else NO_TRIAL,
    )


def beat_message(beat: Beat) -> pb.BeatMessage:
    state = None if beat.state is None else state_message(beat.state)
    return pb.BeatMessage(protocol=PROTOCOL, seq=beat.seq, echo=beat.echo, held_s=beat.held_s, state=state)


def beat_of(message: pb.BeatMessage) -> Beat:
    """A peer's beat.

    Raises:
        WireError: a foreign protocol, a time that is none, or a state that :func:`state_of` refuses.
    """
    check_protocol(message.protocol)
    state = state_of(message.state) if message.HasField("state") else None
    return Beat(message.seq, message.echo, seconds("held_s", message.held_s), state)
