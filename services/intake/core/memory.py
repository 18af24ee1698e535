"""What intake remembers of ids it let in: enough to repeat its answer byte for byte, and to tell a conflict.

Owns: the folding of intake's own events (live and re-read from `jobs` alike, in any repetition), and forgetting. Refuses:
knowing about records, headers or rules. A job costs about half a kilobyte: its specification is not kept, because a
repetition with the same digest brings it along; applications are few and kept whole, because their numbers may be overtaken.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from schemas.jobs import ApplicationAccepted, JobAccepted, JobAmended, JobRevoked
from schemas.topics import DAY_MS

REMEMBERED_MS = 30 * DAY_MS
"""Domain time a job's id is remembered after it was let in, so that it can be cancelled all that time. A restart brings back
what `jobs` still holds (7 days)."""
IDS_MAX = 1_000_000
"""Beyond it the oldest are forgotten early, so that memory stays near 0.5 GiB whatever upstream sends."""


@dataclass(slots=True)
class KnownJob:
    """One job that was let in. `pools`, speeds, times and `trace` are those of the first answer; later answers repeat them."""

    cluster: str
    digest: str
    pools: list[str]
    submitted_ms: int
    accepted_ms: int
    skewed: bool
    trace: str
    speeds: dict[str, float]
    speeds_from: str
    amended: JobAmended | None = None
    amended_trace: str = ""
    revoked: JobRevoked | None = None
    revoked_trace: str = ""


@dataclass(slots=True)
class KnownApplication:
    """One application with its newest numbers."""

    accepted: ApplicationAccepted
    trace: str
    revoked: JobRevoked | None = None
    revoked_trace: str = ""

    @property
    def cluster(self) -> str:
        return self.accepted.cluster


Known = KnownJob | KnownApplication
Answer = JobAccepted | ApplicationAccepted | JobAmended | JobRevoked


class Memory:
    """Ids → what is known. `fold` is idempotent: any repetition of intake's own events leaves it as it is."""

    def __init__(self, *, ids_max: int = IDS_MAX, remembered_ms: int = REMEMBERED_MS) -> None:
        self._known: dict[str, Known] = {}
        self._order: deque[tuple[int | None, str]] = deque()
        self._now_ms: int | None = None
        self._ids_max = ids_max
        self._remembered_ms = remembered_ms

    def __len__(self) -> int:
        return len(self._known)

    def get(self, id: str) -> Known | None:
        return self._known.get(id)

    def fold(self, event: Answer, trace: str) -> None:
        """Take over one of intake's own events, just made or re-read."""
        match event:
            case JobAccepted():
                self._job(event, trace)
            case ApplicationAccepted():
                self._application(event, trace)
            case JobAmended():
                known = self._known.get(event.job_id)
                if isinstance(known, KnownJob) and (
                    known.amended is None or known.amended.amended_ms <= event.amended_ms
                ):
                    known.amended, known.amended_trace = event, trace
            case JobRevoked():
                self._revoked(event, trace)

    def advance(self, now_ms: int) -> None:
        """Domain time moves on: forget what was let in too long ago. What was re-read on start counts from the first call."""
        self._now_ms = now_ms if self._now_ms is None else max(self._now_ms, now_ms)
        while self._order:
            seen_ms, id = self._order[0]
            if seen_ms is not None and seen_ms > self._now_ms - self._remembered_ms:
                return
            self._order.popleft()
            if seen_ms is None or self._lives_on(id):
                self._order.append((self._now_ms, id))
            else:
                self._known.pop(id, None)

    def _lives_on(self, id: str) -> bool:
        """Applications have no end of their own: they are kept until they are cancelled."""
        known = self._known[id]
        return isinstance(known, KnownApplication) and known.revoked is None

    def _job(self, event: JobAccepted, trace: str) -> None:
        known = self._known.get(event.job_id)
        if isinstance(known, KnownJob) and known.digest == event.digest:
            return
        # Another digest for the same id is written only after the id was forgotten: the newer one counts.
        fresh = KnownJob(
            cluster=event.cluster,
            digest=event.digest,
            pools=event.pools,
            submitted_ms=event.submitted_ms,
            accepted_ms=event.accepted_ms,
            skewed=event.skewed,
            trace=trace,
            speeds=event.speeds,
            speeds_from=event.speeds_from,
        )
        self._remember(event.job_id, fresh)

    def _application(self, event: ApplicationAccepted, trace: str) -> None:
        known = self._known.get(event.app_id)
        if not isinstance(known, KnownApplication):
            self._remember(event.app_id, KnownApplication(event, trace))
        elif event.accepted_ms > known.accepted.accepted_ms:
            known.accepted, known.trace = event, trace
            if known.revoked is not None and known.revoked.revoked_ms < event.accepted_ms:
                known.revoked = None

    def _revoked(self, event: JobRevoked, trace: str) -> None:
        known = self._known.get(event.job_id)
        if known is None or known.revoked is not None:
            return
        if isinstance(known, KnownApplication) and event.revoked_ms < known.accepted.accepted_ms:
            return  # a repetition from before the application was registered again
        known.revoked, known.revoked_trace = event, trace

    def _remember(self, id: str, known: Known) -> None:
        if id not in self._known:
            self._order.append((self._now_ms, id))
        self._known[id] = known
        while len(self._known) > self._ids_max:
            _, oldest = self._order.popleft()
            self._known.pop(oldest, None)
