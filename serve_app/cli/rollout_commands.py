"""The commands of ``grix`` for releases: rollout, rollback, drift."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from serve_app.cli import rollout
from serve_app.cli.control import admin, ask
from serve_app.cli.say import OK, Progress, out, out_json
from serve_app.cli.state import Home


def _rollout(args: argparse.Namespace) -> int:
    home = Home.here()
    if args.verb == "history":
        past = rollout.history(home, args.config)
        if args.json:
            out_json(past)
        else:
            out(rollout.history_text(past))
        return OK
    if args.verb == "start":
        told = rollout.start(args.paths, args.to, home, args.config)
    elif args.verb == "status":
        told = ask(admin(home, args.config), "rollout_status")
    else:
        told = ask(admin(home, args.config), "rollout_steer", act=args.verb)
    if getattr(args, "wait", None) is not None:
        told = rollout.follow(told, args.wait, home, args.config, Progress())
    return _show(args, told)


def _rollback(args: argparse.Namespace) -> int:
    home = Home.here()
    told = rollout.rollback(args.agent, args.to, home, args.config)
    return _show(args, rollout.follow(told, args.wait, home, args.config, Progress()))


def _show(args: argparse.Namespace, told: dict[str, Any]) -> int:
    if args.json:
        out_json(told)
    else:
        out(rollout.text_of(told))
    return OK


def _drift(args: argparse.Namespace) -> int:
    rows = rollout.drift(Home.here(), args.config)
    if args.json:
        out_json(rows)
    else:
        out(rollout.drift_text(rows))
    return OK


def add_rollouts(
    add: Callable[..., argparse.ArgumentParser],
    add_federation: Callable[..., None],
    count: Callable[[str], int],
) -> None:
    """Commands for releases. ``count`` reads a whole number from 1."""
    rolled = add("rollout", _rollout, "take templates and routes through regions and shares of users, or back")
    verbs = rolled.add_subparsers(dest="verb", required=True, metavar="VERB")
    start = verbs.add_parser("start", help="begin with documents, or with a release that was served before")
    what = start.add_mutually_exclusive_group(required=True)
    what.add_argument("paths", nargs="*", type=Path, default=[], metavar="PATH")
    what.add_argument("--to", metavar="RELEASE", help="the beginning of its digest, from grix rollout history")
    start.add_argument("--wait", type=count, metavar="SECONDS", help="wait for its end, so long at most")
    add_federation(start)
    for name, said in (
        ("status", "where it is, and how both releases do"),
        ("pause", "stay at this step"),
        ("resume", "go on; after a failed region with that region again"),
        ("abort", "all users back to the release before"),
        ("history", "what is over, with the releases that can be taken again"),
    ):
        add_federation(verbs.add_parser(name, help=said))
    back = add("rollback", _rollback, "take an agent back to the release before, in all regions at once")
    back.add_argument("agent", metavar="AGENT")
    back.add_argument("--to", metavar="RELEASE", help="the beginning of another release that was served")
    back.add_argument("--wait", type=count, default=120, metavar="SECONDS", help="limit until in force (120)")
    add_federation(back)
    add_federation(add("drift", _drift, "who serves something else than the plan says, and in what it differs"))
