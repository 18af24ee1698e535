"""The handler: one record of `job-events` in, messages out. Owns the order of questions; the answers live beside it.

For each record: can it be read, is its key the id, was this id let in before (then repeat the answer or refuse a conflict),
does it keep the rules. Only what was never let in is judged by the rules, so a repetition is repeated even after the
catalog has changed.

Why answers are repeatable: everything in them comes from the event itself, the catalog, or, once given, from memory,
which is nothing but `jobs` folded. `accepted_ms` is the event's own time (`ce_time` or its stamp, the later one), not the
moment of handling: a record handled twice by two instances that know nothing of each other gives the same bytes. Only the
`skewed` mark asks the clock, and a repetition takes it from memory.

Every repetition repeats *all* that is known of the id (accepted, then amended, then revoked), so that whoever folds `jobs`
ends in the current state whatever was repeated.

A refusal always becomes a dead letter. `job-status` says `refused` only for a submission or registration of an id that
isn't let in: a conflicting repetition, or a change of an unknown id, must not overwrite the status of a job that runs or
ran. The time in that status is the moment of handling, like in a dead letter; neither is an answer that anybody folds.
"""

from __future__ import annotations

import re

from schemas.base import Event
from schemas.catalog import Catalog
from schemas.codec import DecodeError, Envelope, decode_record
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
from services.intake.core.case import cancellation_case, change_case, registration_case, submission_case
from services.intake.core.claim import claimed_id
from services.intake.core.digest import content_digest
from services.intake.core.memory import Answer, KnownApplication, KnownJob, Memory
from services.intake.core.refusals import Reason, Refusal, unreadable
from services.intake.core.route import cluster_name, pool_for_application, pools_for_job
from services.intake.core.validate import validate

SERVICE = "intake"
SOURCE = "/gpugrid/intake"
TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
"""W3C trace context, version 00. Anything else is dropped, as the standard asks."""
REPEAT_ADVICE = "if it was let in more than 7 days ago, send its submission again with the same content, then this"


class IntakeHandler:
    """`Handler` of the intake service (see `services.runtime.handler`). Pure: equal records and moments, equal messages."""

    inputs: tuple[str, ...] = ("job-events",)
    rebuilt_from: tuple[str, ...] = ("jobs",)

    def __init__(self, catalog: Catalog, memory: Memory | None = None) -> None:
        self._catalog = catalog
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
        trace = envelope.traceparent if TRACEPARENT.fullmatch(envelope.traceparent) else ""
        event = envelope.event
        match event:
            case JobSubmitted() | JobChanged() | JobCancelled():
                id, application = event.job_id, False
            case ApplicationRegistered():
                id, application = event.app_id, True
            case _:
                detail = f"type {envelope.type} does not travel on {record.topic}; send it to its own topic"
                return self._refused(record, Refusal(Reason.WRONG_TOPIC, "ce_type", detail), None, now)
        answer = self._key_problem(record, id) or self._answer(event, envelope, trace, now)
        if isinstance(answer, Refusal):
            asks = isinstance(event, JobSubmitted | ApplicationRegistered)
            return self._refused(record, answer, (id, application) if asks else None, now, trace)
        return answer

    # --- what each event asks for

    def _answer(self, event: Event, envelope: Envelope, trace: str, now: Now) -> list[Message] | Refusal:
        match event:
            case JobSubmitted():
                return self._submitted(event, envelope, trace, now)
            case ApplicationRegistered():
                return self._registered(event, envelope, trace, now)
            case JobChanged():
                return self._changed(event, trace, now)
            case JobCancelled():
                return self._cancelled(event, trace, now)
        raise AssertionError(f"{type(event).__name__} was let through to the answers")

    def _submitted(self, event: JobSubmitted, envelope: Envelope, trace: str, now: Now) -> list[Message] | Refusal:
        known = self._memory.get(event.job_id)
        digest = content_digest(event.spec)
        if isinstance(known, KnownApplication):
            return _taken("job_id", event.job_id, "application")
        if known is not None and known.digest != digest:
            detail = "spec differs from what was let in under this job_id; use a new id, or send job.changed"
            return Refusal(Reason.CONFLICTING_CONTENT, "spec", detail)
        if known is None:
            refusals = validate(submission_case(event, self._catalog, now.domain_ms, envelope.time_ms))
            if refusals:
                return refusals[0]
            name = cluster_name(event.spec, self._catalog)
            ahead_ms = max(event.submitted_ms, envelope.time_ms or 0) - now.domain_ms
            accepted = JobAccepted(
                job_id=event.job_id,
                cluster=name,
                pools=pools_for_job(event.spec, self._catalog.clusters[name]),
                submitted_ms=event.submitted_ms,
                accepted_ms=max(event.submitted_ms, envelope.time_ms or 0),
                digest=digest,
                spec=event.spec,
                skewed=ahead_ms > self._catalog.limits.clock_skew_flag_s * 1000,
            )
            self._memory.fold(accepted, trace)
            return self._published([(accepted, trace)])
        accepted = JobAccepted(
            job_id=event.job_id,
            cluster=known.cluster,
            pools=known.pools,
            submitted_ms=known.submitted_ms,
            accepted_ms=known.accepted_ms,
            digest=digest,
            spec=event.spec,
            skewed=known.skewed,
        )
        return self._published([(accepted, known.trace), *afterwards(known)])

    def _registered(
        self, event: ApplicationRegistered, envelope: Envelope, trace: str, now: Now
    ) -> list[Message] | Refusal:
        known = self._memory.get(event.app_id)
        if isinstance(known, KnownJob):
            return _taken("app_id", event.app_id, "job")
        digest = content_digest(event.spec)
        if known is not None and event.registered_ms <= known.accepted.accepted_ms:
            if event.registered_ms == known.accepted.accepted_ms and digest != known.accepted.digest:
                detail = (
                    "spec differs from what was let in under this app_id and time; send it with a later registered_ms"
                )
                return Refusal(Reason.CONFLICTING_CONTENT, "spec", detail)
            return self._published([(known.accepted, known.trace), *afterwards(known)])  # repeated or overtaken
        refusals = validate(registration_case(event, self._catalog, now.domain_ms, envelope.time_ms))
        if refusals:
            return refusals[0]
        name = cluster_name(event.spec, self._catalog)
        pool = pool_for_application(event.spec, self._catalog.clusters[name])
        assert pool is not None, "the rules let in only what some pool can hold"
        if known is not None and known.revoked is None and known.cluster != name:
            detail = (
                f"spec.cluster {name} differs from {known.cluster}, where it runs; cancel it first, or use a new app_id"
            )
            return Refusal(Reason.CONFLICTING_CONTENT, "spec.cluster", detail)
        accepted = ApplicationAccepted(
            app_id=event.app_id,
            cluster=name,
            pool=pool,
            accepted_ms=event.registered_ms,
            digest=digest,
            spec=event.spec,
        )
        self._memory.fold(accepted, trace)
        known = self._memory.get(event.app_id)
        return self._published([(accepted, trace), *(afterwards(known) if known is not None else [])])

    def _changed(self, event: JobChanged, trace: str, now: Now) -> list[Message] | Refusal:
        known = self._memory.get(event.job_id)
        if known is None:
            return _unknown(event.job_id)
        if isinstance(known, KnownApplication):
            detail = f"job_id {event.job_id} is an application; register it again with the new numbers"
            return Refusal(Reason.NOT_A_JOB, "job_id", detail)
        if known.revoked is not None:
            detail = f"job_id {event.job_id} was cancelled; submit it under a new id"
            return Refusal(Reason.JOB_CANCELLED, "job_id", detail)
        if event.priority is None and event.time_limit_s is None:
            return Refusal(Reason.NOTHING_TO_CHANGE, "", "set priority, time_limit_s or both")
        refusals = validate(change_case(event, self._catalog, now.domain_ms))
        if refusals:
            return refusals[0]
        if known.cluster not in self._catalog.clusters:
            return _cluster_gone(known.cluster)
        amended = merged(known, event)
        self._memory.fold(amended, trace)
        return self._published([(amended, trace)])

    def _cancelled(self, event: JobCancelled, trace: str, now: Now) -> list[Message] | Refusal:
        known = self._memory.get(event.job_id)
        if known is None:
            return _unknown(event.job_id)
        if known.cluster not in self._catalog.clusters:
            return _cluster_gone(known.cluster)
        if isinstance(known, KnownApplication) and event.cancelled_ms < known.accepted.accepted_ms:
            return self._published([(known.accepted, known.trace), *afterwards(known)])  # overtaken by a registration
        if known.revoked is None:
            refusals = validate(cancellation_case(event, self._catalog, now.domain_ms))
            if refusals:
                return refusals[0]
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

    def _key_problem(self, record: Record, id: str) -> Refusal | None:
        if record.key == id.encode():
            return None
        found = "no key" if record.key is None else f"key {record.key[:140].decode('utf-8', 'replace')!r}"
        detail = f"the record has {found}; send it with the id {id} as its key"
        return Refusal(Reason.KEY_NOT_ID, "key", detail)

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


def _unknown(id: str) -> Refusal:
    return Refusal(Reason.UNKNOWN_ID, "job_id", f"job_id {id} is unknown or was refused; {REPEAT_ADVICE}")


def _taken(field: str, id: str, by: str) -> Refusal:
    return Refusal(
        Reason.ID_TAKEN, field, f"{field} {id} is the id of an {by}; use another id".replace("an job", "a job")
    )


def _cluster_gone(cluster: str) -> Refusal:
    detail = f"it was let in to cluster {cluster}, which the catalog no longer has; ask the operator to add it again"
    return Refusal(Reason.UNKNOWN_CLUSTER, "cluster", detail)
