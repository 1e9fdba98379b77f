"""The coordinator's rollout: at most one runs, and what is over stays known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from serve_app.core.fleet_events import COORDINATOR, Refused, Roll, Steer, Wanted
from serve_app.core.fleet_member import Member, named
from serve_app.core.rollout import Rollout, Unfit
from serve_app.core.rollout_driver import Driver, Sight
from serve_app.core.rollout_store import Past, history_text, rollout_text
from serve_app.core.trial import Trial, data_of

#: Of what a region says of itself, so much is told on.
MOST_WHY: Final = 300
NOTHING_RUNS: Final = "no rollout runs; begin one with: grix rollout start PATH…"


@dataclass(frozen=True, slots=True)
class Turn:
    """One transition, for the audit log and the store. ``adopt``: these documents are those in force from now on."""

    who: str
    region: str
    before: str
    after: str
    why: str
    adopt: Wanted | None
    rollout: str
    history: str


@dataclass(slots=True)
class Rollouts:
    """``new`` and ``before`` are what the documents of the rollout that runs, and those before it, ask for."""

    driver: Driver | None = None
    new: Wanted | None = None
    before: Wanted | None = None
    history: tuple[Past, ...] = ()
    _made: tuple[Rollout, Trial | None] | None = field(default=None, repr=False)

    @property
    def running(self) -> Rollout | None:
        return None if self.driver is None else self.driver.rollout

    def busy(self) -> Refused | None:
        """Why neither another rollout can begin nor other documents be applied now."""
        if (running := self.running) is None:
            return None
        said = f"a rollout of {named(running.agents)} runs, {running.revision}, by {running.who}"
        return Refused((f"{said}; wait for its end, or take it back with: grix rollout abort",))

    @property
    def gives_way(self) -> bool:
        """Whether other documents may be applied while it runs: a region does not take those to settle on."""
        return self.driver is not None and self.driver.is_late

    def replaced(self, who: str, now_s: float) -> Turn | None:
        """Other documents are applied: what runs, and gives way, is over."""
        if self.driver is None:
            return None
        was = self.driver.rollout.phase
        return self._turn(who, was, self.driver.steer("replaced", who, now_s))

    def handle(self, event: Roll | Steer, now_s: float) -> Turn | Refused:
        """An operator's event."""
        if isinstance(event, Roll):
            if (busy := self.busy()) is not None:
                return busy
            self.driver, self.new, self.before = Driver(event.rollout, now_s), event.new, event.before
            return self._turn(event.rollout.who, "", event.rollout)
        if self.driver is None:
            return Refused((NOTHING_RUNS,))
        was = self.driver.rollout
        try:
            return self._turn(event.who, was.phase, self.driver.steer(event.act, event.who, now_s))
        except Unfit as error:
            return Refused((str(error),))

    def look(self, members: Mapping[str, Member], wanted: Wanted, now_s: float) -> Turn | None:
        """What follows from what regions told."""
        if self.driver is None:
            return None
        was = self.driver.rollout.phase
        sights = {name: _sight(member, wanted, now_s) for name, member in members.items()}
        made = self.driver.look(sights, now_s)
        return None if made is None else self._turn(COORDINATOR, was, made)

    def _turn(self, who: str, before: str, rollout: Rollout) -> Turn:
        adopt = {"adopting": self.new, "reverting": self.before}.get(rollout.phase)
        share = f" {rollout.stages()[rollout.current].percent} %" if rollout.phase == "canary" else ""
        region = "" if rollout.is_settling or rollout.is_over else rollout.current
        if rollout.is_over:
            self.history = (*self.history, _past(rollout))
            self.driver = self.new = self.before = None
        stored = rollout_text(self.running), history_text(self.history)
        return Turn(who, region, before, rollout.phase + share, rollout.why, adopt, *stored)

    def trial(self) -> Trial | None:
        """The part of the plan. Made once for each transition: it is compared with each heartbeat."""
        rollout = self.running
        if rollout is None:
            return None
        if self._made is None or self._made[0] is not rollout:
            self._made = (rollout, self._trial(rollout))
        return self._made[1]

    def _trial(self, rollout: Rollout) -> Trial | None:
        stages = rollout.stages()
        wanted = self.before if rollout.phase == "reverting" else self.new
        if not stages or wanted is None:
            return None
        expected = {key: release for key, release in wanted.expected.items() if key[0] in stages}
        data = data_of(json.loads(wanted.documents))
        return Trial(wanted.revision, rollout.move, data, stages, expected)


def _sight(member: Member, wanted: Wanted, now_s: float) -> Sight:
    state = member.state
    linked = member.link is not None and member.fresh(wanted, now_s) and state is not None
    if state is None:
        return Sight(linked)
    if state.revision == wanted.revision:
        return Sight(linked, member.shown.drained, True, state.trial)
    why = state.why[:MOST_WHY] if state.refused == wanted.revision else f"it has {state.revision or 'none'}"
    return Sight(linked, member.shown.drained, False, state.trial, why)


def _past(rollout: Rollout) -> Past:
    return Past(
        revision=rollout.revision,
        who=rollout.who,
        began_unix_s=rollout.began_unix_s,
        outcome=rollout.phase,
        why=rollout.why,
        agents=rollout.agents,
        data=data_of(json.loads(rollout.documents)),
        before=data_of(json.loads(rollout.before)),
        is_back=rollout.is_back,
    )
