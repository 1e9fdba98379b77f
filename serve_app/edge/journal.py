"""Records finished requests: metrics by the table, one structured log line, and the last 10,000 for ``explain``."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final, Protocol

from serve_app.outcomes import LIMITED
from serve_app.ports import RequestRecord

KEPT: Final = 10_000
log = logging.getLogger("ray.serve")

_FIELDS: Final = tuple(f.name for f in fields(RequestRecord))
#: Left out of the log line: bulky, and in the record for ``explain``.
_NOT_LOGGED: Final = ("candidates",)
#: What a caller wrote stands in a log line up to here.
_LONGEST_TEXT: Final = 512


def log_line(record: Mapping[str, Any]) -> str:
    """A record as JSON of printable ASCII: whatever a caller wrote, it cannot end the line, colour a terminal, or turn
    the direction of what follows.
    """
    line = {k: _shown(v) for k, v in record.items() if v is not None and k not in _NOT_LOGGED}
    line["candidates"] = len(record["candidates"])
    return json.dumps(line, ensure_ascii=True, default=str)


def _shown(value: Any) -> Any:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else value


class Meter(Protocol):
    """Where numbers go; ``serve_app.edge.serve_metrics`` is the real one."""

    def add(self, name: str, labels: Mapping[str, str], value: float) -> None: ...

    def observe(self, name: str, labels: Mapping[str, str], value: float) -> None: ...


class RequestJournal:
    """The Router's journal. ``span`` writes a request's span."""

    def __init__(self, meter: Meter, span: Callable[[RequestRecord], None], kept: int = KEPT) -> None:
        self._span = span
        self._meter = meter
        self._kept = kept
        # Packed, as what differs from the first: thousands of records as objects would be most of a Router's memory.
        self._last: dict[str, bytes] = {}
        self._first = b""

    def find(self, request_id: str) -> dict[str, Any] | None:
        """The record of one of the last requests, or ``None``."""
        packed = self._last.get(request_id)
        if packed is None:
            return None
        unpacker = zlib.decompressobj(zdict=self._first)
        found: dict[str, Any] = json.loads(unpacker.decompress(packed) + unpacker.flush())
        return found

    def _keep(self, plain: Mapping[str, Any]) -> None:
        raw = json.dumps(plain, default=str).encode()
        self._first = self._first or raw
        packer = zlib.compressobj(1, zdict=self._first)
        request_id = plain["request_id"]
        self._last.pop(request_id, None)
        self._last[request_id] = packer.compress(raw) + packer.flush()
        while len(self._last) > self._kept:
            del self._last[next(iter(self._last))]

    def finished(self, record: RequestRecord) -> None:
        """Records a request that has ended. Never raises on odd text."""
        plain = {name: getattr(record, name) for name in _FIELDS}
        self._keep(plain)
        self._measure(record)
        self._span(record)
        log.info("request %s", log_line(plain))

    def _measure_tenant(self, record: RequestRecord, region: str) -> None:
        if record.tenant is None:
            return
        whose = {"region": region, "tenant": record.tenant}
        self._meter.add("grix_tenant_requests_total", {**whose, "outcome": record.outcome or "none"}, 1)
        if record.error in LIMITED:
            self._meter.add("grix_limited_total", {**whose, "reason": str(record.error)}, 1)
        if record.limits_by is not None:
            self._meter.add("grix_admissions_total", {"region": region, "decided_by": record.limits_by}, 1)
            self._meter.add("grix_reserved_tokens_total", whose, record.tokens_reserved or 0)

    def _measure_way(self, record: RequestRecord, where: Mapping[str, str]) -> None:
        if record.hops is not None:
            self._meter.observe("grix_hops", where, record.hops)
        if record.canary_break:
            self._meter.add("grix_canary_breaks_total", where, 1)
        if record.spilled:
            self._meter.add("grix_spills_total", {**where, "to": str(record.serving_region)}, 1)
        for tripped in record.tripped:
            self._meter.add("grix_breaker_trips_total", {**where, "to": tripped}, 1)

    def _measure(self, record: RequestRecord) -> None:
        region, agent = record.region or "none", record.agent or "none"
        language = record.language or "none"
        where = {"region": region, "agent": agent}
        spoken = {**where, "language": language}
        ended = {**spoken, "outcome": record.outcome or "none", "status": str(record.status or 0)}
        self._meter.add("grix_requests_total", ended, 1)
        if record.error is not None:
            self._meter.add("grix_errors_total", {"region": region, "reason": record.error}, 1)
        self._measure_tenant(record, region)
        self._measure_way(record, where)
        if record.language_question is not None:
            asked = {"region": region, "outcome": record.language_question}
            self._meter.add("grix_language_questions_total", asked, 1)
        if record.session_store is not None:
            self._meter.add("grix_session_requests_total", {"region": region, "store": record.session_store}, 1)
        if record.session_moved_from is not None:
            self._meter.add("grix_session_moves_total", where, 1)
        if len(record.attempts) > 1:
            self._meter.add("grix_retries_total", where, len(record.attempts) - 1)
        for name in ("queue_wait_ms", "wait_ms", "first_token_ms", "total_ms"):
            value = getattr(record, name)
            if value is not None:
                self._meter.observe(f"grix_{name}", where, value)
        paid = {**where, "tenant": record.tenant or "none"}
        if record.prompt_tokens is not None:
            self._meter.add("grix_prompt_tokens_total", paid, record.prompt_tokens)
        if record.completion_tokens:
            self._meter.add("grix_completion_tokens_total", paid, record.completion_tokens)
            self._meter.observe("grix_completion_tokens", spoken, record.completion_tokens)
        if record.finish_reason == "length":
            self._meter.add("grix_truncated_total", spoken, 1)
