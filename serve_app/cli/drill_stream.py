"""The steady stream of real requests under which a drill happens: several languages, streamed and not, every entry."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import aiohttp

from serve_app.cli.client import Client
from serve_app.cli.say import Failed
from serve_app.core.drill_verdict import Asked, Ending

RATE_RPS: Final = 3.0
#: While a cluster starts again: two cores cannot do both.
CALM_RATE_RPS: Final = 1.0
#: A request without an end after this long hangs.
PATIENCE_S: Final = 30.0
CONNECT_S: Final = 3.0
#: An entry that was lost is lost for the next tries too: no more tries than there are entries.
LINES: Final = (
    "返品したい",
    "배송 기간을 알려 주세요",
    "How do I reset my password?",
    "怎么退货",
    "Saya lupa kata sandi",
    "كيف أرجع منتجاً؟",
)
CHAT: Final = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Entry:
    """A region as a client has it."""

    name: str
    client: Client

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.client.key}"}


@dataclass(slots=True)
class _Try:
    """One request at one entry, while it runs."""

    entry: Entry
    request_id: str
    began_s: float
    first_s: float | None = None
    told: str = ""


def agent_of(entry: Entry) -> str:
    """The agent that the stream's requests want.

    Raises:
        Failed: when the entry gives no answer.
    """
    body = {"messages": [{"role": "user", "content": LINES[0]}], "temperature": 0, "max_tokens": 1}
    reply = entry.client.ask("POST", CHAT, body)
    if reply.status != 200:
        raise Failed(f"{entry.name}: {reply.fault}")
    return str(reply.headers["x-grix-agent"])


class Stream:
    """Runs in a thread of its own. ``gone`` are entries that the drill has ended: what fails there lost its entry."""

    def __init__(self, entries: list[Entry], rate_rps: float = RATE_RPS, patience_s: float = PATIENCE_S) -> None:
        self._entries, self.rate_rps, self._patience_s = entries, rate_rps, patience_s
        self._ending = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._prefix = f"drill-{secrets.token_hex(4)}"
        self._count = 0
        self._ended: list[tuple[_Try, Asked]] = []
        self.gone: frozenset[str] = frozenset()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Sends no more, and waits for what is under way."""
        self._ending.set()
        self._thread.join(self._patience_s * (len(self._entries) + 1))

    def asked(self) -> list[Asked]:
        """What has ended so far, in the order of its end."""
        return [asked for _, asked in self._ended]

    def ids(self) -> list[tuple[str, Asked]]:
        """The same, with the id under which the entry keeps its record."""
        return [(tried.request_id, asked) for tried, asked in self._ended]

    async def _run(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as running:
            next_s = time.monotonic()
            while not self._ending.is_set():
                running.create_task(self._request(session, self._count))
                self._count += 1
                next_s += 1.0 / self.rate_rps
                await asyncio.sleep(max(0.0, next_s - time.monotonic()))

    async def _request(self, session: aiohttp.ClientSession, number: int) -> None:
        """One request; an entry that is lost sends it to the next one."""
        # Over two rounds each line meets each entry, streamed and whole.
        first = (number + number // len(LINES)) % len(self._entries)
        body = {
            "messages": [{"role": "user", "content": LINES[number % len(LINES)]}],
            "temperature": 0,
            "max_tokens": 24,
            "stream": (number // len(LINES) // len(self._entries)) % 2 == 0,
        }
        for i in range(len(self._entries)):
            entry = self._entries[(first + i) % len(self._entries)]
            was_gone = entry.name in self.gone
            tried = _Try(entry, f"{self._prefix}-{number}-{i}", time.monotonic())
            ending = await self._try(session, tried, body)
            if ending != "whole" and (was_gone or entry.name in self.gone):
                ending = "lost"
            told = "" if ending == "whole" else f"request {tried.request_id} at {entry.name}: {tried.told}"
            asked = Asked(entry.name, tried.began_s, time.monotonic(), ending, tried.first_s, told=told)
            self._ended.append((tried, asked))
            if ending != "lost":
                return

    async def _try(self, session: aiohttp.ClientSession, tried: _Try, body: Mapping[str, Any]) -> Ending:
        headers = {**tried.entry.headers, "x-request-id": tried.request_id}
        limits = aiohttp.ClientTimeout(total=self._patience_s, sock_connect=CONNECT_S)
        client = tried.entry.client
        try:
            async with session.post(
                client.url + CHAT, json=body, headers=headers, timeout=limits, ssl=client.tls() or True
            ) as answer:
                if answer.status != 200:
                    tried.told = f"{answer.status} {(await answer.text())[:200]}"
                    return "refused"
                if not body["stream"]:
                    await answer.json()
                    tried.first_s = time.monotonic()
                    return "whole"
                return await self._read(answer, tried)
        except aiohttp.ConnectionTimeoutError as error:
            tried.told = str(error)
            return "refused"
        except TimeoutError:
            tried.told = f"no end within {self._patience_s:g} s"
            return "hung"
        except (aiohttp.ClientError, ValueError) as error:
            tried.told = tried.told or str(error) or type(error).__name__
            return "refused" if tried.first_s is None else "cut"

    async def _read(self, answer: aiohttp.ClientResponse, tried: _Try) -> Ending:
        """A stream of events to its end."""
        last = b""
        async for line in answer.content:
            if not line.strip():
                continue
            if tried.first_s is None:
                tried.first_s = time.monotonic()
            last = line.strip()
        if last == b"data: [DONE]":
            return "whole"
        if last.startswith(b'data: {"error"'):
            tried.told = last[:200].decode("utf-8", "replace")
            return "broken"
        return "cut" if tried.first_s is not None else "refused"


def with_retries(
    stream: Stream, since_s: float, until_s: float, records: Mapping[str, Mapping[str, Any]]
) -> list[Asked]:
    """What was asked, where the entry's record tells that one target was not enough marked as tried again."""
    out = []
    for request_id, asked in stream.ids():
        attempts = records.get(request_id, {}).get("attempts") or []
        again = any(a.get("result") != "started" for a in attempts)
        out.append(replace(asked, retried=again and since_s <= asked.ended_s and asked.began_s < until_s))
    return out


async def _fetch(stream: Stream, entries: Mapping[str, Entry], wanted: list[tuple[str, Asked]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=8)) as session:

        async def one(request_id: str, asked: Asked) -> None:
            entry = entries[asked.entry]
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError):
                limits = aiohttp.ClientTimeout(total=10)
                url = f"{entry.client.url}/grix/requests/{request_id}"
                async with session.get(
                    url, headers=entry.headers, timeout=limits, ssl=entry.client.tls() or True
                ) as answer:
                    if answer.status == 200:
                        found[request_id] = json.loads(await answer.read())

        async with asyncio.TaskGroup() as running:
            for request_id, asked in wanted:
                running.create_task(one(request_id, asked))
    return found


def records_of(stream: Stream, entries: list[Entry], since_s: float, until_s: float) -> dict[str, Any]:
    """The entries' records of requests that were under way between two moments, by request id."""
    wanted = [(i, a) for i, a in stream.ids() if a.ending != "lost" and a.ended_s >= since_s and a.began_s < until_s]
    return asyncio.run(_fetch(stream, {e.name: e for e in entries}, wanted))
