"""From paths to one configuration, or to everything that is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cluster_configs.assemble import Assembled, assemble
from cluster_configs.bundle import (
    Bundle,
    Config,
    bundle,
    bundle_of,
    engine_owner,
    from_bundle,
    to_document,
    to_documents,
)
from cluster_configs.faults import ConfigError, Fault
from cluster_configs.schema import Federation
from cluster_configs.yaml_source import MOST_BYTES, Source, read

__all__ = [
    "SHIPPED",
    "Bundle",
    "Config",
    "ConfigError",
    "Fault",
    "bundle",
    "chosen",
    "engine_owner",
    "from_bundle",
    "load_paths",
    "local_paths",
    "to_document",
    "to_documents",
    "validate",
]

#: The directory of the shipped documents.
SHIPPED: Final = Path(__file__).resolve().parent

LOCAL: Final = "local.yaml"
#: Files that are sets of their own: read when named, not when they lie in a directory that is read.
ONLY_WHEN_NAMED: Final = frozenset({LOCAL, "reference.yaml"})
#: What ``local.yaml`` stands in for, and what belongs to that: its tenants may name agents that one machine has not.
_FLEET: Final = ("regions", "policies")
_OF_THE_FLEET: Final = "tenants.yaml"
_SUFFIXES: Final = (".yaml", ".yml")
_GENERATED: Final = "(generated)"
#: What a whole set has, and where it is shipped.
_NEEDED: Final[Mapping[str, str]] = {
    "Federation": "regions/ or local.yaml",
    "AgentPolicy": "policies/ or local.yaml",
    "RouteTable": "routes.yaml",
    "PromptTemplate": "templates/",
}


def local_paths(root: Path = SHIPPED) -> list[Path]:
    """The set for one machine: ``local.yaml`` in place of regions, policies and tenants."""
    return [root / LOCAL, root / "routes.yaml", root / "templates"]


def chosen(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """What a command that runs a set reads of ``paths``, and what it leaves out.

    A folder with a ``local.yaml`` is the set for one machine. Where it has the fleet's regions and policies too, these
    and their tenants are left out: a set has one Federation.
    """
    taken: list[Path] = []
    left: list[Path] = []
    for path in map(Path, paths):
        if not (path / LOCAL).is_file():
            taken.append(path)
            continue
        fleet = [path / name for name in _FLEET if (path / name).is_dir()]
        left += [*fleet, *(p for p in (path / _OF_THE_FLEET,) if fleet and p.exists())]
        inside = sorted(_inside(path, []))
        taken += [path / LOCAL, *(file for file in inside if not any(_within(file, out) for out in left))]
    return taken, left


def _within(file: Path, folder: Path) -> bool:
    return file == folder or folder in file.parents


def load_paths(
    paths: Sequence[Path], env: Mapping[str, str], extra_documents: Sequence[Mapping[str, Any]] = ()
) -> Config:
    """The configuration in files and directories (``*.yaml``, ``*.yml``, recursively).

    ``env`` fills ``${NAME}``. ``extra_documents`` are plain documents with the keys of YAML, taken as they are.

    Raises:
        ConfigError: with every fault of every document, or with what a whole set lacks.
    """
    extra = [Source(_GENERATED, i + 1, _plain(value)) for i, value in enumerate(extra_documents)]
    assembled = _assembled(paths, env, extra)
    faults = list(assembled.faults)
    have = {document.kind for document in assembled.documents}
    if not faults:
        where = str(paths[0]) if paths else _GENERATED
        faults += [
            Fault(where, 1, "(documents)", f"there is no {kind} in what was read; add the file that has it: {usual}")
            for kind, usual in _NEEDED.items()
            if kind not in have
        ]
    if faults:
        raise ConfigError(faults)
    parts = bundle_of(assembled.documents)
    federation = next(d for d in assembled.documents if isinstance(d, Federation))
    return Config(parts.agents, parts.routes, parts.tenants, parts.templates, federation)


def validate(paths: Sequence[Path], env: Mapping[str, str]) -> list[str]:
    """Every fault as ``file:line: path: what is wrong and what is allowed``; an empty list when there is none.

    A part of a set can be looked at alone: what names a kind of which no document was given is not followed. In a
    directory with a ``local.yaml`` that set is looked at and, where the fleet's regions and policies lie beside it,
    the fleet's too.
    """
    taken, left = chosen(paths)
    faults = set(_assembled(taken, env, []).faults)
    if left:
        faults |= set(_assembled(paths, env, []).faults)
    return [str(fault) for fault in sorted(faults)]


def _assembled(paths: Sequence[Path], env: Mapping[str, str], extra: list[Source]) -> Assembled:
    sources: list[Source] = []
    faults: list[Fault] = []
    seen: set[str] = set()
    for found in _files(paths):
        if isinstance(found, Fault):
            faults.append(found)
            continue
        real = os.path.realpath(found)
        if real in seen:
            continue
        seen.add(real)
        try:
            with open(found, "rb") as file:
                content = file.read(MOST_BYTES + 1)
        except OSError as error:
            faults.append(Fault(str(found), 1, "(file)", f"cannot be read: {error.strerror or error}"))
            continue
        documents, wrong = read(content, str(found), env)
        sources += documents
        faults += wrong
    return assemble([*sources, *extra], faults)


def _files(paths: Sequence[Path]) -> Iterator[Path | Fault]:
    for path in map(Path, paths):
        try:
            if path.is_dir():
                unread: list[OSError] = []
                inside = sorted(_inside(path, unread))
                yield from inside
                for error in unread:
                    message = f"cannot be read: {error.strerror or error}"
                    yield Fault(str(error.filename or path), 1, "(file)", message)
                if not inside and not unread:
                    allowed = "a directory with *.yaml or *.yml files"
                    yield Fault(str(path), 1, "(file)", f"there is no document in this directory; allowed: {allowed}")
            elif path.exists():
                yield path
            else:
                yield Fault(str(path), 1, "(file)", "there is no such file or directory; name one that exists")
        except (OSError, ValueError) as error:
            yield Fault(str(path), 1, "(file)", f"cannot be read: {getattr(error, 'strerror', None) or error}")


def _inside(directory: Path, unread: list[OSError]) -> Iterator[Path]:
    for folder, folders, names in os.walk(directory, onerror=unread.append):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.endswith(_SUFFIXES) and not name.startswith(".") and name not in ONLY_WHEN_NAMED:
                yield Path(folder) / name


def _plain(value: Any) -> Any:
    """Lists and dicts, whatever kind of sequence or mapping was given."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value
