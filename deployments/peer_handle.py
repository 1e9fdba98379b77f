"""Calls to other regions behind the Agents port: over a handle to the RegionGateway, limited and cancellable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Final

from ray import serve
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from deployments.replicas import Finder, running_replicas
from serve_app.core.snapshots import Target
from serve_app.edge.federation_apps import REGION_APP
from serve_app.outcomes import GrixError
from serve_app.ports import AgentCall, Frame, Packet, Tail
from serve_app.task_forward import TaskCall, TaskPart

log = logging.getLogger("ray.serve")

#: The gateway itself gives a peer 1 s; what takes longer is this region's own gateway.
FIRST_LIMIT_S: Final = 1.5
#: The same of what is asked about a task: there it gives a peer 10 s.
TASK_FIRST_LIMIT_S: Final = 12.0
GATEWAY: Final = "RegionGateway"


class PeerAgents:
    """``call`` of the Agents port, for targets of other regions."""

    def __init__(self) -> None:
        self._handle: DeploymentHandle | None = None
        self._tasks: DeploymentHandle | None = None
        self._finder = Finder(lambda name: serve.get_deployment_handle(name, REGION_APP))

    async def keep(self) -> None:
        """Looks for the gateway until it is there; to be called again and again, off the request path."""
        if self._handle is not None:
            return
        for found in (await self._finder.found([GATEWAY])).values():
            # The first .options() must run on the loop that will use the handle.
            self._handle, self._tasks = (
                found.options(
                    stream=True, method_name=name, request_serialization="pickle", response_serialization="pickle"
                )
                for name in ("call", "task")
            )

    async def call(self, target: Target, call: AgentCall) -> AsyncGenerator[Frame, None]:
        """Frames of one attempt; a refusal is a Head with its reason. Closing this cancels the work in the peer.

        Raises:
            GrixError: ``no_target`` or ``replica_lost``, when this region's own gateway is not there or was lost.
        """
        handle = self._handle
        if handle is None or running_replicas(handle) == 0:
            raise GrixError("no_target", f"{target.id} cannot be reached: this region has no gateway now.")
        packets = handle.remote(target.region, call)
        ended = False
        try:
            packet = await self._first(target, packets)
            while True:
                # After its tail a call has nothing left to cancel.
                ended = bool(packet) and isinstance(packet[-1], Tail)
                for frame in packet:
                    yield frame
                packet = await anext(packets)
        except StopAsyncIteration:
            ended = True
        except GrixError:
            raise
        except Exception as error:  # what Serve and Ray raise for a lost actor are many
            log.warning(
                "the gateway failed in a call to %s: %s: %a", target.id, type(error).__name__, str(error)[-300:]
            )
            raise GrixError("replica_lost", "The gateway to the region that ran this request was lost.") from None
        finally:
            if not ended:
                packets.cancel()

    async def ask(self, region: str, call: TaskCall) -> AsyncGenerator[TaskPart, None]:
        """What a region answers about a task of its own; see :class:`serve_app.task_forward.TaskPeers`."""
        handle = self._tasks
        if handle is None or running_replicas(handle) == 0:
            raise GrixError("no_target", f"Region {region} cannot be reached: this region has no gateway now.")
        parts = handle.remote(region, call)
        ended = False
        try:
            async with asyncio.timeout(TASK_FIRST_LIMIT_S):
                part: TaskPart = await anext(parts)
            while part.failure is None:
                yield part
                part = await anext(parts)
            raise GrixError(part.failure.reason, part.failure.message)
        except StopAsyncIteration:
            ended = True
        except TimeoutError:
            raise GrixError("peer_silent", f"Region {region} cannot be reached: the gateway is silent.") from None
        except GrixError:
            raise
        except Exception as error:  # what Serve and Ray raise for a lost actor are many
            log.warning("the gateway failed to ask region %s: %s", region, type(error).__name__)
            raise GrixError("replica_lost", "The gateway to another region was lost.") from None
        finally:
            if not ended:
                parts.cancel()

    async def _first(self, target: Target, packets: DeploymentResponseGenerator) -> Packet:
        try:
            async with asyncio.timeout(FIRST_LIMIT_S):
                packet: Packet = await anext(packets)
                return packet
        except TimeoutError:
            raise GrixError("no_target", f"{target.id} cannot be reached: this region's gateway is silent.") from None
