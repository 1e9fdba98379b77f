"""What ``ray.nodes()`` says, as nodes in the one normal form.

Ray does not know everything that a policy may ask for. What it leaves out is a label of the node:
``ray start --labels "grix.io/vram-per-gpu=80Gi,grix.io/instance-type=p4de"``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from cluster_configs.quantities import parse_size_bytes
from serve_app.core.reports import Node

VRAM_LABEL: Final = "grix.io/vram-per-gpu"
TYPE_LABEL: Final = "grix.io/instance-type"
_ACCELERATOR: Final = "accelerator_type:"
_GIB: Final = 1 << 30
#: Memory of Ray's accelerator types; where one name has several sizes, the smallest.
_VRAM_GIB: Final[Mapping[str, int]] = {
    "V100": 16, "P100": 12, "T4": 16, "P4": 8, "K80": 12, "A10G": 24, "L4": 24, "L40S": 48, "A100": 40,
    "A100-40G": 40, "A100-80G": 80, "H100": 80, "H200": 141, "H20": 96, "B200": 180, "RTX-PRO-6000": 96,
}  # fmt: skip
#: The largest of those that have several.
_LARGEST_GIB: Final[Mapping[str, int]] = {"V100": 32, "P100": 16, "A100": 80, "H100": 94, "H20": 141, "B200": 192}
#: More than any GPU has.
_ANY_BYTES: Final = 1 << 60


def nodes_of(rows: Iterable[Mapping[str, Any]], cloud: str, region: str) -> tuple[Node, ...]:
    """The nodes of one cluster, dead ones as not Ready, by name."""
    return tuple(sorted((_node(row, cloud, region) for row in rows), key=lambda node: node.name))


def at_most(node: Node) -> Node:
    """The node with as much memory of each GPU as it may have, for all that its label and Ray's model say."""
    if node.gpu_count == 0 or _labelled_bytes(node.labels.get(VRAM_LABEL)) is not None:
        return node
    model = node.gpu_model or ""
    most_gib = _LARGEST_GIB.get(model, _VRAM_GIB.get(model))
    return replace(node, vram_per_gpu_bytes=_ANY_BYTES if most_gib is None else most_gib * _GIB)


def _node(row: Mapping[str, Any], cloud: str, region: str) -> Node:
    resources = row.get("Resources") or {}
    labels = {str(k): str(v) for k, v in (row.get("Labels") or {}).items()}
    model = next((k.removeprefix(_ACCELERATOR) for k in sorted(resources) if k.startswith(_ACCELERATOR)), None)
    count = int(resources.get("GPU", 0))
    return Node(
        name=str(row.get("NodeName") or row.get("NodeID")),
        cloud=cloud,
        region=region,
        instance_type=labels.get(TYPE_LABEL, ""),
        ready=bool(row.get("Alive")),
        cpus=float(resources.get("CPU", 0.0)),
        memory_bytes=int(resources.get("memory", 0)),
        gpu_vendor=("amd" if model is not None and model.startswith("AMD") else "nvidia") if count else None,
        gpu_model=model if count else None,
        gpu_count=count,
        vram_per_gpu_bytes=_vram_bytes(labels.get(VRAM_LABEL), model) if count else 0,
        labels=labels,
    )


def _vram_bytes(label: str | None, model: str | None) -> int:
    """From the label, else from the model's name; 0 where neither says it, so that no policy is placed on a guess."""
    if label is not None:
        return _labelled_bytes(label) or 0
    return _VRAM_GIB.get(model or "", 0) * _GIB


def _labelled_bytes(label: str | None) -> int | None:
    """``None`` for a label that is not there or is no size."""
    try:
        return None if label is None else parse_size_bytes(label)
    except ValueError:
        return None
