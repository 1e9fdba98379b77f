"""The language of a request: said by the caller, else heard by the detector, else the session's.

Where the route table names an agent for it, the words of a few that are in doubt are shown to that agent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from serve_app.attempts import Attempts
from serve_app.core import budget, pick, rules
from serve_app.core.language import LanguageGuess, is_doubtful
from serve_app.core.scripts import clean
from serve_app.core.snapshots import Target
from serve_app.core.table import Tenant
from serve_app.openai_request import bad
from serve_app.outcomes import GrixError
from serve_app.ports import AgentCall, Body, Detector, World
from serve_app.relay import Stream, close
from serve_app.sessions import RequestSession

#: A detector that does not answer in this time costs the request its language, never its answer.
DETECT_LIMIT_S: Final = 0.5
#: An agent that is not sooner with its word is not waited for.
CONFIRM_LIMIT_S: Final = 0.3
CONFIRM_TOKENS: Final = 8
QUESTION: Final = "Which language is the user's text in? Answer with its code and nothing else: {}."


async def language_of(detector: Detector, session: RequestSession, known: Collection[str]) -> LanguageGuess:
    """From the caller's header, else the detector, which keeps a session's language where it is in doubt."""
    said = session.parsed.language
    if said is not None:
        if said not in known:
            raise bad("x-language", f"is not a language of this service; known: {', '.join(sorted(known))}.")
        return LanguageGuess(said, budget.SCRIPT_OF.get(said, "Zyyy"), 1.0, "header", said)
    kept = session.language
    try:
        async with asyncio.timeout(DETECT_LIMIT_S):
            return await detector.detect(session.parsed.last_text, kept)
    except (TimeoutError, GrixError):
        return LanguageGuess(kept or "und", "Zyyy", 0.0, "session" if kept else "none")


async def confirmed(
    guess: LanguageGuess, session: RequestSession, world: World, tenant: Tenant, attempts: Attempts
) -> LanguageGuess:
    """The guess; for a short text in doubt what the route table's agent makes of it, asked once.

    It chooses among the table's codes. Whatever fails or is late keeps the guess. The text stays in this region, where
    the tenant's data may be, no agent is woken for it, and it is outside the tenant's limits.
    """
    table, text = world.table, session.parsed.last_text
    name, floor = table.languages.confirm, table.languages.min_confidence
    if name not in rules.allowed_agents(table, tenant) or not is_doubtful(guess, text, session.language, floor):
        return guess
    target = _running_here(name, guess, session, world, tenant, attempts)
    if target is None:
        return guess
    codes = sorted(table.languages.codes)
    asked = [{"role": "system", "content": QUESTION.format(", ".join(codes))}, {"role": "user", "content": clean(text)}]
    call = AgentCall(
        request_id=f"{session.record.request_id}-language",
        kind="chat",
        model=name,
        body={"messages": asked, "temperature": 0, "structured_outputs": {"choice": codes}},
        stream=False,
        max_tokens=CONFIRM_TOKENS,
        priority=tenant.priority,
        target=target.id,
        release=target.release,
        enqueued_unix_s=attempts.clock.unix_s(),
        queue_s=CONFIRM_LIMIT_S,
    )
    try:
        async with asyncio.timeout(CONFIRM_LIMIT_S):
            said = await _said(attempts.agents.call(target, call))
    except (TimeoutError, GrixError):
        return guess
    return replace(guess, language=said, source="confirmed") if said in codes else guess


def _running_here(
    name: str, guess: LanguageGuess, session: RequestSession, world: World, tenant: Tenant, attempts: Attempts
) -> Target | None:
    """This region's target of the agent, if it may have the text and has a replica that can answer now."""
    table, seen = world.table, world.snapshot
    wish = pick.Wish(
        agent=table.agents[name],
        tenant=tenant,
        language=guess.language,
        prompt_tokens=1,
        data_class=session.parsed.data_class,
        region=table.region.name,
    )
    known = attempts.targets.known(seen, attempts.clock.now_s())
    choice = pick.choose(seen, wish, table.scoring, blocked=known.blocked, in_flight=known.in_flight)
    here = (t for t in choice.order if t.region == table.region.name)
    return next((t for t in here if t.runs or t.health == "healthy"), None)


async def _said(frames: Stream) -> str | None:
    """What an unstreamed call says; ``None`` for what is no answer."""
    try:
        body = b"".join([frame.data async for frame in frames if isinstance(frame, Body)])
        said = json.loads(body)["choices"][0]["message"]["content"]
        return said.strip() if isinstance(said, str) else None
    except (ValueError, LookupError, TypeError):
        return None
    finally:
        await close(frames)
