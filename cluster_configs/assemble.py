"""Documents as read to one consistent set, with every fault of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cluster_configs.checks import Known, across
from cluster_configs.faults import Fault
from cluster_configs.fields import Document
from cluster_configs.schema import AgentPolicy, Federation, Tenant
from cluster_configs.typed import Typed, typed
from cluster_configs.yaml_source import Source

#: Kinds of which a set has one document.
_SINGLE: Final = frozenset({"Federation", "RouteTable"})


@dataclass(frozen=True, slots=True)
class Assembled:
    """Documents in the order they were read. They may be used only when there are no faults."""

    documents: tuple[Document, ...]
    faults: tuple[Fault, ...]


def assemble(sources: Sequence[Source], faults: Iterable[Fault] = ()) -> Assembled:
    """Checks documents by themselves and against each other. ``faults`` are those of whole files."""
    found = list(faults)
    lost = bool(found)
    parts = [typed(source) for source in sources]
    _refuse_repeated(parts)
    lost = lost or any(part.kind is None or part.name is None for part in parts)
    # What an unreadable file or document has is not known, so nothing is missing from the rest.
    known = Known() if lost else _known(parts)
    for part in parts:
        if part.document is not None:
            part.report(across(part.document, known))
    _refuse_shared_keys(parts)
    for part in parts:
        found.extend(part.source.faults)
    documents = tuple(part.document for part in parts if part.document is not None)
    return Assembled(documents, tuple(sorted(set(found))))


def _known(parts: Sequence[Typed]) -> Known:
    def names(kind: str) -> list[str] | None:
        return [str(p.name) for p in parts if p.kind == kind] or None

    clean = [p.document for p in parts if p.document is not None and not p.source.bad]
    federations = [d for d in clean if isinstance(d, Federation)]
    return Known(
        agents=names("AgentPolicy"),
        templates=names("PromptTemplate"),
        tenants=names("Tenant"),
        federation=federations[0] if len(federations) == 1 else None,
        policies={d.metadata.name: d for d in clean if isinstance(d, AgentPolicy)},
    )


def _refuse_repeated(parts: Sequence[Typed]) -> None:
    first: dict[tuple[str, str], Source] = {}
    for part in parts:
        if part.kind is None or part.name is None:
            continue
        source = part.source
        single = part.kind in _SINGLE
        key = (part.kind, "" if single else part.name)
        if key not in first:
            first[key] = source
            continue
        there = f"{first[key].file}:{first[key].line_of(('metadata', 'name'))}"
        if single:
            said = f"a second {part.kind} ('{part.name}'); the first is at {there}; allowed: one in a set"
        else:
            said = f"there is a {part.kind} '{part.name}' already, at {there}; names are unique"
        source.faults.append(Fault(source.file, source.line_of(("metadata", "name")), "metadata.name", said))


def _refuse_shared_keys(parts: Sequence[Typed]) -> None:
    """One hash with two tenants would let the first come decide whose limits and data rules count."""
    first: dict[str, str] = {}
    for part in parts:
        if not isinstance(part.document, Tenant):
            continue
        for i, key in enumerate(part.document.spec.keys):
            path = ("spec", "keys", i, "sha256")
            name = part.document.metadata.name
            if part.source.bad:
                continue
            owner = first.setdefault(key.sha256, name)
            if owner != name:
                said = f"tenant {owner} has a key with this hash too; each key belongs to one tenant"
                part.source.refuse(path, said)
