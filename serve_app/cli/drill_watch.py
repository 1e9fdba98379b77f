"""What a region that survives sees of the region of a drill, looked at every 50 ms."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from serve_app.cli.drill_stream import Entry
from serve_app.core.drill_verdict import Detector, Sight

POLL_S: Final = 0.05
FLEET: Final = "/grix/fleet"
_USABLE: Final = frozenset({"healthy", "slow", "stale"})


def sight_of(snapshot: Mapping[str, Any], region: str, agent: str, at_s: float) -> Sight:
    """One target, the region's agent that the drill's requests want, in the snapshot of another region.

    Others of the region's agents tell nothing of it: nobody asks them, so nobody finds out how they are.
    """
    target = next((t for t in snapshot["targets"] if (t["region"], t["agent"]) == (region, agent)), None)
    if target is None:
        return Sight(at_s, out=True)
    usable = target["health"] in _USABLE and target["breaker"] == "closed" and not target["drained"]
    # What is stale is a backup: it has no share, whatever its weight will be.
    weight = None if target["health"] == "stale" else target["weight"]
    return Sight(at_s, not usable, target["health"] == "slow", weight, _detector(target))


def _detector(target: Mapping[str, Any]) -> Detector:
    """By what it is out: the region's own calls, the coordinator's word, or its beats and what it says in them."""
    if target["health"] in _USABLE and target["breaker"] != "closed":
        return "passive"
    return "coordinator" if str(target["why"]).startswith("coordinator") else "peer"


class Watch:
    """Asks one entry for its snapshot again and again, in a thread of its own."""

    def __init__(self, entry: Entry, region: str, agent: str) -> None:
        self._entry, self._region, self._agent = entry, region, agent
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sights: list[Sight] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(10)

    def _run(self) -> None:
        connection = self._entry.client.connect(5.0)
        next_s = time.monotonic()
        while not self._ending.is_set():
            try:
                connection.request("GET", FLEET, headers=self._entry.headers)
                answer = connection.getresponse()
                told = json.loads(answer.read())
                if answer.status == 200:
                    self.sights.append(sight_of(told["snapshot"], self._region, self._agent, time.monotonic()))
            except (OSError, http.client.HTTPException, ValueError, KeyError):
                connection.close()
            next_s = max(next_s + POLL_S, time.monotonic())
            self._ending.wait(max(0.0, next_s - time.monotonic()))
        connection.close()
