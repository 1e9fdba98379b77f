"""RegionAgent without Ray: takes what the region pushes, and lets Routers wait for what becomes of it.

Everything of a request is decided elsewhere, from snapshots; when this is away, Routers go on with the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from cluster_configs.fleet import fleet_facts
from serve_app.core.names import agent_of
from serve_app.core.preempt import Amounts, Change, Decision
from serve_app.core.region_state import RegionCore
from serve_app.core.reports import FailedStart, Node, PeerView, Plan, RegionState, ReplicaReport, RouterReport
from serve_app.core.snapshots import Snapshot
from serve_app.edge.config_keeper import ConfigKeeper
from serve_app.edge.coordinator_link import CoordinatorLink, LinkStatus, Told
from serve_app.edge.desired_config import ConfigWriter
from serve_app.edge.drain_file import DrainFile
from serve_app.edge.grpc_tls import TlsError, TlsFolder
from serve_app.edge.preemption import Preemption, said
from serve_app.edge.trial_runner import RunSmoke, TrialRunner

log = logging.getLogger("ray.serve")

#: A long poll without news ends after this: a Router that hears nothing for longer knows that this is away.
WATCH_S: Final = 2.0
#: How often it is looked whether time alone has changed something: silence, a ramp, a lent probe.
LOOK_S: Final = 0.1
#: A look that comes so much later tells that this process stood still.
LATE_S: Final = 0.5
#: A snapshot with other numbers is never older.
AGAIN_S: Final = 0.3
#: Certificates that are not there yet are looked for this often.
NO_CERTIFICATE_S: Final = 5.0
#: A Router that was not heard for so long is gone.
GONE_S: Final = 30.0


class RegionService:
    """One region's state and its link to the coordinator. ``nodes`` tells the hardware of this moment.

    ``writer`` is ``None`` where nobody said where the cluster's dashboard is: then its Serve config is left alone.
    ``folder`` is for what shall outlive this process. ``resources`` are the cluster's, by name; ``on_room`` hears who
    gave way or has its replicas again, and by agent how many replicas find no room. ``run_smoke`` has a Router of the
    region ask a release's smoke tests.
    """

    def __init__(
        self,
        *,
        now_s: Callable[[], float],
        unix_s: Callable[[], float],
        jitter: Callable[[], float],
        nodes: Callable[[str, str], tuple[Node, ...]],
        writer: ConfigWriter | None = None,
        folder: Path | None = None,
        on_put_back: Callable[[int], None] = lambda count: None,
        resources: Callable[[], Amounts] = dict,
        on_room: Callable[[Change | None, Mapping[str, int]], None] = lambda change, missing: None,
        on_failed_start: Callable[[FailedStart], None] = lambda report: None,
        run_smoke: RunSmoke,
    ) -> None:
        self._clock_s, self._jitter, self._nodes, self._on_failed_start = now_s, jitter, nodes, on_failed_start
        self._seen_s = now_s()
        self._epoch = int(unix_s())
        self._core: RegionCore | None = None
        self._run_smoke = run_smoke
        self._trials: TrialRunner | None = None
        self._settings: tuple[str, str, float, float] | None = None
        self._where = ("", "")
        self._known_nodes: tuple[Node, ...] = ()
        self._link: CoordinatorLink | None = None
        self._link_fault = "not dialled yet"
        self._linking: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._resources, self._on_room = resources, on_room
        self._keeper = None if writer is None else self._keeper_of(writer, on_put_back)
        self._keeping: asyncio.Task[None] | None = None
        self._drains = DrainFile(folder)
        self._order = (0, 0)
        self._bell = asyncio.Event()
        self._lent: dict[str, frozenset[str]] = {}
        self._routers: dict[str, float] = {}

    # ---- lifetime ----

    def configure(self, user_config: Mapping[str, Any]) -> None:
        """Takes agents, regions and where the coordinator is; on the loop that serves.

        Raises:
            ConfigError, ValidationError, KeyError: for a user_config that is none.
        """
        facts = fleet_facts(user_config)
        if self._core is None:
            self._core = RegionCore(facts, self._epoch)
            self._trials = TrialRunner(self._core.trial, self._run_smoke, self._look)
            drains = self._drains.read()
            if drains is not None:
                self._core.plan(drains, self._now_s())
        else:
            self._core.configure(facts)
        assert self._trials is not None
        self._trials.configure(user_config)
        self._where = (facts.regions[facts.me].cloud, facts.me)
        settings = (user_config["coordinator"], user_config["pkiFolder"], facts.heartbeat_s, facts.link_s)
        if settings != self._settings:
            self._settings = settings
            if self._linking is not None:
                self._linking.cancel()
            self._linking = asyncio.create_task(self._link_on(*settings))
        if self._keeper is not None:
            self._keeper.configure(user_config)
            if self._keeping is None:
                self._keeping = asyncio.create_task(self._keeper.run())
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_on())
        self._look()

    def fault(self) -> str | None:
        """Why this can no longer do its work, ``None`` while it can."""
        for task in (self._looking, self._linking, self._keeping):
            if task is not None and task.done() and not task.cancelled():
                return f"a task has ended: {task.exception()!r}"
        return None

    async def close(self) -> None:
        if self._trials is not None:
            self._trials.close()
        for task in (self._looking, self._linking, self._keeping):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    @property
    def core(self) -> RegionCore:
        assert self._core is not None, "not configured yet"
        return self._core

    def _now_s(self) -> float:
        """The time now. Whoever asks for it after a standstill has not seen silence, be it a look or a push."""
        now_s = self._clock_s()
        late_s, self._seen_s = now_s - self._seen_s - LOOK_S, now_s
        if late_s > LATE_S and self._core is not None:
            self._core.stood_still(late_s, now_s)
        return now_s

    # ---- what the region pushes ----

    def push_replica(self, report: ReplicaReport) -> float:
        """Requests a second that were wanted of the replica's engine and served elsewhere."""
        offered_spilled_rps = self.core.replica(report, self._now_s())
        self._look()
        return offered_spilled_rps

    def push_failed_start(self, report: FailedStart) -> None:
        """A replica that cannot start; Serve tries with another one."""
        log.error("replica %s of %s failed to start (%s): %s", report.replica, report.app, report.stage, report.why)
        self.core.failed_start(report, self._now_s())
        if self._keeper is not None:
            self._keeper.failed_start(report.app, report.replica)
        self._on_failed_start(report)
        self._look()

    def push_router(self, report: RouterReport) -> float | None:
        """How long ago the coordinator's plan was confirmed."""
        self._routers[report.router] = self._now_s()
        self.core.router(report, self._now_s())
        self._look()
        return self.core.plan_age_s(self._now_s())

    def exchange(self, views: Iterable[PeerView]) -> RegionState:
        """The gateway's view of the peers for this region's own summary."""
        self.core.peers(views, self._now_s())
        self._look()
        return self._own_state()

    def _own_state(self) -> RegionState:
        """The summary, and what operators have to know of the config."""
        state, keeper = self.core.own_state(self._now_s()), self._keeper
        if keeper is None or not (told := keeper.told()):
            return state
        return replace(state, why="; ".join(part for part in (state.why, told) if part), refused=keeper.refused)

    # ---- what Routers get ----

    async def watch(self, router: str, seen: tuple[int, int]) -> Snapshot | None:
        """The next snapshot that differs from what this Router has; ``None`` when none came for a while."""
        self.core.outrank(seen)
        until_s = self._now_s() + WATCH_S
        while True:
            bell, now_s = self._bell, self._now_s()
            self._routers[router] = now_s
            snapshot = self.core.snapshot_for(router, now_s)
            if (snapshot.epoch, snapshot.generation) != seen or snapshot.lent != self._lent.get(router, frozenset()):
                self._lent[router] = snapshot.lent
                return snapshot
            if now_s >= until_s:
                return None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(AGAIN_S, until_s - now_s)):
                    await bell.wait()

    def _look(self) -> None:
        """Wakes who waits, when there is another picture than before."""
        snapshot = self.core.refresh(self._now_s())
        order = (snapshot.epoch, snapshot.generation)
        if order != self._order:
            self._order = order
            bell, self._bell = self._bell, asyncio.Event()
            bell.set()

    async def _look_on(self) -> None:
        while True:
            self._look()
            now_s = self._now_s()
            for router in [name for name, at_s in self._routers.items() if now_s - at_s > GONE_S]:
                del self._routers[router]
                self._lent.pop(router, None)
            await asyncio.sleep(LOOK_S)

    # ---- the coordinator ----

    async def _link_on(self, address: str, pki_folder: str, heartbeat_s: float, link_s: float) -> None:
        """Links, as soon as there are certificates to link with."""
        while True:
            try:
                tls = await asyncio.to_thread(TlsFolder, Path(pki_folder))
                break
            except TlsError as error:
                if str(error) != self._link_fault:
                    log.warning("no link to the coordinator: %s", error)
                self._link_fault = str(error)
                await asyncio.sleep(NO_CERTIFICATE_S)
        self._link = CoordinatorLink(
            address,
            tls,
            heartbeat_s=heartbeat_s,
            told=self._told,
            on_plan=self._on_plan,
            jitter=self._jitter,
            link_s=link_s,
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._link.run())
            tasks.create_task(self._nodes_on(heartbeat_s))

    async def _nodes_on(self, every_s: float) -> None:
        while True:
            try:
                self._known_nodes = await asyncio.to_thread(self._nodes, *self._where)
            except Exception as error:  # whatever the cluster says: the nodes it had are told on
                log.warning("the nodes of this cluster cannot be listed: %s", error)
            await asyncio.sleep(every_s)

    def _told(self) -> Told:
        now_s = self._now_s()
        plan = self.core.current_plan
        seen = (0, 0) if plan is None else plan.order
        peers = tuple(view for _, view in self.core.views(now_s).values())
        return Told(self._own_state(), self._known_nodes, peers, seen)

    def _on_plan(self, plan: Plan) -> None:
        if not self.core.plan(plan, self._now_s()):
            log.warning("a plan is older than the one before, and is not taken: %s", plan.order)
            return
        self._drains.keep(plan)
        if self._trials is not None:
            self._trials.take_plan(plan)
        if self._keeper is not None:
            self._keeper.want(plan.revision, plan.documents)
        self._look()

    # ---- the Serve config ----

    def _keeper_of(self, writer: ConfigWriter, on_put_back: Callable[[int], None]) -> ConfigKeeper:
        return ConfigKeeper(
            writer,
            now_s=self._now_s,
            sleep=asyncio.sleep,
            is_idle=lambda app: self.core.is_idle(app, self._now_s()),
            on_revision=self._fulfils,
            on_put_back=on_put_back,
            preemption=Preemption(writer, now_s=self._now_s, resources=self._resources, on_decision=self._make_room),
        )

    def _make_room(self, decision: Decision) -> None:
        lowered = {agent_of(app): said(ceiling) for app, ceiling in decision.memory.ceilings.items()}
        self.core.room(decision.short, lowered)
        self._on_room(decision.change, self.core.missing)

    def _fulfils(self, revision: str) -> None:
        self.core.revision = revision

    # ---- operators ----

    def status(self) -> dict[str, Any]:
        """Everything known here, as plain JSON, for ``grix`` when the coordinator is gone."""
        now_s, core = self._now_s(), self.core
        snapshot, plan, link = core.refresh(now_s), core.current_plan, self._link
        linked = LinkStatus(False, self._link_fault) if link is None else link.status
        return {
            "region": asdict(self._own_state()),
            "regions": [asdict(r) for r in snapshot.regions],
            "targets": [{**asdict(t), "residency": sorted(t.residency), "id": t.id} for t in snapshot.targets],
            "snapshot": [snapshot.epoch, snapshot.generation],
            "peers": [
                {"region": v.region, "silent_s": v.silent_s, "network_ms": v.network_ms, "fault": v.fault, "age_s": age}
                for age, v in core.views(now_s).values()
            ],
            "plan": plan and {"order": plan.order, "revision": plan.revision, "age_s": core.plan_age_s(now_s)},
            "coordinator": asdict(linked),
            "routers": {name: round(now_s - at_s, 3) for name, at_s in self._routers.items()},
        }
