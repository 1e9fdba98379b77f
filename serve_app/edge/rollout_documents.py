"""From documents to a rollout: what changes, in which order, and how carefully."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cluster_configs.bundle import Config, to_documents
from serve_app.core.fleet_events import Facts, Roll
from serve_app.core.fleet_rollout import Rollouts
from serve_app.core.guards import Guards
from serve_app.core.rollout import ROLE_ORDER, Rollout, RolloutPolicy
from serve_app.core.rollout_driver import Driver
from serve_app.core.rollout_store import Past, history_of, rollout_of
from serve_app.core.trial import DATA_KINDS, with_data
from serve_app.edge.admin_documents import AdminError, check_size
from serve_app.edge.fleet_documents import config_of, parsed, wanted_of


def rollouts_from(facts: Facts, model: str | None, now_s: float) -> Rollouts:
    """The rollout that ran when the coordinator before ended. Reads files of models: not for the loop.

    Raises:
        ConfigError, ValueError: for stored documents that this version does not take.
    """
    rollout, history = rollout_of(facts.rollout), history_of(facts.history)
    if rollout is None:
        return Rollouts(history=history)
    engines = dict(rollout.engines)
    new, before = (
        replace(wanted_of(parsed(text), model, engines), documents=text) for text in (rollout.documents, rollout.before)
    )
    new = replace(new, revision=rollout.revision)
    return Rollouts(Driver(rollout, now_s), new, before, history)


def roll(
    who: str,
    began_unix_s: float,
    config: Config,
    now: Config,
    engines: Mapping[str, str],
    model: str | None,
    *,
    applied: bool,
    is_back: bool = False,
    why: str = "",
) -> Roll:
    """A rollout from the documents of ``now`` to those of ``config``. Reads files of models: not for the loop.

    ``engines`` are the engine digests that regions report. Where nothing was ``applied`` yet, regions have what they
    were started with, and of that only agents, templates and routes are what operators wrote.

    Raises:
        AdminError: when nothing changes, or more than templates and routes.
    """
    new_docs, old_docs = to_documents(config), to_documents(now)
    kinds = ("AgentPolicy", "Tenant", "Federation") if applied else ("AgentPolicy",)
    foreign = _changed(new_docs, old_docs, kinds)
    if foreign:
        said = "a rollout changes PromptTemplates and the RouteTable; put the rest in force first: grix apply"
        raise AdminError("refused", tuple(f"{name}: is not as it is in force; {said}" for name in foreign))
    if not _changed(new_docs, old_docs, DATA_KINDS):
        raise AdminError("refused", ("documents: no template and no route differs from what is in force",))
    old_docs = with_data(new_docs, _data(old_docs)) if not applied else old_docs
    new, before = wanted_of(config, model, engines), wanted_of(config_of(old_docs), model, engines)
    check_size(new)
    agents = {
        agent: (before.expected[region, agent], release)
        for (region, agent), release in new.expected.items()
        if before.expected.get((region, agent), release) != release
    }
    if not agents:
        raise AdminError("refused", ("documents: no agent that a region serves has another release by them",))
    carried = {region for region, agent in new.expected if agent in agents}
    rollout = Rollout(
        revision=new.revision,
        who=who,
        began_unix_s=began_unix_s,
        agents=agents,
        regions=_order(config, carried),
        policy=_policy(config),
        documents=new.documents,
        before=before.documents,
        engines=engines,
        phase="adopting" if is_back else "smoke",
        why=why,
        is_back=is_back,
    )
    return Roll(rollout, new, before)


def _data(documents: Iterable[Mapping[str, Any]]) -> str:
    return json.dumps([d for d in documents if d["kind"] in DATA_KINDS])


def _changed(new: Sequence[Mapping[str, Any]], old: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> list[str]:
    """Names of documents of these kinds that are not the same in both."""
    ours, theirs = (
        {f"{d['kind']} {d['metadata']['name']}": _compared(d) for d in some if d["kind"] in kinds}
        for some in (new, old)
    )
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))


def _compared(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """How careful a rollout is belongs to it: that part of a Federation may be another one."""
    if document["kind"] != "Federation":
        return document
    spec = {key: value for key, value in document["spec"].items() if key != "rollout"}
    return {**document, "spec": spec}


def _order(config: Config, carried: set[str]) -> tuple[str, ...]:
    """Edge, secondary, primary; among equals as the documents have them."""
    regions = [r for r in config.federation.spec.regions if r.name in carried]
    return tuple(r.name for r in sorted(regions, key=lambda r: ROLE_ORDER.index(r.role)))


def _policy(config: Config) -> RolloutPolicy:
    written = config.federation.spec.rollout
    guards = written.guards
    return RolloutPolicy(
        steps=written.steps,
        hold_s=written.hold_s,
        min_samples=written.min_samples,
        patience_s=written.patience_s,
        guards=Guards(guards.failed, guards.truncated, guards.mismatched, guards.first_token_times),
    )


def kept(history: Sequence[Past], agent: str | None) -> dict[str, str]:
    """By release that was in force, of one agent or of any, what it was made of: the newest word counts.

    One that failed or was taken back on its way never was.
    """
    found: dict[str, str] = {}
    for past in history:
        for name, (old, new) in past.agents.items():
            if agent in (None, name):
                found |= {old: past.before} | ({new: past.data} if past.outcome == "done" else {})
    return found


def one_of(releases: Mapping[str, str], wanted: str) -> str:
    """The release that begins with ``wanted``.

    Raises:
        AdminError: for none or several.
    """
    found = sorted(release for release in releases if wanted and release.startswith(wanted))
    if len(found) == 1:
        return found[0]
    known = ", ".join(sorted(r[:12] for r in releases)) or "none is kept"
    what = "is not known" if not found else f"is the beginning of {len(found)} releases"
    raise AdminError("refused", (f"release: {wanted[:64]!r} {what}; allowed: {known}",))
