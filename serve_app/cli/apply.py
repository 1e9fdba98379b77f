"""``grix apply``: validate, show what changes, tell the coordinator, and wait until every region has it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from serve_app.cli import control, documents
from serve_app.cli.say import Failed, Progress
from serve_app.cli.state import Home, own_tenant

POLL_S: Final = 0.25
#: Of a value in a difference.
MOST_CHARS: Final = 60

Document = Mapping[str, Any]


def apply(
    paths: Sequence[Path],
    home: Home,
    *,
    dry_run: bool,
    wait_s: float,
    config: Sequence[Path] | None,
    progress: Progress,
) -> dict[str, Any]:
    """What was, or would be, applied: its revision, what changes, and the regions that have it.

    Raises:
        Failed: with exit status 2 for what the documents or the coordinator refuse; for a region that does not follow.
    """
    from cluster_configs.load import to_documents

    # Without the tenant of this folder grix could ask its regions nothing more.
    mine = [own_tenant(home)] if home.key_file.is_file() else []
    wanted = to_documents(documents.load(paths, mine))
    asked = control.admin(home, config)
    before = _stored(asked)
    changes = None if before is None else list(difference(before, wanted))
    reply = control.ask(asked, "apply", documents=wanted, dry_run=dry_run)
    told = {**reply, "changes": changes, "regions": []}
    if not dry_run:
        told["regions"] = _wait(asked, reply["revision"], wait_s, progress, is_new=reply["changed"])
    return told


def _stored(asked: Any) -> list[Document] | None:
    """The documents applied last; ``None`` when there are none, and regions have those they were started with."""
    text = control.ask(asked, "backup")["backup"]["documents"]
    return json.loads(text) if text else None


def _wait(asked: Any, revision: str, wait_s: float, progress: Progress, *, is_new: bool) -> list[str]:
    """Waits until every region that is linked reports the revision; their names.

    What was refused before may go well now: of documents that are not new a refusal is no end.

    Raises:
        Failed: when whoever does not have it has tried in vain, or after ``wait_s``, naming who that is.
    """
    until_s = time.monotonic() + wait_s
    while True:
        told = [r for r in control.ask(asked, "status")["regions"] if r["linked"]]
        late = [r for r in told if r["revision"] != revision]
        if not late:
            return [r["name"] for r in told]
        said = ", ".join(f"{r['name']} has {r['revision'] or 'none'} ({r['state_why'] or r['phase']})" for r in late)
        progress.tell(f"revision {revision}: {said}")
        if is_new and all(r["refused"] == revision for r in late):
            raise Failed(f"revision {revision} is applied, and what is in force stays so: {said}")
        if time.monotonic() > until_s:
            raise Failed(f"revision {revision} is applied, and not in force everywhere after {wait_s:.0f} s: {said}")
        time.sleep(POLL_S)


def difference(before: Sequence[Document], after: Sequence[Document]) -> Iterator[str]:
    """What changes, a line each: documents that come and go, and values of those that stay."""
    old, new = _by_name(before), _by_name(after)
    for name in sorted(old.keys() - new.keys()):
        yield f"- {name}"
    for name in sorted(new.keys() - old.keys()):
        yield f"+ {name}"
    for name in sorted(new.keys() & old.keys()):
        for path, was, now in _changed("", old[name], new[name]):
            yield f"~ {name} {path}: {_short(was)} -> {_short(now)}"


def _by_name(documents: Sequence[Document]) -> dict[str, Document]:
    return {f"{d['kind']} {d['metadata']['name']}": d for d in documents}


_ABSENT: Final = object()


def _changed(path: str, was: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted(was.keys() | now.keys()):
            yield from _changed(f"{path}.{key}".lstrip("."), was.get(key, _ABSENT), now.get(key, _ABSENT))
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for i, (a, b) in enumerate(zip(was, now, strict=True)):
            yield from _changed(f"{path}[{i}]", a, b)
    elif was != now:
        yield path, was, now


def _short(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MOST_CHARS else text[: MOST_CHARS - 1] + "…"


def text_of(told: Mapping[str, Any]) -> str:
    """The same for people."""
    changes = told["changes"]
    lines = ["nothing was applied before: regions have what they were started with"] if changes is None else changes
    lines = [*lines] or ["nothing changes"]
    if told["dry_run"]:
        return "\n".join([*lines, f"revision {told['revision']} would be applied; nothing was"])
    if told["drift_unknown"]:
        lines.append(f"drift is not told of {', '.join(told['drift_unknown'])}: their weights are not on this machine")
    return "\n".join(
        [*lines, f"revision {told['revision']} is in force in {', '.join(told['regions']) or 'no region'}"]
    )
