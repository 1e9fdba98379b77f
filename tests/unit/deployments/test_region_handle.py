"""Calls to the RegionAgent: looked for now and then, always limited, and every failure is the same one."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest
from ray.exceptions import RayActorError

from deployments import region_handle
from deployments.region_handle import RegionAway, RegionHandle


class Response:
    """Answers, fails, or never ends."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.cancelled = False

    def __await__(self) -> Generator[Any, None, Any]:
        if self.answer == "hang":
            yield from asyncio.sleep(3600).__await__()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def cancel(self) -> None:
        self.cancelled = True


class Handle:
    """A deployment's handle with one answer for every call."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.responses: list[Response] = []
        self.method = ""

    def options(self, *, method_name: str, **_: Any) -> Handle:
        self.method = method_name
        return self

    def remote(self, *args: Any) -> Response:
        self.calls.append((self.method, args))
        self.responses.append(Response(self.answer))
        return self.responses[-1]


def there(monkeypatch: pytest.MonkeyPatch, found: Handle | Exception) -> list[tuple[str, str]]:
    """What is looked up, from now on."""
    looked: list[tuple[str, str]] = []

    def look(deployment: str, app: str) -> Handle:
        looked.append((deployment, app))
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(region_handle.serve, "get_deployment_handle", look)
    return looked


async def test_the_answer_of_a_method_and_one_look_for_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Handle(2.5)
    looked = there(monkeypatch, handle)
    region = RegionHandle()
    assert [await region.ask("push_replica", "report", limit_s=1.0) for _ in range(2)] == [2.5, 2.5]
    assert looked == [("RegionAgent", "grix-region")]
    assert handle.calls == [("push_replica", ("report",))] * 2
    assert not any(response.cancelled for response in handle.responses)


@pytest.mark.parametrize(("look_again_s", "looks"), [(3600.0, 1), (0.0, 3)])
async def test_a_region_without_one_is_looked_at_now_and_then(
    monkeypatch: pytest.MonkeyPatch, look_again_s: float, looks: int
) -> None:
    looked = there(monkeypatch, KeyError("no such deployment"))
    region = RegionHandle(look_again_s)
    for _ in range(3):
        with pytest.raises(RegionAway, match="no RegionAgent"):
            await region.ask("watch", limit_s=1.0)
    assert len(looked) == looks


async def test_no_answer_in_time_is_given_up_and_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Handle("hang")
    there(monkeypatch, handle)
    with pytest.raises(RegionAway, match=r"no answer to watch within 0.25 s"):
        await RegionHandle().ask("watch", limit_s=0.25)
    assert handle.responses[0].cancelled


@pytest.mark.parametrize(
    ("error", "said"),
    [(RayActorError(), "watch failed: RayActorError"), (ValueError("what"), "watch failed: ValueError: what")],
)
async def test_whatever_fails_is_an_agent_that_is_away(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    there(monkeypatch, Handle(error))
    with pytest.raises(RegionAway, match=said):
        await RegionHandle().ask("watch", limit_s=1.0)
