"""RouteTable: which agent and template a request gets, and what the table knows about languages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, create_model

from cluster_configs.faults import Path, Problem
from cluster_configs.fields import (
    Block,
    Count,
    Document,
    Items,
    LanguageCode,
    Metadata,
    Name,
    Word,
    repeated,
    under,
)
from serve_app.core.scorers import default_weights

TokenRatio = Annotated[float, Field(gt=0, le=50)]
Weight = Annotated[float, Field(ge=0, le=1)]


def _one_or_more(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


class Match(Block):
    """What a request must be. Keys that are not written match everything, so ``{}`` matches every request."""

    lang: Annotated[Items[LanguageCode], Field(min_length=1), BeforeValidator(_one_or_more)] | None = None
    intent: Word | None = None
    tenant: Name | None = None
    prompt_tokens_above: Count | None = None

    def covers(self, other: Match) -> bool:
        """Whether every request that ``other`` matches is matched here too."""
        above, theirs = self.prompt_tokens_above, other.prompt_tokens_above
        return (
            (self.lang is None or (other.lang is not None and set(other.lang) <= set(self.lang)))
            and self.intent in (None, other.intent)
            and self.tenant in (None, other.tenant)
            and (above is None or (theirs is not None and theirs >= above))
        )


class RouteTarget(Block):
    """Where a rule sends a request. Without ``lang_template`` it gets its own language's template."""

    agent: Name
    lang_template: LanguageCode | None = None
    preferred_cloud: Name | None = None
    budget: Literal["as-is", "english"] = "as-is"


class Rule(Block):
    """One rule. Larger priorities are looked at first, then order counts."""

    may_be_empty: ClassVar[frozenset[str]] = frozenset({"match"})

    name: Word
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    match: Match
    target: RouteTarget


class Languages(Block):
    """Tokens against English, the floor under which a guess is not believed, and codes that are one language.

    ``confirm`` names a chat agent that is asked about a short text in doubt: one call of at most 300 ms.
    """

    token_ratio: Annotated[Mapping[LanguageCode, TokenRatio], Field(min_length=1)]
    min_confidence: Annotated[float, Field(ge=0, le=1)] = 0.5
    equivalent: Items[Items[LanguageCode]] = ()
    confirm: Name | None = None


# Weights of the scorers inside a tier, a key for each scorer there is; they sum to 1.
if TYPE_CHECKING:
    Scoring = Block
else:
    Scoring = create_model("Scoring", __base__=Block, **{name: (Weight, w) for name, w in default_weights().items()})


class RouteTableSpec(Block):
    """Rules as written; ``ordered`` is the order in which they are looked at."""

    rules: Annotated[Items[Rule], Field(min_length=1)]
    languages: Languages
    scoring: Scoring = Field(default_factory=Scoring)

    @property
    def ordered(self) -> tuple[Rule, ...]:
        """Rules by priority, larger first, then as written; the last matches everything."""
        return tuple(sorted(self.rules, key=lambda rule: -rule.priority))


class RouteTable(Document):
    """The document of kind RouteTable."""

    kind: Literal["RouteTable"] = "RouteTable"
    metadata: Metadata
    spec: RouteTableSpec

    def problems(self) -> Iterator[Problem]:
        """Rules that can never match, a request no rule matches, weights and languages that do not add up."""
        yield from _rules(self.spec.rules)
        yield from _languages(self.spec.languages)
        total = sum(self.spec.scoring.model_dump().values())
        if abs(total - 1) > 1e-6:
            yield Problem(under("scoring"), f"the weights sum to {total:.6g}; allowed: a sum of 1", (under("scoring"),))


def _rules(rules: tuple[Rule, ...]) -> Iterator[Problem]:
    everything: tuple[Path, ...] = (under("rules"),)
    for i, first in repeated([rule.name for rule in rules]):
        yield Problem(
            under("rules", i, "name"),
            f"'{rules[i].name}' is the name of rules[{first}] too; names are unique",
            (under("rules", i, "name"), under("rules", first, "name")),
        )
    order = sorted(range(len(rules)), key=lambda i: -rules[i].priority)
    last = rules[order[-1]]
    if not last.match.covers(Match()):
        yield Problem(
            under("rules"),
            f"the last rule '{last.name}' does not match everything, so some request would have no agent; "
            "end with a rule that has match: {}",
            everything,
        )
    elif last.target.lang_template is None:
        yield Problem(
            under("rules", order[-1], "target"),
            "langTemplate is missing: the last rule's template is for languages that have none of their own; "
            "write langTemplate: CODE",
            (under("rules"),),
        )
    for place, i in enumerate(order):
        hidden_by = next((j for j in order[:place] if rules[j].match.covers(rules[i].match)), None)
        if hidden_by is not None:
            yield Problem(
                under("rules", i),
                f"the rule '{rules[i].name}' can never match: '{rules[hidden_by].name}' comes first and matches all "
                "its requests; move it up, give it a larger priority, or remove it",
                everything,
            )


def _languages(languages: Languages) -> Iterator[Problem]:
    ratios, groups = languages.token_ratio, languages.equivalent
    if ratios.get("en", 1.0) != 1.0:
        yield Problem(
            under("languages", "tokenRatio", "en"),
            f"{ratios['en']:g} is not 1: ratios are against English; allowed: 1.0",
            (under("languages", "tokenRatio", "en"),),
        )
    here = under("languages", "equivalent")
    for i, group in enumerate(groups):
        if len(group) < 2:
            message = f"a group of {len(group)} says nothing; allowed: two or more codes"
            yield Problem((*here, i), message, ((*here, i),))
        if group and not any(code in ratios for code in group):
            yield Problem(
                (*here, i),
                f"none of {', '.join(group)} has a tokenRatio; give one of them a ratio",
                ((*here, i), under("languages", "tokenRatio")),
            )
    flat = [(i, j, code) for i, group in enumerate(groups) for j, code in enumerate(group)]
    for at, first in repeated([code for _, _, code in flat]):
        i, j, code = flat[at]
        message = f"'{code}' is in equivalent[{flat[first][0]}] already; a language is in one group"
        yield Problem((*here, i, j), message, (here,))
