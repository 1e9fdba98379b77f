"""What operators may ask of the coordinator: one function a verb, JSON in and out, each call in the audit log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from cluster_configs.bundle import Config
from cluster_configs.faults import ConfigError
from serve_app.core.fleet_events import Apply, Audit, Drain, Event, Facts, Restore, Wanted
from serve_app.core.fleet_status import status_of
from serve_app.edge.admin_documents import AdminError, check_size, handed_in
from serve_app.edge.coordinator_hub import Hub
from serve_app.edge.facts_store import StoreError, facts_json, facts_of
from serve_app.edge.fleet_documents import begun_with, parsed, wanted_of
from serve_app.edge.rollout_verbs import RolloutVerbs

#: Who watches asks each second: that is one line of the audit log in so long.
STATUS_NOTED_S: Final = 60.0
WATCHED: Final = frozenset({"status", "rollout_status", "drift"})
MOST_LINES: Final = 2000


async def wanted_from(facts: Facts, begun: Wanted, model: str | None) -> Wanted:
    """What stored documents ask for; ``begun`` where nobody has applied any.

    The revision stays the stored one, although a later version of this program would name the documents otherwise.

    Raises:
        ConfigError, ValueError: for documents that this version does not take.
    """
    if not facts.documents:
        return begun
    config = await asyncio.to_thread(parsed, facts.documents)
    wanted = await asyncio.to_thread(wanted_of, config, model)
    return replace(wanted, revision=facts.revision, documents=facts.documents)


class Verbs:
    """The verbs over one hub."""

    def __init__(
        self, hub: Hub, federation: str, begun: Config, model: str | None, unix_s: Callable[[], float]
    ) -> None:
        """``begun`` are the documents of the coordinator's start."""
        self._hub = hub
        self._federation = federation
        self._begun = begun_with(begun)
        self._model = model
        rollouts = RolloutVerbs(hub, federation, begun, model, self._told, unix_s)
        self._watched: dict[str, float] = {}
        #: By verb: what does it, the fields it needs, and those it may have.
        self._verbs: Mapping[str, tuple[Callable[..., Awaitable[dict[str, Any]]], frozenset[str], frozenset[str]]] = {
            "status": (self._status, frozenset(), frozenset()),
            "drain": (self._drain, frozenset({"region"}), frozenset()),
            "undrain": (self._undrain, frozenset({"region"}), frozenset()),
            "apply": (self._apply, frozenset({"documents"}), frozenset({"dry_run"})),
            "audit": (self._audit, frozenset(), frozenset({"last"})),
            "backup": (self._backup, frozenset(), frozenset()),
            "restore": (self._restore, frozenset({"backup"}), frozenset()),
            "rollout_start": (rollouts.start, frozenset(), frozenset({"documents", "to"})),
            "rollout_status": (rollouts.status, frozenset(), frozenset()),
            "rollout_steer": (rollouts.steer, frozenset({"act"}), frozenset()),
            "rollout_history": (rollouts.history, frozenset(), frozenset()),
            "rollback": (rollouts.rollback, frozenset({"agent"}), frozenset({"to"})),
            "drift": (rollouts.drift, frozenset(), frozenset()),
        }

    async def do(self, who: str, verb: str, text: str) -> dict[str, Any]:
        """Runs a verb for the operator ``who``. ``text`` is an object of its fields as JSON, or empty.

        Raises:
            AdminError: what is wrong, and what is allowed.
        """
        try:
            answer = await self._run(who, verb, text)
        except AdminError as error:
            self._hub.audit(Audit(who, "admin", "", verb, "refused", "; ".join((error.error, *error.faults))))
            raise
        if verb not in WATCHED or self._noted(who):
            self._hub.audit(Audit(who, "admin", str(answer.get("region", "")), verb, "done"))
        return answer

    def _noted(self, who: str) -> bool:
        now_s = self._hub.now_s()
        if now_s - self._watched.get(who, float("-inf")) < STATUS_NOTED_S:
            return False
        self._watched[who] = now_s
        return True

    async def _run(self, who: str, verb: str, text: str) -> dict[str, Any]:
        found = self._verbs.get(verb)
        if found is None:
            raise AdminError(f"verb: {verb[:40]!r} is not known; allowed: {', '.join(self._verbs)}")
        run, needed, optional = found
        try:
            fields = json.loads(text or "{}")
        except (ValueError, RecursionError):
            raise AdminError(f"{verb}: the fields are no JSON") from None
        if not isinstance(fields, dict):
            raise AdminError(f"{verb}: the fields are {type(fields).__name__}; allowed: an object")
        odd = sorted((needed - fields.keys()) | (fields.keys() - needed - optional))
        if odd:
            allowed = ", ".join(sorted(needed | optional)) or "none"
            raise AdminError(f"{verb}: {', '.join(odd)[:100]}: missing or unknown; allowed fields: {allowed}")
        return await run(who, **fields)

    async def _told(self, event: Event) -> None:
        """An operator's event, stored before it is answered."""
        refused = self._hub.handle(event)
        if refused is not None:
            raise AdminError("refused", refused.faults)
        fault = await self._hub.settle()
        if fault:
            raise AdminError(f"it is in force, but not stored: {fault}; it is tried again until it is")

    # ---- verbs ----

    async def _status(self, who: str) -> dict[str, Any]:
        status = status_of(self._hub.fleet, self._hub.now_s())
        return {"federation": self._federation, "store_fault": self._hub.fault, **status}

    async def _drain(self, who: str, region: Any) -> dict[str, Any]:
        return await self._turn(who, region, back=False)

    async def _undrain(self, who: str, region: Any) -> dict[str, Any]:
        return await self._turn(who, region, back=True)

    async def _turn(self, who: str, region: Any, *, back: bool) -> dict[str, Any]:
        if not isinstance(region, str):
            raise AdminError("region: is no text; allowed: the name of a region")
        await self._told(Drain(who, region, back))
        return {"region": region, "phase": self._hub.fleet.members[region].shown.phase}

    async def _apply(self, who: str, documents: Any, dry_run: Any = False) -> dict[str, Any]:
        if not isinstance(dry_run, bool):
            raise AdminError("dry_run: is no switch; allowed: true or false")
        config = await handed_in(documents, self._federation)
        wanted = await asyncio.to_thread(wanted_of, config, self._model)
        check_size(wanted)
        before = self._hub.fleet.wanted.revision
        await self._told(Apply(who, wanted, dry_run))
        known = {agent for _, agent in wanted.expected}
        return {
            "revision": wanted.revision,
            "changed": wanted.revision != before,
            "dry_run": dry_run,
            "generation": self._hub.fleet.generation,
            "drift_unknown": sorted(config.agents.keys() - known),
        }

    async def _audit(self, who: str, last: Any = 50) -> dict[str, Any]:
        if not isinstance(last, int) or isinstance(last, bool) or not 1 <= last <= MOST_LINES:
            raise AdminError(f"last: {str(last)[:40]!r} is no count of lines; allowed: 1 to {MOST_LINES}")
        await self._hub.settle()
        try:
            lines = await self._hub.store.last(last)
        except StoreError as error:
            raise AdminError(str(error)) from None
        return {"entries": [entry for line in lines if (entry := _entry(line)) is not None]}

    async def _backup(self, who: str) -> dict[str, Any]:
        return {"backup": facts_json(self._hub.fleet.facts)}

    async def _restore(self, who: str, backup: Any) -> dict[str, Any]:
        try:
            facts = facts_of(backup)
            wanted = await wanted_from(facts, self._begun, self._model)
        except ConfigError as error:
            raise AdminError("the backup's documents have faults", tuple(map(str, error.faults))) from None
        except (StoreError, ValueError) as error:
            raise AdminError(f"backup: {error}") from None
        await self._told(Restore(who, facts, wanted))
        fleet = self._hub.fleet
        return {"revision": fleet.wanted.revision, "epoch": fleet.facts.epoch, "drains": dict(fleet.facts.drains)}


def _entry(line: str) -> dict[str, Any] | None:
    """A line of the audit log; ``None`` for one that a crash cut short."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None
