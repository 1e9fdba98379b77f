"""Rollouts over a real coordinator: what operators may ask, what regions hear, and what outlives it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from serve_app.core.fleet import Fleet
from serve_app.core.reports import Plan, TargetReport
from serve_app.core.trial import ReleaseCount, Stage, TrialReport
from serve_app.edge import coordinator
from serve_app.edge.admin_client import NotDone
from tests.control import Control, Dialled, control, documents, state
from tests.pki import REGIONS, made

FAST = {"hold": "200ms", "minSamples": 1, "steps": [50, 100]}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits a second for what happens in this process."""
    monkeypatch.setattr(coordinator, "AGAIN_S", 0.05)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("pki"))


@pytest.fixture
async def hub(root: Path, tmp_path: Path) -> AsyncIterator[Control]:
    async with control(root, tmp_path / "facts") as made:
        yield made


def with_template(system: str, **rollout: Any) -> list[dict[str, Any]]:
    """The documents of the start, with another Japanese template."""
    changed = documents(**({"rollout": rollout} if rollout else {}))
    for document in changed:
        if (document["kind"], document["metadata"]["name"]) == ("PromptTemplate", "ja"):
            document["spec"] = {**document["spec"], "system": system}
    return changed


async def applied(hub: Control, links: list[Dialled]) -> Plan:
    """The documents of the start, with a quick rollout, in force everywhere."""
    told = await hub.ask("apply", documents=documents(rollout=FAST))
    plan = await links[0].hear(lambda p: p.revision == told["revision"])
    for link in links:
        await link.tell(replace(state(link.region), revision=plan.revision))
    plan = await links[0].hear(lambda p: {region for region, _ in p.expected} == set(REGIONS))
    for link in links:
        await link.tell(_serving(link.region, plan, plan.revision))
    return plan


def fleet(hub: Control) -> Fleet:
    assert hub.coordinator is not None and hub.coordinator.hub is not None
    return hub.coordinator.hub.fleet


def have_heard(hub: Control, move: int) -> bool:
    """Whether the coordinator knows that every region does what this move asks."""
    return all(m.state is not None and m.state.trial.move == move for m in fleet(hub).members.values())


async def through(hub: Control, links: list[Dialled]) -> Plan:
    """Regions that do what they are asked, until nothing is tried any more."""
    for _ in range(20):
        plan = fleet(hub).plan()
        if plan.trial is None:
            return plan
        move = plan.trial.move
        for link in links:
            await does(link, plan)
        await hub.until(partial(have_heard, hub, move))
        await hub.passed(0.4)
    raise AssertionError(fleet(hub).rollouts.driver)


def _serving(region: str, plan: Plan, revision: str, trial: TrialReport | None = None) -> Any:
    releases = {agent: release for (name, agent), release in plan.expected.items() if name == region}
    targets = tuple(replace(_target(agent), release=release) for agent, release in releases.items())
    made = replace(state(region), revision=revision, targets=targets or state(region).targets)
    return made if trial is None else replace(made, trial=trial)


def _target(agent: str) -> TargetReport:
    return replace(state("x").targets[0], agent=agent)


async def does(link: Dialled, plan: Plan, **more: Any) -> None:
    """The region does what the plan asks of it, well."""
    assert plan.trial is not None
    stage = plan.trial.stages.get(link.region, Stage(0))
    agent, release = next((a, r) for (_, a), r in plan.trial.expected.items())
    counts = (ReleaseCount(agent, release, 5),)
    report = TrialReport(plan.trial.revision, plan.trial.move, stage.percent, "passed", "", counts)
    await link.tell(_serving(link.region, plan, plan.revision, replace(report, **more)))


async def refusal(hub: Control, verb: str, **fields: Any) -> str:
    with pytest.raises(NotDone) as caught:
        await hub.ask(verb, **fields)
    return str(caught.value)


async def test_a_rollout_is_heard_step_by_step_and_outlives_the_coordinator(hub: Control) -> None:
    links = await hub.join(*REGIONS)
    before = await applied(hub, links)
    told = await hub.ask("rollout_start", documents=with_template("常に敬語でお答えください。", **FAST))
    running = told["running"]
    assert (running["phase"], running["region"], running["who"]) == ("smoke", REGIONS[0], "admin")
    first = links[0]
    plan = await first.hear(lambda p: p.trial is not None)
    assert plan.trial is not None and plan.trial.stages == {REGIONS[0]: Stage(0, smoke=True)}
    assert "常に敬語で" in plan.trial.data and plan.documents == before.documents
    await does(first, plan)
    plan = await first.hear(lambda p: p.trial is not None and p.trial.stages[REGIONS[0]] == Stage(50))
    await hub.end()
    await hub.begin()
    links = await hub.join(*REGIONS)
    anew = await links[0].hear(lambda p: p.trial is not None)
    assert anew.trial is not None and anew.order > plan.order
    assert (anew.trial.stages, anew.trial.move) == ({REGIONS[0]: Stage(50)}, 2)
    assert (await hub.ask("rollout_status"))["running"]["phase"] == "canary"
    gone = await hub.ask("rollout_steer", act="abort")
    assert gone["running"] is None and gone["last"]["outcome"] == "aborted"
    assert (await links[0].hear(lambda p: p.trial is None)).documents == before.documents
    entries = await hub.audited("rollout")
    assert [e["after"] for e in entries] == ["smoke", "canary 50 %", "aborted"]


async def test_a_release_that_was_in_force_is_taken_again_at_once(hub: Control) -> None:
    links = await hub.join(*REGIONS)
    old = await applied(hub, links)
    agent = next(a for _, a in old.expected)
    text = "常に敬語でお答えください。"
    await hub.ask("rollout_start", documents=with_template(text, **FAST))
    plan = await through(hub, links)
    assert plan.revision != old.revision and text in plan.documents
    told = await hub.ask("rollout_history")
    assert [past["outcome"] for past in told["past"]] == ["done"]
    rolled = await hub.ask("rollback", agent=agent)
    assert rolled["running"]["phase"] == "adopting"
    plan = await links[0].hear(lambda p: p.trial is not None and p.trial.revision == old.revision)
    assert plan.trial is not None and plan.documents == old.documents
    assert set(plan.trial.stages.values()) == {Stage(100)} and text not in plan.trial.data
    await through(hub, links)
    past = (await hub.ask("rollout_history"))["past"]
    assert [one["outcome"] for one in past] == ["done", "done"]
    assert past[-1]["why"] == f"rollback of {agent} by admin"
    # Everything that ever was in force can be named.
    new = past[0]["agents"][agent][1]
    assert (await hub.ask("rollback", agent=agent, to=new[:10]))["running"]["agents"][agent][1] == new


async def test_a_rollback_that_is_asked_for_again_brings_back_nothing(hub: Control) -> None:
    """Who heard no answer asks once more: the release that is left must not come back by it."""
    links = await hub.join(*REGIONS)
    old = await applied(hub, links)
    agent = next(a for _, a in old.expected)
    await hub.ask("rollout_start", documents=with_template("常に敬語でお答えください。", **FAST))
    await through(hub, links)
    first = await hub.ask("rollback", agent=agent)
    again = await hub.ask("rollback", agent=agent)
    assert (again["running"]["phase"], again["running"]["revision"]) == ("adopting", first["running"]["revision"])
    assert (await through(hub, links)).documents == old.documents
    assert "no template and no route differs" in await refusal(hub, "rollback", agent=agent)
    # While an abort takes all back there is nothing to add to it.
    await hub.ask("rollout_start", documents=with_template("常に敬語でお答えください。", **FAST))
    while (running := fleet(hub).rollouts.running) is not None and running.phase != "adopting":
        for link in links:
            await does(link, fleet(hub).plan())
        await hub.passed(0.4)
    await hub.ask("rollout_steer", act="abort")
    assert (await hub.ask("rollback", agent=agent))["running"]["phase"] == "reverting"


async def test_a_rollback_leaves_alone_what_was_applied_since(hub: Control) -> None:
    links = await hub.join(*REGIONS)
    old = await applied(hub, links)
    agent = next(a for _, a in old.expected)
    await hub.ask("rollout_start", documents=with_template("常に敬語でお答えください。", **FAST))
    rolled = json.loads((await through(hub, links)).documents)
    thai = "ตอบเป็นภาษาไทยอย่างสุภาพ"
    for document in rolled:
        if (document["kind"], document["metadata"]["name"]) == ("PromptTemplate", "th"):
            document["spec"]["system"] = thai
    await hub.ask("apply", documents=rolled)
    told = await hub.ask("rollback", agent=agent)
    assert told["running"]["phase"] == "adopting"
    plan = fleet(hub).plan()
    assert thai in plan.documents and "常に敬語で" not in plan.documents
    last = await through(hub, links)
    # What was changed once more is not undone unseen.
    assert thai in last.documents
    await hub.ask("apply", documents=with_template("もう一度変えました。", **FAST))
    said = await refusal(hub, "rollback", agent=agent)
    assert "PromptTemplate ja: was changed once more since, and would change with it" in said
    assert f"grix rollback {agent} --to" in said


async def test_a_release_that_was_never_in_force_everywhere_is_not_gone_back_to(hub: Control) -> None:
    links = await hub.join(*REGIONS)
    plan = await applied(hub, links)
    agent = next(a for _, a in plan.expected)
    told = await hub.ask("rollout_start", documents=with_template("常に敬語でお答えください。", **FAST))
    bad = told["running"]["agents"][agent][1]
    plan = await links[0].hear(lambda p: p.trial is not None)
    await does(links[0], plan, smoke="failed", why="ja: the answer is empty")
    await links[0].hear(lambda p: p.trial is None)
    assert (await hub.ask("rollout_history"))["past"][0]["outcome"] == "rolled_back"
    assert f"{bad[:10]!r} is not known" in await refusal(hub, "rollback", agent=agent, to=bad[:10])


async def test_what_is_no_rollout_is_refused_with_what_is_allowed(hub: Control) -> None:
    links = await hub.join(*REGIONS)
    await applied(hub, links)
    now = documents(rollout=FAST)
    assert "no template and no route differs" in await refusal(hub, "rollout_start", documents=now)
    other = json.loads(json.dumps(now))
    (chat,) = (d for d in other if (d["kind"], d["metadata"]["name"]) == ("AgentPolicy", "qwen-chat"))
    chat["spec"]["maxQueueMs"] = 300
    assert "AgentPolicy qwen-chat: is not as it is in force" in await refusal(hub, "rollout_start", documents=other)
    assert "allowed is one of documents and to" in await refusal(hub, "rollout_start")
    assert "'abc' is not known; allowed: none is kept" in await refusal(hub, "rollout_start", to="abc")
    assert "agent: 'nobody' is not known; allowed: edge-chat, qwen-chat" in await refusal(
        hub, "rollback", agent="nobody"
    )
    assert "no earlier release of qwen-chat is kept" in await refusal(hub, "rollback", agent="qwen-chat")
    for act in ("pause", "resume", "abort"):
        assert "no rollout runs" in await refusal(hub, "rollout_steer", act=act)
    assert "act: 'stop' is none; allowed: pause, resume, abort" in await refusal(hub, "rollout_steer", act="stop")
    await hub.ask("rollout_start", documents=with_template("常に敬語でお答えください。", **FAST))
    again = with_template("別の指示です。", **FAST)
    assert "runs, " in await refusal(hub, "rollout_start", documents=again)
    assert "grix rollout abort" in await refusal(hub, "apply", documents=again)


async def test_drift_names_region_agent_and_what_differs(hub: Control) -> None:
    links = await hub.join(*REGIONS)
    plan = await applied(hub, links)
    assert (await hub.ask("drift"))["drift"] == []
    told = _serving(REGIONS[1], plan, plan.revision)
    foreign = replace(told.targets[0], release="0" * 64)
    await links[1].tell(replace(told, targets=(foreign, *told.targets[1:])))
    await links[0].hear(lambda p: any(r.state and r.state.targets[0].release == "0" * 64 for r in p.regions))
    (row,) = (await hub.ask("drift"))["drift"]
    assert (row["region"], row["agent"], row["has"]) == (REGIONS[1], foreign.agent, "0" * 64)
    assert row["differs"] == "templates or routes"
