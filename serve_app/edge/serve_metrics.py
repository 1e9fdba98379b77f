"""Metrics of the table as ``ray.serve.metrics``, and the node's exports as one text."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import aiohttp
from ray.serve import metrics as serve_metrics

from serve_app.metrics import TABLE, Metric

#: A node's metrics agent that does not answer in this time is left out.
SCRAPE_LIMIT_S: Final = 2.0


def _build(metric: Metric) -> serve_metrics.Counter | serve_metrics.Gauge | serve_metrics.Histogram:
    if metric.kind == "counter":
        return serve_metrics.Counter(metric.name, metric.help, tag_keys=metric.labels)
    if metric.kind == "gauge":
        return serve_metrics.Gauge(metric.name, metric.help, tag_keys=metric.labels)
    return serve_metrics.Histogram(metric.name, metric.help, list(metric.buckets), tag_keys=metric.labels)


class ServeMeter:
    """All metrics of a table, made once in a process of Serve."""

    def __init__(self, table: Iterable[Metric] = TABLE) -> None:
        self._metrics = {m.name: _build(m) for m in table}

    def add(self, name: str, labels: Mapping[str, str], value: float) -> None:
        self._metrics[name].inc(value, tags=dict(labels))

    def observe(self, name: str, labels: Mapping[str, str], value: float) -> None:
        self._metrics[name].observe(value, tags=dict(labels))

    def set(self, name: str, labels: Mapping[str, str], value: float) -> None:
        self._metrics[name].set(value, tags=dict(labels))


async def scrape(urls: Sequence[str], headers: Mapping[str, str]) -> bytes:
    """The Prometheus texts behind ``urls`` (the node's metrics agents), joined; silent ones are left out."""

    async def one(session: aiohttp.ClientSession, url: str) -> bytes:
        try:
            async with session.get(url) as answer:
                return await answer.read() if answer.status == 200 else b""
        except (aiohttp.ClientError, TimeoutError):
            return b""

    limit = aiohttp.ClientTimeout(total=SCRAPE_LIMIT_S)
    async with aiohttp.ClientSession(timeout=limit, headers=dict(headers)) as session:
        return b"\n".join(await asyncio.gather(*(one(session, url) for url in urls)))
