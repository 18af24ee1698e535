"""EASY, best-effort FIFO and shortest-first the slow and obvious way: minute by minute, one end minute per GPU.

Only for days whose times are whole minutes and whose estimates are never too short. Shares no code with
`services.replay.core.baselines`.
"""

from __future__ import annotations

from services.replay.core.day import Day, DayJob

MINUTE_MS = 60_000


def queue_minute_by_minute(day: Day, rule: str, estimate_minutes: dict[str, int]) -> dict[str, tuple[int, int]]:
    """job id → (first GPU, start minute). `rule`: easy, best_effort or shortest."""
    gpus = day.gpus - sum(app.peak_gpus for app in day.apps)
    ends, believed_ends = [0] * gpus, [0] * gpus
    found: dict[str, tuple[int, int]] = {}

    def start(job: DayJob, first: int, minute: int) -> None:
        for gpu in range(first, first + job.requested):
            ends[gpu] = minute + round(min(job.run_s[job.requested], job.spec.time_limit_s) / 60)
            believed_ends[gpu] = minute + estimate_minutes[job.job_id]
        found[job.job_id] = (first, minute)

    for minute in range(round(day.hours * 60)):
        for gpu in range(gpus):
            if ends[gpu] <= minute:
                believed_ends[gpu] = min(believed_ends[gpu], minute)
        waiting = [
            job
            for job in day.jobs
            if job.job_id not in found and (job.arrival_ms - day.start_ms) // MINUTE_MS <= minute
        ]
        if rule == "shortest":
            waiting.sort(key=lambda job: estimate_minutes[job.job_id])
        while waiting:
            job = waiting[0]
            first = _first(day, job.requested, [gpu for gpu in range(gpus) if ends[gpu] <= minute])
            if first is None and rule == "easy":
                break
            waiting.pop(0)
            if first is not None:
                start(job, first, minute)
        if rule != "easy" or not waiting:
            continue
        shadow, kept = _promise(day, waiting[0], believed_ends, minute)
        for job in waiting[1:]:
            free = [gpu for gpu in range(gpus) if ends[gpu] <= minute]
            if minute + estimate_minutes[job.job_id] > shadow and _first(day, job.requested, free) is not None:
                free = [gpu for gpu in free if gpu not in kept]
            first = _first(day, job.requested, free)
            if first is not None:
                start(job, first, minute)
    return found


def _promise(day: Day, job: DayJob, believed_ends: list[int], minute: int) -> tuple[int, set[int]]:
    for later in range(minute, minute + 100_000):
        first = _first(day, job.requested, [gpu for gpu, end in enumerate(believed_ends) if end <= later])
        if first is not None:
            return later, set(range(first, first + job.requested))
        if all(end <= later for end in believed_ends):
            return 1_000_000, set()
    raise AssertionError("no end in sight")


def _first(day: Day, size: int, free: list[int]) -> int | None:
    for first in free:
        block = range(first, first + size)
        inside = len({gpu // day.node_gpus for gpu in block}) == 1
        whole = first % day.node_gpus == 0 and size % day.node_gpus == 0
        if (inside or whole) and set(block) <= set(free):
            return first
    return None
