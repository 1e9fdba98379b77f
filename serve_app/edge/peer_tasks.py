"""What another region asks about tasks of this one: checked again, then answered as to this region's own tenants."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from serve_app.core.tenants import check_residency
from serve_app.edge.peer_calls import Served
from serve_app.edge.wire_tasks import PART_BYTES
from serve_app.outcomes import GrixError
from serve_app.task_desk import JSON, Answer, TaskDesk, Tasks, parsed
from serve_app.task_forward import RETRY_S, TaskCall, TaskPart

log = logging.getLogger("ray.serve")


@dataclass(slots=True)
class PeerTasks:
    """Answers peers. The tenant's key was checked where the request entered."""

    served: Callable[[], Served]
    tasks: Tasks
    draining: bool = False

    async def run(self, peer: str, call: TaskCall) -> AsyncGenerator[TaskPart, None]:
        """The head of the answer, then its body. Events end when this region does: they are asked for again."""
        try:
            answer = await self._answer(call)
        except GrixError as error:
            body = json.dumps(error.envelope()).encode()
            answer = Answer(error.status.http, body, {"content-type": JSON, **error.headers()})
        told = {"from": peer, "verb": call.verb, "tenant": call.tenant, "task": call.task_id, "status": answer.status}
        log.info("asked of tasks %s", json.dumps(told))
        yield TaskPart(answer.status, answer.headers)
        if isinstance(answer.body, bytes):
            for at in range(0, len(answer.body), PART_BYTES):
                yield TaskPart(data=answer.body[at : at + PART_BYTES])
            return
        async with aclosing(answer.body) as events:
            async for event in events:
                yield TaskPart(data=event)
                if self.draining:
                    return

    async def _answer(self, call: TaskCall) -> Answer:
        served = self.served()
        if self.draining:
            raise GrixError("tasks_away", f"Region {served.me} is ending.", retry_after_s=RETRY_S)
        if not served.accepts_spill or not served.table.task_agents:
            raise GrixError("not_allowed", f"Region {served.me} takes no tasks of other regions.")
        tenant = served.tenant(call.tenant)
        if tenant is None:
            raise GrixError("not_allowed", f"Region {served.me} does not know this tenant.")
        desk = TaskDesk(lambda: served.table, self.tasks)
        if call.verb != "submit":
            return await desk.ask(tenant, call.task_id, call.verb, call.headers.get("last-event-id", "0"))
        asked = await parsed(call.body, call.query, call.headers)
        # Both sides' word counts: what either of them knows can only narrow where data may be.
        entry, zones = replace(tenant, residency=call.residency), served.table.region.residency
        if not all(check_residency(entry, zones, part.parsed.data_class) for part in asked.parts):
            raise GrixError("residency", f"This tenant's data may not be kept in region {served.me}.")
        answer = await desk.submit(tenant, call.task_id, asked)
        if isinstance(answer, str):
            raise GrixError("task_conflict", f"This task was sent on to region {answer}.", param="task_id")
        return answer
