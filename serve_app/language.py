"""The language of a request: said by the caller, else heard by the detector, else the session's.

Where the route table names an agent for it, the words of a few that are in doubt are shown to that agent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from serve_app.attempts import Attempts
from serve_app.core import budget, pick, rules
from serve_app.core.admission import priority_of
from serve_app.core.language import LanguageGuess, is_doubtful
from serve_app.core.scripts import clean
from serve_app.core.snapshots import Target
from serve_app.core.table import Tenant
from serve_app.openai_request import bad
from serve_app.outcomes import GrixError
from serve_app.ports import AgentCall, Body, Detector, Question, World
from serve_app.relay import Stream, close
from serve_app.sessions import RequestSession

#: A detector that does not answer in this time costs the request its language, never its answer.
DETECT_LIMIT_S: Final = 0.5
#: An agent that is not sooner with its word is not waited for.
CONFIRM_LIMIT_S: Final = 0.3
CONFIRM_TOKENS: Final = 8
#: No limit of a tenant counts questions, so a Router has no more than these under way.
MOST_QUESTIONS: Final = 4
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


@dataclass(slots=True)
class Questions:
    """What one Router asks agents about languages. ``under_way`` are the questions that have no answer yet."""

    under_way: int = 0

    async def confirmed(
        self, guess: LanguageGuess, session: RequestSession, world: World, tenant: Tenant, attempts: Attempts
    ) -> LanguageGuess:
        """The guess; for a short text in doubt what the route table's agent makes of it, asked once.

        It chooses among the table's codes. Whatever fails or is late keeps the guess, and so does a question on top of
        :data:`MOST_QUESTIONS`. The text stays in this region, where the tenant's data may be, no agent is woken for it,
        and it is outside the tenant's limits. What came of it is written into the record.
        """
        languages, text = world.table.languages, session.parsed.last_text
        if languages.confirm is None or self.under_way >= MOST_QUESTIONS:
            return guess
        if not is_doubtful(guess, text, session.language, languages.min_confidence):
            return guess
        if languages.confirm not in rules.allowed_agents(world.table, tenant):
            return guess
        target = _idle_here(languages.confirm, guess, session, world, tenant, attempts)
        if target is None or not _begun(target, attempts):
            return guess
        self.under_way += 1
        try:
            said, session.record.language_question = await _asked(target, session, world, tenant, attempts)
        finally:
            self.under_way -= 1
            attempts.targets.ended(target)
        return guess if said is None else replace(guess, language=said, source="confirmed")


def _idle_here(
    name: str, guess: LanguageGuess, session: RequestSession, world: World, tenant: Tenant, attempts: Attempts
) -> Target | None:
    """This region's target of the agent, if it may have the text and has a replica that can answer now.

    Nobody asks where calls wait already, or where there is something to find out about the target.
    """
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
    look = pick.choose(seen, wish, table.scoring, blocked=known.blocked, in_flight=known.in_flight).look
    idle = (t for t, mark in zip(look.usable, look.marks, strict=True) if mark == "" and t.breaker == "closed")
    here = (t for t in idle if t.region == table.region.name)
    return next((t for t in here if t.runs or t.health == "healthy"), None)


def _begun(target: Target, attempts: Attempts) -> bool:
    """Whether a call to the target is counted as begun; its probe is left to a request."""
    entry = attempts.targets.begin(target, attempts.clock.now_s())
    if entry == "probe":
        attempts.targets.left(target, entry)
        attempts.targets.ended(target)
    return entry == "call"


async def _asked(
    target: Target, session: RequestSession, world: World, tenant: Tenant, attempts: Attempts
) -> tuple[str | None, Question]:
    """The code that the agent says, if it is one of the table's, and what came of the question."""
    codes, parsed = sorted(world.table.languages.codes), session.parsed
    shown = {"role": "user", "content": clean(parsed.last_text)}
    asked = [{"role": "system", "content": QUESTION.format(", ".join(codes))}, shown]
    call = AgentCall(
        request_id=f"{session.record.request_id}-language",
        kind="chat",
        model=target.agent,
        body={"messages": asked, "temperature": 0, "structured_outputs": {"choice": codes}},
        stream=False,
        max_tokens=CONFIRM_TOKENS,
        priority=priority_of(tenant, parsed.intent),
        target=target.id,
        release=target.release,
        enqueued_unix_s=attempts.clock.unix_s(),
        queue_s=CONFIRM_LIMIT_S,
    )
    try:
        async with asyncio.timeout(CONFIRM_LIMIT_S):
            said = await _said(attempts.agents.call(target, call))
    except TimeoutError:
        return None, "late"
    except GrixError:
        return None, "failed"
    if said is None:
        return None, "failed"
    return (said, "confirmed") if said in codes else (None, "kept")


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
