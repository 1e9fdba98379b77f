"""Crowds and leavers: many streams at once are right, and what nobody waits for is not worked on."""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from tests.e2e.conftest import LiveRegion
from tests.e2e.test_openai_client import LANGUAGES, answer_and_question
from tests.e2e.test_openai_fields import raw_stream
from tests.e2e.test_region import ENDLESS, engine_pids, eventually, record

CROWD = 50
LEAVERS = 40
#: More streams at once than the engine has slots for: the rest waits in the engine and in the handle.
RUNNING_FIRST = 16
#: The engine has 16: nobody waits here until a limit of the service ends the call first.
FEWER_THAN_SLOTS = 12


def test_fifty_streams_at_once_say_the_right_thing(region: LiveRegion) -> None:
    asked = [answer_and_question(LANGUAGES[i % len(LANGUAGES)]) for i in range(CROWD)]

    def say(question: str) -> str:
        body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "stream": True}
        *events, done = raw_stream(region, body)
        assert done == "[DONE]"
        return "".join(c["delta"].get("content") or "" for e in events for c in json.loads(e)["choices"])

    with ThreadPoolExecutor(CROWD) as pool:
        said = list(pool.map(say, [question for _, question in asked]))
    assert said == [answer for answer, _ in asked]


def test_answers_that_waited_for_a_slot_say_so(region: LiveRegion) -> None:
    long = {"max_tokens": 100, "ignore_eos": True}
    with ThreadPoolExecutor(CROWD) as pool:
        answers = list(pool.map(lambda _: region.chat("hi", **long), range(CROWD)))
    assert {status for status, _, _ in answers} == {200}
    waited = [headers.get("x-grix-queued") for _, headers, _ in answers]
    assert set(waited) <= {None, "1"} and "1" in waited
    status, headers, _ = region.chat("hi")
    assert (status, headers.get("x-grix-queued")) == (200, None)


def begin(region: LiveRegion, request_id: str, fields: dict[str, Any]) -> http.client.HTTPConnection:
    """Sends an endless request and reads nothing of its answer."""
    connection = http.client.HTTPConnection(urlsplit(region.url).netloc, timeout=60)
    headers = {"authorization": f"Bearer {region.key}", "x-request-id": request_id}
    connection.request("POST", "/v1/chat/completions", json.dumps({**ENDLESS, **fields}), headers)
    return connection


def ready(connections: list[http.client.HTTPConnection]) -> int:
    """How many have something to read."""
    return len(select.select([c.sock for c in connections], [], [], 0.2)[0])


def test_forty_leave_at_once_and_their_work_ends(region: LiveRegion) -> None:
    engine = engine_pids(region)
    marks = [f"forty-{time.monotonic_ns()}-{i}" for i in range(LEAVERS)]
    leaving = [begin(region, mark, {"stream": True}) for mark in marks]
    eventually(lambda: ready(leaving) >= RUNNING_FIRST, 30.0, "streams have begun")
    # Answered behind them: the proxy has passed all of them on.
    assert [region.ask("GET", "/v1/models")[0] for _ in range(5)] == [200] * 5
    for connection in leaving:
        connection.close()

    # Forty endless answers would hold every slot for far longer than this request's limit allows.
    answer, question = answer_and_question("en")
    limits = {"x-grix-queue-timeout": "5s", "x-grix-first-byte-timeout": "5s"}
    status, _, body = region.chat(question, headers=limits)
    assert status == 200, body
    assert body["choices"][0]["message"]["content"] == answer

    found = eventually(lambda: all_found(region, marks), 10.0, "each is recorded as ended")
    assert {r["outcome"] for r in found} == {"client_left"}
    assert engine_pids(region) == engine
    assert region.ask("GET", "/healthz?deep=1")[0] == 200


def all_found(region: LiveRegion, marks: list[str]) -> list[dict[str, Any]]:
    """The records of all requests, or nothing."""
    found = [record(region, mark) for mark in marks]
    return [r for r in found if r is not None] if None not in found else []


def test_who_waits_unstreamed_may_leave_too(region: LiveRegion) -> None:
    marks = [f"quiet-{time.monotonic_ns()}-{i}" for i in range(FEWER_THAN_SLOTS)]
    leaving = [begin(region, mark, {"stream": False}) for mark in marks]
    # A stream that ends behind them shows that they had their time to reach the engine.
    with contextlib.closing(begin(region, f"{marks[0]}-last", {"stream": True, "max_tokens": 8})) as last:
        last.getresponse().read()
    for connection in leaving:
        connection.close()
    found = eventually(lambda: all_found(region, marks), 10.0, "each is recorded as ended")
    assert {r["outcome"] for r in found} == {"client_left"}
    status, _, body = region.chat("hello", headers={"x-grix-queue-timeout": "5s", "x-grix-first-byte-timeout": "5s"})
    assert status == 200, body
