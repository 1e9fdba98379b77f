"""``grix region drain|undrain`` and ``grix coordinator audit|backup|restore``: verbs of the coordinator."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from serve_app.cli import control
from serve_app.cli.say import BAD_USAGE, Failed
from serve_app.cli.state import Home, write_file
from serve_app.cli.table import render


def turn(verb: Literal["drain", "undrain"], region: str, home: Home, config: Sequence[Path] | None) -> dict[str, Any]:
    """Takes a region out of service for new requests, or back in."""
    return control.ask(control.admin(home, config), verb, region=region)


def audit(last: int, home: Home, config: Sequence[Path] | None) -> list[dict[str, Any]]:
    """The last entries of the audit log, oldest first."""
    return list(control.ask(control.admin(home, config), "audit", last=last)["entries"])


def audit_text(entries: Sequence[dict[str, Any]]) -> str:
    """The same for people."""
    rows = [
        [
            datetime.fromtimestamp(e["at_unix_s"], UTC).strftime("%Y-%m-%d %H:%M:%S"),
            e["who"],
            e["what"],
            e["region"] or None,
            f"{e['before']} -> {e['after']}" if e["before"] else e["after"] or None,
            e["why"] or None,
        ]
        for e in entries
    ]
    return render(["UTC", "who", "what", "region", "change", "why"], rows)


def backup(file: Path, home: Home, config: Sequence[Path] | None) -> dict[str, Any]:
    """Writes what the coordinator must not forget into a file (0600).

    Raises:
        Failed: with exit status 2 for a file that cannot be written.
    """
    told = dict(control.ask(control.admin(home, config), "backup")["backup"])
    try:
        write_file(file, json.dumps(told, ensure_ascii=False, indent=2) + "\n")
    except OSError as error:
        raise Failed(f"{file}: cannot be written: {error.strerror}", BAD_USAGE) from None
    return told


def restore(file: Path, home: Home, config: Sequence[Path] | None) -> dict[str, Any]:
    """Gives the coordinator back what a file has.

    Raises:
        Failed: with exit status 2 for a file that is no backup.
    """
    try:
        told = json.loads(file.read_text())
    except OSError as error:
        raise Failed(f"{file}: cannot be read: {error.strerror}", BAD_USAGE) from None
    except ValueError:
        raise Failed(
            f"{file}: is no JSON; allowed: a file that grix coordinator backup has written", BAD_USAGE
        ) from None
    return control.ask(control.admin(home, config), "restore", backup=told)
