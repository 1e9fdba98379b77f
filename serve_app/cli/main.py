"""The ``grix`` command. Exit status: 0 well, 1 failed, 2 bad usage or configuration."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

from serve_app.cli import model, pki, tasks
from serve_app.cli.operator_commands import add_operator, count
from serve_app.cli.say import BAD_USAGE, FAILED, OK, Failed, Progress, note, out, out_json
from serve_app.cli.state import Home


def _validate(args: argparse.Namespace) -> int:
    from cluster_configs.load import validate

    faults = validate(args.paths, os.environ)
    if args.json:
        out_json({"valid": not faults, "faults": faults})
    elif faults:
        note("\n".join(faults))
        note(f"{len(faults)} fault{'s' if len(faults) > 1 else ''}, nothing applied")
    else:
        out("valid")
    return BAD_USAGE if faults else OK


def _render(args: argparse.Namespace) -> int:
    import yaml

    from serve_app.cli import documents
    from serve_app.cli.state import own_tenant

    documents.check_model(args.model)
    config = documents.load(args.config)
    region = config.federation.region(args.region)
    home = Home.here()
    if region is not None and not config.tenants:
        config = documents.load(args.config, [own_tenant(home)])
        note(f"tenant 'local' added; its API key is in {home.key_file}")
    port = args.port or (region.http.port if region is not None else 8000)
    rendered = documents.render(config, args.region, port, args.model, False)
    out(yaml.safe_dump(rendered, sort_keys=False, allow_unicode=True, width=120).rstrip())
    return OK


def _wanted(args: argparse.Namespace) -> Any:
    from serve_app.cli.start_region import Wanted

    return Wanted(args.config, args.region, getattr(args, "control", False), args.model, args.open_access, args.wait)


def _up(args: argparse.Namespace) -> int:
    from serve_app.cli import regions
    from serve_app.cli.up import up

    state, before = up(_wanted(args), Home.here(), Progress())
    if args.json:
        out_json(state)
        return OK
    said = "is already up" if before else "is up"
    for record in state["regions"]:
        health = regions.deep_health(record)[0] if before else True
        out(f"{record['name']} {said}{'' if health else ', but NOT healthy; see grix status'}")
        out(f"  url        {record['url']}\n  API key    in {record['key_file']}")
        out(f"  dashboard  {record['dashboard']} (token in {record['token_file']})")
    coordinator = state["coordinator"]
    if coordinator is not None:
        out(f"coordinator {said}\n  address    {coordinator['address']} (certificates in {coordinator['pki']})")
        out(f"  dashboard  {coordinator['dashboard']} (token in {coordinator['token_file']})")
    return OK


def _down(args: argparse.Namespace) -> int:
    from serve_app.cli.up import down

    home = Home.here()
    names = [record["name"] for record in home.records()] + ["relay"] * bool(home.read()["links"])
    changed = down(home, Progress())
    if args.json:
        out_json({"ended": names})
    else:
        out("down" if changed else "nothing is up in this folder")
    return OK


def _status(args: argparse.Namespace) -> int:
    from serve_app.cli import status

    home = Home.here()
    if args.watch:
        status.watch(home, args.config, as_json=args.json)
    told = status.gather(home, args.config)
    if args.json:
        out_json(told)
    else:
        out(status.text_of(told))
    return OK if status.is_well(told) else FAILED


def _talk(args: argparse.Namespace) -> Any:
    from serve_app.cli.chat import Talk

    return Talk(args.model, args.session, args.language, args.task_type, args.max_tokens)


def _chat(args: argparse.Namespace) -> int:
    from serve_app.cli import chat, regions

    client = regions.client(regions.first_up(Home.here()))
    if args.text is None:
        chat.interactive(client, _talk(args), stream=not args.no_stream)
    else:
        chat.answer(client, _talk(args), [{"role": "user", "content": args.text}], stream=not args.no_stream)
    return OK


def _explain(args: argparse.Namespace) -> int:
    from serve_app.cli import explain

    if (args.request_id is None) == (args.text is None):
        raise Failed("grix explain: give either REQUEST_ID or --text", BAD_USAGE)
    home = Home.here()
    if args.request_id is not None:
        told = explain.past(home, args.request_id)
    else:
        told = explain.decide(home, _talk(args), args.text, args.tenant, args.config, args.region)
    if args.json:
        out_json(told)
    else:
        out(explain.text_of(told))
    return OK


def _demo(args: argparse.Namespace) -> int:
    from serve_app.cli import demo

    keep = args.keep or os.environ.get("KEEP") == "1"
    return demo.run(_wanted(args), Home.here(), keep=keep, as_json=args.json)


def _key(args: argparse.Namespace) -> int:
    from datetime import UTC, datetime

    from serve_app.cli import key

    made = key.new(args.tenant, args.expires, datetime.now(UTC).date())
    if args.json:
        out_json(made)
    else:
        out(key.text_of(made))
    return OK


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"'{text}' is no port; allowed: 1 to 65535")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """The command line of ``grix``."""
    top = argparse.ArgumentParser(prog="grix", description="Serve Qwen models to people of many languages.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], int], said: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=said, description=said, allow_abbrev=False)
        command.set_defaults(run=run)
        return command

    def add_config(command: argparse.ArgumentParser) -> None:
        command.add_argument("--config", nargs="+", type=Path, metavar="PATH", help="files and folders of documents")
        command.add_argument("--model", help="tiny-qwen, smollm2, a folder or a hub id, for every agent")

    def add_up(command: argparse.ArgumentParser) -> None:
        add_config(command)
        command.add_argument("--region", metavar="NAME", help="only this region of the federation")
        command.add_argument("--open-access", action="store_true", help="turn API keys OFF")
        command.add_argument("--wait", type=count, default=300, metavar="SECONDS", help="limit until ready (300)")
        command.add_argument("--json", action="store_true")

    def add_federation(command: argparse.ArgumentParser) -> None:
        said = "documents of a Federation whose coordinator is not of this folder"
        command.add_argument("--config", nargs="+", type=Path, metavar="PATH", help=said)
        command.add_argument("--json", action="store_true")

    def add_talk(command: argparse.ArgumentParser) -> None:
        command.add_argument("--text")
        command.add_argument("--session", metavar="ID")
        command.add_argument("--language", metavar="CODE")
        command.add_argument("--task-type", metavar="INTENT")
        command.add_argument("--max-tokens", type=count, metavar="N")

    validate = add("validate", _validate, "check documents; every fault at once")
    validate.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    validate.add_argument("--json", action="store_true")
    rendered = add("render", _render, "print a region's Serve config as YAML")
    rendered.add_argument("region", metavar="REGION")
    add_config(rendered)
    rendered.add_argument("--port", type=_port, metavar="N", help="HTTP port (default: the region's)")
    up = add("up", _up, "start the federation on this machine")
    add_up(up)
    up.add_argument("--control", action="store_true", help="only the coordinator of the federation")
    down = add("down", _down, "stop what grix up started in this folder")
    down.add_argument("--json", action="store_true")
    status = add("status", _status, "what is up, and how it is")
    status.add_argument("--watch", action="store_true", help="again each second, until Ctrl-C")
    add_federation(status)
    add_operator(add, add_federation)
    chat = add("chat", _chat, "talk to the running region")
    add_talk(chat)
    chat.add_argument("--model")
    chat.add_argument("--no-stream", action="store_true")
    explain = add("explain", _explain, "how a request would be, or was, decided")
    explain.add_argument("request_id", nargs="?", metavar="REQUEST_ID", help="one of the last requests")
    add_talk(explain)
    explain.add_argument("--model")
    explain.add_argument("--config", nargs="+", type=Path, metavar="PATH", help="decide from these documents")
    explain.add_argument("--region", metavar="NAME")
    explain.add_argument("--tenant", metavar="NAME", help="as this tenant")
    explain.add_argument("--json", action="store_true")
    key = add("key", _key, "make an API key; it is shown once")
    key.add_argument("action", choices=["new"])
    key.add_argument("tenant", metavar="TENANT")
    key.add_argument("--expires", metavar="DAY", help="last day it is valid (UTC), as 2027-06-30")
    key.add_argument("--json", action="store_true")
    pki.add_parser(add)
    model.add_parser(add)
    tasks.add_parser(add)
    demo = add("demo", _demo, "up, a tour in many languages, down")
    add_up(demo)
    demo.add_argument("--keep", action="store_true", help="leave the region up (or KEEP=1)")
    return top


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


_ENDINGS: Final = (signal.SIGTERM, signal.SIGHUP)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; the exit status."""
    args = parser().parse_args(argv)
    for ending in _ENDINGS:
        signal.signal(ending, _interrupt)
    try:
        return int(args.run(args))
    except Failed as error:
        note(f"grix {args.command}: {error}" if error.code == FAILED else str(error))
        return error.code
    except KeyboardInterrupt:
        note(f"grix {args.command}: interrupted")
        return FAILED
    except BrokenPipeError:
        # The reader left (as in `grix status | head`); what follows would only repeat that.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
