"""The states of a rollout as a picture: Mermaid, from the table that moves rollouts.

``python -m benchmarks.rollout_picture`` prints what stands in README.
"""

from __future__ import annotations

from typing import Final

from serve_app.core.rollout import ENDED, TABLE

#: What people are told of what happens, where the table's own word says too little.
WORDS: Final = {
    "passed": "smoke tests passed",
    "held": "step held: next share",
    "region_held": "last share held: next region",
    "all_held": "last share of the last region held",
    "failed_first": "first region failed",
    "failed_later": "later region failed",
    "adopted": "documents in force everywhere",
    "late": "a region does not take the documents",
    "replaced": "a region does not take the documents: others applied",
}


def mermaid() -> str:
    """The state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> smoke", "    [*] --> adopting: rollback"]
    for phase, row in TABLE.items():
        for happening, after in row.items():
            lines.append(f"    {phase} --> {after}: {WORDS.get(happening, happening)}")
    lines += [f"    {phase} --> [*]" for phase in TABLE if phase in ENDED]
    return "\n".join(lines)


if __name__ == "__main__":
    print(mermaid())
