"""Calls to the region's RegionAgent, from replicas that do as well without one, and of it to Routers."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from serve_app.edge.federation_apps import REGION_APP

#: An app that is not there is looked for again after this: a region may never get one.
LOOK_AGAIN_S: Final = 10.0


class RegionAway(Exception):
    """There is no RegionAgent, or it does not answer in time."""


class RegionHandle:
    """The RegionAgent by handle, made off the loop when first asked for; each call is limited.

    ``deployment`` and ``app`` name who is asked, where it is not the RegionAgent.
    """

    def __init__(
        self, look_again_s: float = LOOK_AGAIN_S, deployment: str = "RegionAgent", app: str = REGION_APP
    ) -> None:
        self._who = (deployment, app)
        self._look_again_s = look_again_s
        self._handle: DeploymentHandle | None = None
        self._methods: dict[str, DeploymentHandle] = {}
        self._looked_s = float("-inf")

    async def ask(self, method: str, *args: Any, limit_s: float) -> Any:
        """What the method returns.

        Raises:
            RegionAway: at once where no RegionAgent is known, else at the latest after ``limit_s``.
        """
        try:
            async with asyncio.timeout(limit_s):
                response = (await self._method(method)).remote(*args)
                ended = False
                try:
                    answer = await response
                    ended = True
                    return answer
                finally:
                    if not ended:
                        response.cancel()
        except RegionAway:
            raise
        except TimeoutError:
            raise RegionAway(f"no answer to {method} within {limit_s:g} s") from None
        except Exception as error:  # what RegionAgent raised comes out as itself, what Ray raises is many
            raise RegionAway(f"{method} failed: {type(error).__name__}: {str(error)[-300:]}") from None

    async def _method(self, name: str) -> DeploymentHandle:
        if self._handle is None:
            if time.monotonic() - self._looked_s < self._look_again_s:
                raise RegionAway(f"no {self._who[0]}")
            self._looked_s = time.monotonic()
            try:
                self._handle = await asyncio.to_thread(serve.get_deployment_handle, *self._who)
            except (KeyError, RayServeException, RayError):
                raise RegionAway(f"no {self._who[0]}") from None
        if name not in self._methods:
            # The first .options() must run on the loop that will use the handle.
            self._methods[name] = self._handle.options(
                method_name=name, request_serialization="pickle", response_serialization="pickle"
            )
        return self._methods[name]
