"""``grix demo``: a region up, the tour, a table, the region down."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from serve_app.cli import regions, tour_federation
from serve_app.cli.client import Client, Reply
from serve_app.cli.corpus_answers import EMBEDDED_MODEL, corpus_answers
from serve_app.cli.say import FAILED, OK, Failed, Progress, note, out, out_json
from serve_app.cli.start_region import Wanted
from serve_app.cli.state import Home
from serve_app.cli.table import cut, render
from serve_app.cli.tour import STOPS, Seen, Stop, check
from serve_app.cli.up import take_down, up

HEAD: Final = (
    *("", "request", "lang", "conf", "rule", "agent", "template", "budget", "tokens", "finish"),
    *("first ms", "total ms", "answer"),
)
RIGHT: Final = frozenset({"conf", "budget", "tokens", "first ms", "total ms"})
ANSWER_CELLS: Final = 32
CHAT: Final = "/v1/chat/completions"


def run(wanted: Wanted, home: Home, *, keep: bool, as_json: bool) -> int:
    """The whole demo; a region that was up before is left up."""
    progress = Progress()
    before = {r["name"] for r in home.records()}
    state, was_up = up(wanted, home, progress)
    mine = {r["name"] for r in home.records()} - before
    try:
        record = next(r for r in state["regions"] if wanted.region in (None, r["name"]))
        client = regions.client(record)
        open_access = bool(record.get("open_access"))
        answers = corpus_answers() if record.get("models") == [EMBEDDED_MODEL] else None
        stops = [s for s in STOPS if not (open_access and s.kind == "stranger")]
        results = []
        for stop in stops:
            progress.tell(f"tour: {stop.name}")
            seen = visit(client, stop)
            results.append((stop, seen, check(stop, seen, answers)))
        whole = wanted.region is None and len(state["regions"]) > 1 and state["coordinator"] is not None
        federation = tour_federation.run(home, progress, keep=keep or was_up) if whole else None
    except BaseException:
        _end(home, mine, progress)
        raise
    try:
        bad = _show(results, federation, as_json)
    finally:
        if keep or was_up:
            note(f"left up: {record['url']}\n  key file {record['key_file']}\n  key      {_key(record)}")
            note("end it with: grix down")
        else:
            _end(home, mine, progress)
    return FAILED if bad else OK


def _key(record: Mapping[str, Any]) -> str:
    return Path(record["key_file"]).read_text().strip()


def _end(home: Home, names: set[str], progress: Progress) -> None:
    take_down([r["name"] for r in home.records() if r["name"] in names], home, progress)


def visit(client: Client, stop: Stop) -> Seen:
    """Sends one request of the tour; a broken connection is a fault of that request."""
    began_s = time.monotonic()
    try:
        if stop.kind == "stranger":
            return _refusal(replace(client, key="grix-nobody-has-this-key").ask("POST", CHAT, stop.body()), began_s)
        if stop.kind == "stream":
            return _streamed(client, stop, began_s)
        reply = client.ask("POST", CHAT, stop.body())
        if reply.status != 200 or not isinstance(reply.body, dict):
            return _refusal(reply, began_s)
        choice = reply.body["choices"][0]
        message = choice["message"]
        return _seen(
            client,
            reply,
            began_s,
            text=message.get("content") or "",
            finish_reason=choice.get("finish_reason"),
            usage=reply.body.get("usage"),
            tool_calls=tuple(message.get("tool_calls") or ()),
        )
    except Failed as error:
        return Seen(0, {}, fault=str(error))


def _ms_since(began_s: float) -> float:
    return round((time.monotonic() - began_s) * 1000, 1)


def _refusal(reply: Reply, began_s: float) -> Seen:
    error = reply.body.get("error") if isinstance(reply.body, dict) else None
    return Seen(reply.status, reply.headers, error=error, total_ms=_ms_since(began_s))


def _streamed(client: Client, stop: Stop, began_s: float) -> Seen:
    reply, events = client.stream(CHAT, stop.body())
    if reply.status != 200:
        return _refusal(reply, began_s)
    text, finish, usage = "", None, None
    for event in events:
        usage = event.get("usage") or usage
        for choice in event.get("choices", []):
            text += choice.get("delta", {}).get("content") or ""
            finish = choice.get("finish_reason") or finish
    return _seen(client, reply, began_s, text=text, finish_reason=finish, usage=usage)


def _seen(client: Client, reply: Reply, began_s: float, **told: Any) -> Seen:
    total_ms = _ms_since(began_s)
    request_id = reply.headers.get("x-request-id", "")
    past = client.ask("GET", f"/grix/requests/{quote(request_id, safe='')}")
    record = past.body if past.status == 200 and isinstance(past.body, dict) else None
    first_ms = record.get("first_token_ms") if record else None
    return Seen(
        reply.status,
        reply.headers,
        record=record,
        first_token_ms=first_ms,
        total_ms=total_ms,
        answer_language=_language_of(client, told.get("text") or ""),
        **told,
    )


def _language_of(client: Client, text: str) -> str | None:
    """What the region's own detector says of an answer; ``None`` where it does not know."""
    if not text.strip():
        return None
    reply = client.ask("POST", "/grix/explain", {"messages": [{"role": "user", "content": text}]})
    language = reply.body.get("language") if reply.status == 200 and isinstance(reply.body, dict) else None
    return language if language != "und" else None


def row(stop: Stop, seen: Seen, faults: list[str]) -> list[object]:
    """One line of the table, after :data:`HEAD`."""
    record = seen.record or {}
    confidence = record.get("confidence")
    usage = seen.usage or {}
    said: str = seen.text
    if seen.tool_calls:
        function = seen.tool_calls[0].get("function") or {}
        said = f"{function.get('name')}({function.get('arguments')})"
    if seen.error is not None:
        said = f"{seen.status} {seen.error.get('code')}: {seen.error.get('message')}"
    return [
        "ok" if not faults else "FAILED",
        stop.name,
        seen.headers.get("x-grix-language"),
        None if confidence is None else f"{confidence:.2f}",
        seen.headers.get("x-grix-rule"),
        seen.headers.get("x-grix-agent"),
        record.get("template"),
        seen.headers.get("x-grix-max-tokens"),
        usage.get("completion_tokens"),
        seen.finish_reason,
        None if seen.first_token_ms is None else f"{seen.first_token_ms:.0f}",
        None if seen.total_ms is None else f"{seen.total_ms:.0f}",
        cut(said, ANSWER_CELLS),
    ]


def _show(results: Iterable[tuple[Stop, Seen, list[str]]], federation: dict[str, Any] | None, as_json: bool) -> bool:
    """Shows all of it; whether anything came out wrong."""
    results = list(results)
    bad = [f"{stop.name}: {'; '.join(faults)}" for stop, _, faults in results if faults]
    right = len(results) - len(bad)
    bad += tour_federation.faults_of(federation) if federation is not None else []
    if as_json:
        names = ("ok", *HEAD[1:])
        rows = [dict(zip(names, [not f, *row(s, n, f)[1:]], strict=True)) | {"faults": f} for s, n, f in results]
        out_json({"ok": not bad, "requests": rows, "federation": federation})
        return bool(bad)
    out(render(HEAD, [row(*result) for result in results], RIGHT))
    out(f"{right} of {len(results)} requests came out as they should")
    if federation is not None:
        out(f"\n{tour_federation.text_of(federation)}")
    for fault in bad:
        out(f"FAILED {fault}")
    return bool(bad)
