"""A Router's part in a rollout: the table of the tried release, who is on it, and what becomes of their requests."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError

from cluster_configs.faults import ConfigError
from cluster_configs.table import table_with
from serve_app.core.rules import same_language
from serve_app.core.smoke import ASKER, to_ask, wrong_answer, wrong_before
from serve_app.core.snapshots import Snapshot
from serve_app.core.table import Table
from serve_app.core.tenants import Caller
from serve_app.core.trial import ReleaseCount, Tried, first_token_class
from serve_app.core.trial_counts import TrialCounts
from serve_app.ports import RequestRecord, World
from serve_app.request_path import RequestPath

log = logging.getLogger("ray.serve")

#: Who answers so has no room now: that is no word on the release.
BUSY: Final = frozenset({429, 503, 504})


class RouterTrial:
    """``counts`` is what the Router reports."""

    def __init__(self) -> None:
        self.counts = TrialCounts()
        self._user_config: Mapping[str, Any] = {}
        self._made: tuple[str, Table | None] | None = None

    def configure(self, user_config: Mapping[str, Any]) -> None:
        """Other agents or documents: the tried table is made from them anew."""
        self._user_config, self._made = user_config, None

    def world(self, table: Table, snapshot: Snapshot) -> World:
        """The world with the release that is tried, if any."""
        tried = snapshot.tried
        self.counts.begin("" if tried is None else tried.revision)
        if tried is None:
            self._made = None
            return World(table, snapshot)
        if self._made is None or self._made[0] != tried.revision:
            self._made = (tried.revision, self._table(tried))
        other = self._made[1]
        return World(table, snapshot) if other is None else World(table, snapshot, self.counts.seen_by(tried), other)

    def _table(self, tried: Tried) -> Table | None:
        try:
            return table_with(self._user_config, tried.data)
        except (ConfigError, ValidationError, ValueError, KeyError) as error:
            log.error("release %s is not tried here: %s", tried.revision, error)
            return None

    def ended(self, record: RequestRecord, table: Table) -> None:
        """Counts a request that has ended, while a release is tried."""
        if record.tried is None or record.agent is None or record.wanted_release is None:
            return
        # Whom neither release has served is asked about anew.
        if record.canary_break and record.canary_place is not None and record.outcome != "rejected":
            self.counts.broke(record.tried, record.canary_place)
        if record.outcome not in ("success", "failed"):
            return
        asked, told = record.language, record.answer_language
        heard = asked not in (None, "und") and told is not None
        right = heard and same_language(str(asked), str(told), table.languages)
        count = ReleaseCount(
            agent=record.agent,
            release=record.wanted_release,
            requests=1,
            failed=int(record.outcome == "failed"),
            truncated=int(record.finish_reason == "length"),
            heard=int(heard),
            mismatched=int(heard and not right),
            breaks=int(bool(record.canary_break)),
            first_tokens=first_token_class(record.first_token_ms),
        )
        self.counts.add(record.tried, count)

    async def smoke(
        self, path: RequestPath, world: World, revision: str, documents: Sequence[Mapping[str, Any]]
    ) -> list[str] | None:
        """Runs smoke tests with the tried release on this region's engines: what failed.

        ``None``: they cannot run yet, because the release has not come here or no engine has room.
        """
        table = world.tried_table
        if world.tried is None or world.tried.revision != revision or table is None:
            return None
        mine = tuple(t for t in world.snapshot.targets if t.region == table.region.name and not t.canary)
        own = World(table, replace(world.snapshot, targets=mine, tried=None))
        here, asked = replace(path, world=lambda: own), to_ask(documents, world.table, table)
        every = {test.language: test for tests in asked.values() for test in tests}
        wrong = {code: fault for code, test in sorted(every.items()) if (fault := wrong_before(test, table))}
        faults = list(wrong.values())
        for agent, tests in asked.items():
            for test in tests:
                if test.language in wrong:
                    continue
                request_id = f"smoke-{revision}-{agent}-{test.language}"
                answer = await here.run("chat", Caller(ASKER), test.body(agent), test.headers, request_id)
                if answer.status in BUSY:
                    return None
                assert isinstance(answer.body, bytes)
                if fault := wrong_answer(test, answer.status, answer.body, table):
                    faults.append(f"{agent}: {fault}")
        return faults
