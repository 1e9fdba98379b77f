"""A session at a real region with a real Valkey: a client that sends new turns alone, and a Redis that dies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.test_region import eventually
from tests.stub_region import Reply, StubRegion, running_stub_region
from tests.valkey_store import Store

RECALL: list[list[Any]] = [["accepted"], ["head"], ["recall"], ["end"]]
HEADERS = {"x-session-id": "s1", "x-grix-history": "server"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    made = Store(tmp_path_factory.mktemp("valkey"), tasks=False)
    made.begin()
    yield made
    made.end()


@pytest.fixture(scope="module")
def region(store: Store) -> Iterator[StubRegion]:
    with running_stub_region(redis=f"{{url: '{store.url}', passwordFile: '{store.password_file}'}}") as made:
        yield made


def told(reply: Reply) -> tuple[int, str, str]:
    return reply.status, reply.headers["x-grix-session"], reply.headers["x-grix-history"]


def store_of(region: StubRegion) -> str | None:
    return region.ask(headers={"x-session-id": "s0"})[1].headers.get("x-grix-session")


def recalled(reply: Reply) -> list[str]:
    """What the engine was given after the template's words, without scripts."""
    return [m["content"] for m in json.loads(reply.text)[1:] if "attempts" not in m["content"]]


def test_a_conversation_goes_on_by_new_turns_and_without_its_store(region: StubRegion, store: Store) -> None:
    # A Router's Redis is in use a moment after its start.
    eventually(lambda: store_of(region) == "kept", 20.0, "the store in use")
    _, first = region.ask(text="I am Ann.", headers=HEADERS)
    assert told(first) == (200, "kept", "0")
    _, second = region.ask(RECALL, headers=HEADERS)
    assert told(second) == (200, "kept", "1")
    assert recalled(second) == ["I am Ann.", "one two"]
    _, other = region.ask(RECALL, headers={**HEADERS, "x-session-id": "s2"})
    assert (told(other), recalled(other)) == ((200, "kept", "0"), [])

    store.end()
    request_id, without = region.ask(RECALL, headers=HEADERS)
    assert (told(without), recalled(without)) == ((200, "off", "off"), [])
    record = region.record(request_id)
    assert record is not None and record["session_store"] == "off"

    store.begin()
    eventually(lambda: store_of(region) == "kept", 20.0, "the store in use")
    _, again = region.ask(RECALL, headers=HEADERS)
    assert told(again) == (200, "kept", "0")
