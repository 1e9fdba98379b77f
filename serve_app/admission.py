"""A request's way through the limits: what it asks for, the error when it may not, and the settling at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from serve_app.core import admission, budget
from serve_app.core.rate_headers import rate_headers
from serve_app.core.table import Table, Tenant
from serve_app.decision import Decision
from serve_app.openai_request import ParsedRequest
from serve_app.outcomes import UNKNOWN_RETRY_S, GrixError, Reason
from serve_app.ports import Clock, Grant, Limits, RequestRecord

_SAID: Final[dict[Reason, str]] = {
    "requests_limit": "Tenant {tenant} has used its {rpm} requests per minute here.",
    "tokens_limit": "Up to {tokens} tokens are needed; tenant {tenant} has less left of its {tpm} per minute here.",
    "concurrency_limit": "Tenant {tenant} has as many requests running as it may have at once: {concurrent}.",
    "root_limit": "This trace or session has as many requests running as it may have at once: {per_root}.",
    "batch_limit": "Batch work has its share of the slots of {agent}.",
}
#: Of a long wait so much is added at most, in whole seconds, so that those who wait do not come together. A short one
#: that is known is told as it is.
JITTER_RATIO: Final = 0.25
#: Their wait is a guess too: when one of those who hold a slot will have ended.
_SLOTS: Final[frozenset[Reason]] = frozenset({"concurrency_limit", "root_limit", "batch_limit"})


def ask_of(
    table: Table, tenant: Tenant, parsed: ParsedRequest, decision: Decision, record: RequestRecord
) -> admission.Ask:
    """What a decided request asks of the limits: the most tokens it can come to, and its slots."""
    agent = decision.route.agent
    choices = parsed.body.get("n") or 1
    # The estimate for rules is of what the caller wrote; the template's words are paid for too.
    template = decision.route.template if parsed.kind == "chat" else None
    added = budget.estimate_prompt_tokens([{"content": template.system}]) if template is not None else 0
    return admission.Ask(
        tenant=tenant.name,
        tokens=decision.facts.prompt_tokens + added + decision.budget.max_tokens * choices,
        requests_per_minute=tenant.limits.requests_per_minute,
        tokens_per_minute=tenant.limits.tokens_per_minute,
        slots=admission.slots_of(
            table.admission,
            tenant,
            agent,
            intent=parsed.intent,
            traceparent=record.traceparent,
            session_id=parsed.session_id,
        ),
    )


@dataclass(slots=True)
class Admission:
    """The limits of this moment, and the grants of requests that run. ``jitter`` draws from [0, 1)."""

    limits: Callable[[], Limits]
    clock: Clock
    jitter: Callable[[], float]
    _held: dict[int, tuple[Limits, Grant, float]] = field(default_factory=dict)
    #: By tenant, until when the next request would be refused, as its last one was told.
    _over_until_s: dict[str, float] = field(default_factory=dict)

    async def admit(
        self, table: Table, tenant: Tenant, parsed: ParsedRequest, decision: Decision, record: RequestRecord
    ) -> admission.Ask:
        """Reserves what the request may use, until :meth:`settle`; what that is.

        Raises:
            GrixError: one of the limits, with when to come back.
        """
        limits, ask = self.limits(), ask_of(table, tenant, parsed, decision, record)
        answer = await limits.admit(ask)
        wait_s = answer.retry_after_s if isinstance(answer, admission.Refused) else admission.next_s(answer.left)
        self._over_until_s[tenant.name] = self.clock.now_s() + wait_s
        if isinstance(answer, admission.Refused):
            said = _SAID[answer.reason].format(
                tenant=tenant.name,
                tokens=ask.tokens,
                rpm=ask.requests_per_minute,
                tpm=ask.tokens_per_minute,
                concurrent=tenant.limits.concurrent,
                per_root=table.admission.slots_per_root,
                agent=decision.route.agent.name,
            )
            told = rate_headers(answer.left)
            raise GrixError(answer.reason, said, retry_after_s=answer.retry_after_s, told=told)
        record.limits_by, record.tokens_reserved = answer.decided_by, ask.tokens
        self._held[id(record)] = (limits, answer, self.clock.now_s())
        return ask

    def is_over(self, tenant: Tenant) -> bool:
        """Whether the tenant is over its limits as far as is known here; asks nobody and takes nothing."""
        return self.clock.now_s() < self._over_until_s.get(tenant.name, 0.0)

    def headers(self, record: RequestRecord, *, ended: bool = False) -> dict[str, str]:
        """What an admitted request has left of its tenant's allowances, its own reservation taken.

        ``ended``: it is about to settle, and tells what is left then.
        """
        held = self._held.get(id(record))
        if held is None:
            return {}
        _, grant, since_s = held
        left = grant.left
        if ended:
            left = admission.left_after(left, grant.ask, self._spent(record, since_s))
        return rate_headers(left)

    def settle(self, record: RequestRecord) -> None:
        """Gives back what the request held and did not use; nothing for one that was never admitted."""
        held = self._held.pop(id(record), None)
        if held is None:
            return
        limits, grant, since_s = held
        limits.settle(grant, self._spent(record, since_s))

    def _spent(self, record: RequestRecord, since_s: float) -> admission.Spent:
        counted = (record.prompt_tokens, record.completion_tokens)
        used = None if None in counted else sum(n or 0 for n in counted)
        return admission.Spent(record.target is not None, used, self.clock.now_s() - since_s)

    def told_later(self, error: GrixError) -> GrixError:
        """The error with its Retry-After worked out and spread; others stay as they are.

        Where nothing better is known, a place is free when an average request has ended, if anybody is there to end it.
        To such a guess, which all who find no place get alike, none or one second is added at least.
        """
        if error.status.http in (429, 503):
            guess_s = UNKNOWN_RETRY_S if error.reason == "no_target" else self.limits().slot_free_s()
            known_s = guess_s if error.retry_after_s is None else error.retry_after_s
            is_guess = error.retry_after_s is None or error.reason in _SLOTS
            error.retry_after_s = known_s + int(self.jitter() * max(2.0 if is_guess else 1.0, JITTER_RATIO * known_s))
        return error
