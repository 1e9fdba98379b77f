"""From what is known about a request to an agent and a template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from serve_app.core.table import Agent, Budget, Languages, Rule, Table, Template, Tenant
from serve_app.outcomes import GrixError

#: In place of a rule's name, where the request names its agent.
BY_NAME: Final = "by-name"


@dataclass(frozen=True, slots=True)
class Facts:
    """What rules may look at. ``prompt_tokens`` is an estimate."""

    language: str
    intent: str | None
    prompt_tokens: int
    tenant: str


@dataclass(frozen=True, slots=True)
class Route:
    """The agent and template of a request, with the rule's name and why it matched."""

    rule: str
    agent: Agent
    template: Template | None
    preferred_cloud: str | None
    budget: Budget
    pinned_release: str | None
    reason: str


def same_language(a: str, b: str, languages: Languages) -> bool:
    """Whether two codes are one language for routing (``id`` and ``ms`` may be)."""
    return a == b or any(a in group and b in group for group in languages.equivalent)


def _mismatch(rule: Rule, facts: Facts, languages: Languages) -> str | None:
    """Why ``rule`` does not match, or ``None`` when it does."""
    if rule.languages is not None and not any(
        same_language(code, facts.language, languages) for code in rule.languages
    ):
        return f"language {facts.language} is not {'/'.join(sorted(rule.languages))}"
    if rule.intent is not None and rule.intent != facts.intent:
        return f"intent {facts.intent or 'unknown'} is not {rule.intent}"
    if rule.tenant is not None and rule.tenant != facts.tenant:
        return f"tenant {facts.tenant} is not {rule.tenant}"
    if rule.prompt_tokens_above is not None and facts.prompt_tokens <= rule.prompt_tokens_above:
        return f"prompt of about {facts.prompt_tokens} tokens is not above {rule.prompt_tokens_above}"
    return None


def _template(table: Table, wanted: str | None, language: str) -> Template | None:
    """The rule's template, else the language's own, else an equivalent language's, else the last rule's."""
    if wanted is not None:
        return table.templates.get(wanted)
    if language in table.templates:
        return table.templates[language]
    for code, template in sorted(table.templates.items()):
        if same_language(code, language, table.languages):
            return template
    fallback = table.rules[-1].template if table.rules else None
    return table.templates.get(fallback) if fallback else None


def allowed_agents(table: Table, tenant: Tenant) -> list[str]:
    """Names of the agents a tenant may use, sorted."""
    return sorted(n for n in table.agents if tenant.agents is None or n in tenant.agents)


def route(table: Table, tenant: Tenant, facts: Facts, model: str | None, hint: str | None = None) -> Route:
    """Rules for ``auto`` or no model; an agent's name skips rules; ``agent@release`` pins, for operators.

    ``hint`` names an agent too, but only as a wish: one that is not there, or not this tenant's, is passed over.

    Raises:
        GrixError: ``model_not_found`` for any other name, ``not_allowed`` for a pin by a non-operator,
            ``no_target`` when no rule matches.
    """
    if model is None or model == "auto":
        if hint not in allowed_agents(table, tenant):
            return _by_rules(table, tenant, facts)
        model = hint
    assert model is not None
    name, _, release = model.partition("@")
    agent = table.agents.get(name)
    if agent is None or (tenant.agents is not None and name not in tenant.agents):
        raise GrixError(
            "model_not_found",
            f"This model does not exist or you may not use it. Known: auto, "
            f"{', '.join(allowed_agents(table, tenant))}.",
            param="model",
        )
    if release and not tenant.operator:
        raise GrixError("not_allowed", "Only operators may pin a release.", param="model")
    if release and not agent.release.startswith(release):
        raise GrixError(
            "model_not_found",
            f"Agent {name} does not serve this release; it serves {agent.release[:12]}.",
            param="model",
        )
    return Route(
        rule=BY_NAME,
        agent=agent,
        template=_template(table, None, facts.language),
        preferred_cloud=None,
        budget=tenant.budget,
        pinned_release=release or None,
        reason=f"model names agent {name}",
    )


def _by_rules(table: Table, tenant: Tenant, facts: Facts) -> Route:
    for rule in table.rules:
        if tenant.agents is not None and rule.agent not in tenant.agents:
            continue
        if _mismatch(rule, facts, table.languages) is None:
            return Route(
                rule=rule.name,
                agent=table.agents[rule.agent],
                # The last rule's template is for languages that have none of their own.
                template=_template(table, None if rule is table.rules[-1] else rule.template, facts.language),
                preferred_cloud=rule.preferred_cloud,
                budget="english" if "english" in (rule.budget, tenant.budget) else "as-is",
                pinned_release=None,
                reason=_why(rule, facts),
            )
    raise GrixError("no_target", "No routing rule of this tenant matches the request.", param="model")


def _why(rule: Rule, facts: Facts) -> str:
    said = []
    if rule.languages is not None:
        said.append(f"language {facts.language}")
    if rule.intent is not None:
        said.append(f"intent {rule.intent}")
    if rule.tenant is not None:
        said.append(f"tenant {rule.tenant}")
    if rule.prompt_tokens_above is not None:
        said.append(f"prompt of about {facts.prompt_tokens} tokens is above {rule.prompt_tokens_above}")
    return "matched " + (" and ".join(said) if said else "everything")


def explain_rules(table: Table, facts: Facts) -> list[tuple[str, str]]:
    """Each rule with ``matches`` or why it does not, in matching order."""
    return [(r.name, _mismatch(r, facts, table.languages) or "matches") for r in table.rules]
