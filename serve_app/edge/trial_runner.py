"""A region's part in a rollout: it makes the tried release's table, and has its Routers run the smoke tests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from cluster_configs.faults import ConfigError
from cluster_configs.table import table_with
from serve_app.core.region_trial import NO_STAGE, RegionTrial
from serve_app.core.reports import Plan
from serve_app.core.table import Agent

log = logging.getLogger("ray.serve")

#: Smoke tests that could not run are run again after so long.
AGAIN_S: Final = 1.0

#: Runs the smoke tests of a revision: what failed, or ``None`` where the Router asked does not have it yet.
RunSmoke = Callable[[str, Sequence[Mapping[str, Any]]], Awaitable[Sequence[str] | None]]


class TrialRunner:
    """``trial`` is the state that it keeps; ``on_news`` is called when it has changed by itself."""

    def __init__(self, trial: RegionTrial, run_smoke: RunSmoke, on_news: Callable[[], None]) -> None:
        self._trial, self._run_smoke, self._on_news = trial, run_smoke, on_news
        self._user_config: Mapping[str, Any] = {}
        self._plan: Plan | None = None
        self._made: tuple[str, Mapping[str, Agent], str] | None = None
        #: Of which revision and move, and its task.
        self._smoking: tuple[tuple[str, int], asyncio.Task[None]] | None = None

    def configure(self, user_config: Mapping[str, Any]) -> None:
        """Other agents or documents: what is tried is made from them anew."""
        self._user_config, self._made = user_config, None
        if self._plan is not None:
            self.take_plan(self._plan)

    def take_plan(self, plan: Plan) -> None:
        """The coordinator's plan; one with the same part again costs nothing."""
        self._plan, trial = plan, plan.trial
        me = self._user_config["region"]["name"]
        stage = NO_STAGE if trial is None else trial.stages.get(me, NO_STAGE)
        if trial is None or stage == NO_STAGE:
            self._made = None
            self.close()
            self._trial.take_plan(trial, NO_STAGE, {}, "")
            return
        if self._made is None or self._made[0] != trial.revision:
            self._made = (trial.revision, *self._table(trial.data))
        _, agents, fault = self._made
        self._trial.take_plan(trial, stage, agents, fault)
        which = (trial.revision, trial.move)
        if stage.smoke and not fault and (self._smoking is None or self._smoking[0] != which):
            self.close()
            self._smoking = (which, asyncio.create_task(self._smoke(trial.move, trial.revision)))

    def _table(self, data: str) -> tuple[Mapping[str, Agent], str]:
        try:
            return table_with(self._user_config, data).own_agents, ""
        except (ConfigError, ValidationError, ValueError, KeyError) as error:
            log.error("the release that is to be tried is not: %s", error)
            return {}, f"this region does not take its documents: {error}"

    async def _smoke(self, move: int, revision: str) -> None:
        """Runs the tests, until they have run or this is cancelled."""
        tests = self._user_config["federationDocument"]["spec"]["rollout"]["smoke"]
        while True:
            try:
                faults = await self._run_smoke(revision, tests)
            except Exception as error:  # whatever keeps them from running is no word on the release
                log.warning("smoke tests of %s cannot run: %s", revision, error)
                self._trial.cannot(f"cannot run: {type(error).__name__}")
                faults = None
            if faults is not None:
                break
            await asyncio.sleep(AGAIN_S)
        log.info("smoke tests of %s: %s", revision, "; ".join(faults) or "passed")
        self._trial.smoked(move, faults)
        self._on_news()

    def close(self) -> None:
        """Ends smoke tests that still run; the next rollout runs its own, of the same move too."""
        if self._smoking is not None:
            self._smoking[1].cancel()
        self._smoking = None
