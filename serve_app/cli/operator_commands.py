"""The commands of ``grix`` for who runs a federation: apply, region, coordinator, drill."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from cluster_configs.quantities import QuantityError, parse_duration_s, parse_size_bytes
from serve_app.cli.rollout_commands import add_rollouts
from serve_app.cli.say import OK, Progress, out, out_json
from serve_app.cli.state import Home
from serve_app.core.drill_verdict import Drill
from serve_app.core.release_verdict import ReleaseDrill


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
    from serve_app.cli import drill, drill_release

    if args.name in get_args(ReleaseDrill):
        return drill_release.run(args.name, Home.here(), as_json=args.json)
    return drill.run(args.name, args.region, args.runs, Home.here(), as_json=args.json)


def _link(args: argparse.Namespace) -> int:
    from serve_app.cli import links

    fields: dict[str, object] = {"flow": args.flow} if args.flow else {}
    if args.flow == "open":
        fields |= {"delay_ms": 0.0, "bytes_per_s": None}
    fields |= {"delay_ms": args.delay * 1000} if args.delay is not None else {}
    fields |= {"bytes_per_s": float(args.rate)} if args.rate is not None else {}
    told = links.set_line(Home.here(), args.dialler, args.dialled, fields)
    if args.json:
        out_json(told)
    else:
        out(links.text_of(told))
    return OK


def quantity(parse: Callable[[str], float]) -> Callable[[str], float]:
    """A reader of quantities, with its fault in the words of argparse."""

    def read(text: str) -> float:
        try:
            return parse(text)
        except QuantityError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


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
    add_rollouts(add, add_federation, count)
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
    link = add("link", _link, "worsen the line between two parts of this machine's federation, or mend it")
    link.add_argument("dialler", metavar="FROM", help="a region")
    link.add_argument("dialled", metavar="TO", help="a region, or coordinator")
    flow = link.add_mutually_exclusive_group()
    for name, said in (
        ("open", "as it was: nothing delayed, throttled or held"),
        ("stalled", "connections stay, nothing gets through"),
        ("cut", "connections are reset, new ones refused"),
    ):
        option = {"stalled": "--stall"}.get(name, f"--{name}")
        flow.add_argument(option, dest="flow", action="store_const", const=name, help=said)
    link.add_argument("--delay", type=quantity(parse_duration_s), metavar="TIME", help="each way, such as 50ms")
    link.add_argument("--rate", type=quantity(parse_size_bytes), metavar="SIZE", help="a second, such as 64Ki")
    link.add_argument("--json", action="store_true")
    drill = add("drill", _drill, "rehearse a failure under real requests, and measure it")
    names = (*get_args(Drill), *get_args(ReleaseDrill))
    drill.add_argument("name", choices=names, metavar="NAME", help=", ".join(names))
    drill.add_argument("--region", metavar="NAME", help="whose failure it is (the first one that is up)")
    drill.add_argument("--runs", type=count, default=1, metavar="N", help="so often (1)")
    drill.add_argument("--json", action="store_true")
