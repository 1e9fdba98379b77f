"""``grix model push|pull|verify|gc``: versions of models in a store, and this host's cache of them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cluster_configs.quantities import parse_duration_s
from serve_app.cli import table
from serve_app.cli.operator_commands import count, quantity
from serve_app.cli.say import BAD_USAGE, FAILED, OK, Failed, Progress, out, out_json
from serve_app.core.model_plan import shown

_ADDRESS: Final = "s3://BUCKET/PREFIX or file:///FOLDER, one prefix per version"


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Adds ``grix model``; ``add(name, run, help)`` makes a command."""
    command = add("model", _run, "models in a store: push, pull, verify; what this host's cache may forget")
    verbs = command.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, said: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=said, description=said, allow_abbrev=False)
        made.add_argument("--json", action="store_true")
        return made

    push = verb("push", "a folder as a new version into a store")
    push.add_argument("folder", type=Path, metavar="FOLDER")
    push.add_argument("address", metavar="ADDRESS", help=_ADDRESS)
    pull = verb("pull", "a version into this host's cache, as the start of an engine does it")
    pull.add_argument("address", metavar="ADDRESS", help=_ADDRESS)
    verify = verb("verify", "a version in the cache, read again, and in its store")
    verify.add_argument("address", metavar="ADDRESS", help=_ADDRESS)
    verify.add_argument("--read", action="store_true", help="read every byte in the store too")
    gc = verb("gc", "remove from the cache what no engine holds, but for the last versions of each model")
    gc.add_argument("--keep", type=count, default=2, metavar="N", help="last versions of a model that stay (2)")
    older = "leftovers of fetches, and quarantine, when older than this (24h)"
    gc.add_argument("--older", type=quantity(parse_duration_s), default=86_400.0, metavar="TIME", help=older)
    gc.add_argument("--dry-run", action="store_true", help="only tell")


def _run(args: argparse.Namespace) -> int:
    from serve_app.edge.store_types import StoreError

    verbs = {"push": _push, "pull": _pull, "verify": _verify, "gc": _gc}
    try:
        told, text, code = verbs[args.verb](args, Progress())
    except StoreError as error:
        raise Failed(str(error)) from None
    if args.json:
        out_json(told)
    else:
        out(text)
    return code


_Told = tuple[Any, str, int]


def _address(args: argparse.Namespace) -> Any:
    from serve_app.edge.model_store import address_of
    from serve_app.edge.store_types import StoreError

    try:
        return address_of(args.address)
    except StoreError as error:
        raise Failed(str(error), BAD_USAGE) from None


def _push(args: argparse.Namespace, progress: Progress) -> _Told:
    from serve_app.edge.model_store import open_store, push
    from serve_app.edge.store_types import Limits

    address, limits = _address(args), Limits()
    done = push(args.folder, address, open_store(address, limits), limits, progress.tell)
    manifest = done.manifest
    told = {
        "address": address.uri,
        "files": len(manifest.files),
        "bytes": manifest.total_bytes,
        "sent_bytes": done.sent_bytes,
        "weights_digest": manifest.weights_digest,
    }
    held = f"{len(manifest.files)} files, {shown(manifest.total_bytes)}"
    return told, f"{address.uri}: {held}; sent {shown(done.sent_bytes)}", OK


def _pull(args: argparse.Namespace, progress: Progress) -> _Told:
    from serve_app.edge.model_cache import ModelCache
    from serve_app.edge.model_fetch import fetch
    from serve_app.edge.model_store import open_store
    from serve_app.edge.store_types import Limits

    address, limits = _address(args), Limits()
    got = fetch(address, lambda: open_store(address, limits), ModelCache(), limits, progress.tell)
    got.lease.free()
    told = {
        "address": address.uri,
        "folder": str(got.folder),
        "files": len(got.manifest.files),
        "bytes": got.manifest.total_bytes,
        "read_bytes": got.read_bytes,
        "weights_digest": got.manifest.weights_digest,
    }
    held = f"{len(got.manifest.files)} files, {shown(got.manifest.total_bytes)}"
    return told, f"{got.folder}\n  {held}; read {shown(got.read_bytes)} from the store", OK


def _verify(args: argparse.Namespace, progress: Progress) -> _Told:
    from serve_app.edge.model_cache import ModelCache
    from serve_app.edge.model_store import open_store
    from serve_app.edge.model_verify import faults_in_cache, faults_in_store
    from serve_app.edge.store_types import Limits

    address, limits, cache = _address(args), Limits(), ModelCache()
    here = faults_in_cache(address, cache, limits, progress.tell)
    store = open_store(address, limits)
    there = faults_in_store(address, cache, store, limits, progress.tell, read=args.read)
    faults = [*(here or ()), *there]
    told = {"address": address.uri, "in_cache": here is not None, "faults": faults}
    cached = "not there" if here is None else "every file read and right"
    stored = "every file read and right" if args.read else "every file there, with its size"
    text = "\n".join(faults) if faults else f"{address.uri}\n  cache  {cached}\n  store  {stored}"
    return told, text, FAILED if faults else OK


def _gc(args: argparse.Namespace, progress: Progress) -> _Told:
    from serve_app.edge.model_cache import ModelCache
    from serve_app.edge.model_gc import sweep

    cache = ModelCache()
    swept = sweep(cache, keep=args.keep, older_s=args.older, now_unix_s=time.time(), dry_run=args.dry_run)
    free = sum(s.size_bytes for s in swept if s.removed)
    told = {
        "folder": str(cache.root),
        "removed_bytes": free,
        "dry_run": args.dry_run,
        "entries": [{"name": s.name, "what": s.what, "bytes": s.size_bytes, "removed": s.removed} for s in swept],
    }
    gone = "would go" if args.dry_run else "removed"
    rows = [(s.name, s.what, shown(s.size_bytes), gone if s.removed else "kept") for s in swept]
    rendered = table.render(("NAME", "WHAT", "SIZE", "STATE"), rows, frozenset({"SIZE"}))
    return told, f"{rendered}\n{shown(free)} {gone}" if rows else f"{cache.root}: nothing is there", OK
