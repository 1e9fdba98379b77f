"""``grix status``: regions, targets, the plan and who serves for whom; without a coordinator, as a region knows it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from serve_app.cli import clusters, control, regions
from serve_app.cli.regions import NOTHING_UP
from serve_app.cli.say import Failed, out, out_json
from serve_app.cli.state import Home
from serve_app.cli.table import render

if TYPE_CHECKING:
    from serve_app.edge.serve_rest import AppStatus

FLEET: Final = "/grix/fleet"
CLEAR: Final = "\x1b[H\x1b[2J"
WATCH_S: Final = 1.0
_REDIS: Final = {
    "up": "answers",
    "down": "does NOT answer: each Router allows its part of the limits, and conversations are not kept",
}


def gather(home: Home, config: Sequence[Path] | None = None) -> dict[str, Any]:
    """Every region of this folder with its health and applications, the coordinator, and the fleet as it knows it.

    ``None`` is what was not told: ``applications`` of a cluster that is gone, ``coordinator`` where there is none.
    """
    state = home.read()
    told: dict[str, Any] = {"regions": [_region(r) for r in state["regions"]]}
    told["coordinator"] = None if state["coordinator"] is None else _coordinator(state["coordinator"])
    asked = control.admin(home, config)
    if asked is not None:
        told["coordinator"] = told["coordinator"] or {"name": "coordinator", "address": None, "alive": None}
        try:
            told["coordinator"] |= {"answers": True, "plan": control.ask(asked, "status")}
        except Failed as error:
            told["coordinator"] |= {"answers": False, "fault": str(error), "plan": None}
    told["fleet"] = _fleet(state["regions"])
    return told


def is_well(told: dict[str, Any]) -> bool:
    """Whether all of it is as it should be."""
    coordinator = told["coordinator"]
    return all(r["healthy"] for r in told["regions"]) and (coordinator is None or coordinator["answers"])


def _coordinator(record: dict[str, Any]) -> dict[str, Any]:
    told = {k: record[k] for k in ("name", "address", "dashboard", "pids")}
    return {**told, "alive": regions.is_alive(record)}


def _region(record: dict[str, Any]) -> dict[str, Any]:
    from serve_app.edge.serve_rest import ServeRestError

    told: dict[str, Any] = {k: record[k] for k in ("name", "url", "key_file", "dashboard", "pids")}
    alive = regions.is_alive(record)
    told |= {"alive": alive, "healthy": False, "health": "the cluster is gone", "applications": None}
    if not alive:
        return told
    told["healthy"], told["health"] = regions.deep_health(record)
    try:
        told["applications"] = [_app(a) for a in clusters.rest_of(record).status()]
    except (OSError, ServeRestError) as error:
        told["fault"] = str(error)
    return told


def _app(app: AppStatus) -> dict[str, Any]:
    """As ``--json`` tells it: replicas are counted by state."""
    parts = [{n: v for n, v in asdict(d).items() if n != "each"} | {"replicas": d.replicas} for d in app.deployments]
    return {"name": app.name, "status": app.status, "message": app.message, "deployments": parts}


def _fleet(records: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What the first region that answers decides from, with its weights and breakers; ``None`` without one."""
    for record in records:
        if not regions.is_alive(record):
            continue
        try:
            reply = regions.client(record).ask("GET", FLEET, timeout_s=5.0)
        except Failed:
            continue
        if reply.status == 200 and isinstance(reply.body, dict):
            return {"seen_by": record["name"], **reply.body}
    return None


def watch(home: Home, config: Sequence[Path] | None, *, as_json: bool) -> None:
    """Shows the status again and again, until it is interrupted."""
    while True:
        told = gather(home, config)
        if as_json:
            out_json(told)
        else:
            out(f"{CLEAR}{text_of(told)}")
        time.sleep(WATCH_S)


def text_of(told: dict[str, Any]) -> str:
    """The same for people."""
    if not told["regions"] and told["coordinator"] is None:
        return NOTHING_UP
    parts = [_coordinator_text(told["coordinator"])] if told["coordinator"] is not None else []
    plan = (told["coordinator"] or {}).get("plan")
    if plan is not None:
        parts.append(_plan_table(plan))
    if told["fleet"] is not None:
        parts.append(_fleet_text(told["fleet"], with_regions=plan is None))
    elif plan is not None and any(region["targets"] for region in plan["regions"]):
        parts.append(_reported_text(plan))
    parts += [_region_text(region) for region in told["regions"]]
    return "\n\n".join(parts)


def _coordinator_text(coordinator: dict[str, Any]) -> str:
    address = coordinator["address"] or ""
    if not coordinator["answers"]:
        fault = str(coordinator["fault"]).splitlines()[0]
        return f"coordinator {address}  does NOT answer, regions go on without it: {fault}"
    plan = coordinator["plan"]
    sending = "" if plan["sending"] else ", waits for regions before it sends a plan"
    store = f"\n  its store has a fault: {plan['store_fault']}" if plan.get("store_fault") else ""
    store += "".join(f"\n  held: {fault}" for policy in plan.get("held", ()) for fault in policy["unmet"])
    order = f"plan ({plan['epoch']}, {plan['generation']}), revision {plan['revision'] or 'none applied'}"
    return f"coordinator {address}  answers; {order}{sending}{store}"


def _plan_table(plan: dict[str, Any]) -> str:
    rows = []
    for region in plan["regions"]:
        spilled = ", ".join(f"{name} {rate:.1f}" for name, rate in region["spilled_rps"].items() if rate > 0)
        peers = ", ".join(f"{p['region']} {_peer(p)}" for p in region["peers"])
        why = [region["why"], region["state_why"] if region["drained"] else ""]
        rows.append(
            [
                region["name"],
                region["phase"],
                region["health"],
                region["drained_by"] or ("yes" if region["drained"] else "no"),
                region["heard_s_ago"],
                spilled or "none",
                peers or None,
                region["revision"] or None,
                "; ".join(part for part in why if part) or None,
            ]
        )
    head = ["region", "phase", "health", "drained", "heard s ago", "spilled req/s", "peers", "revision", "why"]
    return render(head, rows, frozenset({"heard s ago"}))


def _peer(peer: dict[str, Any]) -> str:
    if peer["silent_s"] is None:
        return peer["fault"] or "never heard"
    silent = f"{peer['silent_s']:.1f} s ago"
    return silent if peer["network_ms"] is None else f"{silent}, {peer['network_ms']:.1f} ms"


def _fleet_text(fleet: dict[str, Any], *, with_regions: bool) -> str:
    snapshot = fleet["snapshot"]
    age_s = fleet.get("plan_age_s")
    plan = "" if age_s is None else f"; the coordinator's plan was confirmed {age_s:.1f} s ago"
    order = f"({snapshot['epoch']}, {snapshot['generation']})"
    lines = [f"targets as {fleet['seen_by']} decides from them, snapshot {order}{plan}"]
    rows = []
    for target in snapshot["targets"]:
        marks = [m for m in ("drained", "drifted") if target[m]]
        marks += [f"breaker {target['breaker']}"] if target["breaker"] != "closed" else []
        rows.append([*_name(target["region"], target), f"{target['weight']:.2f}", *_load(target), _why(target, marks)])
    lines.append(_targets_table("weight", rows))
    if with_regions and snapshot["regions"]:
        seen = [
            [r["name"], r["health"], r["drained"], _ms(r["network_ms"]), r["why"] or None] for r in snapshot["regions"]
        ]
        lines += ["", render(["region", "health", "drained", "network ms", "why"], seen, frozenset({"network ms"}))]
    return "\n".join(lines)


def _reported_text(plan: dict[str, Any]) -> str:
    """Targets as an operator's machine can know them: no region is here that could tell what it decides from."""
    rows = []
    for region in plan["regions"]:
        for target in region["targets"]:
            marks = ["drifted"] if target["drifted"] else []
            rows.append([*_name(region["name"], target), target["replicas"], *_load(target), _why(target, marks)])
    return f"targets as their regions last reported them to the coordinator\n{_targets_table('replicas', rows)}"


def _targets_table(third: str, rows: list[list[Any]]) -> str:
    numbers = [third, "waiting", "running", "queue p95 ms", "first p95 ms", "KV"]
    return render(["target", "release", "health", *numbers, "why"], rows, frozenset(numbers))


def _name(region: str, target: dict[str, Any]) -> list[Any]:
    return [f"{region}/{target['agent']}", target["release"][:8], target["health"]]


def _load(target: dict[str, Any]) -> list[Any]:
    load = target["load"]
    waits = [_ms(load["queue_wait_p95_ms"]), _ms(load["first_token_p95_ms"])]
    return [load["waiting"], load["running"], *waits, _share(load["kv_cache_used_ratio"])]


def _why(target: dict[str, Any], marks: list[str]) -> str | None:
    return "; ".join([*marks, target["why"]]).strip("; ") or None


def _ms(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f}"


def _share(value: float | None) -> str | None:
    return None if value is None else f"{value:.0%}"


def _region_text(region: dict[str, Any]) -> str:
    health = "healthy" if region["healthy"] else f"NOT healthy: {regions.short_health(region['health'])}"
    lines = [f"{region['name']}  {region['url']}  {health}", f"  dashboard {region['dashboard']}"]
    redis = region["health"].get("redis") if isinstance(region["health"], dict) else None
    lines += [f"  redis     {_REDIS[redis]}"] if redis in _REDIS else []
    lines += [f"  {region['fault']}"] if "fault" in region else []
    rows = []
    for app in region["applications"] or []:
        rows.append([app["name"], "", app["status"], None, None])
        for part in app["deployments"]:
            states = ", ".join(f"{n} {s}" for s, n in part["replicas"].items())
            rows.append(["", part["name"], part["status"], states, part["target_replicas"]])
    if rows:
        lines.append(render(["app", "deployment", "state", "replicas", "wanted"], rows))
    return "\n".join(lines)
