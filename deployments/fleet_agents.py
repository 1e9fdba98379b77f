"""The Agents port over the whole fleet: this region's engines by their handles, the other regions' by the gateway."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from serve_app.core.snapshots import Target
from serve_app.ports import AgentCall, Agents, Frame


class Peers(Protocol):
    """Calls to other regions."""

    def call(self, target: Target, call: AgentCall) -> AsyncGenerator[Frame, None]: ...


class FleetAgents:
    """``region`` names this one."""

    def __init__(self, own: Agents, peers: Peers, region: Callable[[], str]) -> None:
        self._own, self._peers, self._region = own, peers, region

    def call(self, target: Target, call: AgentCall) -> AsyncGenerator[Frame, None]:
        """Frames of one attempt; closing it cancels the work, wherever it runs."""
        own = target.region == self._region()
        return self._own.call(target, call) if own else self._peers.call(target, call)

    async def probe(self, app: str) -> bool:
        """Whether an engine of this region makes tokens."""
        return await self._own.probe(app)
