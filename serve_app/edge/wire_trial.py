"""Tried releases as messages of ``grix.proto``, and back: what the plan says of one, and what a region reports."""

from __future__ import annotations

from typing import Final

from serve_app.core.trial import FIRST_TOKEN_MS, NO_TRIAL, ReleaseCount, Smoke, Stage, Trial, TrialReport
from serve_app.edge.protos import grix_pb2 as pb

#: Counts of one region: two releases of each agent.
MOST_COUNTS: Final = 2000


def trial_message(trial: Trial) -> pb.Trial:
    return pb.Trial(
        revision=trial.revision,
        move=trial.move,
        data=trial.data,
        stages=[pb.Stage(region=r, percent=s.percent, smoke=s.smoke) for r, s in trial.stages.items()],
        expected=[pb.Expected(region=r, agent=a, release=release) for (r, a), release in trial.expected.items()],
    )


def trial_of(message: pb.Trial) -> Trial:
    """A share above all is all: nothing else of a plan could mean it."""
    return Trial(
        revision=message.revision,
        move=message.move,
        data=message.data,
        stages={s.region: Stage(min(100, s.percent), s.smoke) for s in message.stages},
        expected={(e.region, e.agent): e.release for e in message.expected},
    )


def report_message(report: TrialReport) -> pb.TrialReport | None:
    """``None`` where nothing is tried."""
    if report == NO_TRIAL:
        return None
    return pb.TrialReport(
        revision=report.revision,
        move=report.move,
        percent=report.percent,
        smoke=report.smoke,
        why=report.why,
        counts=map(_count_message, report.counts),
    )


def report_of(message: pb.TrialReport) -> TrialReport:
    smoke: Smoke = "passed" if message.smoke == "passed" else "failed" if message.smoke == "failed" else ""
    counts = tuple(map(_count_of, message.counts))
    return TrialReport(message.revision, message.move, message.percent, smoke, message.why, counts)


def _count_message(count: ReleaseCount) -> pb.ReleaseCount:
    return pb.ReleaseCount(
        agent=count.agent,
        release=count.release,
        requests=count.requests,
        failed=count.failed,
        truncated=count.truncated,
        heard=count.heard,
        mismatched=count.mismatched,
        breaks=count.breaks,
        first_tokens=count.first_tokens,
    )


def _count_of(message: pb.ReleaseCount) -> ReleaseCount:
    return ReleaseCount(
        agent=message.agent,
        release=message.release,
        requests=message.requests,
        failed=message.failed,
        truncated=message.truncated,
        heard=message.heard,
        mismatched=message.mismatched,
        breaks=message.breaks,
        first_tokens=tuple(message.first_tokens[: len(FIRST_TOKEN_MS)]),
    )
