"""One document as read to one document of its kind, with every fault it has.

A document with faults is still looked at for contradictions: what is wrong is left out, or a stand-in takes its place,
and whatever was found from it is not reported.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from cluster_configs import explain
from cluster_configs.faults import Path, Problem, listed, nearest, shown
from cluster_configs.fields import API_VERSION, Document
from cluster_configs.schema import KINDS
from cluster_configs.yaml_source import NO_VALUE, Source

_DEFER: Final = {Document.DEFER: True}
#: One of these fits every field of the schema.
_STAND_INS: Final[tuple[Any, ...]] = (
    *("x1", 1, 0.5, "1s", "1Gi", "en", "127.0.0.1:1", "smollm2", "f" * 64, "2030-01-01", True),
    *({}, ["x1"], [{}], {"en": 1.0}),
)
_ROUNDS: Final = 60
#: The kind of what regions find out about their nodes.
_GATHERED: Final = "NodeRegistration"
_EMPTY_BLOCK: Final = "the block is empty, which would wipe its defaults; remove it or write its keys"


@dataclass(slots=True)
class Typed:
    """A source with the kind it says it is, and its document; ``None`` when there is too little of it."""

    source: Source
    kind: str | None
    document: Document | None = None

    @property
    def name(self) -> str | None:
        """The name as written, right or wrong."""
        value = self.source.value
        metadata = value.get("metadata") if isinstance(value, dict) else None
        name = metadata.get("name") if isinstance(metadata, dict) else None
        return name if isinstance(name, str) else None

    def report(self, problems: Iterable[Problem]) -> None:
        """Adds problems that are no echo of a fault."""
        for problem in problems:
            if not any(_overlap(bad, read) for bad in self.source.bad for read in problem.reads):
                # The path is not marked: one contradiction must not hide another.
                source = self.source
                marked = problem.path in source.bad
                source.refuse(problem.path, problem.message)
                if not marked:
                    source.bad.discard(problem.path)


def typed(source: Source) -> Typed:
    """The document of a source. Faults are added to the source."""
    out = Typed(source, _header(source))
    model = KINDS.get(out.kind or "")
    if model is None or ("kind",) in source.bad:
        return out
    value = {key: part for key, part in source.value.items() if key != "apiVersion"}
    _refuse_empty(source, model, value, ())
    clean = _prune(value, source.bad)
    try:
        out.document = model.model_validate(clean, context=_DEFER)
    except ValidationError as error:
        _report_errors(source, model, error.errors(include_url=False))
        out.document = _salvaged(model, value, source.bad)
    if out.document is not None:
        out.report(out.document.problems())
    return out


def _header(source: Source) -> str | None:
    """The kind; the nearest one when it is misspelt. Checks what every document starts with."""
    if () in source.bad:
        return None
    value = source.value
    if not isinstance(value, dict):
        source.refuse((), "the document is not a block of keys; allowed: apiVersion, kind, metadata, spec")
        return None
    version = value.get("apiVersion")
    if ("apiVersion",) not in source.bad:
        if version is None:
            source.refuse(("apiVersion",), f"apiVersion is missing; write apiVersion: {API_VERSION}")
        elif version != API_VERSION:
            near = nearest(str(version), [API_VERSION])
            source.refuse(("apiVersion",), f"{shown(version)} is not known{near}; allowed: {API_VERSION}")
    kind = value.get("kind")
    if ("kind",) in source.bad or (isinstance(kind, str) and kind in KINDS):
        return kind if isinstance(kind, str) else None
    if kind is None:
        source.refuse(("kind",), f"kind is missing; allowed: {listed(KINDS)}")
        return None
    near = "" if kind == _GATHERED else nearest(str(kind), KINDS)
    what = "is gathered by regions, not written" if kind == _GATHERED else "is no kind"
    source.refuse(("kind",), f"{shown(kind)} {what}{near}; allowed: {listed(KINDS)}")
    return next((k for k in KINDS if f"'{k}'" in near), None)


def _refuse_empty(source: Source, model: Any, value: Any, path: Path) -> None:
    """``engine: {}`` says nothing and looks like something: a block is written with keys or not at all."""
    if path in source.bad:
        return
    if value is None:
        source.refuse(path, NO_VALUE)
    elif isinstance(value, dict):
        allowed: frozenset[str] = getattr(explain.annotation_at(model, path), "may_be_empty", frozenset())
        for key, part in value.items():
            here = (*path, key)
            if part == {} and explain.keys_of(explain.annotation_at(model, here)) and key not in allowed:
                source.refuse(here, _EMPTY_BLOCK)
            else:
                _refuse_empty(source, model, part, here)
    elif isinstance(value, list):
        for i, part in enumerate(value):
            _refuse_empty(source, model, part, (*path, i))


def _report_errors(source: Source, model: type[Document], errors: list[ErrorDetails]) -> None:
    # Unknown keys first: the known key that was meant is then not reported as missing.
    for error in sorted(errors, key=lambda e: e["type"] != "extra_forbidden"):
        path = _path(error)
        if explain.is_echo(error) or any(path[: len(bad)] == bad for bad in source.bad):
            continue
        # A single text where a list may stand has no position of its own.
        while path and isinstance(path[-1], int) and path not in source.lines and path[:-1] in source.texts:
            path = path[:-1]
        text = None if _of_key(error) else source.texts.get(path)
        source.refuse(path, explain.message(error, model, path, text))
        if error["type"] == "extra_forbidden":
            known = explain.keys_of(explain.annotation_at(model, path[:-1]))
            near = nearest(str(path[-1]), known)
            source.bad.update((*path[:-1], key) for key in known if f"'{key}'" in near)


def _path(error: ErrorDetails) -> Path:
    loc = error["loc"]
    return loc[:-1] if _of_key(error) else loc


def _of_key(error: ErrorDetails) -> bool:
    """Whether the error is about a key of a free mapping, which pydantic marks at the end of its place."""
    return error["loc"][-1:] == ("[key]",) and error["type"] != "extra_forbidden"


def _overlap(a: Path, b: Path) -> bool:
    shorter = min(len(a), len(b))
    return a[:shorter] == b[:shorter]


def _prune(value: Any, bad: Iterable[Path]) -> Any:
    """A copy without the keys at bad paths. Items of lists stay, or positions would no longer be those of the file."""
    out = copy.deepcopy(value)
    for path in sorted(bad, key=len, reverse=True):
        if path and isinstance(path[-1], str):
            parent = _at(out, path[:-1])
            if isinstance(parent, dict):
                parent.pop(path[-1], None)
    return out


def _at(value: Any, path: Path) -> Any:
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _salvaged(model: type[Document], value: Any, bad: set[Path]) -> Document | None:
    """The document without what is bad, with stand-ins where something must be."""
    value = _prune(value, bad)
    tries: dict[Path, int] = {}
    for _ in range(_ROUNDS):
        try:
            return model.model_validate(value, context=_DEFER)
        except ValidationError as error:
            for path in {_path(e) for e in error.errors(include_url=False) if not explain.is_echo(e)}:
                tries[path] = tries.get(path, -1) + 1
                stand_ins = (*explain.choices_of(explain.annotation_at(model, path))[:1], *_STAND_INS)
                parent = _at(value, path[:-1])
                fits = isinstance(parent, dict if isinstance(path[-1], str) else list) if path else False
                if not fits or tries[path] >= len(stand_ins) or not any(_overlap(b, path) for b in bad):
                    return None
                parent[path[-1]] = copy.deepcopy(stand_ins[tries[path]])
    return None
