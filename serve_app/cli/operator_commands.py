"""The commands of ``grix`` for who runs a federation: apply, region, coordinator, drill."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from serve_app.cli.say import OK, Progress, out, out_json
from serve_app.cli.state import Home
from serve_app.core.drill_verdict import Drill


def _apply(args: argparse.Namespace) -> int:
    from serve_app.cli import apply

    told = apply.apply(
        args.paths,
        Home.here(),
        dry_run=args.dry_run,
        wait_s=args.wait,
        config=args.config,
        progress=Progress(),
    )
    if args.json:
        out_json(told)
    else:
        out(apply.text_of(told))
    return OK


def _region(args: argparse.Namespace) -> int:
    from serve_app.cli import region_command

    told = region_command.turn(args.verb, args.region, Home.here(), args.config)
    if args.json:
        out_json(told)
    else:
        out(f"{told['region']} is {told['phase']}")
    return OK


def _coordinator(args: argparse.Namespace) -> int:
    from serve_app.cli import region_command

    if args.verb == "audit":
        entries = region_command.audit(args.last, Home.here(), args.config)
        if args.json:
            out_json(entries)
        else:
            out(region_command.audit_text(entries))
        return OK
    if args.verb == "backup":
        told = region_command.backup(args.file, Home.here(), args.config)
    else:
        told = region_command.restore(args.file, Home.here(), args.config)
    if args.json:
        out_json(told)
    else:
        done = "written to" if args.verb == "backup" else "restored from"
        out(f"revision {told['revision'] or 'none applied'}, epoch {told['epoch']}: {done} {args.file}")
    return OK


def _drill(args: argparse.Namespace) -> int:
    from serve_app.cli import drill

    return drill.run(args.name, args.region, args.runs, Home.here(), as_json=args.json)


def count(text: str) -> int:
    """A whole number from 1, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no count; allowed: a whole number from 1")
    return int(text)


def add_operator(add: Callable[..., argparse.ArgumentParser], add_federation: Callable[..., None]) -> None:
    """Commands for who runs a federation."""
    applied = add("apply", _apply, "validate documents, show what changes, apply them, wait for every region")
    applied.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    applied.add_argument("--dry-run", action="store_true", help="show what would change")
    applied.add_argument("--wait", type=count, default=120, metavar="SECONDS", help="limit until in force (120)")
    add_federation(applied)
    region = add("region", _region, "take a region out of service for new requests, or back in")
    region.add_argument("verb", choices=["drain", "undrain"])
    region.add_argument("region", metavar="NAME")
    add_federation(region)
    coordinator = add("coordinator", _coordinator, "its audit log, and what it must not forget")
    verbs = coordinator.add_subparsers(dest="verb", required=True, metavar="VERB")
    audit = verbs.add_parser("audit", help="the last entries of the audit log")
    audit.add_argument("--last", type=count, default=50, metavar="N", help="so many (50)")
    add_federation(audit)
    for name, said in (("backup", "write it into a file"), ("restore", "give it back from a file")):
        verb = verbs.add_parser(name, help=said)
        verb.add_argument("file", type=Path, metavar="FILE")
        add_federation(verb)
    drill = add("drill", _drill, "rehearse a failure under real requests, and measure it")
    drill.add_argument("name", choices=get_args(Drill), metavar="NAME", help=", ".join(get_args(Drill)))
    drill.add_argument("--region", metavar="NAME", help="whose failure it is (the first one that is up)")
    drill.add_argument("--runs", type=count, default=1, metavar="N", help="so often (1)")
    drill.add_argument("--json", action="store_true")
