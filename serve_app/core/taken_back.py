"""One agent's release brought back into the documents in force, and nothing else with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serve_app.core.trial import DATA_KINDS

Document = Mapping[str, Any]
Named = Mapping[str, Document]


@dataclass(slots=True)
class _Merge:
    """``base`` is what a rollout made of ``target``; ``None``: the target is wanted, whatever came after it."""

    now: Named
    target: Named
    base: Named | None

    def takes(self, name: str) -> bool:
        """Whether the target's is to be taken: not where the rollout has changed nothing."""
        return self.base is None or self.base.get(name) != self.target.get(name)

    def is_newer(self, name: str) -> bool:
        """Whether it was changed once more since the rollout."""
        has = self.now.get(name)
        return self.base is not None and has != self.base.get(name) and has != self.target.get(name)


@dataclass(slots=True)
class TakenBack:
    """The documents, and names of what else would change with them: then they are not to be taken."""

    documents: list[Document]
    faults: list[str] = field(default_factory=list)


def taken_back(
    agent: str, now: Sequence[Document], target: Sequence[Document], base: Sequence[Document] | None = None
) -> TakenBack:
    """Documents ``now`` with the templates of ``target`` and its rules that name the agent.

    With ``base``, what a rollout brought in place of ``target``, only what that rollout has changed. What belongs to no
    release (scores, languages) stays, and so do the rules of other agents.
    """
    made = TakenBack([d for d in now if d["kind"] not in DATA_KINDS])
    made.documents += _templates(now, target, base, made.faults)
    routes = _routes(now)
    rules = _rules(agent, _rules_of(now), _rules_of(target), None if base is None else _rules_of(base))
    made.faults += rules.faults
    made.documents.append({**routes, "spec": {**routes["spec"], "rules": rules.documents}})
    return made


def _routes(documents: Iterable[Document]) -> Document:
    return next(d for d in documents if d["kind"] == "RouteTable")


def _rules_of(documents: Iterable[Document]) -> Sequence[Document]:
    rules: Sequence[Document] = _routes(documents)["spec"]["rules"]
    return rules


def _templates(
    now: Sequence[Document], target: Sequence[Document], base: Sequence[Document] | None, faults: list[str]
) -> list[Document]:
    def by_name(some: Sequence[Document]) -> Named:
        return {d["metadata"]["name"]: d for d in some if d["kind"] == "PromptTemplate"}

    merge = _Merge(by_name(now), by_name(target), None if base is None else by_name(base))
    made = dict(merge.now)
    for name in sorted(merge.now.keys() | merge.target.keys()):
        if not merge.takes(name):
            continue
        if merge.is_newer(name):
            faults.append(f"PromptTemplate {name}: was changed once more since")
        elif name in merge.target:
            made[name] = merge.target[name]
        else:
            del made[name]
    return list(made.values())


def _rules(
    agent: str, now: Sequence[Document], target: Sequence[Document], base: Sequence[Document] | None
) -> TakenBack:
    """Rules in their order, with those of the agent as in the target."""

    def by_name(some: Sequence[Document]) -> Named:
        return {rule["name"]: rule for rule in some}

    merge = _Merge(by_name(now), by_name(target), None if base is None else by_name(base))
    made, faults = dict(merge.now), []
    ours = (merge.target, merge.now if merge.base is None else merge.base)
    mine = sorted({name for some in ours for name, rule in some.items() if rule["target"]["agent"] == agent})
    for name in mine:
        if not merge.takes(name):
            continue
        users = {some[name]["target"]["agent"] for some in (merge.now, merge.target) if name in some}
        if merge.is_newer(name):
            faults.append(f"rule {name}: was changed once more since")
        elif merge.base is None and (others := users - {agent}):
            faults.append(f"rule {name}: is of {', '.join(sorted(others))} too")
        elif name in merge.target:
            made[name] = merge.target[name]
        else:
            made.pop(name, None)
    is_as_it_was = merge.base is not None and list(merge.base) == list(merge.now)
    order = _order(list(merge.now), list(merge.target), keeps=not is_as_it_was)
    kept = [name for name in order if name in made]
    if [name for name in kept if name in mine] != [name for name in merge.target if name in mine and name in made]:
        faults.append("rules: their order was changed since")
    return TakenBack([made[name] for name in kept], faults)


def _order(now: list[str], target: list[str], *, keeps: bool) -> list[str]:
    """All names. Those of one list have the place behind the name that is before them there."""
    first, second = (now, target) if keeps else (target, now)
    made = list(first)
    for i, name in enumerate(second):
        if name not in made:
            made.insert(made.index(second[i - 1]) + 1 if i else 0, name)
    return made
