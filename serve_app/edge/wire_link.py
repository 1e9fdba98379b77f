"""What a region and the coordinator tell each other as messages of ``grix.proto``, and back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, get_args

from serve_app.core.reports import PROTOCOL, FleetRegion, Node, PeerView, Plan, RegionPhase, RegionState
from serve_app.edge.protos import grix_pb2 as pb
from serve_app.edge.wire import (
    MOST_STATE_BYTES,
    WireError,
    at_most,
    bounded,
    check_protocol,
    number,
    state_message,
    state_of,
)
from serve_app.edge.wire_trial import trial_message, trial_of

MOST_NODES_BYTES: Final = 1024 * 1024
MOST_PEERS: Final = 1000
#: Of the configuration that a plan carries.
MOST_DOCUMENTS_BYTES: Final = 8 * 1024 * 1024
#: Of one message between a region and the coordinator: a full plan of hundreds of regions, with documents.
MOST_LINK_BYTES: Final = 64 * 1024 * 1024

_PHASES: Final = frozenset(get_args(RegionPhase))


@dataclass(frozen=True, slots=True)
class Up:
    """What a region tells the coordinator. ``None``: unchanged since this link began, or since it was last told."""

    region: str
    seq: int
    state: RegionState | None = None
    nodes: tuple[Node, ...] | None = None
    peers: tuple[PeerView, ...] | None = ()
    seen: tuple[int, int] = (0, 0)


def _node_message(node: Node) -> pb.Node:
    return pb.Node(
        name=node.name,
        cloud=node.cloud,
        region=node.region,
        instance_type=node.instance_type,
        ready=node.ready,
        cpus=node.cpus,
        memory_bytes=node.memory_bytes,
        gpu_vendor=node.gpu_vendor,
        gpu_model=node.gpu_model,
        gpu_count=node.gpu_count,
        vram_per_gpu_bytes=node.vram_per_gpu_bytes,
        labels=node.labels,
    )


def _node_of(message: pb.Node) -> Node:
    return Node(
        name=message.name,
        cloud=message.cloud,
        region=message.region,
        instance_type=message.instance_type,
        ready=message.ready,
        cpus=message.cpus if math.isfinite(message.cpus) and message.cpus >= 0 else 0.0,
        memory_bytes=message.memory_bytes,
        gpu_vendor=message.gpu_vendor or None,
        gpu_model=message.gpu_model or None,
        gpu_count=message.gpu_count,
        vram_per_gpu_bytes=message.vram_per_gpu_bytes,
        labels=dict(message.labels),
    )


def up_message(up: Up) -> pb.RegionUp:
    judged = [
        pb.PeerJudgement(region=p.region, silent_s=p.silent_s, network_ms=p.network_ms, fault=p.fault)
        for p in up.peers or ()
    ]
    return pb.RegionUp(
        protocol=PROTOCOL,
        region=up.region,
        seq=up.seq,
        state=None if up.state is None else state_message(up.state),
        nodes=map(_node_message, up.nodes or ()),
        has_nodes=up.nodes is not None,
        peers=judged,
        seen_epoch=up.seen[0],
        seen_generation=up.seen[1],
    )


def _peer_of(p: pb.PeerJudgement) -> PeerView:
    return PeerView(p.region, number(p, "silent_s"), number(p, "network_ms"), None, p.fault)


def up_of(message: pb.RegionUp, *, peers: bool = True) -> Up:
    """What a region tells; its peers' views come without their states. Without ``peers`` they are not read: in a large
    fleet they are most of a report.

    Raises:
        WireError: a foreign protocol, or a part that is too large or makes no sense.
    """
    check_protocol(message.protocol)
    bounded("report", message, MOST_STATE_BYTES + MOST_NODES_BYTES)
    at_most("report.peers", message.peers, MOST_PEERS)
    return Up(
        region=message.region,
        seq=message.seq,
        state=state_of(message.state) if message.HasField("state") else None,
        nodes=tuple(map(_node_of, message.nodes)) if message.has_nodes else None,
        peers=tuple(map(_peer_of, message.peers)) if peers else None,
        seen=(message.seen_epoch, message.seen_generation),
    )


def _region_message(region: FleetRegion) -> pb.FleetRegion:
    return pb.FleetRegion(
        name=region.name,
        phase=region.phase,
        why=region.why,
        drained=region.drained,
        accepts_spill=region.accepts_spill,
        state=None if region.state is None else state_message(region.state),
    )


def _region_of(message: pb.FleetRegion) -> FleetRegion:
    phase: Any = message.phase if message.phase in _PHASES else "joining"
    state = state_of(message.state) if message.HasField("state") else None
    return FleetRegion(message.name, phase, message.why, message.drained, message.accepts_spill, state)


def plan_message(plan: Plan, told: Plan | None = None) -> pb.RegionDown:
    """A plan whole, or what of it has changed since ``told``, the last one sent on this link."""
    names = [r.name for r in plan.regions]
    full = told is None or names != [r.name for r in told.regions]
    before = {} if told is None or full else {r.name: r for r in told.regions}
    # Thousands of entries, which change when somebody applies documents: they do not go with each heartbeat.
    expected = {} if told is not None and plan.expected == told.expected else plan.expected
    is_new = told is None or plan.trial != told.trial
    return pb.RegionDown(
        protocol=PROTOCOL,
        epoch=plan.epoch,
        generation=plan.generation,
        full=full,
        regions=[_region_message(r) for r in plan.regions if r != before.get(r.name)],
        revision=plan.revision,
        documents=plan.documents if told is None or plan.documents != told.documents else None,
        expected=[pb.Expected(region=r, agent=a, release=release) for (r, a), release in expected.items()],
        has_expected=told is None or plan.expected != told.expected,
        trial=trial_message(plan.trial) if plan.trial is not None and is_new else None,
        has_trial=is_new,
    )


def plan_of(message: pb.RegionDown, before: Plan | None = None) -> Plan:
    """The plan whole again, from ``before``, the last one of this link.

    Raises:
        WireError: a foreign protocol, an older plan than ``before``, or a change of a plan that never came.
    """
    check_protocol(message.protocol)
    if message.HasField("documents") and len(message.documents) > MOST_DOCUMENTS_BYTES:
        raise WireError("documents", f"at most {MOST_DOCUMENTS_BYTES} bytes are allowed")
    regions = tuple(map(_region_of, message.regions))
    if before is None and not (message.full and message.HasField("documents")):
        raise WireError("full", "this is a change of a plan that has not come on this link")
    if before is not None and (message.epoch, message.generation) < before.order:
        said = f"{message.epoch}.{message.generation} is older than {before.epoch}.{before.generation}"
        raise WireError("generation", said)
    if before is not None and not message.full:
        changed = {r.name: r for r in regions}
        unknown = changed.keys() - {r.name for r in before.regions}
        if unknown:
            raise WireError("regions", f"{min(unknown)!a} has changed but was never in the plan of this link")
        regions = tuple(changed.get(r.name, r) for r in before.regions)
    if message.HasField("trial") and len(message.trial.data) > MOST_DOCUMENTS_BYTES:
        raise WireError("trial.data", f"at most {MOST_DOCUMENTS_BYTES} bytes are allowed")
    expected = {(e.region, e.agent): e.release for e in message.expected}
    trial = trial_of(message.trial) if message.HasField("trial") else None
    return Plan(
        epoch=message.epoch,
        generation=message.generation,
        regions=regions,
        revision=message.revision,
        documents=message.documents if before is None or message.HasField("documents") else before.documents,
        expected=before.expected if before is not None and not message.has_expected else expected,
        trial=before.trial if before is not None and not message.has_trial else trial,
    )
