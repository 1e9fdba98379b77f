"""Makes room for more important agents: what Serve says of replicas in, ``core.preempt`` decides, smaller maxima out.

The maxima are part of the region's Serve config as its writer keeps it, so that they are no foreign change, and whoever
comes after a restart finds them and gives them back: five minutes after it began, unless they are needed still.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from serve_app.core.names import agent_of
from serve_app.core.preempt import Amounts, Ceiling, Decision, Engine, Lowered, Memory, decide
from serve_app.core.vain_starts import VainStarts
from serve_app.edge.agent_app import PRIORITY
from serve_app.edge.desired_config import ConfigWriter
from serve_app.edge.serve_apps import Apps, is_engine, scaled, start_limit_s
from serve_app.edge.taken_room import Held, TakenRoom, ending_of, free_of, needs_of

log = logging.getLogger("ray.serve")

#: What the cluster has in all is waited for so long.
RESOURCES_LIMIT_S: Final = 2.0


def engines_of(apps: Apps, held: Iterable[Held]) -> Iterator[tuple[Engine, list[Held]]]:
    """The engines that can give way or need room, with their replicas.

    One whose config says no priority is of an older version.
    """
    replicas: dict[tuple[str, str], list[Held]] = {}
    for each in held:
        replicas.setdefault((each.app, each.deployment), []).append(each)
    for name, app in apps.items():
        one = scaled(app) if is_engine(name) else None
        priority = None if one is None else (one.get("user_config") or {}).get(PRIORITY)
        if one is None or priority is None:
            continue
        own = replicas.get((name, one["name"]), [])
        engine = Engine(
            app=name,
            priority=int(priority),
            min_replicas=one["autoscaling_config"]["min_replicas"],
            max_replicas=one["autoscaling_config"]["max_replicas"],
            needs=needs_of(one),
            placed=sum(each.has_node and not each.ends for each in own),
            pending=sum(not each.has_node and not each.ends for each in own),
        )
        yield engine, own


def said(ceiling: Ceiling) -> str:
    """A ceiling for people."""
    return f"at most {ceiling.most} replica{'s' * (ceiling.most != 1)}, for {agent_of(ceiling.cause)}"


class Preemption:
    """One region's. ``resources`` are the cluster's in all, by name; nothing is decided while nobody knows them.

    ``on_decision`` hears of each decision. Blocking work is done in threads, one after the other.
    """

    def __init__(
        self,
        writer: ConfigWriter,
        *,
        now_s: Callable[[], float],
        resources: Callable[[], Amounts],
        on_decision: Callable[[Decision], None],
        resources_limit_s: float = RESOURCES_LIMIT_S,
    ) -> None:
        self._writer, self._now_s, self._resources = writer, now_s, resources
        self._on_decision, self._resources_limit_s = on_decision, resources_limit_s
        self._room, self._starts = TakenRoom(), VainStarts()
        self._memory: Memory | None = None
        self._short: Mapping[str, int] = {}
        #: Applications that start in vain.
        self._vain: frozenset[str] = frozenset()
        self._asked: asyncio.Task[Amounts] | None = None

    @property
    def is_urgent(self) -> bool:
        """Whether a replica finds no room: then it is looked again soon."""
        return self._memory is not None and bool(self._memory.missing_s)

    def failed_start(self, app: str, replica: str) -> None:
        """A replica has ended before it ever served."""
        self._starts.failed(app, replica)

    def told(self) -> list[str]:
        """What operators have to know of it now."""
        if self._writer.desired is None or self._memory is None:
            return []
        apps = self._writer.desired.applications
        lowered = {app: f"has {said(ceiling)}" for app, ceiling in self._memory.ceilings.items()}
        short = {app: f"wants {count} more than there is room for" for app, count in self._short.items()}
        vain = dict.fromkeys(sorted(self._vain), "starts in vain, nobody makes room for it")
        return [f"{agent_of(app)} {why}" for whys in (lowered, short, vain) for app, why in whys.items() if app in apps]

    async def look(self, top: Mapping[str, Any]) -> None:
        """One look at what the writer last read of Serve, and the change that follows from it.

        Raises:
            ServeRestError: Serve does not answer or refuses; the writer goes on with its next look.
        """
        desired, now_s = self._writer.desired, self._now_s()
        # Without a file nobody could tell after a restart what was lowered from what was asked for.
        if desired is None or not self._writer.remembers:
            return
        held = self._room.looked(desired.applications, self._writer.seen)
        engines = self._waited_for(desired.applications, held, now_s)
        resources = await self._known_resources()
        if not resources:
            return
        if self._memory is None:
            self._memory = Memory({app: Lowered(ceiling, now_s) for app, ceiling in desired.lowered.items()})
        decision = decide(engines, free_of(resources, held), self._memory, now_s, ending=ending_of(held))
        self._memory, self._short = decision.memory, decision.short
        change = decision.change
        if change is not None:
            why = f"{change.cause} needs the room" if change.cause is not None else "nobody needs the room any more"
            log.warning("at most %d replicas of %s instead of %d: %s", change.after, change.app, change.before, why)
        self._on_decision(decision)
        ceilings = decision.memory.ceilings
        if ceilings != desired.lowered:
            await asyncio.to_thread(self._writer.put, desired.applications, top, lowered=ceilings)

    def _waited_for(self, apps: Apps, held: Iterable[Held], now_s: float) -> list[Engine]:
        """The engines; one that starts in vain, or that Serve has given up, waits for no room."""
        engines, vain = [], set()
        for engine, own in engines_of(apps, held):
            app, state = apps[engine.app], self._writer.seen.get(engine.app)
            ready = frozenset(each.id for each in own if each.state in ("RUNNING", "UPDATING"))
            starting = any(each.state == "STARTING" and each.has_node for each in own)
            runs = [(d.get("ray_actor_options"), d.get("placement_group_bundles")) for d in app["deployments"]]
            in_vain = self._starts.looked(engine.app, runs, ready, starting, start_limit_s(app), now_s)
            given_up = state is not None and state.status == "DEPLOY_FAILED"
            if in_vain or (given_up and engine.pending):
                vain.add(engine.app)
                engine = replace(engine, pending=0)
            engines.append(engine)
        self._starts.retain(apps)
        for name in sorted(vain - self._vain):
            log.warning("%s starts in vain: nobody makes room for it until a replica of it has started", name)
        self._vain = frozenset(vain)
        return engines

    async def _known_resources(self) -> Amounts:
        """What the cluster has, empty where nobody says it in time. A question that has no answer yet stays the one."""
        limit_s = 0.0
        if self._asked is None:
            self._asked, limit_s = asyncio.create_task(asyncio.to_thread(self._resources)), self._resources_limit_s
        done, _ = await asyncio.wait((self._asked,), timeout=limit_s)
        if not done:
            if limit_s:
                log.warning("nobody says what this cluster has: no agent gives way to another meanwhile")
            return {}
        asked, self._asked = self._asked, None
        try:
            return asked.result()
        except Exception as error:  # whatever the cluster says
            log.warning("nobody says what this cluster has: %s", error)
            return {}
