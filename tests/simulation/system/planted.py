"""Bugs to plant into the services: each is a real mistake somebody could make, and the judges have to find it.

Owns: a patch per bug, undone at its end. Refuses: bugs that no promise forbids. Read next: `test_planted_bugs_are_found.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from msgspec.structs import replace

from schemas.executions import JobCompleted
from schemas.jobs import JobAccepted
from schemas.rules import Limits, QueueRules
from services.allocator.core import (
    advance,
    fold,
    fold_executions,
    lifecycle,
    planned_starts,
    pose,
    precedence,
    preempt,
    quotas,
    verify_commit,
)
from services.allocator.core.commit import _Changed
from services.allocator.core.groups import limits_of
from services.allocator.core.state import State
from services.allocator.shell import owner
from services.allocator.shell.projections import Projections
from services.executor.core import reconcile
from services.executor.core.journal import NodeState
from services.executor.core.lifecycle import State as RunState
from services.executor.shell.ledger import Ledger
from services.runtime.hop import Hop

Planted = Callable[[], AbstractContextManager[Any]]


@contextmanager
def claim_check_skipped() -> Iterator[None]:
    """A writer takes every acknowledgement for acceptance: it goes on after it lost the log."""
    real = owner.append

    async def append(*args: Any) -> bool:
        await real(*args)
        return True

    with patch.object(owner, "append", append), patch.object(owner, "is_next", lambda *_: True):
        yield


@contextmanager
def report_dropped() -> Iterator[None]:
    """An executor forgets to send that a job completed, now and then."""
    real = Ledger._post

    def post(self: Ledger, report: Any) -> None:
        if report.type == "job.completed.v1" and report.number % 3 == 0:
            return
        real(self, report)

    with patch.object(Ledger, "_post", post):
        yield


@contextmanager
def attempt_started_twice() -> Iterator[None]:
    """An executor doesn't remember what has ended and carries a placement out again."""

    def state_of(self: NodeState, key: str) -> RunState:
        return self.runs[key].state if key in self.runs else RunState.WAITING

    with patch.object(NodeState, "state_of", state_of):
        yield


@contextmanager
def card_given_twice() -> Iterator[None]:
    """An executor starts on cards that another run still holds."""
    with patch.object(reconcile, "_startable", lambda *_: True):
        yield


@contextmanager
def requeue_forgotten() -> Iterator[None]:
    """The allocator forgets a job whose attempt was interrupted."""

    def requeue(job: Any, now_ms: int, not_before_ms: int, changes: Any) -> None:
        changes.job(job)
        job.parts = []

    with patch.object(lifecycle, "requeue", requeue):
        yield


@contextmanager
def reason_forgotten() -> Iterator[None]:
    """The allocator tells some jobs no reason."""
    real = _Changed.waits

    def waits(self: Any, *args: Any) -> list[Any]:
        return real(self, *args)[1:]

    with patch.object(_Changed, "waits", waits):
        yield


@contextmanager
def repetition_believed() -> Iterator[None]:
    """The allocator takes a repeated submission for a new job."""
    real = fold.FOLDS[JobAccepted]

    def accepted(state: State, event: JobAccepted, *rest: Any) -> None:
        if event.job_id in state.finished:
            del state.finished[event.job_id]
        real(state, event, *rest)

    with patch.dict(fold.FOLDS, {JobAccepted: accepted}):
        yield


@contextmanager
def late_end_ignored() -> Iterator[None]:
    """A completion reported late is dropped, and the job runs again."""
    real = fold_executions.EXECUTION_FOLDS[JobCompleted]

    def completed(state: State, event: JobCompleted, *rest: Any) -> None:
        job = state.jobs.get(event.job_id)
        if job is not None and job.attempt == event.attempt:
            real(state, event, *rest)

    with patch.dict(fold.FOLDS, {JobCompleted: completed}):
        yield


@contextmanager
def offset_ahead_of_outputs() -> Iterator[None]:
    """A hop commits what it has read before it has sent what follows from it."""

    async def consume(self: Any, stop: Any) -> None:
        tick_at_s = self._clock.wall_s() + self._tick_period_s
        while True:
            wait_s = max(0.0, tick_at_s - self._clock.wall_s())
            records = await self.consumer.poll(max_records=self._batch_records_max, timeout_s=wait_s)
            if records:
                await self._commit(records)
                await self._publish(self._outputs(records))
            if self._clock.wall_s() >= tick_at_s:
                await self._publish(self._handler.tick(self._now()))
                tick_at_s = self._clock.wall_s() + self._tick_period_s

    with patch.object(Hop, "_consume", consume):
        yield


@contextmanager
def projection_lost() -> Iterator[None]:
    """The allocator doesn't repeat after a takeover what its predecessor may not have sent."""
    real = Projections.put

    async def put(self: Projections, messages: Sequence[Any], *, alone: bool = False) -> None:
        await real(self, [message for message in messages if message.topic != "placements"][:3], alone=alone)

    async def reemit(self: Any, changes: Any) -> None:
        with patch.object(Projections, "put", put):
            await self.projections.put(self._projected(changes))

    with patch.object(owner.ClusterOwner, "_reemit", reemit):
        yield


@contextmanager
def running_max_ignored() -> Iterator[None]:
    """The allocator plans without the limits on numbers of jobs, and its own check doesn't look at them either."""

    def unlimited(*args: Any) -> Limits:
        return replace(limits_of(*args), running_max=None)

    with patch.object(quotas, "limits_of", unlimited), patch.object(verify_commit, "limits_of", unlimited):
        yield


@contextmanager
def place_taken_too_early() -> Iterator[None]:
    """A running job loses its place before it ran as long as the rules promise."""
    real = preempt._candidates

    def candidates(state: Any, posed: Any, row: Any, job: Any, rules: QueueRules, now: Any) -> Any:
        return real(state, posed, row, job, replace(rules, runtime_min_s=0.0), now)

    unchecked = patch.object(verify_commit, "check_preempted", lambda *_: [])
    with patch.object(preempt, "_candidates", candidates), unchecked:
        yield


@contextmanager
def planned_start_not_kept() -> Iterator[None]:
    """The allocator takes each plan as it is, and its own check believes whatever is said of planned starts."""

    def replanned(posed: Any, free: Any, *_: Any) -> Any:
        return free

    unchecked = patch.object(verify_commit, "_check_promises", lambda *_: [])
    with patch.object(planned_starts, "_replanned", replanned), unchecked:
        yield


@contextmanager
def reservation_ignored() -> Iterator[None]:
    """The allocator plans as if operators had reserved nothing, and its own check knows of cards that are to be cut alone."""
    real, really = pose._reservations, verify_commit._reserved

    def reservations(state: State, *rest: Any) -> list[Any]:
        return [row for row in real(state, *rest) if row.id not in state.reservations or "/" in row.id]

    def reserved(state: State, *rest: Any) -> bool:
        orders = {name: order for name, order in state.reservations.items() if "/" in name}
        return really(cast("State", SimpleNamespace(reservations=orders)), *rest)

    with patch.object(pose, "_reservations", reservations), patch.object(verify_commit, "_reserved", reserved):
        yield


@contextmanager
def gang_restored_like_any_job() -> Iterator[None]:
    """A gang that lost a node queues up again as if it had lost nothing."""
    real = precedence.standing_of

    def standing_of(job: Any, *args: Any, **named: Any) -> Any:
        standing = real(job, *args, **named)
        return dataclasses.replace(standing, overdue=False) if job.restores else standing

    with patch.object(precedence, "standing_of", standing_of):
        yield


@contextmanager
def application_given_up_in_silence() -> Iterator[None]:
    """Where a start is given up because the executor says nothing, the allocator takes what applications hold there for gone, too."""
    real = advance.give_up_starts

    def give_up_starts(state: State, now: Any, changes: Any) -> None:
        real(state, now, changes)
        for app in state.apps.values():
            app.parts = [part for part in app.parts if not state.nodes[part.node].silent_until_ms]

    with patch.object(advance, "give_up_starts", give_up_starts):
        yield


PLANTED: dict[str, Planted] = {
    each.__name__: each
    for each in (
        claim_check_skipped,
        report_dropped,
        attempt_started_twice,
        card_given_twice,
        requeue_forgotten,
        reason_forgotten,
        repetition_believed,
        late_end_ignored,
        offset_ahead_of_outputs,
        projection_lost,
        running_max_ignored,
        place_taken_too_early,
        planned_start_not_kept,
        reservation_ignored,
        gang_restored_like_any_job,
        application_given_up_in_silence,
    )
}
