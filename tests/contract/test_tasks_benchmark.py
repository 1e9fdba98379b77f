"""The chaos run small: worker processes that are killed, a Redis that is killed, tasks that are submitted twice."""

from __future__ import annotations

import json

import pytest

from benchmarks.tasks import main


def test_nothing_is_lost_or_doubled(capfd: pytest.CaptureFixture[str]) -> None:
    chaos = ["--chaos", "--tasks", "60", "--kill-s", "0.7", "--restart-s", "5", "--claim-holds-s", "2", "--json"]
    assert main(chaos) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["submitted"] == 60 and told["completed"] + told["dead"] == 60
    assert (told["lost"], told["doubled"], told["wrong"]) == (0, 0, 0)
