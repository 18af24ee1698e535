"""The rules of a shared cluster, as data: who may hold how much, who goes first, who may take a place from whom.

One document per cluster, versioned, replaced as a whole (`command.change-rules.v1`). Absent means unlimited: an empty document
changes nothing. What each rule does to a decision: docs/policy.md.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from schemas.base import DurationS, Identifier

Gpus = dict[Identifier, Annotated[int, Meta(ge=0, le=65_536)]]
"""GPUs per pool."""
Weight = Annotated[float, Meta(gt=0, le=1000)]
JobCount = Annotated[int, Meta(ge=0, le=1_000_000)]


class Limits(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """`maximum`: GPUs that batch-like jobs hold at once, per pool. `running_max`, `queued_max`: jobs; None: no limit."""

    maximum: Gpus = {}
    running_max: JobCount | None = None
    queued_max: JobCount | None = None


class TeamRules(Limits, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A team's limits and its share. `guaranteed`: jobs inside it go before everybody's borrowing. `borrows` False: never more than
    that. `weight`: its part of a fair division of use over time. `users`: limits by user; `each_user` for all others."""

    guaranteed: Gpus = {}
    borrows: bool = True
    weight: Weight = 1.0
    users: Annotated[dict[Identifier, Limits], Meta(max_length=10_000)] = {}
    each_user: Limits = Limits()


class QueueRules(Limits, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A queue's limits. `preempts`: its jobs may take the place of running ones from `preemptible` queues that checkpoint, once
    those ran for `runtime_min_s` without a break; at most `victims_max` at once. A job of a preemptible queue loses its place at most
    `preempted_max` times within any `preempted_window_s`."""

    preempts: bool = False
    preemptible: bool = False
    runtime_min_s: DurationS = 1800.0
    victims_max: Annotated[int, Meta(ge=1, le=64)] = 4
    preempted_max: Annotated[int, Meta(ge=1, le=1000)] = 3
    preempted_window_s: DurationS = 86_400.0


class Aging(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """From `after_s` of waiting on a job gains `per_hour` priority, up to `priority_max`; from `overdue_s` on it goes before all
    that is not overdue: a week unless said otherwise, so that nobody starves where nobody made rules. None: never."""

    after_s: DurationS = 1800.0
    per_hour: Annotated[float, Meta(ge=0, le=100)] = 0.25
    priority_max: Annotated[float, Meta(ge=0, le=100)] = 4.0
    overdue_s: DurationS | None = 604_800.0


class PlannedStarts(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Jobs that need at least `nodes_min` whole nodes keep their planned start; it only moves earlier. 0: none do. At most `jobs_max`
    per pool at once, the best first."""

    nodes_min: Annotated[int, Meta(ge=0, le=65_536)] = 0
    jobs_max: Annotated[int, Meta(ge=1, le=256)] = 32


class Rules(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """All rules of one cluster. `half_life_s`: after so long a GPU-hour counts half in a team's use; `fair_share` 0..1: how
    strongly use moves order. `each_team`: for teams that `teams` doesn't name. `staging_mib_per_s`: how fast a node brings data
    that it doesn't keep."""

    version: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0
    organisation: Limits = Limits()
    half_life_s: Annotated[float, Meta(gt=0, le=31_536_000)] = 604_800.0
    fair_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    teams: Annotated[dict[Identifier, TeamRules], Meta(max_length=10_000)] = {}
    each_team: TeamRules = TeamRules()
    queues: Annotated[dict[Identifier, QueueRules], Meta(max_length=1_000)] = {}
    aging: Aging = Aging()
    planned_starts: PlannedStarts = PlannedStarts()
    staging_mib_per_s: Annotated[float, Meta(gt=0, le=1_000_000)] = 1000.0
