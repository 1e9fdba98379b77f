"""The cost of a gateway: ``python -m benchmarks.gateway [--quick] [--json]``.

Starts vLLM's own server (``direct``), Grix, and each peer found in ``.venv-peers`` (``make peers``), all in front of
engines with the same settings; then, in interleaved rounds, one client program asks each of them for streams. One
target is under load at a time, the others idle. Results go to standard output, progress to standard error.

A developer's question, answered in under two minutes:
``python -m benchmarks.gateway --targets direct,grix --models tiny-qwen --streams 64 --rounds 3``.
Two settings of Grix side by side: ``--targets direct,grix,grix-standard,grix-deployment``.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

from benchmarks import own_network
from benchmarks.gateway_picture import svg
from benchmarks.gateway_report import Report
from benchmarks.gateway_run import Bench, Client, Plan, Size, say
from benchmarks.gateway_targets import Setting
from benchmarks.processes import BenchmarkError
from serve_app.edge.model_files import ModelError

FULL: Final[Mapping[str, Size]] = {
    "tiny-qwen": Size(16, {1: 40, 16: 480, 64: 960}, 6.0, 5.0, 64),
    "smollm2": Size(64, {1: 2, 16: 16, 64: 64}, 30.0, 10.0, 2),
}
QUICK: Final[Mapping[str, Size]] = {
    "tiny-qwen": Size(16, {1: 20, 16: 240, 64: 512}, 3.0, 3.0, 32),
    "smollm2": Size(24, {1: 1, 16: 16, 64: 64}, 10.0, 4.0, 2),
}
#: ``--quick`` ends in under six minutes.
QUICK_UNTIL_S: Final = {"tiny-qwen": 180.0, "smollm2": 280.0}


def _list(kind: Any) -> Any:
    def parse(text: str) -> list[Any]:
        return [kind(part) for part in text.split(",") if part]

    return parse


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=(__doc__ or "").split("\n\n")[0])
    top.add_argument("--quick", action="store_true", help="fewer and shorter rounds: under 6 minutes")
    top.add_argument("--json", action="store_true", help="medians as JSON on standard output")
    top.add_argument("--models", type=_list(str), metavar="A,B", help="default: tiny-qwen,smollm2")
    top.add_argument(
        "--targets",
        type=_list(str),
        metavar="A,B",
        help="direct, grix (or grix-WORD: with standard, fast, router, deployment), peers; default: all found",
    )
    top.add_argument("--streams", type=_list(int), metavar="N,N", help="default: 1,16,64")
    top.add_argument("--open", type=_list(float), metavar="F,F", help="open loop at fractions of direct's capacity")
    top.add_argument("--rounds", type=int, metavar="N", help="default: 7; with --quick 3")
    top.add_argument("--slots", type=int, metavar="N", help="maxNumSeqs of every engine; default: what is shipped")
    top.add_argument("--profile", choices=["standard", "fast"], help="Grix's entry; default: fast as root")
    top.add_argument("--detector", choices=["router", "deployment"], help="Grix's detector; default: as shipped")
    top.add_argument("--up-args", type=shlex.split, default=[], metavar="'ARGS'", help="more arguments of grix up")
    top.add_argument("--out", type=Path, metavar="DIR", help="write everything that was measured, and the picture")
    return top


def plan_of(args: argparse.Namespace) -> Plan:
    """What was asked for. Asking for one thing (``--streams``) leaves the others out."""
    fractions = args.open if args.open is not None else [] if args.streams else [0.8] if args.quick else [0.5, 0.8]
    models = args.models or list(FULL)
    return Plan(
        models=models,
        targets=args.targets,
        streams=args.streams or [1, 16, 64],
        open_fractions=fractions,
        rounds=args.rounds or (3 if args.quick else 7),
        setting=Setting(args.slots, args.profile, args.detector),
        sizes=QUICK if args.quick else FULL,
        up_args=args.up_args,
        peer_models=["tiny-qwen"] if args.quick else models,
        until_s=QUICK_UNTIL_S if args.quick else {},
    )


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; the exit status."""
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    alone = own_network.enter()
    args.profile = args.profile or ("fast" if alone else "standard")
    say(f"profile {args.profile}, in {'a network of its own' if alone else 'the network of this machine'}")
    plan = plan_of(args)
    client = Client()
    bench = Bench(plan, client)
    try:
        for model in plan.models:
            bench.measure_model(model)
    except (BenchmarkError, ModelError) as error:
        say(f"gateway: {error}")
        return 1
    except KeyboardInterrupt:
        say("gateway: interrupted")
        return 1
    finally:
        client.stop()
    report = Report(bench.samples, bench.facts)
    if args.out:
        report.write(args.out)
        rounds = " and ".join(f"{n} with {model}" for model, n in bench.facts["rounds"].items())
        where = f"{os.cpu_count()} cores, profile {args.profile}"
        caption = f"Medians over interleaved rounds ({rounds}), whiskers: quartiles. {where}."
        (args.out / "gateway.svg").write_text(svg(report, caption))
    if args.json:
        print(report.table(), file=sys.stderr)
        print(json.dumps(report.as_json(), indent=1))
    else:
        print(report.table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
