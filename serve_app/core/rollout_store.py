"""Rollouts and past releases as JSON text, in the coordinator's facts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from serve_app.core.guards import Guards
from serve_app.core.rollout import TABLE, Rollout, RolloutPolicy
from serve_app.core.trial import ReleaseCount

#: Past rollouts that are kept, with what they were made of.
KEPT: Final = 8


@dataclass(frozen=True, slots=True)
class Past:
    """One rollout that is over. ``data`` and ``before`` are what releases are made of: see ``trial.data_of``."""

    revision: str
    who: str
    began_unix_s: float
    outcome: str
    why: str
    agents: Mapping[str, tuple[str, str]]
    data: str
    before: str
    is_back: bool = False


def rollout_text(rollout: Rollout | None) -> str:
    """Empty for none."""
    return "" if rollout is None else json.dumps(asdict(rollout), ensure_ascii=False)


def rollout_of(text: str) -> Rollout | None:
    """What :func:`rollout_text` made.

    Raises:
        ValueError: for anything else.
    """
    if not text:
        return None
    try:
        plain = json.loads(text)
        plain["agents"], plain["regions"] = _agents(plain["agents"]), tuple(plain["regions"])
        policy, baseline = plain["policy"], plain["baseline"]
        policy["steps"], policy["guards"] = tuple(policy["steps"]), Guards(**policy["guards"])
        plain["policy"] = RolloutPolicy(**policy)
        if baseline is not None:
            plain["baseline"] = ReleaseCount(**{**baseline, "first_tokens": tuple(baseline["first_tokens"])})
        made = Rollout(**plain)
        if made.phase not in TABLE or not (made.regions[made.region] and made.policy.steps[made.step]):
            raise ValueError(f"phase {str(made.phase)[:20]!r} at region {made.region}, step {made.step} is none")
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"is no rollout: {error}") from None
    return made


def history_text(history: Sequence[Past]) -> str:
    """The last :data:`KEPT` of them."""
    return json.dumps([asdict(past) for past in history[-KEPT:]], ensure_ascii=False) if history else ""


def history_of(text: str) -> tuple[Past, ...]:
    """What :func:`history_text` made.

    Raises:
        ValueError: for anything else.
    """
    try:
        return tuple(Past(**{**one, "agents": _agents(one["agents"])}) for one in json.loads(text or "[]"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"is no history of releases: {error}") from None


def _agents(plain: Any) -> dict[str, tuple[str, str]]:
    return {str(agent): (str(old), str(new)) for agent, (old, new) in plain.items()}
