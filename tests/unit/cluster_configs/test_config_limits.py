"""Limits, batch share and Redis: from YAML to the table, and what is refused on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cluster_configs.kind_federation import Region
from cluster_configs.load import load_paths, local_paths
from cluster_configs.table import table_of
from serve_app.core.table import AdmissionRules, TenantLimits
from serve_app.edge.serve_config import render, use_redis, use_task_secret

Check = Callable[..., list[str]]
REGION = {"name": "a", "cloud": "c", "location": "l", "gpuHourUsd": 1.0, "role": "primary"}


def tenant(limits: dict[str, int] | None) -> dict[str, Any]:
    spec = {"keys": [{"id": "k1", "sha256": "a" * 64}], "residency": ["any"]}
    more = {} if limits is None else {"limits": limits}
    return {"apiVersion": "grix.io/v1", "kind": "Tenant", "metadata": {"name": "t"}, "spec": {**spec, **more}}


def user_config(limits: dict[str, int] | None = None) -> dict[str, Any]:
    config = load_paths(local_paths(), {}, [tenant(limits)])
    rendered = render(config, "cloud-a", http_host="127.0.0.1", http_port=8000)
    use_redis(rendered, "redis://127.0.0.1:1234/0", "/somewhere/password", log=False)
    made: dict[str, Any] = rendered["applications"][0]["deployments"][0]["user_config"]
    return made


@pytest.mark.parametrize(
    ("written", "known"),
    [
        (None, TenantLimits()),
        ({"requestsPerMinute": 6}, TenantLimits(requests_per_minute=6)),
        (
            {"requestsPerMinute": 6, "tokensPerMinute": 7, "concurrent": 8},
            TenantLimits(requests_per_minute=6, tokens_per_minute=7, concurrent=8),
        ),
    ],
)
def test_a_limit_that_is_not_written_is_none(written: dict[str, int] | None, known: TenantLimits) -> None:
    (made,) = table_of(user_config(written)).tenants
    assert made.limits == known


def test_defaults_of_admission_are_those_of_the_table() -> None:
    assert table_of(user_config()).admission == AdmissionRules()


def test_routers_are_told_of_redis_and_a_bundle_with_one_is_valid() -> None:
    made = user_config()
    assert made["region"]["redis"] == {"url": "redis://127.0.0.1:1234/0", "passwordFile": "/somewhere/password"}
    assert table_of(made).region.name == "cloud-a"


def test_a_secret_of_tasks_is_named_where_there_are_tasks_and_none_is_named() -> None:
    def user_config(**tasks: Any) -> dict[str, Any]:
        return {"region": {"name": "a", **tasks}, "again": {}}

    made = [user_config(), user_config(tasks={"limit": "1m"}), user_config(tasks={"secretFile": "/own"})]
    deployments = [{"user_config": one} for one in [*made, {"languages": []}]]
    use_task_secret({"applications": [{"deployments": deployments}]}, "/somewhere/secret")
    told = [one["region"].get("tasks") for one in made]
    assert told == [None, {"secretFile": "/somewhere/secret", "limit": "1m"}, {"secretFile": "/own"}]
    # Who renders again later, with tasks, knows it.
    assert [one["again"] for one in made] == [{"task_secret": "/somewhere/secret"}] * 3


@pytest.mark.parametrize("url", ["redis://h:1", "rediss://redis.example.com:6380/3", "redis://10.0.0.5:6379"])
def test_addresses_of_a_redis(url: str) -> None:
    region = Region.model_validate({**REGION, "redis": {"url": url}})
    assert region.redis is not None and region.redis.url == url and region.redis.password_file is None


@pytest.mark.parametrize(
    "url", ["h:1", "http://h:1", "redis://h", "redis://h:1/x", "redis://h:1?a=b", "redis://h:1#a", ""]
)
def test_what_is_no_address_of_a_redis(url: str) -> None:
    with pytest.raises(ValueError, match="redis"):
        Region.model_validate({**REGION, "redis": {"url": url}})


def test_a_password_has_no_place_in_the_address_and_is_not_repeated(check: Check) -> None:
    (fault,) = check(
        "apiVersion: grix.io/v1\nkind: Federation\nmetadata: {name: f}\nspec:\n  regions:\n"
        "    - {name: a, cloud: c, location: l, gpuHourUsd: 1, role: edge, acceptsSpill: false,\n"
        '       redis: {url: "redis://:hunter2@h:1"}}\n'
    )
    assert fault == (
        "7: spec.regions[0].redis.url: user or password stand in the address; write the password into a file, "
        "see passwordFile"
    )


@pytest.mark.parametrize(
    ("block", "wrong"),
    [
        ({"redis": {"url": "redis://h:1", "passwordFile": "secrets/p"}}, "absolute"),
        ({"admission": {"batchShare": 0}}, "batchShare"),
        ({"admission": {"batchShare": 1.5}}, "batchShare"),
        ({"admission": {"slotsPerRoot": 0}}, "slotsPerRoot"),
        ({"admission": {"batchPriorityBelow": -1}}, "batchPriorityBelow"),
        ({"admission": {"batchshare": 0.5}}, "batchshare"),
        ({"tasks": {"light": {"minWorkers": 1}}}, "agent"),
        ({"tasks": {"medium": {"agent": "a"}}}, "medium"),
        ({"tasks": {"light": {"agent": "a", "minWorkers": 0}}}, "minWorkers"),
        ({"tasks": {"light": {"agent": "a", "concurrency": 65}}}, "concurrency"),
        ({"tasks": {"light": {"agent": "a"}, "limit": 30}}, "limit"),
        ({"tasks": {"light": {"agent": "a"}, "results": "/var/results"}}, "no place for results"),
        ({"tasks": {"light": {"agent": "a"}, "secretFile": "secrets/tasks"}}, "absolute"),
        ({"tasks": {"light": {"agent": "a"}, "results": "s3://"}}, "no place for results"),
    ],
)
def test_what_is_refused(block: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        Region.model_validate({**REGION, **block})


@pytest.mark.parametrize(
    ("block", "fault"),
    [
        (
            "{light: {agent: qwen-chat}, limit: 1m, engineLimit: 2m}",
            "tasks.engineLimit: 120s is longer than limit, 60s; allowed: as long or shorter",
        ),
        (
            "{light: {agent: qwen-chat}, limit: 1s}",
            "tasks.readLimit: 5s is longer than limit, 1s; allowed: as long or shorter",
        ),
        ("{limit: 1m}", "tasks: nobody works at tasks; write light: {agent: NAME}, heavy: {agent: NAME} or both"),
        (
            "{heavy: {agent: a, minWorkers: 3, maxWorkers: 2}}",
            "tasks.heavy.maxWorkers: 2 is less than minWorkers 3; allowed: as many or more",
        ),
    ],
)
def test_tasks_that_nobody_could_work_at(check: Check, block: str, fault: str) -> None:
    assert check(
        "apiVersion: grix.io/v1\nkind: Federation\nmetadata: {name: f}\nspec:\n  regions:\n"
        f"    - {{name: a, cloud: c, location: l, gpuHourUsd: 1, role: edge, acceptsSpill: false, tasks: {block}}}\n"
    ) == [f"6: spec.regions[0].{fault}"]
