"""A Router's new bundle: what a request finds that is decided by it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster_configs.load import load_paths
from deployments.router import Router
from serve_app.core.tenants import KeyIndex
from serve_app.edge.router_trial import RouterTrial
from serve_app.edge.serve_config import render
from tests.region_fakes import FEDERATION


class Handles:
    """Notes what is kept, and which table was in force meanwhile."""

    def __init__(self, router: Any) -> None:
        self.router, self.kept = router, []
        self.hang: asyncio.Event | None = None

    async def keep(self, apps: Mapping[str, int]) -> None:
        world = self.router._world
        self.kept.append((None if world is None else world.table.agents["qwen-chat"].app, sorted(apps)))
        if self.hang is not None:
            await self.hang.wait()


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


@pytest.fixture
def router() -> Any:
    """A Router without Serve around it."""
    made: Any = object.__new__(Router.func_or_class.__mro__[1])
    made._limits = made._sessions = made._tasks_of_region = Configured()
    made._handles = Handles(made)
    made._tasks, made._generation, made._world, made._keys = ["runs"], 0, None, KeyIndex({})
    made._trial = RouterTrial()
    made._snapshot, made._bereft, made._running, made._apps = None, frozenset(), frozenset(), {}
    made._changing = asyncio.Lock()
    return made


async def test_engines_of_a_new_bundle_can_be_called_before_a_request_is_decided_by_it(
    router: Any, tmp_path: Path
) -> None:
    (first, old), (second, new) = bundle(tmp_path, 4096), bundle(tmp_path, 2048)
    await router.reconfigure(first)
    await router.reconfigure(second)
    # The engine before is kept as long as the table before is in force.
    assert router._handles.kept == [(None, [old]), (old, sorted([old, new]))]
    assert router._world.table.agents["qwen-chat"].app == new and list(router._apps) == [new]


async def test_of_two_bundles_at_once_the_last_one_holds(router: Any, tmp_path: Path) -> None:
    (first, old), (second, new) = bundle(tmp_path, 4096), bundle(tmp_path, 2048)
    release = router._handles.hang = asyncio.Event()
    slow = asyncio.create_task(router.reconfigure(first))
    while not router._handles.kept:
        await asyncio.sleep(0)
    router._handles.hang = None
    quick = asyncio.create_task(router.reconfigure(second))
    for _ in range(20):
        await asyncio.sleep(0)
    release.set()
    await asyncio.gather(slow, quick)
    assert router._handles.kept == [(None, [old]), (old, sorted([old, new]))]
    assert router._world.table.agents["qwen-chat"].app == new and list(router._apps) == [new]
