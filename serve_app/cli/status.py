"""``grix status``: what is up, and how it is."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from serve_app.cli import regions
from serve_app.cli.regions import NOTHING_UP
from serve_app.cli.state import Home
from serve_app.cli.table import render


def gather(home: Home) -> dict[str, Any]:
    """Every region of the state with its health and applications; ``applications`` is ``None`` when not told."""
    state = home.read()
    return {"regions": [_region(r) for r in state["regions"]], "coordinator": state.get("coordinator")}


def _region(record: dict[str, Any]) -> dict[str, Any]:
    from serve_app.edge.serve_rest import ServeRest, ServeRestError

    told: dict[str, Any] = {k: record[k] for k in ("name", "url", "key_file", "dashboard", "pids")}
    alive = regions.is_alive(record)
    told |= {"alive": alive, "healthy": False, "health": "the cluster is gone", "applications": None}
    if not alive:
        return told
    told["healthy"], told["health"] = regions.deep_health(record)
    try:
        token = Path(record["token_file"]).read_text().strip()
        told["applications"] = [asdict(a) for a in ServeRest(record["dashboard"], token).status()]
    except (OSError, ServeRestError) as error:
        told["fault"] = str(error)
    return told


def text_of(told: dict[str, Any]) -> str:
    """The same for people."""
    if not told["regions"]:
        return NOTHING_UP
    lines = []
    for region in told["regions"]:
        health = "healthy" if region["healthy"] else f"NOT healthy: {regions.short_health(region['health'])}"
        lines += [f"{region['name']}  {region['url']}  {health}", f"  dashboard {region['dashboard']}"]
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
