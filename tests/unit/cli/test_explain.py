"""A decision as people read it."""

from __future__ import annotations

from serve_app.cli.explain import text_of


def test_what_was_not_run_is_called_so() -> None:
    told = {"request_id": "explain", "tenant": "local", "region": "cloud-a", "session_id": "s1"}
    assert text_of(told).splitlines()[0] == "request    not run  tenant local  region cloud-a  session s1"


def test_a_request_of_the_past_begins_with_its_id() -> None:
    told = {"request_id": "r-7", "tenant": "acme", "region": "cloud-a", "outcome": "success", "status": 200}
    lines = text_of(told).splitlines()
    assert lines[0] == "request    r-7  tenant acme  region cloud-a"
    assert "outcome    success, status 200, finish None, error None" in lines


def test_a_request_of_the_past_tells_who_served_it() -> None:
    told = {"request_id": "r-7", "outcome": "success", "status": 200, "serving_region": "cloud-b", "hops": 1}
    assert "served     by cloud-b, hops 1" in text_of(told)
    assert "served     by cloud-b, hops 1, a spill" in text_of({**told, "spilled": True})


def test_candidates_say_what_is_special_or_why_they_are_out() -> None:
    score = {"tier": "price 1 USD/h", "health": "healthy", "score": 0.4, "scores": {"network": 1.0}}
    rows = [
        {**score, "target": "a", "weight": 0.3, "mark": "kept", "dropped": None},
        {**score, "target": "b", "weight": 1.0, "mark": "", "dropped": None},
        {**score, "target": "c", "score": None, "scores": {}, "weight": 0.3, "mark": "", "dropped": "is ejected"},
    ]
    lines = text_of({"candidates": rows}).splitlines()[-3:]
    assert [line.split()[-1] for line in lines] == ["kept", "answer", "ejected"]
    assert "network 1 weight 0.3" in lines[0] and "weight" not in lines[1] + lines[2]
