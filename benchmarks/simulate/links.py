"""What is between regions: distance, beats that take their time, and darkness."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from serve_app.core.reports import PeerView, RegionState

#: Parts of the world on a circle; a round trip over half of it, and the least there is between two places.
ANGLES = {"asia": 0.0, "europe": 130.0, "americas": 240.0}
HALF_WORLD_MS = 250.0
LEAST_MS = 2.0


def places(parts: Sequence[str]) -> list[float]:
    """An angle for each region; those of a part of the world lie around its middle."""
    seen = dict.fromkeys(parts, 0)
    angles = []
    for part in parts:
        angles.append(ANGLES[part] + (seen[part] * 7.0) % 50.0 - 25.0)
        seen[part] += 1
    return angles


class Links:
    """Who hears whom. A region in the dark hears nobody and is heard by nobody; all notice by silence alone."""

    def __init__(self, names: Sequence[str], angles: Sequence[float]) -> None:
        self._angles = dict(zip(names, angles, strict=True))
        self._beats: dict[str, deque[tuple[float, RegionState]]] = {name: deque(maxlen=4) for name in names}
        self.dark: set[str] = set()

    def one_way_s(self, one: str, other: str) -> float:
        if one == other:
            return 0.0
        apart = abs(self._angles[one] - self._angles[other]) % 360.0
        return (LEAST_MS + HALF_WORLD_MS * min(apart, 360.0 - apart) / 180.0) / 2000.0

    def beat(self, region: str, state: RegionState, now_s: float) -> None:
        self._beats[region].append((now_s, state))

    def restart(self, region: str) -> None:
        self._beats[region].clear()

    def views(self, region: str, now_s: float) -> tuple[PeerView, ...]:
        """What the gateway of a region has heard of each peer by now."""
        return tuple(self._view(region, peer, now_s) for peer in self._beats if peer != region)

    def _view(self, region: str, peer: str, now_s: float) -> PeerView:
        way_s = self.one_way_s(region, peer)
        for sent_s, state in reversed(self._beats[peer]):
            if sent_s + way_s <= now_s:
                return PeerView(peer, now_s - sent_s - way_s, 2000.0 * way_s, state)
        return PeerView(peer, None)

    def nearest(self, region: str) -> str | None:
        """Where users go whose entry region is in the dark."""
        alive = [name for name in self._beats if name not in self.dark]
        return min(alive, key=lambda name: self.one_way_s(region, name), default=None)
