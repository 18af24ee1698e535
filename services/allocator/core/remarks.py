"""What is worth knowing of a job that runs: beyond its forecast, on cards that are reported broken, or stamped by a wrong clock.

Owns: the codes and sentences. They are said in the job's status (`reason`, `detail`) and by `gpugrid why`; nothing is decided by them: a
broken card under a job is its executor's business, an overdue one ends at its limit. Refuses: waiting jobs (`reasons.py`). Read next:
`project.py`.
"""

from __future__ import annotations

from schemas.status import JobState
from services.allocator.core.state import PARTS_ALIVE, Job, State

OVERTIME = "overtime"
OVERTIME_SENTENCE = (
    "It has run longer than the P90 of its forecast; it keeps its GPUs, at the longest until its time limit."
)
ON_BROKEN_GPUS = "on_broken_gpus"
CLOCK_SKEW = "clock_skew"
CLOCK_SKEW_SENTENCE = (
    "Clocks disagree: its submission is stamped later than what came after it, so its wait tells nothing."
)


def remarks(state: State, job: Job) -> tuple[str, str] | None:
    """(code of the most urgent, all sentences) of a running job, or None."""
    if job.state is not JobState.RUNNING:
        return None
    found = []
    if broken := broken_gpus(state, job):
        found.append((ON_BROKEN_GPUS, _broken_sentence(broken)))
    if job.overtime:
        found.append((OVERTIME, OVERTIME_SENTENCE))
    if job.skewed:
        found.append((CLOCK_SKEW, CLOCK_SKEW_SENTENCE))
    return (found[0][0], " ".join(sentence for _, sentence in found)) if found else None


def broken_gpus(state: State, job: Job) -> dict[str, int]:
    """By node, how many of the GPUs that the job holds there are reported unhealthy."""
    found = {}
    for part in job.parts:
        node = state.nodes.get(part.node)
        if node is not None and part.status in PARTS_ALIVE:
            broken = sum(gpu >= node.size or not node.healthy[gpu] for gpu in part.gpus)
            if broken:
                found[part.node] = broken
    return found


def _broken_sentence(broken: dict[str, int]) -> str:
    where = ", ".join(f"{count} on {node}" for node, count in broken.items())
    return (
        f"GPUs under it are reported broken: {where}. It goes on until it ends or its executor reports otherwise; "
        "nothing new starts on them."
    )
