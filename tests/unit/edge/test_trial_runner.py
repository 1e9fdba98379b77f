"""A region's and a Router's part in a rollout: the tried table, smoke tests on the request path, and counting."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster_configs.load import load_paths
from cluster_configs.table import table_of
from serve_app.core.region_trial import RegionTrial
from serve_app.core.reports import Plan, RouterReport
from serve_app.core.snapshots import local_snapshot
from serve_app.core.trial import NO_TRIAL, Stage, Trial, Tried
from serve_app.edge import trial_runner
from serve_app.edge.router_trial import RouterTrial
from serve_app.edge.serve_config import render
from serve_app.edge.trial_runner import TrialRunner
from serve_app.ports import Body, Head, Tail, Usage
from tests import fakes
from tests.fakes import a_record, refused, settle
from tests.region_fakes import FEDERATION

TESTS = [{"language": "en", "ask": "hi", "markers": ["Sure"], "ownInstruction": True}]


@pytest.fixture
def user_config(tmp_path: Path) -> dict[str, Any]:
    """A RegionAgent's, which has a Router's in it."""
    (tmp_path / "fleet.yaml").write_text(FEDERATION)
    made = render(load_paths([tmp_path / "fleet.yaml"], {}), "cloud-a", http_host="127.0.0.1", http_port=8000)
    config: dict[str, Any] = made["applications"][-1]["deployments"][1]["user_config"]
    return config


def data(user_config: Mapping[str, Any], system: str) -> str:
    routes, (template,) = user_config["documents"]["routes"], user_config["documents"]["templates"]
    return json.dumps([routes, {**template, "spec": {**template["spec"], "system": system}}])


def plan(user_config: Mapping[str, Any], stage: Stage | None, move: int = 1, **more: Any) -> Plan:
    if stage is None:
        return Plan(1, move)
    made = Trial("r2", move, data(user_config, "Be new."), {"cloud-a": stage})
    return Plan(1, move, trial=replace(made, **more))


class Asked:
    """Smoke tests as a Router would run them: what each run says, the last one again and again."""

    def __init__(self, *says: Any) -> None:
        self.says, self.asked = list(says), 0

    async def __call__(self, revision: str, tests: Sequence[Mapping[str, Any]]) -> Sequence[str] | None:
        said = self.says[min(self.asked, len(self.says) - 1)]
        self.asked += 1
        if isinstance(said, Exception):
            raise said
        return said


async def test_smoke_tests_run_once_a_move_until_they_have_run(
    user_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_runner, "AGAIN_S", 0.0)
    trial, asked, news = RegionTrial(), Asked(None, OSError("away"), ["ja: empty"], []), []
    runner = TrialRunner(trial, asked, lambda: news.append(trial.report().smoke))
    runner.configure(user_config)
    smoke = Stage(0, smoke=True)
    for _ in range(3):
        runner.take_plan(plan(user_config, smoke))
    await settle(lambda: news == ["failed"])
    assert (asked.asked, trial.report().why) == (3, "ja: empty")
    runner.take_plan(plan(user_config, smoke, move=2))
    await settle(lambda: news == ["failed", "passed"])
    runner.take_plan(plan(user_config, Stage(50), move=3))
    await asyncio.sleep(0)
    assert asked.asked == 4 and trial.report().percent == 50
    runner.take_plan(plan(user_config, None, move=4))
    assert trial.report() == NO_TRIAL
    runner.close()


@pytest.mark.parametrize("is_told_of_the_end", [True, False])
@pytest.mark.parametrize("revision", ["r2", "r3"])
async def test_the_next_rollout_runs_its_own_smoke_tests_though_moves_are_counted_from_one_again(
    user_config: dict[str, Any], revision: str, is_told_of_the_end: bool
) -> None:
    trial, asked, news = RegionTrial(), Asked([], ["ko: empty"]), []
    runner = TrialRunner(trial, asked, lambda: news.append(trial.report().smoke))
    runner.configure(user_config)
    runner.take_plan(plan(user_config, Stage(0, smoke=True)))
    await settle(lambda: news == ["passed"])
    if is_told_of_the_end:
        runner.take_plan(plan(user_config, None, move=2))
    runner.take_plan(plan(user_config, Stage(0, smoke=True), revision=revision))
    # The same revision again, without an end between, is the same rollout.
    is_new = is_told_of_the_end or revision == "r3"
    await settle(lambda: news == (["passed", "failed"] if is_new else ["passed"]))
    assert asked.asked == len(news)
    runner.close()


async def test_a_region_has_the_release_that_the_documents_make_with_its_own_engine(
    user_config: dict[str, Any],
) -> None:
    trial = RegionTrial()
    runner = TrialRunner(trial, Asked([]), lambda: None)
    runner.configure(user_config)
    runner.take_plan(plan(user_config, Stage(50)))
    now = table_of(user_config).agents["qwen-chat"]
    tried = trial.canary(now)
    assert tried is not None and (tried.app, tried.release == now.release) == (now.app, False)
    runner.take_plan(plan(user_config, Stage(50), 2, revision="r3", data='[{"kind": "RouteTable"}]'))
    assert trial.report().smoke == "failed" and "does not take its documents" in trial.report().why
    runner.close()


def answer(text: str) -> tuple[Any, ...]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    body = json.dumps({"choices": [choice]}).encode()
    return (Head(10), Body(body), Tail("success", "stop", Usage(3, 2), 1.0, 2.0))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (answer("Sure, here is how."), []),
        (
            answer("No."),
            [f"{name}: en: the register is wrong: the answer has none of Sure" for name in ("qwen-chat", "qwen-doc")],
        ),
        (refused("overloaded"), None),
    ],
)
async def test_smoke_tests_ask_this_region_s_engines_with_the_tried_template(
    user_config: dict[str, Any], script: tuple[Any, ...], said: list[str] | None
) -> None:
    router, table = RouterTrial(), table_of(user_config)
    router.configure(user_config)
    tried = Tried("r2", data(user_config, "Be new."), 0)
    world = router.world(table, replace(local_snapshot(table, 1), tried=tried))
    stage = fakes.Stage(table=table, scripts=[script, script])
    assert await router.smoke(stage.path, world, "r1", TESTS) is None
    assert await router.smoke(stage.path, world, "r2", TESTS) == said
    # Rules know only one of them; who has no room ends the run.
    assert [call.model for _, call in stage.agents.calls] == ["qwen-chat", "qwen-doc"][: 1 if said is None else 2]
    assert {call.body["messages"][0]["content"] for _, call in stage.agents.calls} == {"Be new."}
    assert {target.region for target, _ in stage.agents.calls} == {"cloud-a"}
    # Nobody counts them for either release.
    router.ended(stage.journal.records[-1], table)
    assert router.counts.on(RouterReport("r")).counts == ()


async def test_a_template_of_another_language_is_found_before_anybody_is_asked(user_config: dict[str, Any]) -> None:
    router, table = RouterTrial(), table_of(user_config)
    router.configure(user_config)
    tried = Tried("r2", data(user_config, "고객에게 항상 한국어로 정중하게 답변하세요."), 0)
    world = router.world(table, replace(local_snapshot(table, 1), tried=tried))
    stage = fakes.Stage(table=table)
    assert await router.smoke(stage.path, world, "r2", []) == ["en: the template's instruction is in ko"]
    assert stage.agents.calls == []


def test_a_router_counts_what_became_of_requests_and_keeps_users_that_it_moved_back(
    user_config: dict[str, Any],
) -> None:
    router, table = RouterTrial(), table_of(user_config)
    router.configure(user_config)
    tried = Tried("r2", data(user_config, "Be new."), 50)
    snapshot = replace(local_snapshot(table, 1), tried=tried)
    assert router.world(table, snapshot).tried == tried
    told = {"tried": "r2", "wanted_release": "n", "language": "ja", "answer_language": "ja", "first_token_ms": 5.0}
    router.ended(a_record(**told), table)
    router.ended(a_record(**{**told, "answer_language": "en", "finish_reason": "length"}), table)
    router.ended(a_record(**{**told, "answer_language": None, "outcome": "failed"}), table)
    router.ended(a_record(**{**told, "outcome": "client_left"}), table)
    router.ended(a_record(**{**told, "canary_break": True, "canary_place": 7}), table)
    router.ended(a_record(**{**told, "canary_break": True, "canary_place": 8, "outcome": "rejected"}), table)
    router.ended(a_record(), table)
    (count,) = router.counts.on(RouterReport("r")).counts
    assert (count.agent, count.release, count.requests, count.failed) == ("qwen-chat", "n", 4, 1)
    assert (count.truncated, count.heard, count.mismatched, count.breaks, count.first_tokens) == (1, 3, 1, 1, (4,))
    assert router.world(table, snapshot).tried == replace(tried, broken=frozenset({7}))
    assert router.world(table, replace(snapshot, tried=None)).tried is None


def test_a_release_that_a_router_cannot_make_is_not_tried(user_config: dict[str, Any]) -> None:
    router, table = RouterTrial(), table_of(user_config)
    router.configure(user_config)
    world = router.world(table, replace(local_snapshot(table, 1), tried=Tried("r2", "[]", 50)))
    assert world.tried is None and world.of_user(0) is world
