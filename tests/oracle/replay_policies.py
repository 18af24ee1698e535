"""The simple policies, written the slow and obvious way: minute by minute, one boolean per GPU and minute.

Only for days whose times are whole minutes. Shares no code with `services.replay.core.baselines`.
"""

from __future__ import annotations

from services.replay.core.day import Day, DayJob

MINUTE_MS = 60_000


def minute_by_minute(day: Day, *, backfill: bool) -> dict[str, tuple[int, int, int]]:
    """job id → (first GPU, start minute, end minute) of every job started inside the day."""
    reserved = sum(app.peak_gpus for app in day.apps)
    minutes = round(day.hours * 60)
    busy_until = [0] * (day.gpus - reserved)
    result: dict[str, tuple[int, int, int]] = {}
    for minute in range(minutes):
        waiting = [
            job
            for job in day.jobs
            if job.job_id not in result and (job.arrival_ms - day.start_ms) / MINUTE_MS <= minute
        ]
        if backfill:
            waiting.sort(key=lambda job: (-job.spec.priority, job.arrival_ms, job.job_id))
        for job in waiting:
            first = _first_free(job.requested, day, busy_until, minute)
            if first is None:
                if backfill:
                    continue
                break
            end = minute + _minutes(job)
            for gpu in range(first, first + job.requested):
                busy_until[gpu] = end
            result[job.job_id] = (first, minute, end)
    return result


def _minutes(job: DayJob) -> int:
    return round(min(job.run_s[job.requested], job.spec.time_limit_s) / 60)


def _first_free(size: int, day: Day, busy_until: list[int], minute: int) -> int | None:
    for first in range(len(busy_until) - size + 1):
        nodes = {gpu // day.node_gpus for gpu in range(first, first + size)}
        legal = len(nodes) == 1 or (first % day.node_gpus == 0 and size % day.node_gpus == 0)
        if legal and all(busy_until[gpu] <= minute for gpu in range(first, first + size)):
            return first
    return None
