"""How careful rollouts of a federation are, and what a release is asked before any user is."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from cluster_configs.fields import Block, Count, Items, LanguageCode, Ratio, Seconds, Text


def _steps(steps: tuple[int, ...]) -> tuple[int, ...]:
    if not steps or steps[-1] != 100 or list(steps) != sorted(set(steps)) or steps[0] < 1:
        raise ValueError(f"{list(steps)} are no steps; allowed: growing percents from 1 on, the last 100")
    return steps


class Guards(Block):
    """How much worse than the release before a new one may do: shares of its answers, and times its first token p95."""

    failed: Ratio = 0.05
    truncated: Ratio = 0.1
    mismatched: Ratio = 0.05
    first_token_times: Annotated[float, Field(ge=1, le=100)] = 1.5


class SmokeTest(Block):
    """A question of one language, asked with the new release before it has users.

    ``markers``: one of them stands in the answer, as the register wants it. ``own_instruction``: the template speaks
    its own language.
    """

    language: LanguageCode
    ask: Text
    markers: Items[Text] = ()
    own_instruction: bool = True


class Rollout(Block):
    """Steps of users in percent. A step ends after ``hold_s`` and ``min_samples`` answers of the new release, and fails
    after ``patience_s``. ``smoke`` are questions in place of those that the service has of its own."""

    steps: Annotated[Items[int], AfterValidator(_steps)] = (5, 20, 50, 100)
    hold_s: Seconds = Field(default=600.0, alias="hold")
    min_samples: Count = 50
    patience_s: Seconds = Field(default=3600.0, alias="patience")
    guards: Guards = Field(default_factory=Guards)
    smoke: Items[SmokeTest] = ()
