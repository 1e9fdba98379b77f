"""Ray's rows as nodes in the one normal form: what Ray leaves out is a label, and what nobody says is not guessed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from serve_app.core.reports import Node
from serve_app.edge.ray_nodes import at_most, nodes_of


def row(**changes: Any) -> dict[str, Any]:
    resources = {"CPU": 8.0, "memory": 64.0 * 2**30, "object_store_memory": 1.0}
    return {"NodeID": "abc", "NodeName": "10.0.0.1", "Alive": True, "Resources": resources, "Labels": {}, **changes}


def only(raw: dict[str, Any]) -> Node:
    (node,) = nodes_of([raw], "cloud-a", "sg-1")
    return node


def test_a_node_without_gpus() -> None:
    assert only(row()) == Node("10.0.0.1", "cloud-a", "sg-1", cpus=8.0, memory_bytes=64 * 2**30)


def test_gpus_by_rays_name_for_their_model() -> None:
    node = only(row(Resources={"CPU": 96.0, "GPU": 8.0, "accelerator_type:A100-80G": 1.0}))
    assert (node.gpu_vendor, node.gpu_model, node.gpu_count, node.vram_per_gpu_bytes) == (
        "nvidia",
        "A100-80G",
        8,
        80 * 2**30,
    )


@pytest.mark.parametrize(("vram", "bytes_"), [("40Gi", 40 * 2**30), ("much", 0)])
def test_a_label_says_it_better(vram: str, bytes_: int) -> None:
    labels = {"grix.io/vram-per-gpu": vram, "grix.io/instance-type": "p4d"}
    node = only(row(Resources={"GPU": 1.0, "accelerator_type:A100-80G": 1.0}, Labels=labels))
    assert (node.instance_type, node.vram_per_gpu_bytes, node.labels) == ("p4d", bytes_, labels)


def test_a_model_that_nobody_knows_has_no_memory_to_place_on() -> None:
    assert only(row(Resources={"GPU": 1.0, "accelerator_type:NEW": 1.0})).vram_per_gpu_bytes == 0


@pytest.mark.parametrize(
    ("resources", "labels", "gib"),
    [
        ({"GPU": 1.0, "accelerator_type:A100": 1.0}, {}, 80),
        ({"GPU": 1.0, "accelerator_type:A100": 1.0}, {"grix.io/vram-per-gpu": "40Gi"}, 40),
        ({"GPU": 1.0, "accelerator_type:L4": 1.0}, {}, 24),
        ({"GPU": 1.0, "accelerator_type:L4": 1.0}, {"grix.io/vram-per-gpu": "much"}, 24),
        ({"GPU": 1.0, "accelerator_type:NEW": 1.0}, {}, 1 << 30),
        ({"GPU": 1.0}, {}, 1 << 30),
        ({"CPU": 1.0}, {}, 0),
    ],
)
def test_what_each_of_its_gpus_may_have_at_most(resources: dict[str, float], labels: dict[str, str], gib: int) -> None:
    node = only(row(Resources=resources, Labels=labels))
    assert at_most(node) == replace(node, vram_per_gpu_bytes=gib << 30)


def test_dead_nodes_are_not_ready_and_all_are_in_order() -> None:
    rows = [row(NodeName="b", Alive=False, Resources={}), row(NodeName="a")]
    assert [(n.name, n.ready, n.cpus) for n in nodes_of(rows, "c", "r")] == [("a", True, 8.0), ("b", False, 0.0)]
