"""``explain`` without a region: the same path over the same documents, without load, sessions or anything to call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from cluster_configs import schema
from cluster_configs.bundle import Config, languages_named
from cluster_configs.table import table_of
from serve_app.admission import Admission
from serve_app.attempts import Attempts
from serve_app.core import language
from serve_app.core.breaker import RouterBreakers
from serve_app.core.known_targets import KnownTargets
from serve_app.core.names import digest_of
from serve_app.core.retry import RetryBudget
from serve_app.core.snapshots import Target, local_snapshot
from serve_app.core.tenants import KeyIndex
from serve_app.edge import serve_config
from serve_app.edge.clock import RealClock
from serve_app.edge.language_id import LanguageId
from serve_app.edge.limits import LocalLimits
from serve_app.edge.local_sessions import LocalSessions
from serve_app.edge.store_types import StoreError
from serve_app.outcomes import GrixError
from serve_app.ports import AgentCall, Frame, RequestRecord, World
from serve_app.request_path import RequestPath


class _Detector:
    """The detector in this process."""

    def __init__(self, config: Config) -> None:
        self._model = LanguageId()
        self._languages = config.routes.spec.languages
        self._codes = languages_named(config) | self._languages.token_ratio.keys()

    async def detect(self, text: str, session_language: str | None) -> language.LanguageGuess:
        return language.decide(
            text,
            self._model.predict,
            session_language,
            languages=self._codes,
            min_confidence=self._languages.min_confidence,
            equivalent=self._languages.equivalent,
        )


class _Nobody:
    """No agents are here, and nothing is recorded."""

    async def call(self, target: Target, call: AgentCall) -> AsyncGenerator[Frame, None]:
        raise GrixError("no_target", f"{target.id} is not up here.")
        yield

    async def probe(self, app: str) -> bool:
        return False

    def finished(self, record: RequestRecord) -> None:
        return


def _engine_args(owners: Mapping[str, schema.AgentSpec], region_name: str) -> dict[str, dict[str, Any]]:
    """Of a model whose store cannot be asked from here the digest is that of its address: no decision rests on it."""
    try:
        return serve_config.owners_args(owners, None, region_name)
    except StoreError:
        paths = {name: spec.storage.model_path for name, spec in owners.items() if spec.storage is not None}
        return {name: {"engine_digest": digest_of({"uri": path})} for name, path in paths.items()}


def explain(config: Config, region_name: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    """What would be decided for ``body`` (a chat request) by the region of these documents.

    Raises:
        GrixError: for a bad request. LookupError: for an unknown region. ModelError: for a missing local model.
    """
    region = config.federation.region(region_name)
    if region is None:
        raise LookupError(f"region {region_name}: is not in the federation")
    agents = serve_config.agents_of(config, region)
    owners = {n: a.spec for n, a in agents.items() if a.spec.engine_of is None}
    engines = serve_config.engines_of(config, agents, _engine_args(owners, region_name))
    table = table_of(serve_config.router_config(config, region, engines, open_access=False))
    world = World(table, local_snapshot(table, 1))
    nobody, clock = _Nobody(), RealClock()
    limits, sessions = LocalLimits(clock.now_s), LocalSessions(clock.now_s)
    path = RequestPath(
        world=lambda: world,
        keys=lambda: KeyIndex({}),
        detector=_Detector(config),
        admission=Admission(lambda: limits, clock, lambda: 0.0),
        attempts=Attempts(nobody, clock, RetryBudget(), lambda: 0.0, KnownTargets(RouterBreakers(), lambda: None)),
        sessions=lambda: sessions,
        clock=clock,
        journal=nobody,
    )
    lower = {k.lower(): v for k, v in headers.items()}
    name = lower.get("x-grix-as-tenant")
    asked = next((t for t in table.tenants if t.name == name), table.tenants[0])
    return asyncio.run(path.explain(json.dumps(body).encode(), lower, asked))
