"""``grix drill rollback`` and ``grix drill bad-release``: a release under a stream of users, and the way back."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from serve_app.cli import control, documents, regions, rollout
from serve_app.cli.drill_stream import CHAT, LINES, Entry
from serve_app.cli.say import FAILED, OK, Failed, Progress, note, out, out_json
from serve_app.cli.state import Home, own_tenant
from serve_app.cli.up import alone
from serve_app.core.release_verdict import Answered, ReleaseDrill, ReleaseRun, broken, run_of

#: Users that the stream has at each entry, asked about in turn.
USERS: Final = 100
PAUSE_S: Final = 0.3
BASELINE_S: Final = 5.0
AFTERWARDS_S: Final = 5.0
LIMIT_S: Final = 300.0
#: Careful enough to be a rollout, quick enough for a drill.
QUICK: Final[Mapping[ReleaseDrill, Mapping[str, Any]]] = {
    "rollback": {"steps": [100], "hold": "2s", "minSamples": 3},
    "bad-release": {"steps": [5, 100], "hold": "10s", "minSamples": 3},
}
#: What each drill makes of the Japanese template: one that says the same and more, one that orders another language.
CHANGED: Final[Mapping[ReleaseDrill, Callable[[str], str]]] = {
    "rollback": lambda system: f"{system}回答の最後に、ほかにご質問がないかお尋ねください。",
    "bad-release": lambda system: "당신은 고객 지원 담당자입니다. 고객에게 항상 한국어로만 짧게 답변해 주세요.",
}

Document = Mapping[str, Any]


@dataclass(slots=True)
class Users:
    """Users of one entry who ask one after the other, in a thread of their own."""

    entry: Entry
    ending: threading.Event
    answered: list[Answered] = field(default_factory=list)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join(60.0)

    def _run(self) -> None:
        number = 0
        while not self.ending.is_set():
            self.answered.append(self._ask(f"{self.entry.name}-{number % USERS}", LINES[number % len(LINES)]))
            number += 1
            time.sleep(PAUSE_S)

    def _ask(self, user: str, line: str) -> Answered:
        body = {"messages": [{"role": "user", "content": line}], "temperature": 0, "user": user}
        began_s = time.monotonic()
        try:
            reply = self.entry.client.ask("POST", CHAT, body)
        except Failed as error:
            return Answered(self.entry.name, user, began_s, told=str(error))
        if reply.status != 200:
            return Answered(self.entry.name, user, began_s, told=f"{self.entry.name}: {reply.status} {reply.fault}")
        head = reply.headers
        return Answered(self.entry.name, user, began_s, head["x-grix-release"], head["x-grix-region"])


def run(drill: ReleaseDrill, home: Home, *, as_json: bool) -> int:
    """The drill; its exit status.

    Raises:
        Failed: when there is no federation to rehearse in, or a rollout runs already.
    """
    there = [Entry(r["name"], regions.client(r)) for r in home.read()["regions"] if regions.is_alive(r)]
    if len(there) < 2 or control.admin(home) is None:
        raise Failed("a drill needs a coordinator and at least two regions that are up; start them with: grix up")
    with alone(home):
        result, answered = _run(drill, there, home, Progress())
    faults = broken(result, answered, len(there))
    if as_json:
        out_json(result.json)
    else:
        out("\n".join(f"{name}: {json.dumps(value)}" for name, value in result.json.items()))
    if faults:
        note("\n".join(f"BROKEN PROMISE {fault}" for fault in faults))
    return FAILED if faults else OK


def _run(
    drill: ReleaseDrill, there: Sequence[Entry], home: Home, progress: Progress
) -> tuple[ReleaseRun, list[Answered]]:
    asked = control.admin(home)
    before = _documents(home)
    ending = threading.Event()
    streams = [Users(entry, ending) for entry in there]
    for stream in streams:
        stream.start()
    back_s, rolled_back = time.monotonic(), False
    try:
        time.sleep(BASELINE_S)
        old = _one_release(streams)
        progress.tell(f"{drill}: a release begins")
        back_s = time.monotonic()
        told = control.ask(asked, "rollout_start", documents=changed(drill, before))
        agent = next(iter(told["running"]["agents"]))
        if drill == "bad-release":
            rolled_back = _until_over(asked, progress) == "rolled_back"
        else:
            if _until_over(asked, progress) != "done":
                raise Failed("the release that was to be rolled back did not get through; see grix rollout history")
            time.sleep(BASELINE_S)
            progress.tell(f"{drill}: back")
            back_s = time.monotonic()
            rollout.follow(rollout.rollback(agent, None, home, None), LIMIT_S, home, None, progress)
            rolled_back = True
        time.sleep(AFTERWARDS_S)
    finally:
        ending.set()
        for stream in streams:
            stream.join()
        _as_before(asked, before, progress)
    answered = [one for stream in streams for one in stream.answered]
    return run_of(drill, answered, old, back_s, rolled_back=rolled_back), answered


def _one_release(streams: Sequence[Users]) -> str:
    """The release in force.

    Raises:
        Failed: where requests fail, or agents differ: there is nothing to rehearse.
    """
    answered = [one for stream in streams for one in stream.answered]
    bad = [one for one in answered if not one.release]
    found = {one.release for one in answered}
    if bad or len(found) != 1:
        told = bad[0].told if bad else f"releases {', '.join(sorted(found)) or 'of nobody'} are served"
        raise Failed(f"before the release: {told}")
    return found.pop()


def _documents(home: Home) -> list[Document]:
    """What is in force: what was applied last, else what the federation was started with."""
    from cluster_configs.load import to_documents

    text = control.ask(control.admin(home), "backup")["backup"]["documents"]
    if text:
        return list(json.loads(text))
    paths = home.read()["coordinator"]["config"]
    return to_documents(documents.load(None if paths is None else [Path(p) for p in paths], [own_tenant(home)]))


def changed(drill: ReleaseDrill, before: Sequence[Document]) -> list[Document]:
    """The documents with the drill's Japanese template, and a quick rollout."""
    made = []
    for document in before:
        spec = document["spec"]
        if (document["kind"], document["metadata"]["name"]) == ("PromptTemplate", "ja"):
            spec = {**spec, "system": CHANGED[drill](spec["system"])}
        if document["kind"] == "Federation":
            spec = {**spec, "rollout": {**spec["rollout"], **QUICK[drill]}}
        made.append({**document, "spec": spec})
    return made


def _until_over(asked: Any, progress: Progress) -> str:
    """How the rollout that runs ends; ``halted`` is an end too.

    Raises:
        Failed: when it does not end in time.
    """
    until_s = time.monotonic() + LIMIT_S
    while (told := control.ask(asked, "rollout_status"))["running"] is not None:
        if told["running"]["phase"] == "halted":
            return "halted"
        progress.tell(rollout.line_of(told["running"]))
        if time.monotonic() > until_s:
            raise Failed(f"not over after {LIMIT_S:g} s: {rollout.line_of(told['running'])}")
        time.sleep(0.25)
    return str(told["last"]["outcome"])


def _as_before(asked: Any, before: Sequence[Document], progress: Progress) -> None:
    """Nothing of the drill stays: no rollout, and the documents as they were."""
    told = control.ask(asked, "rollout_status")
    if told["running"] is not None:
        control.ask(asked, "rollout_steer", act="abort")
        _until_over(asked, progress)
    reply = control.ask(asked, "apply", documents=before)
    until_s = time.monotonic() + LIMIT_S
    while any(r["linked"] and r["revision"] != reply["revision"] for r in control.ask(asked, "status")["regions"]):
        progress.tell(f"revision {reply['revision']}: as it was before")
        if time.monotonic() > until_s:
            raise Failed(f"revision {reply['revision']}, as it was before, is not in force after {LIMIT_S:g} s")
        time.sleep(0.25)
