"""The one client program of the benchmarks: ``python -m benchmarks.load_client``, a process of its own.

Reads jobs from standard input, one JSON object a line, and answers each with one line on standard output. It speaks
HTTP/1.1 over asyncio protocols and parses no more than it must, so that on a small machine the client leaves the cores
to what is measured; its own CPU time is in each answer. Kinds of jobs:

* ``closed``: ``streams`` workers, each with a connection of its own, send the next request when the last one ended,
  until ``requests`` were sent or ``limit_s`` passed.
* ``open``: requests arrive by a Poisson process of ``rate_rps`` for ``seconds``, whatever the answers do. Latency
  counts from the planned arrival, so that a client that is late cannot flatter a server.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import urlsplit

import uvloop

from benchmarks.load_http import FIRST_TEXT, Body, fault_of

#: A stream that gives no end in this time counts as failed.
REQUEST_LIMIT_S: Final = 300.0

TOPICS: Final = (
    "Where is my parcel? The order number is {n}.",
    "Please summarise the return policy for order {n} in a few words.",
    "Can I change the delivery address of order {n} to my office?",
    "The blue jacket of order {n} is too small, how do I exchange it?",
    "Write a short thank-you note for customer {n}.",
    "What does the warranty of item {n} cover?",
    "My invoice {n} shows the wrong amount, who can help me?",
    "Is product {n} in stock in size medium?",
)


@dataclass(slots=True)
class Outcome:
    """One request: ``why`` is empty when the answer was whole."""

    started_s: float
    first_s: float = 0.0
    ended_s: float = 0.0
    why: str = ""


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[str] | None = None
        self._head = b""
        self._body: Body | None = None
        self._got: list[bytes] = []
        self._first_s = 0.0
        self.usable = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport, self.usable = cast(asyncio.Transport, transport), True

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        whole = self._body is not None and (self._body.complete or self._body.until_closed)
        self._end("" if whole else "connection lost")

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._done.done():
            return
        if self._body is None:
            head, found, data = (self._head + data).partition(b"\r\n\r\n")
            if not found:
                self._head = head
                return
            self._body = Body(head)
        piece = self._body.feed(data) if data or not self._body.complete else b""
        if piece:
            self._got.append(piece)
            if not self._first_s and FIRST_TEXT.search(b"".join(self._got)):
                self._first_s = time.perf_counter()
        if self._body.complete:
            self.usable = self.usable and not self._body.closes
            self._end("")

    def _end(self, why: str) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(why)

    def leave(self) -> None:
        """Goes away without a word, as a client does whose person lost patience."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()
        self._end("left")

    async def ask(self, raw: bytes, started_s: float, leave_after_s: float | None) -> Outcome:
        """Sends one request and reads its stream to the end."""
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._done, self._head, self._body, self._got, self._first_s = loop.create_future(), b"", None, [], 0.0
        self._transport.write(raw)
        limit = loop.call_later(REQUEST_LIMIT_S, self._end, "no end in time")
        leaving = loop.call_later(leave_after_s, self.leave) if leave_after_s is not None else None
        why = await self._done
        ended_s = time.perf_counter()
        limit.cancel()
        if leaving is not None:
            leaving.cancel()
        if not why:
            why = fault_of(self._body.status if self._body else 0, b"".join(self._got))
        if why:
            self.close()
        return Outcome(started_s, self._first_s or ended_s, ended_s, why)

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.close()


@dataclass(slots=True)
class Tally:
    """Outcomes of a job."""

    began_s: float
    ttft_ms: list[float] = field(default_factory=list)
    total_ms: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    left: int = 0
    last_s: float = 0.0

    def add(self, outcome: Outcome) -> None:
        self.last_s = max(self.last_s, outcome.ended_s)
        if outcome.why == "left":
            self.left += 1
        elif outcome.why:
            self.failures[outcome.why] += 1
        else:
            self.ttft_ms.append(round((outcome.first_s - outcome.started_s) * 1000, 3))
            self.total_ms.append(round((outcome.ended_s - outcome.started_s) * 1000, 3))


class Job:
    """One job as it came in, and what it needs while it runs."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told
        url = urlsplit(told["url"])
        self.host, self.port = url.hostname or "127.0.0.1", url.port or 80
        self.rng = random.Random(told["seed"])
        names = {"host": f"{self.host}:{self.port}", "content-type": "application/json", **told["headers"]}
        self._head = f"POST {url.path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in names.items())
        self.tally = Tally(time.perf_counter())

    def request(self) -> bytes:
        """The bytes of the next request; its text is new, so that no cache holds it whole."""
        text = self.rng.choice(TOPICS).format(n=self.rng.randrange(10**6))
        messages = [*self.told["messages"], {"role": "user", "content": text}]
        body = json.dumps({**self.told["body"], "messages": messages}).encode()
        return f"{self._head}content-length: {len(body)}\r\n\r\n".encode() + body

    def leave_after_s(self) -> float | None:
        if self.rng.random() >= self.told.get("leave_ratio", 0.0):
            return None
        if "leave_at_s" in self.told:
            return float(self.told["leave_at_s"])
        return self.rng.random() * float(self.told["leave_within_s"])

    async def connect(self) -> Connection | None:
        try:
            _, connection = await asyncio.get_running_loop().create_connection(Connection, self.host, self.port)
        except OSError:
            return None
        return connection

    async def one(self, connection: Connection | None, started_s: float) -> Connection | None:
        """One request, on a new connection where the old one is gone. The connection, if it can be used again."""
        if connection is None or not connection.usable:
            connection = await self.connect()
        if connection is None:
            self.tally.add(Outcome(started_s, why="cannot connect", ended_s=time.perf_counter()))
            return None
        self.tally.add(await connection.ask(self.request(), started_s, self.leave_after_s()))
        return connection if connection.usable else None


async def closed(job: Job) -> None:
    """``streams`` workers, one after the other request each."""
    streams, requests = int(job.told["streams"]), int(job.told["requests"])
    tickets: Iterator[int] = iter(range(requests))
    connections = [await job.connect() for _ in range(min(streams, requests))]
    job.tally.began_s = time.perf_counter()
    until_s = job.tally.began_s + float(job.told["limit_s"])

    async def worker(connection: Connection | None) -> None:
        for _ in tickets:
            connection = await job.one(connection, time.perf_counter())
            if time.perf_counter() >= until_s:
                break
            if connection is None and not job.told.get("leave_ratio"):
                # A server that refuses is not hammered.
                await asyncio.sleep(0.05)
        if connection is not None:
            connection.close()

    await asyncio.gather(*(worker(connection) for connection in connections))


def arrivals_s(rate_rps: float, seconds: float, rng: random.Random) -> list[float]:
    """Planned arrivals of a Poisson process, in seconds after its start."""
    out, at_s = [], rng.expovariate(rate_rps)
    while at_s < seconds:
        out.append(at_s)
        at_s += rng.expovariate(rate_rps)
    return out


async def opened(job: Job) -> None:
    """Requests at their planned times, on connections that are free at that moment."""
    plan = arrivals_s(float(job.told["rate_rps"]), float(job.told["seconds"]), random.Random(job.told["seed"]))
    free: list[Connection] = []
    job.tally.began_s = time.perf_counter()

    async def arrive(at_s: float) -> None:
        started_s = job.tally.began_s + at_s
        await asyncio.sleep(max(0.0, started_s - time.perf_counter()))
        connection = await job.one(free.pop() if free else None, started_s)
        if connection is not None:
            free.append(connection)

    await asyncio.gather(*(arrive(at_s) for at_s in plan))
    for connection in free:
        connection.close()


async def run(told: dict[str, Any]) -> dict[str, Any]:
    """One job; what came of it as JSON values."""
    job = Job(told)
    cpu_s = time.process_time()
    await {"closed": closed, "open": opened}[told["kind"]](job)
    tally = job.tally
    return {
        "ttft_ms": tally.ttft_ms,
        "total_ms": tally.total_ms,
        "failures": dict(tally.failures),
        "left": tally.left,
        "elapsed_s": max(tally.last_s - tally.began_s, 1e-9),
        "client_cpu_s": time.process_time() - cpu_s,
    }


def main() -> None:
    """Jobs in, answers out, until standard input ends."""
    for line in sys.stdin:
        print(json.dumps(uvloop.run(run(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
