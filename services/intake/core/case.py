"""What is to be judged: an event's claims beside the catalog and the moment. Built here from each event, judged by `validate.py`."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.catalog import Catalog, Cluster, Pool
from schemas.jobs import ApplicationRegistered, ApplicationSpec, JobCancelled, JobChanged, JobSpec, JobSubmitted
from services.intake.core.route import cluster_name, open_pools


@dataclass(frozen=True, slots=True)
class Case:
    """What is to be judged. `stamps`: the event's own times by field name; `spec` None: a change or cancellation."""

    id_field: str
    id: str
    stamps: tuple[tuple[str, int], ...]
    catalog: Catalog
    now_ms: int
    spec: JobSpec | ApplicationSpec | None = None
    time_limit_s: float | None = None

    @property
    def cluster(self) -> Cluster | None:
        """The cluster it would go to, None if there is no such."""
        if self.spec is None:
            return None
        return self.catalog.clusters.get(cluster_name(self.spec, self.catalog))

    @property
    def pools(self) -> list[tuple[str, Pool]]:
        """Existing pools it accepts by name."""
        cluster = self.cluster
        return [] if cluster is None or self.spec is None else open_pools(self.spec, cluster)

    @property
    def job(self) -> JobSpec | None:
        return self.spec if isinstance(self.spec, JobSpec) else None

    @property
    def application(self) -> ApplicationSpec | None:
        return self.spec if isinstance(self.spec, ApplicationSpec) else None


def submission_case(event: JobSubmitted, catalog: Catalog, now_ms: int, time_ms: int | None = None) -> Case:
    """The case of a submission. `time_ms`: the event's `ce_time`, if it has one."""
    stamps = (("submitted_ms", event.submitted_ms), ("ce_time", time_ms or 0))
    return Case(id_field="job_id", id=event.job_id, stamps=stamps, catalog=catalog, now_ms=now_ms, spec=event.spec)


def registration_case(event: ApplicationRegistered, catalog: Catalog, now_ms: int, time_ms: int | None = None) -> Case:
    """The case of a registration."""
    stamps = (("registered_ms", event.registered_ms), ("ce_time", time_ms or 0))
    return Case(id_field="app_id", id=event.app_id, stamps=stamps, catalog=catalog, now_ms=now_ms, spec=event.spec)


def change_case(event: JobChanged, catalog: Catalog, now_ms: int) -> Case:
    """The case of a change."""
    stamps = (("changed_ms", event.changed_ms),)
    return Case(
        id_field="job_id",
        id=event.job_id,
        stamps=stamps,
        catalog=catalog,
        now_ms=now_ms,
        time_limit_s=event.time_limit_s,
    )


def cancellation_case(event: JobCancelled, catalog: Catalog, now_ms: int) -> Case:
    """The case of a cancellation."""
    stamps = (("cancelled_ms", event.cancelled_ms),)
    return Case(id_field="job_id", id=event.job_id, stamps=stamps, catalog=catalog, now_ms=now_ms)
