"""What is put is confirmed only where Serve tells just that, is one write, and is not put again and again."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from serve_app.core.preempt import Ceiling
from serve_app.edge import desired_config
from serve_app.edge.desired_config import Refusal
from serve_app.edge.serve_rest import ServeRestError
from tests.unit.edge.test_desired_config import TOP, FakeServe, app, writer


class Interrupted(FakeServe):
    """Somebody else's change comes right after the first put of ours."""

    def put_config(self, config: dict[str, Any]) -> None:
        super().put_config(config)
        if len(self.puts) == 1:
            self.apps["grix"]["args"] = "theirs"


def test_what_somebody_else_puts_right_after_our_put_is_not_taken_for_ours() -> None:
    serve = Interrupted({"grix": app("grix"), "doc--1": app("doc--1")})
    made = writer(serve)
    made.put({"grix": app("grix", args="ours"), "doc--1": app("doc--1")}, TOP)
    assert made.desired is not None and not made.desired.confirmed
    assert made.put_back(TOP) == ["grix"]
    assert (serve.apps["grix"]["args"], made.desired.confirmed, len(serve.puts)) == ("ours", True, 2)
    assert made.put_back(TOP) == [] and len(serve.puts) == 2


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_serve_that_knows_no_config_right_after_the_put_confirms_nothing(
    monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    serve = FakeServe({"grix": app("grix")})
    made = writer(serve)
    vague = {"applications": {"grix": {"status": "RUNNING", "deployed_app_config": None}}}
    with monkeypatch.context() as patch:
        patch.setattr(serve, "details", lambda: vague)
        made.put({"grix": app("grix", args="ours")}, TOP)
        assert made.put_back(TOP) == []
    assert made.desired is not None and not made.desired.confirmed
    if is_lost:
        serve.apps = {"grix": app("grix")}
    # It is nobody's change when it has lost what was put.
    assert made.put_back(TOP) == []
    assert (made.desired.confirmed, len(serve.puts)) == (True, 1 + is_lost)


def test_what_serve_never_tells_as_it_was_put_is_put_ever_more_seldom_and_hides_nobodys_change() -> None:
    serve = FakeServe({"grix": app("grix")})
    serve.takes = lambda app: {**app, "args": "as Serve likes it"}
    made = writer(serve)
    made.put({"grix": app("grix", args="ours")}, TOP)
    puts = list[int]()
    for look in range(1, 100):
        assert made.put_back(TOP) == []
        if len(serve.puts) > len(puts) + 1:
            puts.append(look)
    assert puts == [1, 3, 7, 15, 31, 63, 95]
    serve.apps["grix"]["args"] = "theirs"
    assert made.put_back(TOP) == ["grix"]
    assert serve.apps["grix"]["args"] == "as Serve likes it"
    # Once something is told as it was put, all is as ever.
    serve.takes = lambda app: app
    made.put({"grix": app("grix", args="others of ours")}, TOP)
    assert made.put_back(TOP) == [] and made.desired is not None and made.desired.confirmed


def test_what_serve_refuses_is_put_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    serve, puts, looks = FakeServe({"grix": app("grix")}), list[int](), list[int]()
    made = writer(serve)

    def refuse(config: dict[str, Any]) -> None:
        puts.append(len(looks))
        raise ServeRestError("400", 400)

    monkeypatch.setattr(serve, "put_config", refuse)
    with pytest.raises(ServeRestError):
        made.put({"grix": app("grix", args="ours")}, TOP)
    for look in range(1, 40):
        looks.append(look)
        with contextlib.suppress(ServeRestError):
            made.put_back(TOP)
    assert puts == [0, 1, 3, 7, 15, 31]


def test_a_smaller_maximum_is_one_write_together_with_what_is_not_confirmed_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = {"min_replicas": 1, "max_replicas": 4}
    doc = {"name": "doc--1", "deployments": [{"name": "D", "autoscaling_config": bounds}]}
    serve = FakeServe({"doc--1": doc})
    made, write = writer(serve, tmp_path), desired_config.write_private
    written = list[dict[str, Any]]()

    def crash(config: dict[str, Any]) -> None:
        raise asyncio.CancelledError

    def spied(file: Path, text: str) -> None:
        written.append(json.loads(text))
        write(file, text)

    with monkeypatch.context() as patch:
        patch.setattr(desired_config, "write_private", spied)
        patch.setattr(serve, "put_config", crash)
        with pytest.raises(asyncio.CancelledError):
            made.put({"doc--1": doc}, TOP, lowered={"doc--1": Ceiling(2, "chat--1")})
    assert [(kept["lowered"], kept["confirmed"]) for kept in written] == [({"doc--1": [2, "chat--1"]}, False)]
    # Whoever comes after it does not take the config that is still in force for somebody's change.
    again = writer(serve, tmp_path)
    assert again.put_back(TOP) == []
    assert serve.apps["doc--1"]["deployments"][0]["autoscaling_config"]["max_replicas"] == 2


def test_what_is_kept_is_read_again_whole(tmp_path: Path) -> None:
    serve = FakeServe({"grix": app("grix"), "doc--1": app("doc--1")})
    made = writer(serve, tmp_path)
    lowered, again = {"doc--1": Ceiling(2, "chat--1")}, {"grix": {"D": 3}, "gone--1": {"D": 1}}
    refused = Refusal("r1", "no room", 2)
    made.put({"grix": app("grix"), "doc--1": app("doc--1")}, TOP, refused=refused, lowered=lowered, again=again)
    assert made.desired is not None
    assert (made.desired.lowered, made.desired.again, made.desired.refused) == (lowered, {"grix": {"D": 3}}, refused)
    assert writer(serve, tmp_path).desired == made.desired


@pytest.mark.parametrize("text", ['"refused": ["r1"]', '"refused": "r1"', '"again": {"grix": 1}', '"again": [1]'])
def test_a_file_with_anything_else_in_it_is_left_aside(tmp_path: Path, text: str) -> None:
    apps = json.dumps({"grix": app("grix")})
    (tmp_path / "desired.json").write_text(f'{{"applications": {apps}, "revision": "r", "confirmed": true, {text}}}')
    made = writer(FakeServe({"grix": app("grix"), "doc--1": app("doc--1")}), tmp_path)
    assert made.desired is not None and made.desired.applications.keys() == {"grix", "doc--1"}
