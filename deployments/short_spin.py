"""A plugin of vLLM: on a CPU, an engine's processes doze while they wait for each other instead of spinning.

vLLM's queues in shared memory spin from one message to the next, and for a second after the last, before they sleep.
Next to a GPU that is a core nobody misses. On a CPU it is the core that the rest of the gateway needs, and a health
probe every two seconds keeps an idle engine spinning half of the time. Here a reader that has waited for a while takes
naps, each a small share of what it has waited already, so that a message is late by that share at most.

vLLM loads this in each of its processes (entry point ``vllm.general_plugins``); it does nothing unless
:data:`NAP_VARIABLE` is set.
"""

from __future__ import annotations

import os
import time
from typing import Any, Final

#: The share, as a number above 0: 0.02 is a fiftieth.
NAP_VARIABLE: Final = "GRIX_ENGINE_NAP_RATIO"
#: Shorter naps than a kernel can time are spun.
SHORTEST_NAP_S: Final = 0.00005
LONGEST_NAP_S: Final = 0.001


def nap_s(waited_s: float, ratio: float) -> float:
    """How long to sleep after having waited for ``waited_s``; 0.0: not yet."""
    nap = waited_s * ratio
    return min(LONGEST_NAP_S, nap) if nap >= SHORTEST_NAP_S else 0.0


def install() -> None:
    """Puts naps into ``SpinCondition.wait``; ``tests/contract`` pins what is used of it."""
    told = os.environ.get(NAP_VARIABLE)
    if told is None:
        return
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    ratio, idle = float(told), SpinCondition.wait

    def wait(self: Any, timeout_ms: int | None = None) -> None:
        waited_s = time.monotonic() - self.last_read
        nap = nap_s(waited_s, ratio) if waited_s <= self.busy_loop_s else 0.0
        if nap:
            time.sleep(nap)
        else:
            idle(self, timeout_ms)

    SpinCondition.wait = wait
