"""What a rule costs and brings: how a day went for its teams under one scheduler and one document of rules.

Owns the definitions beyond `findings.py`. Fairness is Jain's index over (work a team got done ÷ work it was due): due is the
weighted max-min division of the pool's GPU time by the teams' parts, nobody more than it asked for; work counts in GPU-hours at the
requested size, so that running on fewer GPUs neither helps nor hurts. Starts over a maximum are counted from what happened, not
from what the scheduler thinks. Read next: `rulebook.py`, docs/policy.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from services.replay.core.baselines import Played
from services.replay.core.day import Day
from services.replay.core.declared import deadlines_of
from services.replay.core.findings import ALL, Times, finding
from services.replay.core.outcome import SIZE_CLASSES, End, percentile
from services.replay.core.rolling import Rolled
from services.replay.core.rulebook import SharedDay, maxima_of

TEAM_JOBS_MIN = 5
"""Of a team with fewer jobs a P90 says nothing."""
TEAM_WORK_MIN_H = 1.0
"""A team that asked for less than a GPU-hour says nothing about fairness."""


class RuleFinding(Struct, frozen=True, kw_only=True):
    """One row. `never`: jobs that had not started at the end; `worst_team_p90_s`: the longest P90 wait of a team; `over_maximum`: starts
    that took a team above its maximum, None where none was in force; `lost_gpu_hours`: held to save, leave and launch again;
    `deadlines`: of the jobs that may declare one, those that fall into the day; `staged_gpu_hours`: held while data was brought;
    `gang_racks`: racks under gangs of several nodes, `gang_racks_min`: the fewest that could hold them; None where none are known."""

    row: str
    ours: bool
    utilization: float
    value: float
    completed: int
    never: int
    starved: int
    wait_s: dict[str, Times]
    worst_team: str
    worst_team_p90_s: float
    fairness: float
    over_maximum: int | None
    would_be_over_maximum: int
    preemptions: int
    lost_gpu_hours: float
    deadlines: int
    deadlines_met: int
    staged_gpu_hours: float
    gang_racks: int | None
    gang_racks_min: int | None


def rule_finding(
    shared_day: SharedDay,
    row: str,
    played: Played,
    *,
    ours: bool,
    capped: Mapping[int, Mapping[str, int]] | None,
    launch_s: float,
) -> RuleFinding:
    """`capped`: the maxima in force, by the moment from which on; None where there are none."""
    day = shared_day.day
    found = finding(day, row, "", played)
    worst_team, worst_s = _worst_team(day, played)
    stated = {era.from_ms: maxima_of(shared_day, era) for era in shared_day.eras}
    lost = played.lost_places if isinstance(played, Rolled) else []
    wanted, met = deadlines_met(day, played)
    racks = gang_racks(day, shared_day.hosts, played) if shared_day.hosts else (None, None)
    return RuleFinding(
        row=row,
        ours=ours,
        utilization=found.outcome.utilization,
        value=found.outcome.value,
        completed=found.outcome.completed,
        never=found.wait_s[ALL].open,
        starved=found.starved,
        wait_s={name: found.wait_s[name] for name in (ALL, *SIZE_CLASSES)},
        worst_team=worst_team,
        worst_team_p90_s=worst_s,
        fairness=fairness(shared_day, played),
        over_maximum=None if capped is None else starts_over(day, played, capped, launch_s),
        would_be_over_maximum=starts_over(day, played, stated, launch_s),
        preemptions=len(lost),
        lost_gpu_hours=sum(one.gpus * ((one.left_ms - one.ordered_ms) / 1000 + launch_s) for one in lost) / 3600,
        deadlines=wanted,
        deadlines_met=met,
        staged_gpu_hours=played.staged_gpu_s / 3600 if isinstance(played, Rolled) else 0.0,
        gang_racks=racks[0],
        gang_racks_min=racks[1],
    )


def deadlines_met(day: Day, played: Played) -> tuple[int, int]:
    """(deadlines inside the day, those of them that a completed job met), whether or not the scheduler was told."""
    wanted = {job_id: at_ms for job_id, at_ms in deadlines_of(day).items() if at_ms <= day.end_ms}
    ends = {one.job_id: one.end_ms for one in played.attempts if one.end is End.COMPLETED and one.end_ms is not None}
    return len(wanted), sum(ends.get(job_id, day.end_ms + 1) <= at_ms for job_id, at_ms in wanted.items())


def gang_racks(day: Day, hosts: Sequence[int], played: Played) -> tuple[int, int]:
    """(racks under starts on several nodes, the fewest racks that could hold these)."""
    rack_of = [rack for rack, count in enumerate(hosts) for _ in range(count)]
    touched = least = 0
    for block in played.blocks:
        nodes = [at for at in range(day.gpus // day.node_gpus) if block.gpus >> at * day.node_gpus & 1]
        if block.gpus.bit_count() > day.node_gpus:
            touched += len({rack_of[node] for node in nodes})
            least += -(-len(nodes) // max(hosts))
    return touched, least


def starts_over(day: Day, played: Played, capped: Mapping[int, Mapping[str, int]], launch_s: float) -> int:
    """Starts after which a team held more than the maximum in force at that moment. Lowering one stops nothing that runs."""
    team_of = {job.job_id: job.spec.team for job in day.jobs}
    launch_ms = round(launch_s * 1000)
    changes: list[tuple[int, int, str, int]] = []
    for one in played.attempts:
        changes.append((one.start_ms - launch_ms, 1, team_of[one.job_id], one.gpus))
        if one.end_ms is not None:
            changes.append((one.end_ms, 0, team_of[one.job_id], -one.gpus))
    held: dict[str, int] = {}
    over, eras = 0, sorted(capped)
    for time_ms, begins, team, gpus in sorted(changes):
        held[team] = held.get(team, 0) + gpus
        now = capped[max((era for era in eras if era <= time_ms), default=eras[0])]
        over += bool(begins) and team in now and held[team] > now[team]
    return over


def fairness(shared_day: SharedDay, played: Played) -> float:
    """Jain's index of got ÷ due over teams that asked for something worth the name: 1 is fair, 1 ÷ teams is all for one."""
    day = shared_day.day
    jobs = {job.job_id: job for job in day.jobs}
    asked = dict.fromkeys(shared_day.teams(), 0.0)
    for job in day.jobs:
        left_s = (day.end_ms - job.arrival_ms) / 1000
        asked[job.spec.team] += job.requested * min(job.run_s[job.requested], job.spec.time_limit_s, left_s)
    got = dict.fromkeys(asked, 0.0)
    for one in played.attempts:
        job = jobs[one.job_id]
        inside_s = max(min(one.end_ms or day.end_ms, day.end_ms) - max(one.start_ms, day.start_ms), 0) / 1000
        got[job.spec.team] += inside_s / job.run_s[one.gpus] * job.run_s[job.requested] * job.requested
    parts = _mean_parts(shared_day)
    due = max_min(day.capacity_gpu_s, asked, parts)
    ratios = [got[team] / due[team] for team in asked if asked[team] >= TEAM_WORK_MIN_H * 3600 and due[team] > 0]
    squares = sum(ratio * ratio for ratio in ratios)
    return sum(ratios) ** 2 / (len(ratios) * squares) if squares else 1.0


def max_min(whole: float, asked: Mapping[str, float], parts: Mapping[str, float]) -> dict[str, float]:
    """Weighted max-min: what is left over by those who ask for less than their part is divided among the others by parts."""
    due = dict.fromkeys(asked, 0.0)
    open_teams = [team for team in sorted(asked) if asked[team] > 0]
    left = whole
    while open_teams and left > 0:
        weights = {team: parts.get(team, 0.0) for team in open_teams}
        if not sum(weights.values()):
            weights = dict.fromkeys(open_teams, 1.0)
        unit = left / sum(weights.values())
        content = [team for team in open_teams if asked[team] <= unit * weights[team]]
        for team in content or open_teams:
            due[team] = asked[team] if content else unit * weights[team]
        if not content:
            break
        left -= sum(asked[team] for team in content)
        open_teams = [team for team in open_teams if team not in content]
    return due


def _mean_parts(shared_day: SharedDay) -> dict[str, float]:
    """Each team's part of the pool, averaged over the day's eras by their length."""
    day, eras = shared_day.day, sorted(shared_day.eras, key=lambda era: era.from_ms)
    found = dict.fromkeys(shared_day.teams(), 0.0)
    for era, until_ms in zip(eras, [*(era.from_ms for era in eras[1:]), day.end_ms], strict=True):
        whole = sum(era.parts.get(team, 0.0) for team in found)
        for team in found:
            found[team] += era.parts.get(team, 0.0) / whole * (until_ms - era.from_ms) if whole else 0.0
    return found


def _worst_team(day: Day, played: Played) -> tuple[str, float]:
    first: dict[str, int] = {}
    for one in played.attempts:
        first[one.job_id] = min(first.get(one.job_id, one.start_ms), one.start_ms)
    waits: dict[str, list[float]] = {}
    for job in day.jobs:
        until_ms = min(first.get(job.job_id, day.end_ms), day.end_ms)
        waits.setdefault(job.spec.team, []).append((until_ms - job.arrival_ms) / 1000)
    found = [(percentile(times, 0.9), team) for team, times in sorted(waits.items()) if len(times) >= TEAM_JOBS_MIN]
    p90_s, team = max(found, default=(0.0, ""))
    return team, p90_s
