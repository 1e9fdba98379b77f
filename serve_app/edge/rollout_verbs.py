"""What operators may ask of rollouts: one function a verb, JSON in and out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from cluster_configs.bundle import Config, to_documents
from cluster_configs.faults import ConfigError
from serve_app.core.fleet_drift import drift_of
from serve_app.core.fleet_events import Event, Steer
from serve_app.core.fleet_member import in_force
from serve_app.core.rollout import Rollout
from serve_app.core.rollout_store import Past
from serve_app.core.taken_back import taken_back
from serve_app.core.trial import ReleaseCount, with_data
from serve_app.edge.admin_documents import AdminError, handed_in
from serve_app.edge.coordinator_hub import Hub
from serve_app.edge.fleet_documents import config_of, parsed
from serve_app.edge.rollout_documents import kept, one_of, roll


class RolloutVerbs:
    """The verbs over one hub. ``begun`` are the documents of the coordinator's start; ``told`` takes an event, stores
    it, and raises what is refused."""

    def __init__(
        self,
        hub: Hub,
        federation: str,
        begun: Config,
        model: str | None,
        told: Callable[[Event], Awaitable[None]],
        unix_s: Callable[[], float],
    ) -> None:
        self._hub, self._federation, self._begun, self._model = hub, federation, begun, model
        self._told, self._unix_s = told, unix_s

    async def start(self, who: str, documents: Any = None, to: Any = None) -> dict[str, Any]:
        """Begins with whole documents, or with a release that was served before."""
        if (documents is None) == (to is None):
            raise AdminError("rollout_start: allowed is one of documents and to")
        if documents is not None:
            config = await handed_in(documents, self._federation)
        else:
            config = await self._config_with(_text("to", to))
        await self._roll(who, config)
        return self._answer()

    async def steer(self, who: str, act: Any) -> dict[str, Any]:
        if act not in ("pause", "resume", "abort"):
            raise AdminError(f"act: {str(act)[:40]!r} is none; allowed: pause, resume, abort")
        await self._told(Steer(who, act))
        return self._answer()

    async def rollback(self, who: str, agent: Any, to: Any = None) -> dict[str, Any]:
        """Takes an agent back at once, in all regions; a rollout that is on its way ends by it.

        Who heard no answer asks again: that must bring back nothing of what is left.
        """
        name, fleet = _text("agent", agent), self._hub.fleet
        known = self._now().agents
        if name not in known:
            raise AdminError("refused", (f"agent: {name[:60]!r} is not known; allowed: {', '.join(sorted(known))}",))
        running = fleet.rollouts.running
        if running is not None and to is None and name in running.agents:
            if not running.goes_back:
                await self._told(Steer(who, "abort"))
            return self._answer()
        config = await self._config_back(name, None if to is None else _text("to", to))
        await self._roll(who, config, is_back=True, why=f"rollback of {name} by {who}")
        return self._answer()

    async def status(self, who: str) -> dict[str, Any]:
        return self._answer()

    async def history(self, who: str) -> dict[str, Any]:
        return {"past": [_past(past) for past in self._hub.fleet.rollouts.history]}

    async def drift(self, who: str) -> dict[str, Any]:
        return {"drift": drift_of(self._hub.fleet)}

    # ---- parts ----

    def _now(self) -> Config:
        """What is in force: what was applied last, else what everything was started with."""
        documents = self._hub.fleet.wanted.documents
        return parsed(documents) if documents else self._begun

    async def _roll(self, who: str, config: Config, **more: Any) -> None:
        now = await asyncio.to_thread(self._now)
        engines = {
            target.agent: target.engine_digest
            for member in self._hub.fleet.members.values()
            if member.state is not None
            for target in in_force(member.state)
        }
        made = partial(roll, who, self._unix_s(), config, now, engines, self._model, **more)
        try:
            event = await asyncio.to_thread(made, applied=bool(self._hub.fleet.wanted.documents))
        except ConfigError as error:
            raise AdminError("the documents have faults", tuple(map(str, error.faults))) from None
        await self._told(event)

    async def _config_with(self, to: str) -> Config:
        """The documents in force, with templates and routes of a release that is kept."""
        releases = kept(self._hub.fleet.rollouts.history, None)
        data = releases[one_of(releases, to)]
        return await self._config_of(with_data(to_documents(await asyncio.to_thread(self._now)), data))

    async def _config_back(self, agent: str, to: str | None) -> Config:
        """The documents in force, with what an agent's release is made of as it was before the last rollout that
        changed it, or as the release has it that is named.

        Raises:
            AdminError: where more than that would change, by name.
        """
        history = self._hub.fleet.rollouts.history
        now = to_documents(await asyncio.to_thread(self._now))
        if to is not None:
            releases = kept(history, agent)
            made = taken_back(agent, now, json.loads(releases[one_of(releases, to)]))
        else:
            forward = (p for p in reversed(history) if p.outcome == "done" and not p.is_back)
            last = next((p for p in forward if agent in p.agents), None)
            if last is None:
                raise AdminError(
                    "refused", (f"agent: no earlier release of {agent} is kept; see grix rollout history",)
                )
            made = taken_back(agent, now, json.loads(last.before), json.loads(last.data))
        if made.faults:
            way = "take it back with grix apply" if to is not None else f"name a release: grix rollback {agent} --to"
            raise AdminError("refused", tuple(f"{fault}, and would change with it; {way}" for fault in made.faults))
        return await self._config_of(made.documents)

    async def _config_of(self, documents: Sequence[Mapping[str, Any]]) -> Config:
        try:
            return await asyncio.to_thread(config_of, documents)
        except ConfigError as error:
            raise AdminError("its documents no longer fit", tuple(map(str, error.faults))) from None

    def _answer(self) -> dict[str, Any]:
        """The rollout that runs, and the last one that is over."""
        fleet = self._hub.fleet
        past = fleet.rollouts.history
        running = fleet.rollouts.running
        told: dict[str, Any] = {"running": None, "last": _past(past[-1]) if past else None}
        if running is None:
            return told
        assert fleet.rollouts.driver is not None
        trials = {name: m.state.trial for name, m in fleet.members.items() if m.state is not None}
        shown = {**_rollout(running), "waits": fleet.rollouts.driver.waits}
        regions = []
        for name in running.regions:
            trial, stage = trials.get(name), running.stages().get(name)
            regions.append(
                {
                    "region": name,
                    "percent": 0 if stage is None else stage.percent,
                    "has": None if trial is None or trial.revision == "" else trial.percent,
                    "smoke": "" if trial is None else trial.smoke,
                    "counts": [] if trial is None else [_count(count) for count in trial.counts],
                }
            )
        return {**told, "running": {**shown, "regions": regions}}


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise AdminError(f"{field}: is no text; allowed: a name")
    return value


def _rollout(rollout: Rollout) -> dict[str, Any]:
    """What of a rollout operators read: not its documents."""
    steps = rollout.policy.steps
    return {
        "revision": rollout.revision,
        "who": rollout.who,
        "began_unix_s": rollout.began_unix_s,
        "phase": rollout.phase,
        "why": rollout.why,
        "region": None if rollout.is_settling else rollout.current,
        "step": None if rollout.is_settling else steps[rollout.step],
        "agents": {agent: list(releases) for agent, releases in rollout.agents.items()},
    }


def _past(past: Past) -> dict[str, Any]:
    return {
        "revision": past.revision,
        "who": past.who,
        "began_unix_s": past.began_unix_s,
        "outcome": past.outcome,
        "why": past.why,
        "agents": {agent: list(releases) for agent, releases in past.agents.items()},
    }


def _count(count: ReleaseCount) -> dict[str, Any]:
    return {
        "agent": count.agent,
        "release": count.release,
        "requests": count.requests,
        "failed": count.failed,
        "truncated": count.truncated,
        "mismatched": count.mismatched,
        "canary_breaks": count.breaks,
        "first_token_p95_ms": count.first_token_p95_ms,
    }
