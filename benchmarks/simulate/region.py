"""One region: the production state of its RegionAgent and its Router around a modelled engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from benchmarks.simulate.clock import Clock
from benchmarks.simulate.engine import Engine, Heard, Job
from benchmarks.simulate.links import Links
from serve_app.core.breaker import RouterBreakers
from serve_app.core.known_targets import KnownTargets
from serve_app.core.pick import Wish, choose
from serve_app.core.region_facts import FleetFacts
from serve_app.core.region_state import RegionCore
from serve_app.core.reports import PeerView
from serve_app.core.retry import RetryBudget, next_attempt
from serve_app.core.snapshots import Snapshot
from serve_app.core.table import Agent, Tenant
from serve_app.outcomes import Reason

REPORT_S: Final = 1.0
BEAT_S: Final = 0.3
WATCH_S: Final = 0.3
#: As in ``serve_app.edge.peer_client``: a peer that has not admitted a call by then is silent.
ACCEPT_LIMIT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Rules:
    """What all Routers of a simulation decide by. ``use_sessions`` off: turns are chosen for as if they were alone."""

    agent: Agent
    tenant: Tenant
    scoring: Mapping[str, float]
    preferred_cloud: str | None = None
    use_sessions: bool = True
    keep_picks: bool = True


class Log(Protocol):
    """Who notes what happens to requests. ``entry`` is where a request came in."""

    def sent(self, job: Job, entry: str) -> None: ...
    def began(self, job: Job, entry: str) -> None: ...
    def lose(self, why: str) -> None: ...


class SimRegion:
    """``engine_of`` makes an engine, a new one after each restart; ``others`` are all regions by name; ``draw`` is from
    [0, 1)."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        links: Links,
        rules: Rules,
        facts: FleetFacts,
        engine_of: Callable[[], Engine],
        log: Log,
        others: dict[str, SimRegion],
        draw: Callable[[], float],
    ) -> None:
        self.name, self._clock, self._links, self._rules, self._facts = name, clock, links, rules, facts
        self._engine_of, self._log, self._others, self._draw = engine_of, log, others, draw
        self.epoch = 0
        self.start()

    def start(self) -> None:
        """Begins with nothing but its configuration."""
        self.epoch += 1
        self.engine = self._engine_of()
        self.core = RegionCore(self._facts, self.epoch)
        self.known = KnownTargets(RouterBreakers(), self._hurry)
        self.budget = RetryBudget()
        self.kept: dict[str, str] = {}
        self.views: tuple[PeerView, ...] = ()
        self._links.restart(self.name)
        self.snapshot: Snapshot = self.core.snapshot_for("router", self._clock.now_s)

    def begin(self, phase: Callable[[float], float]) -> None:
        """Plans what it does for ever; ``phase`` draws when the first time is, so that regions are not in step."""
        for period_s, act in ((REPORT_S, self._report), (BEAT_S, self._exchange), (WATCH_S, self._watch)):
            self._clock.every(period_s, self._clock.now_s + phase(period_s), act)

    @property
    def is_dark(self) -> bool:
        return self.name in self._links.dark

    def die(self) -> None:
        """Goes dark with everything in it; those who wait for an answer from it find out by its silence."""
        self._links.dark.add(self.name)
        broken_s = self._clock.now_s + self._facts.peer_silence_s + BEAT_S
        for job in self.engine.die():
            entry = self._others[job.came_in]
            if entry is self:
                self._lose(job)
            else:
                self._clock.at(broken_s, entry.broke, job, job.attempt)

    def come_back(self) -> None:
        self._links.dark.discard(self.name)
        self.start()

    # ---- what a region tells ----

    def _report(self) -> None:
        if self.is_dark:
            return
        now_s, agent = self._clock.now_s, self._rules.agent
        for report in self.engine.reports(agent.app, agent.engine_digest):
            self.core.replica(report, now_s)
        self.core.router(self.known.breakers.report("router", now_s), now_s)

    def _exchange(self) -> None:
        if self.is_dark:
            return
        now_s = self._clock.now_s
        self.views = self._links.views(self.name, now_s)
        self.core.peers(self.views, now_s)
        self._links.beat(self.name, self.core.own_state(now_s), now_s)

    def _watch(self) -> None:
        if not self.is_dark:
            self.snapshot = self.core.snapshot_for("router", self._clock.now_s)

    def _hurry(self) -> None:
        self._clock.at(self._clock.now_s, self._tell_at_once)

    def _tell_at_once(self) -> None:
        if not self.is_dark:
            now_s = self._clock.now_s
            self.core.router(self.known.breakers.report("router", now_s), now_s)
            self._watch()

    # ---- a request ----

    def arrive(self, job: Job) -> None:
        """The request path: one choice, then attempts in its order."""
        now_s, request, rules = self._clock.now_s, job.request, self._rules
        session = request.session if rules.use_sessions else None
        known = self.known.known(self.snapshot, now_s)
        wish = Wish(
            agent=rules.agent,
            tenant=rules.tenant,
            language=request.language,
            prompt_tokens=request.prompt_tokens,
            preferred_cloud=rules.preferred_cloud,
            region=self.name,
            session=session,
            kept=self.kept.get(session) if session is not None else None,
            keeps=rules.keep_picks,
        )
        choice = choose(
            self.snapshot,
            wish,
            rules.scoring,
            blocked=known.blocked,
            in_flight=known.in_flight,
            draw=self._draw(),
        )
        job.came_in, job.epoch, job.order = self.name, self.epoch, choice.order
        if not choice.order:
            self._log.lose("refused")
            return
        self.budget.earn()
        self._try(job)

    def _try(self, job: Job) -> None:
        now_s = self._clock.now_s
        while (entry := self.known.begin(job.target, now_s)) is None:
            job.index += 1
            if job.index == len(job.order):
                self._log.lose("refused")
                return
        job.entry, job.sent_s, job.attempt = entry, now_s, job.attempt + 1
        self._log.sent(job, self.name)
        serving = self._others[job.target.region]
        self._clock.at(now_s + self._links.one_way_s(self.name, serving.name), serving.take, job, job.attempt)

    def take(self, job: Job, attempt: int) -> None:
        """A call comes in over the wire, from here or from a peer."""
        entry = self._others[job.came_in]
        if self.is_dark:
            self._clock.at(job.sent_s + ACCEPT_LIMIT_S, entry.broke, job, attempt)
            return
        self.engine.submit(job, Heard(self._first, self._ended, self._timed_out))

    def _first(self, job: Job) -> None:
        self._tell(job, SimRegion.heard_first)

    def _ended(self, job: Job) -> None:
        self._tell(job, SimRegion.heard_end)

    def _timed_out(self, job: Job) -> None:
        self._tell(job, SimRegion.heard_timeout)

    def _tell(self, job: Job, what: Callable[[SimRegion, Job], None]) -> None:
        entry = self._others[job.came_in]
        self._clock.at(self._clock.now_s + self._links.one_way_s(self.name, entry.name), entry.hear, job, what)

    def hear(self, job: Job, what: Callable[[SimRegion, Job], None]) -> None:
        if self._knows(job):
            what(self, job)
        elif what is SimRegion.heard_end:
            self._lose(job)

    def _lose(self, job: Job) -> None:
        """Lost with the region that it came in at; only its client can try again."""
        self._log.lose("entry mid-stream" if job.has_begun else "entry")

    def _knows(self, job: Job) -> bool:
        """A region that has been in the dark has lost what came in before."""
        return not self.is_dark and job.epoch == self.epoch

    def heard_first(self, job: Job) -> None:
        job.has_begun = True
        self.known.succeeded(job.target, job.entry, self._clock.now_s)
        if job.request.session is not None and self._rules.keep_picks:
            self.kept[job.request.session] = job.target.region
        if job.target.region != self.name:
            self.known.spilled(self._rules.agent.name, job.target.region, is_load=True)
        self._log.began(job, self.name)

    def heard_end(self, job: Job) -> None:
        self.known.ended(job.target)

    def heard_timeout(self, job: Job) -> None:
        self._failed(job, "queue_timeout")

    def broke(self, job: Job, attempt: int) -> None:
        """A peer has fallen silent on a call."""
        if not self._knows(job) or job.attempt != attempt:
            return
        if job.has_begun:
            self.known.ended(job.target)
            self._log.lose("mid-stream")
        else:
            self._failed(job, "peer_silent")

    def _failed(self, job: Job, reason: Reason) -> None:
        target = job.target
        self.known.failed(target, job.entry, reason, job.sent_s, self._clock.now_s)
        self.known.ended(target)
        again = next_attempt(reason, job.attempt, job.index, len(job.order), is_away=target.region != self.name)
        if again is None or not (again.is_free or self.budget.spend()):
            self._log.lose(reason)
            return
        job.index = again.index
        self._clock.at(self._clock.now_s + again.backoff_s, self._retry, job)

    def _retry(self, job: Job) -> None:
        if self._knows(job):
            self._try(job)
