"""What the demo of a federation makes of what came back."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from serve_app.cli import tour_federation
from serve_app.cli.client import Client, Reply
from serve_app.cli.tour_federation import faults_of, text_of

RUN: dict[str, Any] = {
    "detected_s": 1.08,
    "detector": "peer",
    "failover_s": 1.92,
    "recovered_s": None,
    "requests": 61,
    "lost_entry": 23,
    "failed_before_first_byte": 0,
    "failed_mid_stream": 2,
    "hung": 0,
    "faults": [],
}
NOTHING = {"detected_s": None, "detector": None, "failover_s": 0.0, "lost_entry": 0, "failed_mid_stream": 0}
TOLD: dict[str, Any] = {
    "answers": [{"entry": "cloud-b", "language": "ja", "region": "cloud-a", "hops": "1", "fault": None}],
    "overload": {
        **{"entry": "cloud-a", "requests": 80, "served": {"cloud-a": 50, "cloud-b": 30}, "spilled": 30, "failed": 0}
    },
    "drills": {"kill-coordinator": {**RUN, **NOTHING}, "kill-region": RUN},
}


def test_what_people_read() -> None:
    assert text_of(TOLD).splitlines() == [
        "language  entry    served in  hops",
        "--------  -------  ---------  ----  --",
        "ja        cloud-b  cloud-a    1     ok",
        "",
        "overload of cloud-a: 80 long requests: 50 in cloud-a, 30 in cloud-b; 30 spilled, 0 failed",
        "kill-coordinator: 61 requests meanwhile, 0 failed without a first byte, 0 mid-stream, 0 hung; failover 0.0 s",
        "kill-region: 61 requests meanwhile, 0 failed without a first byte, 2 mid-stream, 0 hung; 23 found their entry "
        "gone and went to the next; noticed by peer after 1.1 s; failover 1.9 s",
    ]
    assert faults_of(TOLD) == []


def test_what_is_wrong_is_named() -> None:
    told = copy.deepcopy(TOLD)
    told["answers"][0]["fault"] = "503, expected 200 from cloud-a"
    told["overload"] |= {"failed": 2, "spilled": 0}
    told["drills"]["kill-region"]["faults"] = ["1 requests hung"]
    assert faults_of(told) == [
        "ja at cloud-b: 503, expected 200 from cloud-a",
        "overload: 2 of 80 requests failed",
        "overload: nothing spilled",
        "kill-region: 1 requests hung",
    ]


@pytest.mark.parametrize(
    ("entry", "status", "region", "hops", "right"),
    [
        ("cloud-a", 200, "cloud-a", "0", True),
        ("cloud-b", 200, "cloud-a", "1", True),
        ("cloud-b", 200, "cloud-b", "0", False),
        ("cloud-a", 200, "cloud-a", "1", False),
        ("cloud-a", 503, None, None, False),
    ],
)
def test_an_answer_has_to_come_from_its_region(
    entry: str, status: int, region: str | None, hops: str | None, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {} if region is None else {"x-grix-region": region, "x-grix-hops": str(hops)}
    monkeypatch.setattr(Client, "ask", lambda *_, **__: Reply(status, headers, {}))
    entries = {name: Client("http://127.0.0.1:1") for name in ("cloud-a", "cloud-b")}
    told = tour_federation._ask(entries, entry, *tour_federation.ASKED[0])
    assert (told["fault"] is None) is right
