"""A Router's new bundle: what a request finds that is decided by it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster_configs.load import load_paths
from deployments.router import Router
from serve_app.core.tenants import KeyIndex
from serve_app.edge.serve_config import render
from tests.region_fakes import FEDERATION


class Handles:
    """Notes what is kept, and which table was in force meanwhile."""

    def __init__(self, router: Any) -> None:
        self.router, self.kept = router, []

    async def keep(self, apps: Mapping[str, int]) -> None:
        world = self.router._world
        self.kept.append((None if world is None else world.table.agents["qwen-chat"].app, sorted(apps)))


class Configured:
    async def configure(self, region: Mapping[str, Any]) -> None:
        """Takes anything."""


def bundle(folder: Path, context: int) -> tuple[dict[str, Any], str]:
    """A Router's user_config, and the name of its engine's app."""
    file = folder / "fleet.yaml"
    file.write_text(FEDERATION.replace("maxModelLen: 4096", f"maxModelLen: {context}"))
    apps = render(load_paths([file], {}), "cloud-a", http_host="127.0.0.1", http_port=8000)["applications"]
    (engine,) = [app["name"] for app in apps if "--" in app["name"]]
    return apps[0]["deployments"][0]["user_config"], engine


@pytest.fixture(autouse=True)
def _level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("ray.serve"), "setLevel", lambda level: None)


async def test_engines_of_a_new_bundle_can_be_called_before_a_request_is_decided_by_it(tmp_path: Path) -> None:
    # Without Serve around it.
    router: Any = object.__new__(Router.func_or_class.__mro__[1])
    router._limits = router._sessions = router._tasks_of_region = Configured()
    router._handles = handles = Handles(router)
    router._tasks, router._generation, router._world, router._keys = ["runs"], 0, None, KeyIndex({})
    router._snapshot, router._bereft, router._running, router._apps = None, frozenset(), frozenset(), {}
    (first, old), (second, new) = bundle(tmp_path, 4096), bundle(tmp_path, 2048)
    await router.reconfigure(first)
    await router.reconfigure(second)
    # The engine before is kept as long as the table before is in force.
    assert handles.kept == [(None, [old]), (old, sorted([old, new]))]
    assert router._world.table.agents["qwen-chat"].app == new and list(router._apps) == [new]
