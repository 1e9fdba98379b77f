"""A call of another region, served here: checked and admitted again, then run by this region's own agents."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

from serve_app.core import admission
from serve_app.core.sessions import session_key
from serve_app.core.snapshots import Target, local_snapshot
from serve_app.core.table import Agent, Table, Tenant
from serve_app.core.tenants import ANYBODY, check_residency
from serve_app.outcomes import GrixError, Reason
from serve_app.ports import (
    Accepted,
    AgentCall,
    Agents,
    Clock,
    Failure,
    Frame,
    Grant,
    Head,
    Limits,
    Origin,
    Packet,
    Tail,
)

log = logging.getLogger("ray.serve")

#: A spilled request has made its one hop; it is never sent on.
HOPS: Final = 1


@dataclass(frozen=True, slots=True)
class Served:
    """What this region serves to others, replaced whole. ``regions`` are those of the federation."""

    table: Table
    regions: frozenset[str]
    accepts_spill: bool
    targets: Mapping[str, Target]

    @classmethod
    def of(cls, table: Table, regions: Iterable[str], accepts_spill: bool) -> Served:
        targets = {t.agent: t for t in local_snapshot(table, 0).targets}
        return cls(table, frozenset(regions), accepts_spill, targets)

    @property
    def me(self) -> str:
        return self.table.region.name

    def tenant(self, name: str) -> Tenant | None:
        """The tenant as this region knows it: its key was checked where the request entered."""
        if self.table.open_access and name == ANYBODY.name:
            return ANYBODY
        return next((t for t in self.table.tenants if t.name == name), None)


@dataclass(slots=True)
class _Work:
    """One admitted call, and what is seen of it."""

    limits: Limits
    grant: Grant
    began_s: float
    started: bool = False
    tail: Tail | None = None


@dataclass(slots=True)
class PeerCalls:
    """Serves calls. ``keep_session`` takes over what of a session moved here: its tenant's key for it, and the JSON."""

    served: Callable[[], Served]
    agents: Agents
    limits: Callable[[], Limits]
    clock: Clock
    keep_session: Callable[[str, bytes], None]
    #: By agent, the release that this region tries beside the one in force.
    tried: Callable[[], Mapping[str, str]] = dict
    draining: bool = False

    async def run(self, peer: str, call: AgentCall) -> AsyncGenerator[Packet, None]:
        """The packets of a call of region ``peer``, the first at once. Closing this cancels the work.

        A refusal is a Head with its reason: what this region does not serve, another one may.
        """
        served, origin = self.served(), call.origin
        assert origin is not None
        work: _Work | None = None
        try:
            target, agent, tenant = self._checked(served, call, origin)
            work = await self._admitted(served, agent, tenant, origin)
            deadline_s = work.began_s + origin.deadline_s
            yield (Accepted(target.id, target.release),)
            if origin.session is not None and origin.carry:
                key = session_key(tenant.name, origin.data_class, origin.session)
                self.keep_session(key, origin.carry)
            # A peer may lower the priority that this region gives the tenant, not raise it.
            lowered = replace(call, priority=min(call.priority, tenant.priority))
            async with aclosing(self._frames(target, lowered, origin, deadline_s)) as packets:
                async for packet in packets:
                    first = packet[0]
                    work.started = work.started or (isinstance(first, Head) and first.failure is None)
                    work.tail = next((f for f in packet if isinstance(f, Tail)), None)
                    yield packet
        except GrixError as error:
            log.info("call of %s failed: request %a: %s", peer, call.request_id[:80], error.message)
            failure = Failure(error.reason, error.message, error.param, error.retry_after_s)
            tail = Tail(error.status.outcome, failure=failure)
            yield (tail,) if work is not None and work.started else (Head(failure=failure), tail)
        finally:
            if work is not None:
                self._settle(peer, call, work)

    def _checked(self, served: Served, call: AgentCall, origin: Origin) -> tuple[Target, Agent, Tenant]:
        """Whether this region may serve a call, and with what. Fails closed.

        Raises:
            GrixError: ``no_target``, which sends the request to another region, or an end that none can change.
        """
        agent, target = served.table.agents.get(call.model), served.targets.get(call.model)
        if self.draining:
            raise _not_here(f"Region {served.me} is ending.")
        if origin.hops != HOPS:
            raise _not_here(f"A request makes {HOPS} hop between regions, this one came with {origin.hops}.")
        if not served.accepts_spill:
            raise _not_here(f"Region {served.me} takes no requests of other regions.")
        if agent is None or target is None:
            raise _not_here(f"Region {served.me} does not serve this agent.")
        if call.release and call.release != target.release:
            if call.release != self.tried().get(agent.name):
                raise _not_here(f"Region {served.me} serves another release of {agent.name}.")
            target = replace(target, release=call.release)
        tenant = served.tenant(origin.tenant)
        if tenant is None:
            raise _not_here(f"Region {served.me} does not know this tenant.")
        if tenant.agents is not None and agent.name not in tenant.agents:
            raise _not_here(f"In region {served.me} this tenant may not use {agent.name}.")
        zones = target.residency
        entry = replace(tenant, residency=origin.residency)
        # Both sides' word counts: what either of them knows can only narrow where data may be.
        if not all(check_residency(t, zones, origin.data_class) for t in (tenant, entry)):
            raise _not_here(f"The data of this request may not be in region {served.me}.")
        return target, agent, tenant

    async def _admitted(self, served: Served, agent: Agent, tenant: Tenant, origin: Origin) -> _Work:
        limits, rules = self.limits(), served.table.admission
        slots = admission.slots_of(
            rules,
            tenant,
            agent,
            intent=admission.BATCH_INTENT if origin.batch else None,
            traceparent=origin.traceparent,
            session_id=origin.session,
        )
        per_minute = tenant.limits.requests_per_minute, tenant.limits.tokens_per_minute
        answer = await limits.admit(admission.Ask(tenant.name, origin.tokens_wanted, *per_minute, slots))
        if isinstance(answer, admission.Refused):
            raise _full(served.me, answer)
        return _Work(limits, answer, self.clock.now_s())

    async def _frames(
        self, target: Target, call: AgentCall, origin: Origin, deadline_s: float
    ) -> AsyncGenerator[Packet, None]:
        """The engine's frames after its own ``Accepted``.

        A stream's head goes with its first event, which comes with it. The head of a whole answer goes at once: the
        answer takes until the last token, and the entry waits for a head only as long as a first token may take.
        """
        stamped = replace(
            call,
            target=target.id,
            release=target.release,
            enqueued_unix_s=self.clock.unix_s(),
            queue_s=origin.queue_s,
            origin=None,
        )
        frames = self.agents.call(target, stamped)
        head: Head | None = None
        try:
            frame = await self._next(frames, origin.queue_s, deadline_s, "queue_timeout")
            if not isinstance(frame, Accepted):
                raise GrixError("upstream_invalid", "The engine sent an answer before it accepted the request.")
            while not isinstance(frame, Tail):
                frame = await self._next(frames, None, deadline_s, "total_timeout")
                if call.stream and isinstance(frame, Head) and frame.failure is None:
                    head = frame
                    continue
                yield (head, frame) if head is not None else (frame,)
                head = None
        except GrixError:
            if head is not None:
                yield (head,)
            raise
        finally:
            await frames.aclose()

    async def _next(
        self, frames: AsyncGenerator[Frame, None], limit_s: float | None, deadline_s: float, late: Reason
    ) -> Frame:
        left_s = deadline_s - self.clock.now_s()
        reason: Reason = late if limit_s is not None and limit_s < left_s else "total_timeout"
        try:
            async with asyncio.timeout(max(0.0, left_s if limit_s is None else min(left_s, limit_s))):
                return await anext(frames)
        except TimeoutError:
            raise GrixError(reason, "The serving region did not answer in time.") from None
        except StopAsyncIteration:
            raise GrixError("upstream_failed", "The engine closed the call before it ended.") from None

    def _settle(self, peer: str, call: AgentCall, work: _Work) -> None:
        held_s = self.clock.now_s() - work.began_s
        usage = work.tail.usage if work.tail is not None else None
        used = None if usage is None else usage.prompt_tokens + usage.completion_tokens
        work.limits.settle(work.grant, admission.Spent(work.started, used, held_s))
        assert call.origin is not None
        told = {
            "request_id": call.request_id,
            "from": peer,
            "tenant": call.origin.tenant,
            "agent": call.model,
            "traceparent": call.origin.traceparent,
            "outcome": work.tail.outcome if work.tail is not None else "cancelled",
            "tokens": used,
            "held_ms": round(held_s * 1000, 1),
        }
        log.info("served %s", json.dumps(told))


def _not_here(message: str) -> GrixError:
    return GrixError("no_target", message)


def _full(region: str, refused: admission.Refused) -> GrixError:
    """A limit of this region's: another one has its own."""
    said = f"Region {region} takes no more of this tenant's requests now: {refused.reason}."
    return GrixError("overloaded", said, retry_after_s=refused.retry_after_s)
