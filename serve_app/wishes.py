"""What a request asks for: on which release its user is, and what it needs of a target."""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.core import budget, pick, rules
from serve_app.core.admission import Ask
from serve_app.core.table import Agent, Tenant, Timeouts
from serve_app.core.trial import user_hash
from serve_app.ports import RequestRecord, World
from serve_app.sessions import RequestSession


@dataclass(frozen=True, slots=True)
class Job:
    """What stays the same of a request, whichever release serves it."""

    tenant: Tenant
    session: RequestSession
    ask: Ask
    limits: Timeouts
    deadline_s: float
    record: RequestRecord


def on_release(world: World, tenant: Tenant, session: RequestSession, record: RequestRecord) -> World:
    """The world of this user: with the release in force, or with the one that is tried. Who says neither user nor
    session is another user with each request; who pins a release, of those in force, is none."""
    if world.tried is None or "@" in (session.parsed.model or ""):
        return world
    user = session.parsed.user_id or session.parsed.session_id or record.request_id
    record.tried, session.languages = world.tried.revision, world.table.languages
    record.canary_place = user_hash(record.tried, f"{tenant.name}/{user}")
    mine = world.of_user(record.canary_place)
    record.canary = mine.before is not None
    return mine


def moved_back(world: World, agent: Agent, record: RequestRecord) -> World:
    """The world before, for good: nobody can serve this user the tried release.

    An agent that only other regions run is not tried here: no break, the user is on its release in force.
    """
    assert world.before is not None
    record.canary, record.canary_break = False, True if agent.release else None
    return world.before


def wish_of(world: World, tenant: Tenant, session: RequestSession, facts: rules.Facts, route: rules.Route) -> pick.Wish:
    """What a routed request needs."""
    parsed, agent = session.parsed, route.agent
    old = None if world.before is None else world.before.table.agents.get(agent.name)
    return pick.Wish(
        agent=agent,
        tenant=tenant,
        language=facts.language,
        # Of a kept conversation as much goes along as fits.
        prompt_tokens=budget.least_prompt_tokens(parsed.text_bytes),
        preferred_cloud=route.preferred_cloud,
        pinned_release=route.pinned_release,
        data_class=parsed.data_class,
        region=world.table.region.name,
        session=session.key,
        kept=session.kept(agent.name),
        keeps=session.keeps,
        # Where both are the same there is nothing to try.
        release=None if old is None or old.release == agent.release else agent.release,
    )
