"""Digests and names that places far apart must agree on: exact values."""

from __future__ import annotations

import pytest

from serve_app.core.names import agent_of, app_name, digest_of, release_digest, short


def test_a_digest_is_that_of_compact_sorted_json() -> None:
    # printf '{"a":1,"b":["é"]}' | sha256sum
    assert digest_of({"b": ["é"], "a": 1}) == "023a8698a7c3c25e97260857c604120c43cc731c72fc227019bb5d85d6cad4cb"
    assert digest_of({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@pytest.mark.parametrize("other", [{"a": 2}, {"b": 1}, {"a": 1, "b": 1}, {"a": "1"}, {"a": [1]}, {"a": True}, {}])
def test_any_other_fact_is_another_digest(other: dict[str, object]) -> None:
    assert digest_of({"a": 1}) != digest_of(other)


def test_order_matters_in_lists_only() -> None:
    assert digest_of({"a": {"x": 1, "y": 2}}) == digest_of({"a": {"y": 2, "x": 1}})
    assert digest_of({"a": [1, 2]}) != digest_of({"a": [2, 1]})


def test_a_lone_surrogate_has_a_digest() -> None:
    assert digest_of({"a": "\ud83e"}) != digest_of({"a": "\ufffd"})


def test_names_hold_eight_characters_and_people_see_twelve() -> None:
    digest = "0123456789abcdef" * 4
    assert (app_name("edge-chat", digest), short(digest)) == ("edge-chat--01234567", "0123456789ab")


def test_a_release_changes_with_engine_template_and_route() -> None:
    base = release_digest("e1", {"en": "t1"}, [{"name": "r"}])
    assert base == release_digest("e1", {"en": "t1"}, [{"name": "r"}])
    others = [
        release_digest("e2", {"en": "t1"}, [{"name": "r"}]),
        release_digest("e1", {"en": "t2"}, [{"name": "r"}]),
        release_digest("e1", {"en": "t1", "ja": "t1"}, [{"name": "r"}]),
        release_digest("e1", {"en": "t1"}, [{"name": "s"}]),
        release_digest("e1", {"en": "t1"}, []),
    ]
    assert len({base, *others}) == 6


@pytest.mark.parametrize("agent", ["qwen-chat", "a", "a--b"])
def test_an_application_tells_its_agent(agent: str) -> None:
    assert agent_of(app_name(agent, "0123456789abcdef")) == agent
    assert agent_of("grix-region") == "grix-region"
