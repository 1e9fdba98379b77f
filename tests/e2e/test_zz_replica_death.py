"""A replica that is killed takes its engine with it; Serve starts another. Last, because it costs an engine start."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from serve_app.edge.serve_rest import ServeRest
from tests.e2e.conftest import LiveRegion
from tests.e2e.test_region import engine_pids, eventually


def replicas(region: LiveRegion) -> dict[str, int]:
    """Process id by replica id of the running engine replicas."""
    rest = ServeRest(region.record["dashboard"], Path(region.record["token_file"]).read_text().strip())
    apps: dict[str, Any] = rest.details()["applications"]
    rows = [r for name, app in apps.items() if name != "grix" for r in app["deployments"]["QwenAgent"]["replicas"]]
    return {r["replica_id"]: r["pid"] for r in rows if r["state"] == "RUNNING"}


def test_a_killed_replica_leaves_no_engine_behind(region: LiveRegion) -> None:
    before, engines = replicas(region), engine_pids(region)
    assert len(before) == 1 and engines
    (pid,) = before.values()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not set(engines) & set(engine_pids(region)), 15.0, "all processes of its engine are gone")
    after = eventually(lambda: replicas(region).keys() - before.keys(), 120.0, "another replica runs")
    assert len(after) == 1
    eventually(lambda: region.ask("GET", "/healthz?deep=1")[0] == 200, 60.0, "its engine makes tokens")
    assert region.chat("hello")[0] == 200
