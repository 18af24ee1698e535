"""Blocks that running jobs leave for a waiting one: who holds which, and until when. Needs no planner; `preempt.py` makes them."""

from __future__ import annotations

from services.allocator.core.state import Preemption, State


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
