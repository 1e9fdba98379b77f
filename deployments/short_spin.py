"""A plugin of vLLM: on a CPU, an engine's processes wait for each other asleep instead of spinning.

vLLM's queues in shared memory spin for a second after each message before they sleep. Next to a GPU that is a core
nobody misses; on a CPU it is the core that the rest of the gateway needs, and a health probe every two seconds keeps an
idle engine spinning half of the time. vLLM loads this in each of its processes (entry point ``vllm.general_plugins``);
it does nothing unless :data:`SPIN_VARIABLE` is set.
"""

from __future__ import annotations

import os
from typing import Final

#: How long a reader spins after its last message, in seconds.
SPIN_VARIABLE: Final = "GRIX_ENGINE_SPIN_S"


def shorten() -> None:
    """Lowers the default of ``SpinCondition(busy_loop_s=…)``; ``tests/contract`` pins that it is there."""
    spin_s = os.environ.get(SPIN_VARIABLE)
    if spin_s is None:
        return
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    SpinCondition.__init__.__defaults__ = (float(spin_s),)
