"""Every metric of Grix in one table: name, kind, help, labels, buckets. Adapters build real metrics from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

#: Milliseconds, roughly doubling: from a handle hop to a long generation.
MS_BUCKETS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 300_000, 600_000)
#: Tokens, doubling.
TOKEN_BUCKETS: Final = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. Label values come from configuration or enums, never from a request."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


TABLE: Final[tuple[Metric, ...]] = (
    Metric(
        "grix_requests_total",
        "counter",
        "Requests that ended, by outcome and HTTP status.",
        ("region", "agent", "language", "outcome", "status"),
    ),
    Metric("grix_errors_total", "counter", "Requests that ended with an error of ours.", ("region", "reason")),
    Metric("grix_retries_total", "counter", "Attempts after the first.", ("region", "agent")),
    Metric(
        "grix_spills_total",
        "counter",
        "Answers from another region than the preferred one, by the region that gave them.",
        ("region", "agent", "to"),
    ),
    Metric(
        "grix_canary_breaks_total",
        "counter",
        "Users moved back to the release in force, as nobody could serve them the tried one.",
        ("region", "agent"),
    ),
    Metric(
        "grix_hops", "histogram", "Regions that an answered request was handed on to.", ("region", "agent"), (0.5, 1.5)
    ),
    Metric(
        "grix_breaker_trips_total",
        "counter",
        "Breakers that a request's failure opened, by the region of the target.",
        ("region", "agent", "to"),
    ),
    Metric(
        "grix_queue_wait_ms",
        "histogram",
        "From the handle call to the engine's schedule, last attempt.",
        ("region", "agent"),
        MS_BUCKETS,
    ),
    Metric(
        "grix_wait_ms",
        "histogram",
        "From arrival to the first token ready for the client, retries included.",
        ("region", "agent"),
        MS_BUCKETS,
    ),
    Metric(
        "grix_first_token_ms",
        "histogram",
        "From the handle call to the engine's first token.",
        ("region", "agent"),
        MS_BUCKETS,
    ),
    Metric("grix_total_ms", "histogram", "From arrival to the last byte.", ("region", "agent"), MS_BUCKETS),
    Metric(
        "grix_tenant_requests_total", "counter", "Requests of a tenant that ended.", ("region", "tenant", "outcome")
    ),
    Metric("grix_limited_total", "counter", "Requests that a limit refused.", ("region", "tenant", "reason")),
    Metric(
        "grix_admissions_total",
        "counter",
        "Admitted requests by who decided: the region's Redis, this Router alone, or nobody as there is no limit.",
        ("region", "decided_by"),
    ),
    Metric(
        "grix_reserved_tokens_total",
        "counter",
        "Tokens reserved for a tenant's admitted requests; what was used is in the two counters of tokens.",
        ("region", "tenant"),
    ),
    Metric(
        "grix_session_requests_total",
        "counter",
        "Requests of a session by what its store was: kept, degraded (read, not written) or off.",
        ("region", "store"),
    ),
    Metric(
        "grix_session_moves_total",
        "counter",
        "Requests whose session left the region that had answered it.",
        ("region", "agent"),
    ),
    Metric(
        "grix_session_store_errors_total",
        "counter",
        "What the region's store of sessions did not do: open, pick or write; gone, full, late or refused.",
        ("region", "op", "reason"),
    ),
    Metric(
        "grix_language_questions_total",
        "counter",
        "Questions to an agent about a language: confirmed, kept (the answer was none of the codes), late or failed.",
        ("region", "outcome"),
    ),
    Metric("grix_prompt_tokens_total", "counter", "Prompt tokens.", ("region", "agent", "tenant")),
    Metric("grix_completion_tokens_total", "counter", "Answer tokens.", ("region", "agent", "tenant")),
    Metric(
        "grix_completion_tokens",
        "histogram",
        "Answer tokens of one request.",
        ("region", "agent", "language"),
        TOKEN_BUCKETS,
    ),
    Metric(
        "grix_truncated_total",
        "counter",
        "Answers that ended at their token budget.",
        ("region", "agent", "language"),
    ),
    Metric(
        "grix_config_put_back_total",
        "counter",
        "Applications whose Serve config somebody else had changed, and the RegionAgent put back.",
        ("region",),
    ),
    Metric(
        "grix_preemptions_total",
        "counter",
        "Times that the most replicas of an agent were lowered, by the more important agent that needed the room.",
        ("region", "agent", "to"),
    ),
    Metric(
        "grix_preemption_restores_total",
        "counter",
        "Times that an agent that had given way could have its replicas again.",
        ("region", "agent"),
    ),
    Metric(
        "grix_missing_replicas",
        "gauge",
        "Replicas that an agent wants and for which there is no room, nor anybody who could give way.",
        ("region", "agent"),
    ),
    Metric(
        "grix_failed_starts_total",
        "counter",
        "Replicas that ended before they ever served, by what they were at: fetch, turn, load or warm_up.",
        ("region", "agent", "reason"),
    ),
)

BY_NAME: Final[dict[str, Metric]] = {m.name: m for m in TABLE}

#: Of task workers.
TASKS: Final[tuple[Metric, ...]] = (
    Metric(
        "grix_task_attempts_total",
        "counter",
        "Attempts at tasks that ended: done, retried, put_off, lost, or why the task became a dead letter.",
        ("region", "class", "how"),
    ),
    Metric("grix_task_takeovers_total", "counter", "Tasks that another worker was silent about.", ("region", "class")),
    Metric("grix_tasks_waiting", "gauge", "Tasks that nobody works at yet.", ("region", "class", "priority")),
    Metric(
        "grix_task_oldest_wait_s",
        "gauge",
        "How long the task has waited that waits longest, 0 where none does.",
        ("region", "class", "priority"),
    ),
    Metric("grix_task_workers", "gauge", "Workers that were heard of lately.", ("region", "class")),
    Metric(
        "grix_task_dead_letters",
        "gauge",
        "Tasks that became dead letters so far, by reason: alert when it grows.",
        ("region", "class", "reason"),
    ),
)

#: Of the scaling policy, which runs in Serve's controller.
SCALING: Final[tuple[Metric, ...]] = (
    Metric(
        "grix_scale_wanted_replicas",
        "gauge",
        "Replicas that the scaling policy wants now, before Serve's delays.",
        ("region", "agent"),
    ),
    Metric(
        "grix_scale_reason",
        "gauge",
        "1 for the reason of the last scaling decision, 0 for earlier ones.",
        ("region", "agent", "reason"),
    ),
    Metric(
        "grix_scale_changes_total",
        "counter",
        "Times that another number of replicas was wanted than before, by reason.",
        ("region", "agent", "reason"),
    ),
    Metric(
        "grix_scale_quiet_s",
        "gauge",
        "How long fewer replicas have been wanted without a break; Serve acts when it reaches the cooldown.",
        ("region", "agent"),
    ),
    Metric(
        "grix_scale_above_ms",
        "gauge",
        "Queue wait above which a replica is added, as the replicas told the scaling policy; 0 where none is in force.",
        ("region", "agent"),
    ),
)

#: Of the coordinator, which exports them itself.
CONTROL: Final[tuple[Metric, ...]] = (
    Metric("grix_control_serving", "gauge", "1 while this coordinator holds the lease and serves, else 0."),
    Metric("grix_control_regions", "gauge", "Regions by phase.", ("phase",)),
    Metric("grix_control_links", "gauge", "Regions that are linked now."),
    Metric("grix_control_epoch", "gauge", "Epoch of this start."),
    Metric("grix_control_generation", "gauge", "Generation of the last plan."),
    Metric("grix_control_reports_total", "counter", "Messages of regions since this start."),
    Metric("grix_control_refused_total", "counter", "Callers and messages that were refused since this start."),
    Metric("grix_control_sent_total", "counter", "Messages to regions since this start."),
    Metric("grix_control_sent_bytes_total", "counter", "Bytes of messages to regions since this start."),
    Metric("grix_control_store_failures_total", "counter", "Times that facts could not be stored since this start."),
)
