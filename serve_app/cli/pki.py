"""``grix pki``: a federation's certificates, made and renewed where the authority's key lies, shown where they lie."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from serve_app.cli import documents, table
from serve_app.cli.say import BAD_USAGE, FAILED, OK, Failed, note, out, out_json
from serve_app.cli.state import Home

if TYPE_CHECKING:
    from serve_app.edge.pki import Certified

_HEAD: Final = ("IDENTITY", "FOLDER", "UNTIL", "LEFT", "STATE")
_MOST_DAYS: Final = 825


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Adds ``grix pki init|renew|show``; ``add(name, run, help)`` makes a command."""
    command = add("pki", run, "certificates of the federation's parts")
    command.add_argument("action", choices=["init", "renew", "show"], help="make what is missing; renew all; show")
    command.add_argument("--config", nargs="+", type=Path, metavar="PATH", help="documents (default: for one machine)")
    command.add_argument("--out", type=Path, metavar="DIR", help="the Federation's pki folder, else .grix/pki")
    command.add_argument("--days", type=_days, metavar="N", default=7.0, help="how long they are valid (7)")
    command.add_argument("--operator", default="admin", metavar="NAME", help="name of an operator (admin)")
    command.add_argument("--force", action="store_true", help="a NEW authority: what was made before is refused")
    command.add_argument("--json", action="store_true")


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 0 < days <= _MOST_DAYS:
        raise argparse.ArgumentTypeError(f"'{text[:20]}' is no number of days above 0 and at most {_MOST_DAYS}")
    return days


def run(args: argparse.Namespace) -> int:
    """The exit status: 1 for ``show`` when a certificate has ended or is not whole."""
    from serve_app.edge import pki

    now = datetime.now(UTC)
    root, config = _root(args)
    try:
        if args.action == "init":
            certified = _init(args, root, config, now)
        elif args.action == "renew":
            certified = pki.renew(root, now, days=args.days)
        else:
            certified = list(pki.found(root))
    except pki.PkiError as error:
        raise Failed(str(error)) from None
    if not certified:
        raise Failed(f"no certificates in {root}; see grix pki init")
    rows = [_row(c, now) for c in certified]
    if args.json:
        out_json({"folder": str(root), "certificates": rows})
    else:
        out(_text(rows))
        if args.action == "init":
            note(
                f"Keep {root / 'ca' / 'key.pem'} here: it makes certificates for everybody. Each machine gets the "
                "folders of the identities that run on it, and no others."
            )
    return OK if all(row["state"] != "refused" for row in rows) else FAILED


def _root(args: argparse.Namespace) -> tuple[Path, Any]:
    """The folder, and the configuration where it was needed."""
    needed = args.action == "init" or args.config is not None
    config = documents.load(args.config) if needed else None
    if args.out is not None:
        return args.out, config
    named = config.federation.spec.pki if config is not None else None
    return (Path(named.folder) if named is not None else Home.here().pki), config


def _init(args: argparse.Namespace, root: Path, config: Any, now: datetime) -> list[Certified]:
    from serve_app.edge import pki

    federation = config.federation
    regions = [r.name for r in federation.spec.regions]
    if not _is_name(args.operator):
        raise Failed("--operator: allowed are small letters, digits and single dashes, at most 40", BAD_USAGE)
    name = federation.metadata.name
    return pki.init(root, name, regions, now, operator=args.operator, days=args.days, force=args.force)


def _is_name(text: str) -> bool:
    from pydantic import TypeAdapter, ValidationError

    from cluster_configs.fields import Name

    try:
        TypeAdapter(Name).validate_python(text)
    except ValidationError:
        return False
    return True


def _row(certified: Certified, now: datetime) -> dict[str, Any]:
    from serve_app.edge.grpc_tls import TlsError, read_pair

    fault = ""
    try:
        read_pair(certified.folder)
    except TlsError as error:
        fault = str(error)
    left_s = certified.left(now).total_seconds()
    if not fault and left_s <= 0:
        fault = "has ended"
    return {
        "identity": certified.identity.uri,
        "folder": str(certified.folder),
        "until": certified.not_after.isoformat(),
        "left_s": round(left_s),
        "state": "refused" if fault else {"shown": "valid"}.get(certified.done, certified.done),
        "fault": fault,
    }


def _text(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        (row["identity"], row["folder"], row["until"][:16].replace("T", " ") + "Z", _left(row["left_s"]), _state(row))
        for row in rows
    ]
    return table.render(_HEAD, lines)


def _state(row: dict[str, Any]) -> str:
    return f"{row['state']}: {row['fault']}" if row["fault"] else str(row["state"])


def _left(left_s: int) -> str:
    if left_s <= 0:
        return "0"
    days, rest = divmod(left_s, 86400)
    return f"{days} d" if days else f"{rest // 3600} h {rest % 3600 // 60} min"
