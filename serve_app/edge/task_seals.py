"""What tells the tasks and the workers of a region from those of anybody else who reaches its Redis.

Both come from one secret, in a file that Routers and workers of the region read, and that is not in the Redis. A Router
seals what it submits; a worker runs only what has the right seal, as a task runs in the name of the tenant that it
names. A worker shows a token when it registers and whenever it claims.

Who has the password of the Redis and not the secret can read tasks and disturb them: the password keeps him out.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Final

LEAST_CHARS: Final = 32


def read_secret(file: str) -> bytes:
    """The secret in a file.

    Raises:
        OSError: when it cannot be read, or is too short to be one.
    """
    secret = Path(file).read_text("utf-8", "replace").strip()
    if len(secret) < LEAST_CHARS:
        raise OSError(f"{file}: the secret of tasks has {len(secret)} characters; allowed: {LEAST_CHARS} or more")
    return secret.encode()


class Seals:
    """Seals and the worker's token of one region."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.worker_token: Final = self._mac("worker")
        #: What the Redis compares a token with: it tells nobody the token.
        self.gate: Final = hashlib.sha1(self.worker_token.encode(), usedforsecurity=False).hexdigest()

    def of(self, task_id: str, tenant: str, task_class: str, priority: str, text: str) -> str:
        """The seal of a task: of what is run, for whom, and as which task."""
        return self._mac("task", task_id, tenant, task_class, priority, text)

    def fits(self, seal: str, *task: str) -> bool:
        """Whether a seal is that of the task with these parts, as :meth:`of` takes them."""
        return hmac.compare_digest(seal.encode("utf-8", "replace"), self.of(*task).encode())

    def _mac(self, *parts: str) -> str:
        # As JSON no part can be taken for two.
        return hmac.new(self._secret, json.dumps(parts).encode(), hashlib.sha256).hexdigest()
