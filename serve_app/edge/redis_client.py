"""How a Redis is opened: with bounded connections, limits on each wait, and nothing tried twice."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

#: Those of a request's path are few.
CONNECTIONS: Final = 4
#: The longest wait for a connection or an answer; a request waits for less (``redis_calls.CALL_LIMIT_S``).
WAIT_LIMIT_S: Final = 0.25


def connect(
    url: str,
    password_file: str | None,
    *,
    connections: int = CONNECTIONS,
    wait_limit_s: float = WAIT_LIMIT_S,
    answer_limit_s: float = WAIT_LIMIT_S,
    undecodable: Literal["strict", "replace"] = "strict",
) -> Redis:
    """A client. ``wait_limit_s`` is for a free connection and for opening one, ``answer_limit_s`` for each answer.

    Raises:
        OSError: when the password file cannot be read: no region runs with a Redis it cannot open.
    """
    password = Path(password_file).read_text("utf-8").strip() if password_file else None
    pool = BlockingConnectionPool.from_url(
        url,
        password=password,
        max_connections=connections,
        timeout=wait_limit_s,
        socket_connect_timeout=wait_limit_s,
        socket_timeout=answer_limit_s,
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
        encoding_errors=undecodable,
    )
    return Redis.from_pool(pool)
