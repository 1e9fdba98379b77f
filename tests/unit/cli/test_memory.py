"""The memory budget adds up."""

from __future__ import annotations

from serve_app.cli.memory import CLUSTER_BYTES, ENGINE_BYTES, MIB, THIN_BYTES, EngineNeed, budget


def test_sum_of_every_part() -> None:
    needs = [EngineNeed("chat", 2, 100 * MIB, 128 * MIB), EngineNeed("doc", 1, 50 * MIB, None)]
    got = budget(needs, routers=1, detectors=2, helpers=2, available_bytes=0)
    assert got.lines == (
        ("Ray cluster", CLUSTER_BYTES),
        ("7 Serve processes", 7 * THIN_BYTES),
        ("2 x engine chat", 2 * (ENGINE_BYTES + 228 * MIB)),
        ("1 x engine doc", ENGINE_BYTES + 50 * MIB),
    )
    assert got.needed_bytes == CLUSTER_BYTES + 7 * THIN_BYTES + 3 * ENGINE_BYTES + 506 * MIB


def test_fits_up_to_the_last_byte() -> None:
    needed = budget([], routers=1, detectors=1, available_bytes=0).needed_bytes
    assert budget([], routers=1, detectors=1, available_bytes=needed).fits
    assert not budget([], routers=1, detectors=1, available_bytes=needed - 1).fits


def test_unknown_weights_are_told_not_counted_as_nothing() -> None:
    got = budget([EngineNeed("chat", 1, None, 0)], routers=1, detectors=1, available_bytes=1 << 30)
    assert got.unknown == ("weights of chat, which are fetched",)
    assert "not counted: weights of chat" in got.text()
    assert "available 1.00 GiB" in got.text()
