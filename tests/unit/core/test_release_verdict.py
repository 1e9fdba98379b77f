"""Drills of releases: what was answered, and the numbers and broken promises that follow."""

from __future__ import annotations

from dataclasses import replace

from serve_app.core.release_verdict import Answered, broken, run_of

OLD, NEW = "aaaa", "bbbb"


def at(began_s: float, release: str, region: str = "cloud-a", user: str = "u1") -> Answered:
    return Answered(region, user, began_s, release, region, "" if release else "503 no")


ROLLED = [at(1.0, OLD), at(2.0, NEW), at(2.5, NEW, "cloud-b", "u2"), at(11.5, NEW), at(12.0, OLD)]


def test_a_rollback_is_over_with_the_last_request_that_got_the_new_release() -> None:
    run = run_of("rollback", ROLLED, OLD, 11.0, rolled_back=True)
    assert run.json == {
        "drill": "rollback",
        "served_old_everywhere_s": 0.5,
        "reached_regions": ["cloud-a", "cloud-b"],
        "reached_user_ratio": 1.0,
        "rolled_back": True,
        "requests": 5,
        "failed_requests": 0,
    }
    assert broken(run, ROLLED, 2) == []


def test_what_a_rollback_promises() -> None:
    answered = [*ROLLED, at(13.0, "")]
    run = run_of("rollback", answered, OLD, 0.0, rolled_back=False)
    assert broken(replace(run, reached_regions=("cloud-a",)), answered, 2) == [
        "the release was not rolled back",
        "1 requests failed, promised none: 503 no",
        "the old release everywhere after 11.5 s, promised 10 s",
        "the new release reached 1 of 2 regions: nothing to roll back",
    ]
    never = run_of("rollback", ROLLED[:-1], OLD, 11.0, rolled_back=True)
    assert never.served_old_everywhere_s is None
    assert broken(never, ROLLED, 2) == ["the new release was served to the end"]


def test_what_a_bad_release_promises() -> None:
    good = run_of("bad-release", [at(1.0, OLD), at(2.0, OLD)], OLD, 1.0, rolled_back=True)
    assert (good.served_old_everywhere_s, good.reached_regions, good.reached_user_ratio) == (0.0, (), 0.0)
    assert broken(good, [], 2) == []
    bad = run_of("bad-release", ROLLED, OLD, 1.0, rolled_back=True)
    assert broken(bad, ROLLED, 2) == [
        "the bad release reached cloud-a, cloud-b, promised 1 region",
        "the bad release reached 100.0% of users, promised 5%",
    ]
