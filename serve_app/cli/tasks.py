"""``grix tasks``: submit long work, see what waits, and deal with dead letters."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from serve_app.cli import regions
from serve_app.cli.client import Client, Reply
from serve_app.cli.say import BAD_USAGE, OK, Failed, out, out_json
from serve_app.cli.state import Home
from serve_app.cli.table import cut, render


def _client() -> Client:
    return regions.client(regions.first_up(Home.here()))


def _good(reply: Reply, what: str) -> Any:
    if reply.status not in (200, 202):
        raise Failed(f"{what}: {reply.fault}")
    return reply.body


def _submit(args: argparse.Namespace) -> int:
    name = str(args.file)
    try:
        text = sys.stdin.read() if name == "-" else args.file.read_text("utf-8")
        body = json.loads(text)
    except (OSError, ValueError) as error:
        raise Failed(f"{name}: cannot be read as JSON: {error}", BAD_USAGE) from None
    told = _good(_client().ask("POST", "/v1/tasks", body), name)
    out_json(told) if args.json else out(f"{told['id']} {told['state']}")
    return OK


def _status(args: argparse.Namespace) -> int:
    client = _client()
    if args.task_id is not None:
        out_json(_good(client.ask("GET", f"/v1/tasks/{quote(args.task_id, safe='')}"), args.task_id))
        return OK
    told = _good(client.ask("GET", "/grix/tasks"), "tasks")
    if args.json:
        out_json(told)
    else:
        out(text_of(told))
    return OK


def text_of(told: dict[str, Any]) -> str:
    """What waits and who works, a line for each class and priority."""
    rows = [
        (name, priority, one["waiting"][priority], f"{one['oldest_s'][priority]:.1f}", *_of_class(one, first))
        for name, one in told.items()
        for first, priority in ((True, "high"), (False, "normal"))
        if one["waiting"]
    ]
    head = ("class", "priority", "waiting", "oldest s", "running", "workers", "slots")
    return render(head, rows, right=frozenset(head[2:]))


def _of_class(one: dict[str, Any], first: bool) -> tuple[object, ...]:
    return (one["running"], one["workers"], one["slots"]) if first else ("", "", "")


def _all_dead(client: Client) -> list[dict[str, Any]]:
    """Page by page; a letter that slips to the next page meanwhile, because a newer one came, is told once."""
    rows: dict[str, dict[str, Any]] = {}
    offset: int | None = 0
    while offset is not None:
        page = _good(client.ask("GET", f"/grix/tasks/dead?offset={offset}"), "dead letters")
        rows |= {row["key"]: row for row in page["data"]}
        offset = page["next_offset"]
    return list(rows.values())


def _dead(args: argparse.Namespace) -> int:
    rows = _all_dead(_client())
    if args.json:
        out_json(rows)
        return OK
    if not rows:
        out("no dead letters")
        return OK
    shown = [
        (row["key"], row["class"], row["attempts"], row["error"]["reason"], cut(row["error"]["message"] or "", 60))
        for row in rows
    ]
    out(render(("task", "class", "attempts", "reason", "message"), shown, right=frozenset({"attempts"})))
    return OK


def _change(method: str) -> Callable[[argparse.Namespace], int]:
    def run(args: argparse.Namespace) -> int:
        tenant, slash, task_id = args.key.partition("/")
        if not slash or not tenant or not task_id:
            said = f"{args.key}: names no dead letter; allowed: TENANT/TASK_ID, as grix tasks dead shows it"
            raise Failed(said, BAD_USAGE)
        path = f"/grix/tasks/dead/{quote(tenant, safe='')}/{quote(task_id, safe='')}"
        out(f"{args.key} {_good(_client().ask(method, path), args.key)['state']}")
        return OK

    return run


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Adds ``tasks`` and its actions to the command."""
    command = add("tasks", _status, "long work: submit it, see what waits, deal with dead letters")
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, run: Callable[[argparse.Namespace], int], said: str) -> argparse.ArgumentParser:
        one = actions.add_parser(name, help=said, description=said, allow_abbrev=False)
        one.set_defaults(run=run)
        return one

    submit = action("submit", _submit, "submit a task: JSON as POST /v1/tasks takes it")
    submit.add_argument("file", type=Path, metavar="FILE", help="- is standard input")
    submit.add_argument("--json", action="store_true")
    status = action("status", _status, "what waits and who works, or one task of this folder's tenant")
    status.add_argument("task_id", nargs="?", metavar="TASK_ID")
    status.add_argument("--json", action="store_true")
    dead = action("dead", _dead, "tasks that failed for good: why, after how many attempts, and their input")
    dead.add_argument("--json", action="store_true")
    for name, method, said in (
        ("replay", "POST", "make a dead letter a task again"),
        ("drop", "DELETE", "forget a dead letter"),
    ):
        action(name, _change(method), said).add_argument("key", metavar="TENANT/TASK_ID")
