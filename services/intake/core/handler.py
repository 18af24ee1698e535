"""The handler: one record of `job-events` in, messages out. Owns the order of questions; the answers live beside it.

For each record: can it be read, is its key the id, is anything wrong with it (`judge.py`); if not, what is the answer.

Why answers are repeatable: everything in them comes from the event itself, the catalog, measurements that ship with the code, or,
once given, from memory, which is nothing but `jobs` folded. `accepted_ms` is the event's own time (`ce_time` or its stamp, the later
one), not the moment of handling: a record handled twice by two instances that know nothing of each other gives the same bytes. Only the
`skewed` mark asks the clock, and a repetition takes it from memory.

Every repetition repeats *all* that is known of the id (accepted, then amended, then revoked), so that whoever folds `jobs`
ends in the current state whatever was repeated.

A refusal always becomes a dead letter. `job-status` says `refused` only for a submission or registration of an id that
isn't let in: a conflicting repetition, or a change of an unknown id, must not overwrite the status of a job that runs or
ran. The time in that status is the moment of handling, like in a dead letter; neither is an answer that anybody folds.
"""

from __future__ import annotations

import re

from schemas.catalog import Catalog
from schemas.codec import DecodeError, decode_record
from schemas.deadletters import dead_letter
from schemas.jobs import (
    ApplicationAccepted,
    ApplicationRegistered,
    JobAccepted,
    JobCancelled,
    JobChanged,
    JobRevoked,
    JobSubmitted,
)
from schemas.messages import message
from schemas.records import Message, Now, Record
from schemas.status import JobState, JobStatusChanged
from services.intake.core.answers import afterwards, identity, merged
from services.intake.core.claim import claimed_id
from services.intake.core.digest import content_digest, new_trace
from services.intake.core.judge import Request, judge, overtaken
from services.intake.core.memory import Answer, Known, KnownApplication, KnownJob, Memory
from services.intake.core.refusals import Reason, Refusal, unreadable
from services.intake.core.route import cluster_name, pool_for_application, pools_for_job, speeds_in
from services.intake.core.speeds import Measured

SERVICE = "intake"
SOURCE = "/gpugrid/intake"
TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""W3C trace context, version 00. Anything else is dropped, as the standard asks."""


class IntakeHandler:
    """`Handler` of the intake service (see `services.runtime.handler`). Pure: equal records and moments, equal messages."""

    inputs: tuple[str, ...] = ("job-events",)
    rebuilt_from: tuple[str, ...] = ("jobs",)

    def __init__(self, catalog: Catalog, memory: Memory | None = None, measured: Measured | None = None) -> None:
        """`measured`: speeds of GPU models, for jobs that accept several pools and tell none; None: nobody measured any."""
        self._catalog = catalog
        self._measured = measured if measured is not None else Measured()
        self._memory = memory if memory is not None else Memory()

    def recover(self, record: Record) -> None:
        """Fold one of our own answers. What can't be read was never ours."""
        try:
            envelope = decode_record(record)
        except DecodeError:
            return
        if isinstance(envelope.event, Answer):
            self._memory.fold(envelope.event, envelope.traceparent)

    def tick(self, now: Now) -> list[Message]:
        self._memory.advance(now.domain_ms)
        return []

    def handle(self, record: Record, now: Now) -> list[Message]:
        """Answers for `jobs`, or one dead letter (and a refused status where that is right)."""
        self._memory.advance(now.domain_ms)
        try:
            envelope = decode_record(record)
        except DecodeError as error:
            return self._refused(record, unreadable(error), claimed_id(record), now)
        event = envelope.event
        trace = envelope.traceparent if TRACEPARENT.fullmatch(envelope.traceparent) else new_trace(event)
        match event:
            case JobSubmitted() | JobChanged() | JobCancelled():
                id, application = event.job_id, False
            case ApplicationRegistered():
                id, application = event.app_id, True
            case _:
                detail = f"type {envelope.type} does not travel on {record.topic}; send it to its own topic"
                return self._refused(record, Refusal(Reason.WRONG_TOPIC, "ce_type", detail), None, now)
        refusals = self._key_problem(record, id) or self._judged(event, now.domain_ms, envelope.time_ms)
        answer = refusals[0] if refusals else self._answer(event, envelope.time_ms, trace, now)
        if isinstance(answer, Refusal):
            asks = isinstance(event, JobSubmitted | ApplicationRegistered)
            return self._refused(record, answer, (id, application) if asks else None, now, trace)
        return answer

    def foresee(self, event: Request, now: Now) -> list[Refusal]:
        """What `handle` would refuse if it came now, with nothing taken over.

        Without `unknown_id`: its submission may be on its way, or another instance may know it.
        """
        refusals = self._judged(event, now.domain_ms, None)
        return [refusal for refusal in refusals if refusal.reason is not Reason.UNKNOWN_ID]

    def known(self, id: str) -> Known | None:
        """What was let in under an id, as far as this instance knows. Not to be changed."""
        return self._memory.get(id)

    def _judged(self, event: Request, now_ms: int, time_ms: int | None) -> list[Refusal]:
        id = event.app_id if isinstance(event, ApplicationRegistered) else event.job_id
        return judge(event, self._memory.get(id), self._catalog, now_ms, time_ms)

    # --- what each event asks for, once it is judged fine

    def _answer(self, event: Request, time_ms: int | None, trace: str, now: Now) -> list[Message] | Refusal:
        match event:
            case JobSubmitted():
                return self._submitted(event, time_ms, trace, now)
            case ApplicationRegistered():
                return self._registered(event, trace)
            case JobChanged():
                return self._changed(event, trace)
            case JobCancelled():
                return self._cancelled(event, trace)

    def _submitted(self, event: JobSubmitted, time_ms: int | None, trace: str, now: Now) -> list[Message] | Refusal:
        known = self._memory.get(event.job_id)
        if isinstance(known, KnownJob):
            again = JobAccepted(
                job_id=event.job_id,
                cluster=known.cluster,
                pools=known.pools,
                submitted_ms=known.submitted_ms,
                accepted_ms=known.accepted_ms,
                digest=known.digest,
                spec=event.spec,
                skewed=known.skewed,
                speeds=known.speeds,
                speeds_from=known.speeds_from,
            )
            return self._published([(again, known.trace), *afterwards(known)])
        name = cluster_name(event.spec, self._catalog)
        moment_ms = max(event.submitted_ms, time_ms or 0)
        pools = pools_for_job(event.spec, self._catalog.clusters[name])
        speeds, speeds_from = speeds_in(event.spec, pools, self._catalog.clusters[name], self._measured)
        accepted = JobAccepted(
            job_id=event.job_id,
            cluster=name,
            pools=pools,
            submitted_ms=event.submitted_ms,
            accepted_ms=moment_ms,
            digest=content_digest(event.spec),
            spec=event.spec,
            skewed=moment_ms - now.domain_ms > self._catalog.limits.clock_skew_flag_s * 1000,
            speeds=speeds,
            speeds_from=speeds_from,
        )
        self._memory.fold(accepted, trace)
        return self._published([(accepted, trace)])

    def _registered(self, event: ApplicationRegistered, trace: str) -> list[Message] | Refusal:
        known = self._memory.get(event.app_id)
        if not isinstance(known, KnownApplication) or not overtaken(event, known):
            name = cluster_name(event.spec, self._catalog)
            pool = pool_for_application(event.spec, self._catalog.clusters[name])
            assert pool is not None, "the rules let in only what some pool can hold"
            accepted = ApplicationAccepted(
                app_id=event.app_id,
                cluster=name,
                pool=pool,
                accepted_ms=event.registered_ms,
                digest=content_digest(event.spec),
                spec=event.spec,
            )
            self._memory.fold(accepted, trace)
            known = self._memory.get(event.app_id)
        assert isinstance(known, KnownApplication), "judged and folded"
        return self._published([(known.accepted, known.trace), *afterwards(known)])

    def _changed(self, event: JobChanged, trace: str) -> list[Message] | Refusal:
        known = self._memory.get(event.job_id)
        assert isinstance(known, KnownJob), "judged"
        if known.cluster not in self._catalog.clusters:
            return _cluster_gone(known.cluster)
        amended = merged(known, event)
        self._memory.fold(amended, trace)
        return self._published([(amended, trace)])

    def _cancelled(self, event: JobCancelled, trace: str) -> list[Message] | Refusal:
        known = self._memory.get(event.job_id)
        assert known is not None, "judged"
        if known.cluster not in self._catalog.clusters:
            return _cluster_gone(known.cluster)
        if known.revoked is None:
            if isinstance(known, KnownApplication) and overtaken(event, known):
                return self._published([(known.accepted, known.trace)])
            revoked = JobRevoked(
                job_id=event.job_id, cluster=known.cluster, revoked_ms=event.cancelled_ms, cause=event.cause
            )
            self._memory.fold(revoked, trace)
        return self._published(afterwards(known)[-1:])

    # --- from answers to messages

    def _published(self, answers: list[tuple[Answer, str]]) -> list[Message] | Refusal:
        messages = []
        for event, trace in answers:
            if event.cluster not in self._catalog.clusters:
                return _cluster_gone(event.cluster)
            key, id, time_ms = identity(event)
            partition = self._catalog.partition_of(event.cluster)
            messages.append(
                message(event, key=key, id=id, source=SOURCE, time_ms=time_ms, traceparent=trace, partition=partition)
            )
        return messages

    def _key_problem(self, record: Record, id: str) -> list[Refusal]:
        if record.key == id.encode():
            return []
        found = "no key" if record.key is None else f"key {record.key[:140].decode('utf-8', 'replace')!r}"
        detail = f"the record has {found}; send it with the id {id} as its key"
        return [Refusal(Reason.KEY_NOT_ID, "key", detail)]

    def _refused(
        self, record: Record, refusal: Refusal, asked: tuple[str, bool] | None, now: Now, trace: str = ""
    ) -> list[Message]:
        """The dead letter; and for who asked to let in (id, application) an id that isn't, its status."""
        origin = f"{record.topic}/{record.partition}"
        letter = dead_letter(record, service=SERVICE, reason=refusal.reason.value, detail=refusal.sentence, now=now)
        place = f"{origin}/{record.offset}"
        messages = [
            message(letter, key=origin, id=f"{place}/refused", source=SOURCE, time_ms=now.domain_ms, traceparent=trace)
        ]
        if asked is not None and self._memory.get(asked[0]) is None:
            status = JobStatusChanged(
                job_id=asked[0],
                state=JobState.REFUSED,
                time_ms=now.domain_ms,
                application=asked[1],
                reason=refusal.reason.value,
                detail=refusal.sentence[:4096],
            )
            messages.append(
                message(
                    status,
                    key=asked[0],
                    id=f"{place}/status",
                    source=SOURCE,
                    time_ms=now.domain_ms,
                    traceparent=trace,
                )
            )
        return messages


def _cluster_gone(cluster: str) -> Refusal:
    detail = f"it was let in to cluster {cluster}, which the catalog no longer has; ask the operator to add it again"
    return Refusal(Reason.UNKNOWN_CLUSTER, "cluster", detail)
