"""A day as the messages an upstream would publish, each with the domain moment at which it is due.

Owns identities (the same event has the same id, trace and bytes every time, so publishing twice is harmless) and order.
Publishing is `shell/publisher.py`'s. Read next: `day.py`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from schemas.demand import DemandObserved
from schemas.jobs import ApplicationRegistered, JobSubmitted
from schemas.messages import message
from schemas.records import Message
from services.replay.core.day import Day, DayApp

SOURCE = "/upstream/replay"


@dataclass(frozen=True, slots=True)
class Publication:
    """One message, due at `due_ms` domain time; `id` is its CloudEvents id."""

    due_ms: int
    id: str
    message: Message


def history(day: Day, partition: int) -> list[Publication]:
    """The load of the days before, dated then."""
    observed = [
        _observed(day, app, index - len(app.history), load, partition)
        for app in day.apps
        for index, load in enumerate(app.history)
    ]
    return sorted(observed, key=lambda entry: (entry.due_ms, entry.id))


def registrations(day: Day) -> list[Publication]:
    """The applications, registered at the day's start."""
    return [_registered(day, app) for app in day.apps]


def arrivals(day: Day, partition: int) -> list[Publication]:
    """What happens during the day, by due time: jobs as they arrive, load at the end of each window."""
    jobs = [_submitted(day, number) for number in range(len(day.jobs))]
    loads = [
        entry
        for app in day.apps
        for index, load in enumerate(app.loads)
        if (entry := _observed(day, app, index, load, partition)).due_ms <= day.end_ms
    ]
    return sorted(jobs + loads, key=lambda entry: (entry.due_ms, entry.id))


def traceparent(*parts: object) -> str:
    """A sampled W3C trace context that depends on `parts` only."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()
    return f"00-{digest[:32]}-{digest[32:48]}-01"


def _identity(day: Day, *parts: object) -> str:
    return "/".join(map(str, (day.name, day.seed, *parts)))


def _submitted(day: Day, number: int) -> Publication:
    job = day.jobs[number]
    identity = _identity(day, job.job_id, "submitted")
    event = JobSubmitted(job_id=job.job_id, submitted_ms=job.arrival_ms, spec=job.spec)
    sent = message(
        event,
        key=job.job_id,
        id=identity,
        source=SOURCE,
        time_ms=job.arrival_ms,
        traceparent=traceparent(identity),
    )
    return Publication(job.arrival_ms, identity, sent)


def _registered(day: Day, app: DayApp) -> Publication:
    identity = _identity(day, app.app_id, "registered")
    event = ApplicationRegistered(app_id=app.app_id, registered_ms=day.start_ms, spec=app.spec)
    sent = message(
        event, key=app.app_id, id=identity, source=SOURCE, time_ms=day.start_ms, traceparent=traceparent(identity)
    )
    return Publication(day.start_ms, identity, sent)


def _observed(day: Day, app: DayApp, index: int, load: float, partition: int) -> Publication:
    """The load of window `index` (negative: before the day), known at the window's end."""
    time_ms = day.start_ms + (index + 1) * app.window_s * 1000
    identity = _identity(day, app.app_id, "load", time_ms)
    event = DemandObserved(
        app_id=app.app_id,
        cluster=day.cluster,
        time_ms=time_ms,
        window_s=app.window_s,
        load=load,
        per_gpu=app.per_gpu,
    )
    sent = message(
        event,
        key=app.app_id,
        id=identity,
        source=SOURCE,
        time_ms=time_ms,
        traceparent=traceparent(identity),
        partition=partition,
    )
    return Publication(time_ms, identity, sent)
