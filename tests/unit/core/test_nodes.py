"""What no node can carry is refused by the name of the requirement, measured on the nearest node."""

from __future__ import annotations

from serve_app.core.nodes import GIB, MIG_LABEL, Needs, unmet
from serve_app.core.reports import Node

CHAT = Needs("qwen-chat", ("cloud-a", "cloud-b"), gpus=2, vram_per_gpu_bytes=40 * GIB)
TINY = Needs("tiny", ("edge-1",), cpus=2, memory_bytes=GIB)


def node(
    name: str, region: str, gpus: int = 0, vram_gib: int = 0, *, ready: bool = True, cpus: float = 8, mig: str = ""
) -> Node:
    labels = {MIG_LABEL: mig} if mig else {}
    return Node(name, region, region, "", ready, cpus, 64 * GIB, None, None, gpus, vram_gib * GIB, labels)


def test_a_node_that_meets_everything_carries_it() -> None:
    assert unmet(CHAT, [node("small", "cloud-a", 8, 24), node("big", "cloud-b", 2, 40)]) == ()


def test_what_is_missing_is_named_on_the_node_that_comes_nearest() -> None:
    nodes = [node("none", "cloud-a"), node("near", "cloud-a", 8, 24), node("one", "cloud-b", 1, 20)]
    assert unmet(CHAT, nodes) == (
        "qwen-chat: gpu.vramRequired wants 40Gi, it has 24Gi; nearest is node cloud-a/near of cloud-a, cloud-b",
    )
    assert unmet(CHAT, nodes[:1]) == (
        "qwen-chat: engine.tensorParallelSize wants 2, it has 0; nearest is node cloud-a/none of cloud-a, cloud-b",
        "qwen-chat: gpu.vramRequired wants 40Gi, it has 0Gi; nearest is node cloud-a/none of cloud-a, cloud-b",
    )


def test_one_gpu_that_is_not_there_is_the_gpu_block() -> None:
    (said, _) = unmet(Needs("doc", ("cloud-a",), gpus=1, vram_per_gpu_bytes=GIB), [node("n", "cloud-a")])
    assert said == "doc: gpu wants 1, it has 0; nearest is node cloud-a/n of cloud-a"


def test_nodes_of_other_regions_and_those_that_are_not_ready_do_not_count() -> None:
    nodes = [node("far", "cloud-c", 8, 80), node("down", "cloud-a", 8, 80, ready=False)]
    assert unmet(CHAT, nodes) == ("qwen-chat: node: there is no Ready node in cloud-a, cloud-b",)
    assert unmet(Needs("x", ()), nodes) == ("x: node: there is no Ready node in no region",)


def test_without_a_gpu_block_threads_and_memory_of_any_node_do() -> None:
    assert unmet(TINY, [node("box", "edge-1", cpus=2)]) == ()
    assert unmet(TINY, [node("box", "edge-1", cpus=1)]) == (
        "tiny: engine.cpuThreads wants 2, it has 1; nearest is node edge-1/box of edge-1",
    )


def test_a_slice_is_carried_by_a_node_of_such_slices_only() -> None:
    sliced = Needs("doc", ("cloud-a",), gpus=1, vram_per_gpu_bytes=20 * GIB, mig_slice="3g.40gb")
    assert unmet(sliced, [node("m", "cloud-a", 2, 40, mig="3g.40gb")]) == ()
    for other in (node("m", "cloud-a", 7, 40, mig="1g.10gb"), node("m", "cloud-a", 8, 80)):
        (said,) = unmet(sliced, [other])
        assert said == "doc: gpu.migSlice 3g.40gb wants 1, it has 0; nearest is node cloud-a/m of cloud-a"


def test_a_whole_gpu_is_no_slice() -> None:
    whole = Needs("doc", ("cloud-a",), gpus=1, vram_per_gpu_bytes=20 * GIB)
    (said,) = unmet(whole, [node("m", "cloud-a", 2, 40, mig="3g.40gb")])
    assert said == "doc: gpu.migSlice none wants 1, it has 0; nearest is node cloud-a/m of cloud-a"
