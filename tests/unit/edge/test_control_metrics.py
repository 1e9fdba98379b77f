"""The coordinator's metrics: every one of the table, read from what it knows at that moment."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from pathlib import Path

import pytest

from serve_app.edge.control_metrics import serve_metrics
from serve_app.metrics import BY_NAME, CONTROL
from tests.control import Control, control
from tests.pki import made


def read(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


async def test_what_is_exported_is_the_table_and_the_truth(tmp_path: Path) -> None:
    async with control(made(tmp_path / "pki"), tmp_path / "facts") as hub:
        server = serve_metrics("127.0.0.1:0", lambda: hub.coordinator)
        await hub.join("cloud-a")
        await hub.until(lambda: hub.coordinator.hub.counts["reports"] == 1)  # type: ignore[union-attr]
        found = await asyncio.to_thread(read, server.server_port)
        assert {name.split("{")[0] for name in found} == {m.name for m in CONTROL}
        assert found["grix_control_serving"] == 1
        assert found['grix_control_regions{phase="ready"}'] == 1
        assert found['grix_control_regions{phase="joining"}'] == 2
        assert (found["grix_control_links"], found["grix_control_reports_total"]) == (1, 1)
        assert found["grix_control_epoch"] == 5000
        await hub.end()
        assert await asyncio.to_thread(read, server.server_port) == {"grix_control_serving": 0}
        await asyncio.to_thread(server.shutdown)
        server.server_close()


@pytest.mark.parametrize("address", ["9000", "localhost:", ":x"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"^metrics: '.*' is no address; allowed: HOST:PORT$"):
        serve_metrics(address, lambda: None)


@pytest.mark.parametrize("metric", CONTROL, ids=lambda m: m.name)
def test_metrics_of_the_coordinator_are_well_formed(metric: object) -> None:
    found = next(m for m in CONTROL if m is metric)
    assert re.fullmatch(r"grix_control_[a-z_]+", found.name) and found.name not in BY_NAME
    assert found.help.endswith(".") and found.name.endswith("_total") == (found.kind == "counter")
    assert set(found.labels) <= {"phase"}


def test_a_coordinator_that_waits_is_told_as_such() -> None:
    waiting = Control(Path(), Path())
    server = serve_metrics("127.0.0.1:0", lambda: waiting.coordinator)
    assert read(server.server_port) == {"grix_control_serving": 0}
    server.shutdown()
    server.server_close()
