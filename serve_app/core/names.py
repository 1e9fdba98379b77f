"""Names and digests that more than one place must agree on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def digest_of(facts: Mapping[str, Any]) -> str:
    """SHA-256 (64 hex characters) of a JSON-able mapping, independent of key order."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def engine_digest(weights: str, engine: Mapping[str, Any]) -> str:
    """Digest of what an engine runs: what its files are, and the options that change answers or the context limit."""
    return digest_of({"weights": weights, "engine": engine})


def app_name(agent: str, engine_digest: str) -> str:
    """Serve application of an engine: ``<agent>--<first 8 of digest>``."""
    return f"{agent}--{engine_digest[:8]}"


def agent_of(app: str) -> str:
    """The agent that owns an engine's application; any other application is its own name."""
    agent, dashes, _ = app.rpartition("--")
    return agent if dashes else app


def release_digest(engine_digest: str, templates: Mapping[str, str], routes: list[Mapping[str, Any]]) -> str:
    """Engine digest, digests of the templates by language, and the routes that name the agent, as one digest."""
    return digest_of({"engine": engine_digest, "templates": dict(templates), "routes": routes})


def short(digest: str) -> str:
    """A digest as people see it: its first 12 characters."""
    return digest[:12]
