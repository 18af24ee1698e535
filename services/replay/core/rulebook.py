"""What the rules table puts in force, row by row, for teams whose parts of a pool are known: documents of rules, and reservations.

Owns how a part becomes a quota: what a team is guaranteed is its part of the pool's GPUs (largest remainder), what it may hold is
twice that, but at least its largest job, so that a maximum never makes a job impossible. Parts may change over time (`Era`); then
every era has its own document. Read next: `rule_findings.py`, docs/policy.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec.structs import replace as changed

from schemas.commands import ChangeRules, ReserveBlock
from schemas.jobs import CheckpointMode
from schemas.rules import Aging, PlannedStarts, QueueRules, Rules, TeamRules
from services.replay.core.catalog import node_names
from services.replay.core.day import HOUR_MS, Day, DayJob
from services.replay.core.declared import data_of, deadlines_of, racks_of
from services.replay.core.kueue import ClusterQueue
from services.replay.core.rolling import Order
from services.replay.core.site import PLAIN, Site

MAXIMUM_OVER_GUARANTEE = 2
WEIGHT_MIN = 0.01
"""A weight must be above 0; a team without a part is last in line, not outside."""
URGENT, NIGHT = "urgent", "night"
URGENT_FROM = 5
"""Declared priority from which a job is in the queue that may take places; jobs that checkpoint and are below it may lose theirs."""
OVERDUE_S = 4 * 3600.0
RESERVED_SHARE = 8
"""An eighth of the pool is reserved for somebody who shows something …"""
RESERVED_HOURS = (10, 14)
"""… from ten to two, ordered at midnight."""
NONE = "no rules"
ALL_TOGETHER = "all together"
PLANNED_STARTS = "planned starts"
SHARE, EQUAL_SHARE = "fair share", "fair share, equal weights"
RUNNING, QUEUED = "running_max", "queued_max"
JOBS_PER_GPU = 2
"""These limit a team to a job for every so many GPUs of its part, at least to one."""
DEADLINES = "deadlines"
DATA_UNNAMED, DATA_NAMED = "data, not named", "data, named"
RACKS_UNTOLD, RACKS_TOLD = "racks, not told", "racks, told"
ROWS = (
    NONE,
    "no aging",
    "overdue after 4 h",
    "maximum",
    "guaranteed, lent",
    "guaranteed, not lent",
    SHARE,
    EQUAL_SHARE,
    RUNNING,
    QUEUED,
    DEADLINES,
    "preemption",
    "reservation",
    PLANNED_STARTS,
    ALL_TOGETHER,
    DATA_UNNAMED,
    DATA_NAMED,
)
RACK_ROWS = (RACKS_UNTOLD, RACKS_TOLD)
"""Of a pool whose racks are known."""
WITHOUT_RULES = (NONE, DATA_UNNAMED, DATA_NAMED, *RACK_ROWS)
MAXIMUM_ROWS = ("maximum", "guaranteed, not lent", ALL_TOGETHER)
"""Rows in which a team may not hold more than something."""


@dataclass(frozen=True, slots=True)
class Era:
    """From `from_ms` on each team's part of the pool, in any unit."""

    from_ms: int
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SharedDay:
    """A day whose jobs belong to teams and queues, with the parts of its teams; the first era begins with it. `hosts`: nodes of
    each rack."""

    day: Day
    eras: tuple[Era, ...]
    hosts: tuple[int, ...] = ()

    def teams(self) -> list[str]:
        return sorted({job.spec.team for job in self.day.jobs})

    def era_at(self, now_ms: int) -> Era:
        return max((era for era in self.eras if era.from_ms <= now_ms), key=lambda era: era.from_ms)


def shared(day: Day, eras: Sequence[Era], hosts: Sequence[int] = ()) -> SharedDay:
    """The day with its jobs in queues: urgent ones, ones that may lose their place, all others."""
    return SharedDay(replace(day, jobs=tuple(_in_queue(job) for job in day.jobs)), tuple(eras), tuple(hosts))


def day_of(shared_day: SharedDay, row: str) -> Day:
    """The day with what its jobs say in one of ROWS."""
    day = shared_day.day
    if row in (DEADLINES, ALL_TOGETHER):
        wanted = deadlines_of(day)
        return _saying(day, {job_id: {"deadline_ms": at_ms} for job_id, at_ms in wanted.items()})
    if row == DATA_NAMED:
        return _saying(day, {job_id: {"datasets": list(reads)} for job_id, reads in data_of(day).reads.items()})
    return day


def site_of(shared_day: SharedDay, row: str) -> Site:
    """What its nodes are and its jobs read in one of ROWS."""
    if row in (DATA_UNNAMED, DATA_NAMED):
        return data_of(shared_day.day)
    return racks_of(shared_day.day, shared_day.hosts) if row == RACKS_TOLD else PLAIN


def _saying(day: Day, said: Mapping[str, dict[str, Any]]) -> Day:
    jobs = [replace(job, spec=changed(job.spec, **said.get(job.job_id, {}))) for job in day.jobs]
    return replace(day, jobs=tuple(jobs))


def _in_queue(job: DayJob) -> DayJob:
    urgent = job.spec.priority >= URGENT_FROM
    saves = job.spec.checkpoint.mode is not CheckpointMode.NONE
    queue = URGENT if urgent else NIGHT if saves else job.spec.queue
    return replace(job, spec=changed(job.spec, queue=queue))


def guarantees(gpus: int, parts: Mapping[str, float]) -> dict[str, int]:
    """Whole GPUs by part, together all of them: largest remainder, at equal ones by name. Nobody's part: nobody's GPUs."""
    whole = sum(parts.values())
    if whole <= 0:
        return dict.fromkeys(parts, 0)
    exact = {team: gpus * part / whole for team, part in parts.items()}
    found = {team: int(share) for team, share in exact.items()}
    left = gpus - sum(found.values())
    for team in sorted(exact, key=lambda team: (found[team] - exact[team], team))[:left]:
        found[team] += 1
    return found


def guarantees_of(shared_day: SharedDay, era: Era) -> dict[str, int]:
    """Of the teams that have jobs on this day."""
    return guarantees(shared_day.day.gpus, {team: era.parts.get(team, 0.0) for team in shared_day.teams()})


def maxima_of(shared_day: SharedDay, era: Era) -> dict[str, int]:
    """What each team may hold in this era, where it may not hold all."""
    largest: dict[str, int] = {}
    for job in shared_day.day.jobs:
        largest[job.spec.team] = max(largest.get(job.spec.team, 0), job.requested)
    return {
        team: min(shared_day.day.gpus, max(MAXIMUM_OVER_GUARANTEE * gpus, largest[team]))
        for team, gpus in guarantees_of(shared_day, era).items()
    }


def cluster_queues(shared_day: SharedDay, era: Era) -> dict[str, ClusterQueue]:
    """The same quotas for Kueue: nominal what is guaranteed, borrowing up to the maximum."""
    most = maxima_of(shared_day, era)
    return {
        team: ClusterQueue(gpus, max(most[team] - gpus, 0)) for team, gpus in guarantees_of(shared_day, era).items()
    }


def orders_of(shared_day: SharedDay, row: str) -> list[Order]:
    """What is ordered on this day in one of ROWS."""
    found: list[Order] = []
    if row not in WITHOUT_RULES:
        documents = [rules_of(shared_day, row, era) for era in shared_day.eras]
        for number, (era, rules) in enumerate(zip(shared_day.eras, documents, strict=True), start=1):
            if number == 1 or rules != documents[number - 2]:
                found.append(
                    ChangeRules(
                        cluster=shared_day.day.cluster, rules=changed(rules, version=number), ordered_ms=era.from_ms
                    )
                )
    if row in ("reservation", ALL_TOGETHER):
        found += _reservations(shared_day.day)
    return found


def rules_of(shared_day: SharedDay, row: str, era: Era) -> Rules:
    """The document of one of ROWS in an era, without a version."""
    pool, everything = shared_day.day.pool, row == ALL_TOGETHER
    guaranteed, most = guarantees_of(shared_day, era), maxima_of(shared_day, era)
    lends = row in ("guaranteed, lent", ALL_TOGETHER)
    shares, counts = row in (SHARE, ALL_TOGETHER), {team: max(1, n // JOBS_PER_GPU) for team, n in guaranteed.items()}
    teams = {
        team: TeamRules(
            maximum={pool: most[team]} if row in ("maximum", ALL_TOGETHER) else {},
            guaranteed={pool: gpus} if lends or row == "guaranteed, not lent" else {},
            borrows=row != "guaranteed, not lent",
            weight=max(gpus, WEIGHT_MIN) if shares else 1.0,
            running_max=counts[team] if row == RUNNING else None,
            queued_max=counts[team] if row == QUEUED else None,
        )
        for team, gpus in guaranteed.items()
    }
    queues = {URGENT: QueueRules(preempts=True), NIGHT: QueueRules(preemptible=True)}
    return Rules(
        fair_share=1.0 if shares or row == EQUAL_SHARE else 0.0,
        teams={team: rules for team, rules in teams.items() if rules != TeamRules()},
        queues=queues if row == "preemption" or everything else {},
        aging=_aging(row),
        planned_starts=PlannedStarts(nodes_min=1) if row == PLANNED_STARTS or everything else PlannedStarts(),
    )


def _aging(row: str) -> Aging:
    if row == "no aging":
        return Aging(per_hour=0.0)
    return Aging(overdue_s=OVERDUE_S) if row in ("overdue after 4 h", ALL_TOGETHER) else Aging()


def _reservations(day: Day) -> list[Order]:
    count = max(day.gpus // RESERVED_SHARE // day.node_gpus, 1)
    return [
        ReserveBlock(
            reservation_id=f"show-{name}",
            cluster=day.cluster,
            node=name,
            from_ms=day.start_ms + RESERVED_HOURS[0] * HOUR_MS,
            until_ms=day.start_ms + RESERVED_HOURS[1] * HOUR_MS,
            ordered_ms=day.start_ms,
            cause="a show",
        )
        for name in node_names(day)[:count]
    ]
