"""A coordinator's life: it waits for the lease, begins a new epoch, serves, and stops when the lease is lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from cluster_configs.bundle import Config
from cluster_configs.kind_federation import Store as StoreSettings
from serve_app.core.fleet import Fleet
from serve_app.core.fleet_events import COORDINATOR, Audit, Facts
from serve_app.edge.admin_verbs import Verbs, wanted_from
from serve_app.edge.coordinator_hub import Hub
from serve_app.edge.coordinator_server import MOST_BYTES, CoordinatorServer
from serve_app.edge.facts_store import Opened, Store, StoreError, opened
from serve_app.edge.fleet_documents import begun_with, config_of, revision_of
from serve_app.edge.grpc_tls import TlsError, TlsFolder, start_server
from serve_app.edge.lease import RENEW_S, Lease
from serve_app.edge.rollout_documents import rollouts_from

log = logging.getLogger("ray.serve")

#: A port that is taken is waited for: the coordinator before may still be closing.
BUSY_S: Final = 10.0
#: After a fault, and while another holds the lease.
AGAIN_S: Final = 1.0
#: Open links are told that the coordinator stops, and then cut.
STOP_S: Final = 0.5
CLOSE_AGAIN_S: Final = 2.0
_NEEDED: Final = frozenset({"documents", "pkiFolder"})
_OPTIONAL: Final = frozenset({"listen", "store", "metrics", "model", "logLevel"})


@dataclass(frozen=True, slots=True)
class Settings:
    """What a coordinator is started with."""

    config: Config
    pki_folder: Path
    listen: str
    store: StoreSettings
    metrics: str | None = None
    model: str | None = None

    @property
    def federation(self) -> str:
        return self.config.federation.metadata.name


def settings_of(user_config: Mapping[str, Any]) -> Settings:
    """Settings from GlobalCoordinator's user_config.

    Raises:
        ValueError: naming the key that is wrong, and what is allowed; ConfigError for faults in documents.
    """
    odd = sorted((_NEEDED - user_config.keys()) | (user_config.keys() - _NEEDED - _OPTIONAL))
    if odd:
        allowed = ", ".join(sorted(_NEEDED | _OPTIONAL))
        raise ValueError(f"GlobalCoordinator: {', '.join(odd)}: missing or unknown; allowed: {allowed}")
    config = config_of(user_config["documents"])
    coordinator = config.federation.spec.coordinator
    if coordinator is None:
        said = 'write coordinator: {address: "HOST:PORT"}'
        raise ValueError(f"GlobalCoordinator: the Federation has no coordinator; {said}")
    store = coordinator.store
    if user_config.get("store") is not None:
        try:
            store = StoreSettings.model_validate(user_config["store"])
        except ValidationError as error:
            raise ValueError(f"GlobalCoordinator: store: {error.errors()[0]['msg']}") from None
    if store is None:
        said = 'write coordinator.store: {url: "file:///FOLDER"} or {url: "redis://HOST:PORT"}'
        raise ValueError(f"GlobalCoordinator: nothing says where it keeps its facts; {said}")
    return Settings(
        config=config,
        pki_folder=Path(user_config["pkiFolder"]),
        listen=user_config.get("listen") or coordinator.listens_at,
        store=store,
        metrics=user_config.get("metrics"),
        model=user_config.get("model"),
    )


class Coordinator:
    """One coordinator, serving or waiting. ``hub`` is there while it serves; ``fault`` says why it does not."""

    def __init__(
        self,
        settings: Settings,
        now_s: Callable[[], float] = time.monotonic,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.hub: Hub | None = None
        self.port: int | None = None
        self.fault = "has not begun"
        self._now_s = now_s
        self._unix_s = unix_s
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins, on the loop that serves: from now on it serves whenever it holds the lease."""
        self._task = asyncio.create_task(self._run())

    @property
    def broken(self) -> BaseException | None:
        """What made it break off, for faults that trying again does not mend."""
        task = self._task
        return task.exception() if task is not None and task.done() and not task.cancelled() else None

    async def close(self) -> None:
        """Ends links and calls, and frees the lease."""
        self._closing = True
        task, self._task = self._task, None
        while task is not None and not task.done():
            if self.hub is not None:
                self.hub.stop()
            # A cancellation that falls into a call to Redis may come out as that call's failure, and be lost.
            task.cancel()
            await asyncio.wait({task}, timeout=CLOSE_AGAIN_S)

    async def _run(self) -> None:
        """A fault is told, and tried again."""
        while not self._closing:
            try:
                await self._one_term()
            except (StoreError, TlsError, OSError, ValueError) as error:
                self._say(str(error))
            await asyncio.sleep(AGAIN_S)

    def _say(self, fault: str) -> None:
        if fault != self.fault:
            log.warning("coordinator does not serve: %s", fault)
        self.fault = fault

    async def _one_term(self) -> None:
        place = await asyncio.to_thread(opened, self.settings.store, self.settings.federation, self._now_s)
        try:
            if await self._lease_taken(place.lease):
                try:
                    await self._serve(place)
                finally:
                    self.hub, self.port = None, None
                    await place.lease.free()
            else:
                self._say("another coordinator holds the lease")
        finally:
            await place.store.close()

    async def _lease_taken(self, lease: Lease) -> bool:
        try:
            return await lease.take()
        except Exception as error:  # a Redis that is away fails in many ways
            raise StoreError(f"the lease cannot be taken: {type(error).__name__}: {error}") from None

    async def _serve(self, place: Opened) -> None:
        settings = self.settings
        begun = begun_with(settings.config)
        old = await place.store.load() or Facts()
        facts = await self._new_epoch(place.store, old)
        wanted = await wanted_from(facts, begun, settings.model)
        rollouts = await asyncio.to_thread(rollouts_from, facts, settings.model, self._now_s())
        hub = Hub(Fleet(wanted, facts, self._now_s(), rollouts), place.store, self._now_s, self._unix_s)
        if facts.revision != old.revision:
            hub.audit(Audit(COORDINATOR, "documents", "", old.revision, "", "it was started with other documents"))
        verbs = Verbs(hub, settings.federation, settings.config, settings.model, self._unix_s)
        link_s = settings.config.federation.spec.health.link_timeout_s
        service = CoordinatorServer(hub, verbs, settings.federation, link_s)
        tls = TlsFolder(settings.pki_folder)
        # The lease must not run out while the port is still taken.
        keeper = asyncio.create_task(self._keep(place.lease, hub))
        server = None
        try:
            server, self.port = await start_server(
                settings.listen, tls, service.add, most_bytes=MOST_BYTES, busy_s=BUSY_S, link_s=link_s
            )
            self.hub, self.fault = hub, ""
            log.info("coordinator of %s serves on port %d, epoch %d", settings.federation, self.port, facts.epoch)
            await hub.run()
            self._say(hub.fault or "the lease is lost")
        finally:
            hub.stop()
            keeper.cancel()
            if server is not None:
                await server.stop(STOP_S)
            await hub.settle()

    async def _new_epoch(self, store: Store, old: Facts) -> Facts:
        """Later than every one before, and stored before anything is said in its name.

        What was applied stands while the coordinator is started with the same documents, not with newer ones.
        """
        facts = replace(old, epoch=max(old.epoch + 1, int(self._unix_s())), begun=revision_of(self.settings.config))
        if facts.begun != old.begun:
            facts = replace(facts, revision="", documents="", rollout="")
        await store.save(facts)
        return facts

    async def _keep(self, lease: Lease, hub: Hub) -> None:
        while await lease.keep():
            await asyncio.sleep(RENEW_S)
        log.error("the lease is lost: another coordinator may serve now")
        hub.stop()
