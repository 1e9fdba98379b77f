"""One request, top to bottom. Sequencing only: every decision is a pure function of ``serve_app.core``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from serve_app.admission import Admission
from serve_app.attempts import Attempts
from serve_app.core import budget, pick, rules
from serve_app.core.language import LanguageGuess
from serve_app.core.retry import ELSEWHERE
from serve_app.core.table import Tenant
from serve_app.core.tenants import Caller, KeyIndex
from serve_app.decision import Decision, agent_call, answer_headers, describe, nobody, note_serving, origin_of, shorten
from serve_app.language import Questions, language_of
from serve_app.openai_request import bad, parse_apart
from serve_app.outcomes import GrixError
from serve_app.ports import Clock, Detector, Journal, Kind, RequestRecord, Sessions, World
from serve_app.relay import Started, error_event
from serve_app.replies import Answer, refusal
from serve_app.sessions import RequestSession, open_session
from serve_app.wishes import Job, moved_back, on_release, wish_of


@dataclass(slots=True)
class RequestPath:
    """The path of a region. ``world`` gives the table and snapshot of this moment; one request reads it once."""

    world: Callable[[], World]
    keys: Callable[[], KeyIndex]
    detector: Detector
    admission: Admission
    attempts: Attempts
    sessions: Callable[[], Sessions]
    clock: Clock
    journal: Journal
    questions: Questions = field(default_factory=Questions)

    async def run(
        self, kind: Kind, caller: Caller | GrixError, raw: bytes, headers: Mapping[str, str], request_id: str
    ) -> Answer:
        """Answers one request; ``headers`` are lower-case, ``caller`` may be why it has none. Errors become answers."""
        record = RequestRecord(request_id, kind, headers.get("traceparent"))
        began_s = self.clock.now_s()
        try:
            return await self._run(caller, raw, headers, record, began_s)
        except GrixError as error:
            return self._refuse(error, record, began_s)
        except asyncio.CancelledError:
            record.outcome = "client_left"
            self._finish(record, began_s)
            raise
        except Exception:  # a bug of ours has a record too; the caller logs its trace
            self._refuse(GrixError("internal", ""), record, began_s)
            raise

    async def _run(
        self, caller: Caller | GrixError, raw: bytes, headers: Mapping[str, str], record: RequestRecord, began_s: float
    ) -> Answer:
        world = self.world()
        record.region = world.table.region.name
        if isinstance(caller, GrixError):
            raise caller
        tenant, record.tenant, record.key_id = caller.tenant, caller.tenant.name, caller.key_id
        parsed = await parse_apart(record.kind, raw, headers)
        session = await open_session(self.sessions(), world.table.region, tenant, parsed, record)
        world = on_release(world, tenant, session, record)
        decision = await self.decide(world, tenant, session, is_real=True)
        if not decision.choice.order:
            raise nobody(decision.choice, world.snapshot, self.attempts.targets, self.clock.now_s())
        ask = await self.admission.admit(world.table, tenant, parsed, decision, record)
        decision = await self._keep(world, session, decision, record)
        limits = shorten(decision.route.agent.timeouts, headers)
        deadline_s = began_s + limits.total_s
        job = Job(tenant, session, ask, limits, deadline_s, record)
        started, decision = await self._start(world, decision, job)
        if note_serving(decision, started, record, began_s):
            is_load = not decision.choice.has_room(record.region, {a["target"] for a in record.attempts})
            self.attempts.targets.spilled(decision.route.agent.name, started.target.region, is_load=is_load)
        session.begun()
        told = answer_headers(decision, started, record) | self.admission.headers(record) | session.headers()
        if parsed.stream:
            return Answer(200, told, self._stream(started, deadline_s, session, record, began_s))
        async with aclosing(self.attempts.relay(started, deadline_s, record)) as parts:
            body = b"".join([data async for data in parts])
        record.status = 200
        session.ended(body)
        self._finish(record, began_s)
        return Answer(200, told, body)

    async def _start(self, world: World, decision: Decision, job: Job) -> tuple[Started, Decision]:
        """The first call that said something. Where nobody who serves a tried release can, others serve the one in
        force."""
        record, agent = job.record, decision.route.agent
        call = agent_call(job.session.with_history(agent.max_model_len), job.tenant, decision, record.request_id)
        origin = origin_of(world.table, job.tenant, job.session.parsed, job.ask, record)
        origin, order = replace(origin, carry=job.session.carry()), decision.choice.order
        try:
            return await self.attempts.start(order, call, job.limits, job.deadline_s, record, origin), decision
        except GrixError as error:
            if world.before is None or error.reason not in ELSEWHERE:
                raise
            world = moved_back(world, agent, record)
            decision = self._decide(world, job.tenant, job.session, decision.guess)
            if not decision.choice.order:
                raise
            return await self._start(world, decision, job)

    async def explain(self, raw: bytes, headers: Mapping[str, str], tenant: Tenant) -> dict[str, Any]:
        """What would be decided about a chat request, as plain data; ``x-grix-as-tenant`` asks for another tenant."""
        world = self.world()
        known = {t.name: t for t in world.table.tenants}
        name = headers.get("x-grix-as-tenant", tenant.name)
        if name not in known and name != tenant.name:
            raise bad("x-grix-as-tenant", f"is not a tenant; known: {', '.join(sorted(known))}.")
        record = RequestRecord("explain", "chat", tenant=name, region=world.table.region.name)
        asked = known.get(name, tenant)
        parsed = await parse_apart("chat", raw, headers)
        session = await open_session(self.sessions(), world.table.region, asked, parsed, record)
        world = on_release(world, asked, session, record)
        decision = await self.decide(world, asked, session)
        matched = rules.explain_rules(world.table, decision.facts)
        return {**asdict(record), "rules": [{"rule": rule, "result": why} for rule, why in matched]}

    async def decide(self, world: World, tenant: Tenant, session: RequestSession, *, is_real: bool = False) -> Decision:
        """Language, rule, template, targets and budget of a request, written into its record. Where it ``is_real``, and
        its tenant is not over its limits, an agent may be asked about its language; else nothing is run."""
        guess = await language_of(self.detector, session, world.table.languages.codes)
        if is_real and not self.admission.is_over(tenant):
            guess = await self.questions.confirmed(guess, session, world, tenant, self.attempts)
        return self._decide(world, tenant, session, guess, self.attempts.jitter() if is_real else None)

    def _decide(
        self, world: World, tenant: Tenant, session: RequestSession, guess: LanguageGuess, draw: float | None = None
    ) -> Decision:
        table, parsed, record = world.table, session.with_history(), session.record
        record.model, record.stream, record.session_id = parsed.model, parsed.stream, parsed.session_id
        prompt_tokens = budget.prompt_tokens(parsed.text_bytes, len(parsed.messages) or 1)
        facts = rules.Facts(guess.language, parsed.intent, prompt_tokens, tenant.name)
        route = rules.route(table, tenant, facts, parsed.model, parsed.route_hint)
        route = session.stays(route, world, tenant)
        wish = wish_of(world, tenant, session, facts, route)
        choice = self._choose(world, wish, draw)
        if world.before is not None and not (choice.order and route.agent.release):
            return self._decide(moved_back(world, route.agent, record), tenant, session, guess, draw)
        tokens = budget.of_route(parsed.max_tokens, route, guess, table.languages.token_ratio)
        decision = Decision(guess, facts, route, wish, choice, tokens)
        describe(decision, record)
        return decision

    def _choose(self, world: World, wish: pick.Wish, draw: float | None = None) -> pick.Choice:
        seen, scoring = world.snapshot, world.table.scoring
        known = self.attempts.targets.known(seen, self.clock.now_s())
        return pick.choose(seen, wish, scoring, blocked=known.blocked, in_flight=known.in_flight, draw=draw)

    async def _keep(self, world: World, session: RequestSession, decision: Decision, record: RequestRecord) -> Decision:
        """Keeps the session's target; where another Router was first, the choice is made again around that one's."""
        first = decision.choice.order[0].region
        if await session.keep(decision.route.agent.name, first) != first:
            wish = replace(decision.wish, kept=session.kept(decision.route.agent.name))
            decision = replace(decision, wish=wish, choice=self._choose(world, wish))
            describe(decision, record)
        return decision

    async def _stream(
        self, started: Started, deadline_s: float, session: RequestSession, record: RequestRecord, began_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Bytes to the client; after the first token an error ends the stream in-band, without ``[DONE]``."""
        record.status = 200
        try:
            async with aclosing(self.attempts.relay(started, deadline_s, record)) as parts:
                async for data in parts:
                    try:
                        yield data
                    finally:  # who leaves at the end mark has had the answer
                        session.hear(data)
        except GrixError as error:
            record.outcome, record.error = error.status.outcome, error.reason
            yield error_event(error)
        except (asyncio.CancelledError, GeneratorExit):
            record.outcome = "client_left"
            raise
        finally:
            session.ended()
            self._finish(record, began_s)

    def _refuse(self, error: GrixError, record: RequestRecord, began_s: float) -> Answer:
        record.outcome, record.error, record.status = error.status.outcome, error.reason, error.status.http
        told = self.admission.headers(record, ended=True)
        self._finish(record, began_s)
        return refusal(error, record, told | self.admission.told_later(error).headers())

    def _finish(self, record: RequestRecord, began_s: float) -> None:
        record.total_ms = round((self.clock.now_s() - began_s) * 1000, 1)
        self.admission.settle(record)
        self.journal.finished(record)
