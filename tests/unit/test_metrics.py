"""The table of metrics: names, units and labels that stay few."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from autoscale.ray_policy import REASONS
from serve_app.core.reports import RegionPhase, StartStage
from serve_app.core.sessions import Store
from serve_app.edge.redis_sessions import Op, Why
from serve_app.metrics import BY_NAME, MS_BUCKETS, SCALING, TABLE, TASKS, TOKEN_BUCKETS, Metric
from serve_app.outcomes import Outcome, Reason
from serve_app.ports import Question

README = Path(__file__).resolve().parents[2] / "README.md"


def test_names_are_unique_and_found() -> None:
    assert len(BY_NAME) == len(TABLE)
    assert set(BY_NAME) == {
        "grix_requests_total",
        "grix_errors_total",
        "grix_retries_total",
        "grix_canary_breaks_total",
        "grix_spills_total",
        "grix_hops",
        "grix_breaker_trips_total",
        "grix_queue_wait_ms",
        "grix_wait_ms",
        "grix_first_token_ms",
        "grix_total_ms",
        "grix_tenant_requests_total",
        "grix_limited_total",
        "grix_admissions_total",
        "grix_reserved_tokens_total",
        "grix_prompt_tokens_total",
        "grix_completion_tokens_total",
        "grix_completion_tokens",
        "grix_truncated_total",
        "grix_session_requests_total",
        "grix_session_moves_total",
        "grix_language_questions_total",
        "grix_session_store_errors_total",
        "grix_config_put_back_total",
        "grix_preemptions_total",
        "grix_preemption_restores_total",
        "grix_missing_replicas",
        "grix_failed_starts_total",
    }


def test_the_scaling_policy_and_task_workers_have_metrics_of_their_own() -> None:
    assert not BY_NAME.keys() & {metric.name for metric in (*SCALING, *TASKS)}


@pytest.mark.parametrize("metric", (*TABLE, *SCALING, *TASKS), ids=lambda m: m.name)
def test_a_metric_is_well_formed(metric: Metric) -> None:
    assert re.fullmatch(r"grix_[a-z_]+", metric.name)
    assert metric.help.endswith(".")
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert bool(metric.buckets) == (metric.kind == "histogram")
    # Nothing of a request itself, which would have no bound.
    few = {"region", "agent", "language", "outcome", "status", "reason", "tenant", "decided_by", "op", "store", "to"}
    few |= {"class", "priority", "how"}
    assert set(metric.labels) <= few
    assert metric.labels[0] == "region"


@pytest.mark.parametrize("buckets", [MS_BUCKETS, TOKEN_BUCKETS])
def test_buckets_rise(buckets: tuple[int, ...]) -> None:
    assert list(buckets) == sorted(set(buckets)) and buckets[0] == 1


def test_milliseconds_reach_the_longest_default_limit() -> None:
    assert MS_BUCKETS[-1] == 600_000


@pytest.mark.parametrize(
    ("label", "values"),
    [
        ("`outcome`", (*get_args(Outcome), "none")),
        ("`reason` of `grix_errors_total`", get_args(Reason)),
        ("`reason` of `grix_failed_starts_total`", get_args(StartStage)),
        ("`op`, `reason` of `grix_session_store_errors_total`", (*get_args(Op), *get_args(Why))),
        ("`outcome` of `grix_language_questions_total`", get_args(Question)),
        ("`store`", get_args(Store)),
        ("`reason` of `grix_scale_*`", REASONS),
        ("`phase` of `grix_control_regions`", get_args(RegionPhase)),
    ],
)
def test_the_values_of_a_label_stand_in_the_readme(label: str, values: tuple[str, ...]) -> None:
    part = README.read_text("utf-8").partition("**Values of labels**")[2].partition("\n\nTo wake somebody")[0]
    (row,) = [line for line in part.splitlines() if line.startswith(f"| {label} |")]
    assert sorted(re.findall("`([a-z_]+)`", row.removeprefix(f"| {label} |"))) == sorted(values)
