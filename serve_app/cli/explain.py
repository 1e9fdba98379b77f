"""``grix explain``: how a request would be, or was, decided."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from serve_app.cli import documents, regions
from serve_app.cli.chat import Talk, request_of
from serve_app.cli.say import BAD_USAGE, Failed, note
from serve_app.cli.state import TENANT, Home, tenant_document
from serve_app.cli.table import cut, render


def past(home: Home, request_id: str) -> dict[str, Any]:
    """The record of one of the region's last requests.

    Raises:
        Failed: when no region is up or it does not know the request.
    """
    record = regions.first_up(home)
    reply = regions.client(record).ask("GET", f"/grix/requests/{quote(request_id, safe='')}")
    if reply.status != 200:
        raise Failed(f"{request_id}: {reply.fault}")
    return dict(reply.body)


def decide(
    home: Home, talk: Talk, text: str, tenant: str | None, config: Sequence[Path] | None, region: str | None
) -> dict[str, Any]:
    """What would be decided: asked of the running region, else worked out here from the documents.

    Raises:
        Failed: for a bad request, an unknown tenant or region.
    """
    body, headers = request_of(talk, [{"role": "user", "content": text}])
    if tenant is not None:
        headers["x-grix-as-tenant"] = tenant
    if config is None:
        for record in home.read()["regions"]:
            if regions.is_alive(record) and region in (None, record["name"]):
                reply = regions.client(record).ask("POST", "/grix/explain", body, headers)
                if reply.status != 200:
                    raise Failed(reply.fault)
                return dict(reply.body)
    return _offline(body, headers, config, region)


def _offline(
    body: dict[str, Any], headers: dict[str, str], config: Sequence[Path] | None, region: str | None
) -> dict[str, Any]:
    from serve_app.edge import offline_explain
    from serve_app.outcomes import GrixError

    loaded = documents.load(config)
    if TENANT not in loaded.tenants:
        loaded = documents.load(config, [tenant_document("nobody has this key")])
    headers.setdefault("x-grix-as-tenant", TENANT)
    names = [r.name for r in loaded.federation.spec.regions]
    region = region or names[0]
    if region not in names:
        raise Failed(f"--region {region}: is not in the federation; allowed: {', '.join(names)}", BAD_USAGE)
    note(f"region {region} is not up here: decided from the documents, without its load and sessions")
    try:
        return dict(offline_explain.explain(loaded, region, body, headers))
    except (GrixError, LookupError) as error:
        raise Failed(str(error)) from None


_WHOSE: Final = ("tenant", "region", "session_id", "model")


def text_of(told: dict[str, Any]) -> str:
    """A decision as people read it: facts, rules in order, candidates with scores and reasons."""
    budget = told.get("budget") or {}
    confidence = told.get("confidence")
    sure = "" if confidence is None else f", confidence {confidence:.3f}"
    happened = told.get("outcome") is not None
    whose = "  ".join(
        [
            str(told.get("request_id")) if happened else "not run",
            *(f"{name.removesuffix('_id')} {told[name]}" for name in _WHOSE if told.get(name) is not None),
        ]
    )
    lines = [
        f"request    {whose}",
        f"language   {told.get('language')} ({told.get('script')}{sure}, from {told.get('language_source')})",
        f"rule       {told.get('rule')}: {told.get('rule_reason')}",
        f"agent      {told.get('agent')}",
        f"template   {told.get('template')}",
        f"budget     {budget.get('max_tokens')} tokens ({budget.get('reason')}); prompt "
        f"about {told.get('prompt_tokens_estimate')}",
        f"choice     {told.get('reason')}",
    ]
    if happened:
        if told.get("serving_region") is not None:
            spilled = ", a spill" if told.get("spilled") else ""
            lines.append(f"served     by {told['serving_region']}, hops {told.get('hops')}{spilled}")
        lines += [
            f"outcome    {told.get('outcome')}, status {told.get('status')}, finish {told.get('finish_reason')}, "
            f"error {told.get('error')}",
            f"tokens     prompt {told.get('prompt_tokens')}, answer {told.get('completion_tokens')}",
            f"times      queue {told.get('queue_wait_ms')} ms, first token {told.get('first_token_ms')} ms, "
            f"total {told.get('total_ms')} ms",
        ]
    rules = told.get("rules")
    if rules:
        lines += ["", render(["rule", "result"], [[r["rule"], r["result"]] for r in rules])]
    candidates = told.get("candidates") or []
    if candidates:
        rows = [
            [c["target"], c["health"], c["tier"], c["score"], _parts(c), c["dropped"] or c["mark"] or "may answer"]
            for c in candidates
        ]
        lines += ["", render(["candidate", "health", "tier", "score", "parts", "why"], rows)]
    attempts = told.get("attempts") or []
    lines += [""] if attempts else []
    lines += [f"attempt    {cut(json.dumps(a, ensure_ascii=False), 160)}" for a in attempts]
    return "\n".join(lines)


def _parts(candidate: dict[str, Any]) -> str:
    """What the score is made of; the weight only where it takes something away."""
    said = [f"{name} {value:g}" for name, value in candidate["scores"].items()]
    if said and candidate["weight"] != 1:
        said.append(f"weight {candidate['weight']:g}")
    return " ".join(said) or "–"
