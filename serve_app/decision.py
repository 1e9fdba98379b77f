"""What was decided about a request, as values and as plain data for logs and ``explain``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from cluster_configs.quantities import parse_duration_s
from serve_app.core import budget, pick, rules
from serve_app.core.admission import Ask, is_batch, priority_of
from serve_app.core.language import LanguageGuess
from serve_app.core.pick_order import Candidate
from serve_app.core.prompting import merge_system
from serve_app.core.snapshots import Snapshot
from serve_app.core.table import Table, Tenant, Timeouts
from serve_app.openai_request import ParsedRequest, bad
from serve_app.outcomes import GrixError
from serve_app.ports import AgentCall, Origin, RequestRecord, Targets
from serve_app.relay import Started

#: What an attempt ends with that found no free place: whoever answers after it, the request waited.
_NO_PLACE: Final = frozenset({"overloaded", "queue_timeout"})


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything decided about a request before anything is run."""

    guess: LanguageGuess
    facts: rules.Facts
    route: rules.Route
    wish: pick.Wish
    choice: pick.Choice
    budget: budget.TokenBudget


def shorten(limits: Timeouts, headers: Mapping[str, str]) -> Timeouts:
    """The policy's limits, shortened (never lengthened) by ``x-grix-{queue,first-byte,total}-timeout``."""
    for field in ("queue", "first_byte", "total"):
        name = f"x-grix-{field.replace('_', '-')}-timeout"
        if name in headers:
            try:
                wanted_s = parse_duration_s(headers[name])
            except ValueError as error:
                raise bad(name, str(error)) from None
            limits = replace(limits, **{f"{field}_s": min(getattr(limits, f"{field}_s"), wanted_s)})
    return limits


def agent_call(parsed: ParsedRequest, tenant: Tenant, decision: Decision, request_id: str) -> AgentCall:
    """The call of a decided request: the engine sees the template's words, the budget and the tenant's priority."""
    body = dict(parsed.body)
    if parsed.kind == "chat":
        template = decision.route.template
        body["messages"] = merge_system(parsed.messages, template.system if template else None)
    return AgentCall(
        request_id=request_id,
        kind=parsed.kind,
        model=decision.route.agent.name,
        body=body,
        stream=parsed.stream,
        max_tokens=decision.budget.max_tokens,
        priority=priority_of(tenant, parsed.intent),
    )


def origin_of(table: Table, tenant: Tenant, parsed: ParsedRequest, ask: Ask, record: RequestRecord) -> Origin:
    """Whose call it is, for another region, which checks residency and its own limits again.

    What is left of the request's limits is stamped at each attempt.
    """
    return Origin(
        tenant=tenant.name,
        residency=tenant.residency,
        data_class=parsed.data_class,
        traceparent=record.traceparent,
        session=parsed.session_id,
        batch=is_batch(tenant, parsed.intent, table.admission),
        tokens_wanted=ask.tokens,
        deadline_s=0.0,
        queue_s=0.0,
    )


def note_serving(decision: Decision, started: Started, record: RequestRecord, began_s: float) -> bool:
    """Writes who answers into the record; whether this region had to let go what stable facts want answered here."""
    target = started.target
    record.max_tokens = started.head.max_tokens
    record.wait_ms = round((started.head_s - began_s) * 1000, 1)
    record.queued = started.head.queued or any(attempt["result"] in _NO_PLACE for attempt in record.attempts)
    record.target, record.release, record.serving_region = target.id, target.release, target.region
    record.hops = 0 if target.region == record.region else 1
    record.spilled = target.region not in decision.choice.preferred
    return record.spilled and record.hops == 1 and record.region in decision.choice.preferred


def nobody(choice: pick.Choice, snapshot: Snapshot, targets: Targets, now_s: float) -> GrixError:
    """Nothing can answer: why, and when the soonest that could may be asked again, by its region and this Router both,
    as far as anybody knows."""
    back_s = []
    for away in choice.away:
        known_s = (targets.recover_s((away,), now_s), snapshot.recover_s(away.id, now_s))
        back_s.extend([max(told)] if (told := [s for s in known_s if s is not None]) else [])
    message = f"Nothing can answer: {choice.reason}."
    return GrixError(choice.refused or "no_target", message, retry_after_s=min(back_s, default=None))


def answer_headers(decision: Decision, started: Started, record: RequestRecord) -> dict[str, str]:
    """What an answer tells about how it came to be. ``x-request-id`` is Serve's to set."""
    told = {
        "x-grix-region": started.target.region,
        "x-grix-agent": decision.route.agent.name,
        "x-grix-release": started.target.release[:12],
        "x-grix-language": decision.guess.language,
        "x-grix-rule": decision.route.rule,
        "x-grix-hops": str(record.hops),
        "x-grix-max-tokens": str(started.head.max_tokens),
    }
    if record.queued:
        told["x-grix-queued"] = "1"
    if record.stream:
        stream = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        return {**told, **stream, "x-accel-buffering": "no"}
    return {**told, "content-type": "application/json"}


def describe(decision: Decision, record: RequestRecord) -> None:
    """Writes a decision into a record as plain data."""
    guess, route = decision.guess, decision.route
    record.language, record.script, record.confidence = guess.language, guess.script, guess.confidence
    record.language_source = guess.source
    record.rule, record.rule_reason, record.agent = route.rule, route.reason, route.agent.name
    record.wanted_release = route.agent.release if record.tried else None
    record.template = f"{route.template.language} v{route.template.version}" if route.template else None
    record.budget = asdict(decision.budget)
    record.prompt_tokens_estimate = decision.facts.prompt_tokens
    record.candidates = [candidate_row(c) for c in decision.choice.candidates]
    record.reason = decision.choice.reason


def candidate_row(candidate: Candidate) -> dict[str, Any]:
    """A candidate as ``explain`` shows it: target, tier, score, its parts, what is special; or why it was dropped."""
    score = None if candidate.score is None else round(candidate.score, 3)
    return {
        "target": candidate.target.id,
        "health": candidate.target.health,
        "tier": candidate.tier,
        "score": score,
        "scores": {k: round(v, 3) for k, v in candidate.scores.items()},
        "weight": round(candidate.target.weight, 3),
        "mark": candidate.mark,
        "dropped": candidate.dropped,
    }
