"""YAML text to plain values with the line of each: strict where YAML is generous.

Only ``true`` and ``false`` are switches (``no`` is Norwegian), numbers are decimal, a key stands once, an empty value
is a fault, and ``${NAME}`` takes text from the environment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from cluster_configs.faults import Fault, Path, dotted, shown

MOST_BYTES: Final = 1 << 18
MOST_VALUES: Final = 50_000
DEEPEST: Final = 40

NO_VALUE: Final = "the key has no value, which would wipe its default; remove the line or write a value"

_PREFIX: Final = "tag:yaml.org,2002:"
_INT: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})", re.ASCII)
_FLOAT: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?", re.ASCII)
_REFERENCE: Final = re.compile(r"\$(\$)?\{([^{}]*)(\})?")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


#: `{key: ${NAME}}` is no YAML because of the inner braces. While YAML is read, characters that no file has stand for
#: those of references, one for one so that columns stay.
_STAND_IN: Final = str.maketrans("{}", "\U0010fff0\U0010fff1")
_STOOD_IN: Final = str.maketrans("\U0010fff0\U0010fff1", "{}")
_PLAIN_REFERENCE: Final = re.compile(r"\$\{[^{}\n]*\}")


class _Loader(yaml.SafeLoader):
    """Composes nodes only; scalars keep their text. The dict of resolvers is its own, not SafeLoader's."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - PyYAML looks for it on the class


for _tag, _form, _starts in (
    ("bool", re.compile(r"true\Z|false\Z"), "tf"),
    ("int", re.compile(rf"(?:{_INT.pattern})\Z", re.ASCII), "-+0123456789"),
    ("float", re.compile(rf"(?:{_FLOAT.pattern})\Z", re.ASCII), "-+0123456789"),
    ("null", re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""]),
    ("merge", re.compile(r"<<\Z"), "<"),
):
    _Loader.add_implicit_resolver(_PREFIX + _tag, _form, list(_starts))


@dataclass(slots=True)
class Source:
    """One document as read. ``bad`` are paths that have a fault already, so that it is not reported twice."""

    file: str
    line: int
    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    #: What stands in the file, for messages: a value from the environment may be a secret.
    texts: dict[Path, str] = field(default_factory=dict)
    bad: set[Path] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)

    def line_of(self, path: Path) -> int:
        """Line of the nearest thing that is written on the way to ``path``."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, self.line)

    def refuse(self, path: Path, message: str, line: int | None = None) -> None:
        """Adds a fault at a path and marks it."""
        self.bad.add(path)
        where = self.line_of(path) if line is None else line
        self.faults.append(Fault(self.file, where, dotted(path), message))


def read(text: str | bytes, file: str, env: Mapping[str, str]) -> tuple[list[Source], list[Fault]]:
    """Documents of one file, and the faults of the file as a whole. Faults of a document are in the document."""
    decoded = _decode(text, file)
    if isinstance(decoded, Fault):
        return [], [decoded]
    sources: list[Source] = []
    try:
        loader = _Loader(_PLAIN_REFERENCE.sub(lambda found: found[0].translate(_STAND_IN), decoded))
        while loader.check_node():
            node = loader.get_node()
            assert node is not None, "check_node has said so"
            sources.append(_Converter(file, node, env).convert())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return sources, [Fault(file, mark.line + 1 if mark else 1, "(file)", _syntax(error))]
    except yaml.reader.ReaderError as error:
        line = decoded.count("\n", 0, error.position) + 1
        character = error.character if isinstance(error.character, int) else ord(error.character)
        return sources, [
            Fault(file, line, "(file)", f"the character U+{character:04X} cannot stand in YAML; remove it")
        ]
    except RecursionError:
        return sources, [Fault(file, 1, "(file)", f"nested too deep; allowed: {DEEPEST} levels")]
    except (ValueError, OverflowError):
        # PyYAML's own scanner lets these through from escapes that name no character.
        return sources, [Fault(file, 1, "(file)", "this is not YAML: an escape in it names no character")]
    if not sources:
        return [], [Fault(file, 1, "(file)", "the file has no document; write one, or remove the file")]
    return sources, []


def _decode(text: str | bytes, file: str) -> str | Fault:
    if len(text) > MOST_BYTES:
        return Fault(file, 1, "(file)", f"{len(text)} bytes are too many; allowed: {MOST_BYTES}")
    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        return Fault(file, line, "(file)", f"byte {error.start} is not UTF-8; save the file as UTF-8")
    if any(chr(code) in decoded for code in _STOOD_IN):
        return Fault(file, 1, "(file)", "the characters U+10FFF0 and U+10FFF1 cannot stand here; remove them")
    return decoded


def _syntax(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or error.context or "unreadable"
    if "'\\t'" in problem:
        return "a tab cannot indent or start a value in YAML; allowed: spaces"
    parts = ["this is not YAML", *([error.context] if error.context not in (None, problem) else []), problem]
    return ": ".join(str(part) for part in parts).translate(_STOOD_IN)


class _Converter:
    """Turns one node tree into plain values. Aliases are written out, within limits."""

    def __init__(self, file: str, node: yaml.Node, env: Mapping[str, str]) -> None:
        self._root = node
        self._env = env
        self._count = 0
        self._open: set[int] = set()
        self._source = Source(file, node.start_mark.line + 1)

    def convert(self) -> Source:
        source = self._source
        if _is_null(self._root):
            source.refuse((), "the document is empty; write one, or remove the '---' before it")
        else:
            source.value = self._value(self._root, ())
        return source

    def _value(self, node: yaml.Node, path: Path) -> Any:
        source = self._source
        source.lines.setdefault(path, node.start_mark.line + 1)
        if self._too_many():
            return None
        if len(path) > DEEPEST:
            source.refuse(path[:DEEPEST], f"nested too deep; allowed: {DEEPEST} levels")
            return None
        if id(node) in self._open:
            source.refuse(path, "the alias stands inside its own anchor; write the value out")
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                self._check_tag(node, path, "seq")
                return [self._value(item, (*path, i)) for i, item in enumerate(node.value)]
            assert isinstance(node, yaml.MappingNode)
            self._check_tag(node, path, "map")
            return self._mapping(node, path)
        finally:
            self._open.discard(id(node))

    def _too_many(self) -> bool:
        self._count += 1
        if self._count <= MOST_VALUES:
            return False
        # Said once, at the root: aliases of aliases grow without end.
        if () not in self._source.bad:
            self._source.refuse((), f"more than {MOST_VALUES} values with aliases written out; allowed: fewer")
        return True

    def _check_tag(self, node: yaml.Node, path: Path, *known: str) -> bool:
        if node.tag.removeprefix(_PREFIX) in known and node.tag.startswith(_PREFIX):
            return True
        self._source.refuse(path, f"the tag {shown(node.tag)} is not allowed; allowed: plain YAML without tags")
        return False

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if self._too_many():
            return out
        written: dict[str, int] = {}
        merged: list[tuple[yaml.Node, int]] = []
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._source.refuse(path, "a list or block cannot be a key; allowed: text", line)
                continue
            if key_node.tag == _PREFIX + "merge":
                merged.append((value_node, line))
                continue
            # A key is text whatever it looks like: the language code `no`, a name that is a number.
            key = key_node.value.translate(_STOOD_IN)
            here = (*path, key)
            if key in written:
                self._source.faults.append(
                    Fault(
                        self._source.file,
                        line,
                        dotted(here),
                        f"the key {shown(key)} is written twice, on lines {written[key]} and {line}; keep one",
                    )
                )
                continue
            written[key] = line
            self._source.lines.setdefault(here, line)
            if _is_null(value_node):
                self._source.refuse(here, NO_VALUE)
            else:
                out[key] = self._value(value_node, here)
        for value_node, line in merged:
            self._merge(value_node, path, line, out, written)
        return out

    def _merge(self, node: yaml.Node, path: Path, line: int, out: dict[str, Any], written: dict[str, int]) -> None:
        """Keys of ``<<: *anchor`` or a list of them; what is written, or merged earlier, wins."""
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for part in parts:
            if not isinstance(part, yaml.MappingNode) or id(part) in self._open:
                self._source.refuse((*path, "<<"), "'<<' takes in another block; allowed: an alias of a block", line)
                continue
            # Lines and texts of keys written here are noted already, and the first note stays.
            for key, value in self._value_of_merge(part, path).items():
                if key not in written:
                    out[key] = value
                    written[key] = line

    def _value_of_merge(self, part: yaml.MappingNode, path: Path) -> dict[str, Any]:
        self._open.add(id(part))
        try:
            return self._mapping(part, path)
        finally:
            self._open.discard(id(part))

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        if not self._check_tag(node, path, "str", "bool", "int", "float", "null", "merge"):
            return None
        text: str = node.value.translate(_STOOD_IN)
        self._source.texts.setdefault(path, text)
        kind = node.tag.removeprefix(_PREFIX)
        if kind == "null":
            self._source.refuse(path, NO_VALUE)
            return None
        if kind == "bool" and text in ("true", "false"):
            return text == "true"
        if kind == "int" and _INT.fullmatch(text):
            return int(text)
        if kind == "float" and _FLOAT.fullmatch(text):
            return float(text)
        if kind in ("str", "merge"):
            return self._substituted(text, path)
        self._source.refuse(path, f"{shown(text)} does not fit its tag; allowed: plain YAML without tags")
        return None

    def _substituted(self, text: str, path: Path) -> str:
        if "${" not in text:
            return text
        wrong: list[str] = []

        def replace(found: re.Match[str]) -> str:
            escaped, name, closed = found.groups()
            if escaped:
                return found[0][1:]
            if closed is None or _VARIABLE.fullmatch(name) is None:
                wrong.append(
                    f"{shown(found[0])} names no environment variable; allowed: ${{NAME}}, or $${{ for a plain ${{"
                )
                return ""
            value = self._env.get(name, "")
            if not value.strip():
                state = "is not set" if name not in self._env else "is empty"
                wrong.append(f"the environment variable {name} {state}; set it to what belongs here")
            return value

        out = _REFERENCE.sub(replace, text)
        for message in wrong:
            self._source.refuse(path, message)
        return out


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == _PREFIX + "null"
