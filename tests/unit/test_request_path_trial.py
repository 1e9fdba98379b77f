"""Requests while a release is tried: who is on it, where it is served, and what becomes of users when nobody can."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from serve_app.core.language import LanguageGuess
from serve_app.core.snapshots import Snapshot, Target, local_snapshot
from serve_app.core.table import Table, Template
from serve_app.core.tenants import KeyIndex
from serve_app.core.trial import Tried, is_tried_on, user_hash
from serve_app.ports import Accepted, Body, Head, Tail, Usage, World
from tests.fake_sessions import FakeSessions
from tests.fakes import BEARER, GOOD, KEY, FakeDetector, Stage, a_table, refused

OLD, NEW = "abcdef123456" + "0" * 52, "f" * 64
TRIED = Tried("r2", "[]", 50)
USERS = [f"user-{i}" for i in range(40)]
ON = [user for user in USERS if is_tried_on(user_hash("r2", f"acme/{user}"), 50)]
OFF = [user for user in USERS if user not in ON]


def tables() -> tuple[Table, Table]:
    """The table in force, and the tried one, whose template says something else."""
    now = a_table()
    agents = {name: replace(agent, release=NEW) for name, agent in now.agents.items()}
    return now, replace(now, agents=agents, templates={"en": Template("en", "2", "d3", "Be new.")})


def targets(*, canary_there: bool, canary_here: bool = True, there: bool = True) -> Snapshot:
    now, _ = tables()
    here = tuple(replace(t, health="healthy") for t in local_snapshot(now, 1).targets)
    canaries = tuple(replace(t, release=NEW, canary=True) for t in here)

    def away(some: tuple[Target, ...]) -> tuple[Target, ...]:
        return tuple(replace(t, region="cloud-b", cloud="cloud-b", gpu_hour_usd=2.0) for t in some)

    found = here + (canaries if canary_here else ())
    found += (away(here) if there else ()) + (away(canaries) if canary_there else ())
    return Snapshot(1, 1, found, tried=TRIED)


def stage(snapshot: Snapshot, *scripts: Any, tried: Tried = TRIED) -> Stage:
    now, other = tables()
    made = Stage(table=now, scripts=list(scripts) or [GOOD], snapshot=snapshot)
    world = World(now, snapshot, tried, other)
    made.path = replace(made.path, world=lambda: world)
    return made


async def ask(made: Stage, user: str) -> tuple[int, str, str]:
    """Status, the targets that were asked, and what the last one was told by the template."""
    before = len(made.agents.calls)
    raw = json.dumps({"messages": [{"role": "user", "content": "hi"}], "user": user}).encode()
    answer = await made.run(raw)
    calls = [call for _, call in made.agents.calls[before:]]
    told = calls[-1].body["messages"][0]["content"] if calls else ""
    return answer.status, " ".join(call.target for call in calls), told


OLD_HERE, NEW_HERE = "cloud-a/qwen-chat@abcdef12", "cloud-a/qwen-chat@ffffffff"
OLD_THERE, NEW_THERE = "cloud-b/qwen-chat@abcdef12", "cloud-b/qwen-chat@ffffffff"


async def test_each_user_is_on_one_release_with_its_template_and_the_other_users_on_the_other() -> None:
    made = stage(targets(canary_there=False))
    assert 10 < len(ON) < 30
    assert [await ask(made, user) for user in ON] == [(200, NEW_HERE, "Be new.")] * len(ON)
    assert [await ask(made, user) for user in OFF] == [(200, OLD_HERE, "Be kind.")] * len(OFF)
    record = made.journal.records[0]
    assert (record.tried, record.canary, record.wanted_release, record.canary_break) == ("r2", True, NEW, None)
    record = made.journal.records[-1]
    assert (record.canary, record.wanted_release) == (False, OLD)


async def test_a_user_of_the_tried_release_is_spilled_to_a_region_that_serves_it() -> None:
    made = stage(targets(canary_there=True), refused("overloaded"), GOOD)
    assert await ask(made, ON[0]) == (200, f"{NEW_HERE} {NEW_THERE}", "Be new.")
    assert made.journal.records[0].canary_break is None


async def test_where_no_other_region_serves_it_the_user_is_moved_back_and_it_is_recorded() -> None:
    made = stage(targets(canary_there=False), refused("overloaded"), refused("overloaded"), GOOD)
    assert await ask(made, ON[0]) == (200, f"{NEW_HERE} {OLD_HERE} {OLD_THERE}", "Be kind.")
    record = made.journal.records[0]
    assert (record.canary, record.canary_break, record.wanted_release) == (False, True, OLD)


async def test_a_region_whose_tried_target_is_out_serves_the_release_before() -> None:
    made = stage(targets(canary_there=False, canary_here=False))
    assert await ask(made, ON[0]) == (200, OLD_HERE, "Be kind.")
    assert made.journal.records[0].canary_break is True


async def test_who_was_moved_back_stays_there() -> None:
    place = user_hash("r2", f"acme/{ON[0]}")
    made = stage(targets(canary_there=True), tried=replace(TRIED, broken=frozenset({place})))
    assert await ask(made, ON[0]) == (200, OLD_HERE, "Be kind.")
    assert await ask(made, ON[1]) == (200, NEW_HERE, "Be new.")


async def test_what_the_caller_did_wrong_is_no_reason_to_move_a_user() -> None:
    made = stage(targets(canary_there=False), refused("context_length"))
    status, asked, _ = await ask(made, ON[0])
    assert (status, asked) == (400, NEW_HERE)
    assert made.journal.records[0].canary_break is None


async def test_the_language_of_a_text_in_doubt_is_asked_about_once_though_its_user_is_moved_back() -> None:
    now, other = (replace(t, languages=replace(t.languages, confirm="qwen-doc")) for t in tables())
    answer = {"choices": [{"message": {"role": "assistant", "content": "ja"}}]}
    says_ja = (Accepted("t", "r"), Head(), Body(json.dumps(answer).encode()), Tail("success", "stop", Usage(20, 2)))
    doubt = FakeDetector(LanguageGuess("id", "Latn", 0.55, "model", "id"))
    for snapshot, refusals in (
        (targets(canary_there=False, there=False), [refused("overloaded")]),
        (targets(canary_there=False, canary_here=False), []),
    ):
        made = Stage(now, [says_ja, *refusals, GOOD], doubt, snapshot=snapshot)
        world = World(now, snapshot, TRIED, other)
        made.path = replace(made.path, world=lambda world=world: world)
        assert (await ask(made, ON[0]))[0] == 200
        asked = [call.request_id for _, call in made.agents.calls]
        assert asked == ["r1-language", *["r1"] * (len(refusals) + 1)]
        record = made.journal.records[0]
        assert (record.canary_break, record.language, record.language_source) == (True, "ja", "confirmed")


async def test_a_session_stays_with_the_stronger_agent_of_its_release() -> None:
    def strong(table: Table) -> Table:
        return replace(table, agents={n: replace(a, strength=int(n == "qwen-doc")) for n, a in table.agents.items()})

    now, other = map(strong, tables())
    snapshot = targets(canary_there=False)
    for user, wanted in ((ON[0], NEW_HERE), (OFF[0], OLD_HERE)):
        made = Stage(now, [GOOD], snapshot=snapshot, sessions=FakeSessions())
        world = World(now, snapshot, TRIED, other)
        made.path = replace(made.path, world=lambda world=world: world)
        for text in ("a long document " * 4000, "hi"):
            raw = json.dumps({"messages": [{"role": "user", "content": text}], "user": user}).encode()
            answer = await made.run(raw, {**BEARER, "x-session-id": "s1"})
            assert answer.status == 200, made.journal.records[-1]
        assert [call.target for _, call in made.agents.calls] == [wanted.replace("chat", "doc")] * 2


async def test_an_agent_that_only_other_regions_run_is_not_tried_here() -> None:
    now, other = tables()
    bare = {name: replace(agent, app="", release="") for name, agent in now.agents.items()}
    made = stage(targets(canary_there=False))
    world = World(replace(now, agents=bare), targets(canary_there=True), TRIED, replace(other, agents=bare))
    made.path = replace(made.path, world=lambda: world)
    assert (await ask(made, ON[0]))[1] == OLD_HERE
    assert made.journal.records[0].canary_break is None


async def test_who_pins_the_release_in_force_has_it_and_is_no_word_on_the_tried_one() -> None:
    made = stage(targets(canary_there=False))
    operator = replace(made.table.tenants[0], operator=True)
    made.path = replace(made.path, keys=lambda: KeyIndex.of((operator,)))
    body = {"messages": [{"role": "user", "content": "hi"}], "user": ON[0], "model": "qwen-chat@abcdef12"}
    assert (await made.run(json.dumps(body).encode())).status == 200
    assert [call.target for _, call in made.agents.calls] == [OLD_HERE]
    record = made.journal.records[0]
    assert (record.tried, record.canary, record.canary_break) == (None, None, None)


async def test_without_a_user_the_session_decides() -> None:
    made = stage(targets(canary_there=False))
    raw = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
    bearer = {"authorization": f"Bearer {KEY}"}
    for session in (ON[0], OFF[0], ON[0]):
        await made.run(raw, {**bearer, "x-session-id": session})
    assert [call.target for _, call in made.agents.calls] == [NEW_HERE, OLD_HERE, NEW_HERE]
