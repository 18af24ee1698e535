"""Blocks that running jobs leave for a waiting one: who holds which, and until when; how often a job lost its place, and may.

Needs no planner; `preempt.py` makes them."""

from __future__ import annotations

from schemas.rules import QueueRules
from services.allocator.core.state import Job, Preemption, State


def held_blocks(state: State, pool: str, now_ms: int) -> list[tuple[str, Preemption]]:
    """Blocks of the pool that are held for a waiting job now."""
    return [
        (job_id, held) for job_id, held in state.preemptions.items() if held.pool == pool and held.until_ms > now_ms
    ]


def forget_preemptions(state: State, now_ms: int) -> None:
    """Held blocks nobody waits for any more, or that took too long to come free."""
    gone = [
        job_id
        for job_id, held in state.preemptions.items()
        if held.until_ms <= now_ms or job_id not in state.jobs or state.jobs[job_id].parts
    ]
    for job_id in gone:
        del state.preemptions[job_id]


def losses(job: Job, queue: QueueRules, now_ms: int) -> list[int]:
    """When the job lost its place by rule within the window of its queue that ends now, the first one first."""
    return [at_ms for at_ms in job.preempted_ms if at_ms > now_ms - queue.preempted_window_s * 1000]


def protected_until_ms(job: Job, queue: QueueRules, now_ms: int) -> int | None:
    """Until when it has lost its place as often as its queue allows; None: it may lose it (again)."""
    lately = losses(job, queue, now_ms)
    if len(lately) < queue.preempted_max:
        return None
    return lately[-queue.preempted_max] + int(queue.preempted_window_s * 1000)
