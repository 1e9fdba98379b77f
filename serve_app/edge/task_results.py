"""Where results go that are too large for Redis: a folder or a bucket, one object a claim, never written over.

They are not deleted here: a bucket's lifecycle rule, or whoever reads them, does that.
"""

from __future__ import annotations

from serve_app.edge.model_store import address_of, open_store
from serve_app.edge.store_types import Limits, retried
from serve_app.edge.task_jobs import Job

#: Pauses are short: a worker waits for it, and its task is tried again.
_LIMITS = Limits(attempts=4)


class TaskResults:
    """``uri`` is ``s3://BUCKET/PATH`` or ``file:///FOLDER``.

    Raises:
        StoreError: when it is neither.
    """

    def __init__(self, uri: str) -> None:
        self._store = open_store(address_of(uri), _LIMITS)

    def put(self, job: Job, data: bytes) -> str:
        """Writes a result, and says where it is. Blocks.

        Raises:
            StoreError: nothing is there then.
        """
        name = f"{job.id}-{job.claim}.json"
        retried(lambda: self._store.write_once(name, data), _LIMITS)
        return f"{self._store.address}/{name}"
