"""What a RegionAgent's metrics say of the room in its region."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from deployments.region_agent import RegionAgent


class Meter:
    """The last value of each gauge by agent."""

    def __init__(self) -> None:
        self.told: dict[str, float] = {}

    def set(self, name: str, labels: Mapping[str, str], value: float) -> None:
        assert (name, labels["region"]) == ("grix_missing_replicas", "cloud-a")
        self.told[labels["agent"]] = value


def test_an_agent_that_is_gone_lacks_no_replicas() -> None:
    meter = Meter()
    made, tell_room = (
        SimpleNamespace(_region="cloud-a", _meter=meter, _missing={}),
        RegionAgent.func_or_class._tell_room,
    )
    tell_room(made, None, {"qwen-chat": 2, "qwen-doc": 0})
    assert meter.told == {"qwen-chat": 2, "qwen-doc": 0}
    tell_room(made, None, {"qwen-doc": 1})
    assert meter.told == {"qwen-chat": 0, "qwen-doc": 1}
