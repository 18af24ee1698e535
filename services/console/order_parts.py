"""A waiting job's priority as it counts now and what it is made of: a line per rule that changes it, none for a rule that isn't in force.

Owns: the sentences. The numbers are the allocator's own (`precedence.standing_in`, `shares`, `quotas`), made from its state, so
they are those of its next decision. Refuses: reading anything (see `place_in_order`). The formula: docs/policy.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from services.allocator.core.config import Policy
from services.allocator.core.groups import Group, team_rules
from services.allocator.core.in_line import line_of, position_in
from services.allocator.core.index import index_of
from services.allocator.core.layout import layout_of
from services.allocator.core.precedence import standing_in, takes_at_most_s
from services.allocator.core.quotas import factors_of, held_by, used_by_team
from services.allocator.core.reasons import Reason
from services.allocator.core.shares import ONE
from services.allocator.core.standing import GUARANTEED_PRIORITY, OVERDUE_PRIORITY, Standing
from services.allocator.core.state import Job, State
from services.console.durations import duration_text, from_now_text, moment_text

HOUR_MS = 3_600_000
THOUSANDTHS = 1000
"""The allocator counts priorities in them."""
_BEYOND_COUNTS = (Reason.RUNNING_LIMIT.public_name, Reason.QUEUE_LIMIT.public_name)


@dataclass(frozen=True, slots=True)
class OrderPart:
    """What one rule makes of the priority: `adds` to it, or multiplies it by `factor`. `since_ms`: overdue from then on."""

    rule: str
    sentence: str
    adds: float = 0.0
    factor: float | None = None
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PlaceInOrder:
    """`priority`: as it counts now, in the pool it is planned in; `declared`: as submitted or changed; `parts`: rules in force.
    `position`: in the line of that pool, by the order in which it is planned."""

    pool: str
    priority: float
    declared: float
    parts: list[OrderPart] = field(default_factory=list)
    position: int | None = None

    def lines(self) -> list[str]:
        """Nothing where no rule says anything: then the declared priority and the arrival decide."""
        if not self.parts:
            return []
        head = f"It counts with priority {self.priority:g} now; {self.declared:g} of it is declared."
        return [head, *(part.sentence for part in self.parts)]


def place_of(state: State, job: Job, policy: Policy, now_ms: int) -> PlaceInOrder:
    """Of a waiting job, in the pool where it is planned, or else prefers to be."""
    pool = line_of(job)
    index, gpus = index_of(state), layout_of(state, pool).gpus
    standing = standing_in(state, index, pool, gpus, job, policy, now_ms)
    parts = [
        _aging(state, job, standing, now_ms),
        _deadline(job, standing, pool, policy, now_ms),
        _fair_share(state, job, standing, now_ms),
        _guarantee(state, job, standing, pool),
        _overdue(state, job, standing, now_ms),
    ]
    return PlaceInOrder(
        pool=pool,
        priority=standing.priority / THOUSANDTHS,
        declared=standing.declared / THOUSANDTHS,
        parts=[part for part in parts if part is not None],
        position=position_in(state, index, gpus, job, policy, now_ms),
    )


def _aging(state: State, job: Job, standing: Standing, now_ms: int) -> OrderPart | None:
    if standing.aging <= 0:
        return None
    aging, adds = state.rules.aging, standing.aging / THOUSANDTHS
    waited = duration_text((now_ms - job.submitted_ms) / 1000)
    grows = (
        f"it grows by {aging.per_hour:g} per hour beyond {duration_text(aging.after_s)}, up to {aging.priority_max:g}"
    )
    if adds >= aging.priority_max:
        grows = f"that is the most that waiting gives (beyond {duration_text(aging.after_s)})"
    return OrderPart("aging", f"Aging: +{adds:g}, as it was submitted {waited} ago; {grows}.", adds=adds)


def _deadline(job: Job, standing: Standing, pool: str, policy: Policy, now_ms: int) -> OrderPart | None:
    if job.spec.deadline_ms is None:
        return None
    adds = standing.deadline / THOUSANDTHS
    latest_ms = job.spec.deadline_ms - round(takes_at_most_s(job, pool, policy) * 1000)
    must = "should have started" if latest_ms < now_ms else "should start"
    at = f"{moment_text(latest_ms, now_ms)} ({from_now_text(latest_ms, now_ms)})"
    text = f"Deadline: +{adds:g}; to end by {moment_text(job.spec.deadline_ms, now_ms)} (P90) it {must} by {at}."
    return OrderPart("deadline", text, adds=adds)


def _fair_share(state: State, job: Job, standing: Standing, now_ms: int) -> OrderPart | None:
    rules, team = state.rules, job.spec.team
    if rules.fair_share <= 0:
        return None
    index = index_of(state)
    holders = index.holders()
    factor = standing.share_factor / ONE
    teams = sorted(factors_of(state, holders, index.teams_waiting(), now_ms))
    used = used_by_team(state, holders, now_ms)
    whole_ms = sum(used.get(name, 0) for name in teams)
    weight = team_rules(rules, team).weight
    due = weight / sum(team_rules(rules, name).weight for name in teams)
    if whole_ms > 0:
        uses = (
            f"team {team} used {used.get(team, 0) / HOUR_MS:.1f} of {whole_ms / HOUR_MS:.1f} GPU-hours"
            f" ({used.get(team, 0) / whole_ms:.0%}; use counts half after {duration_text(rules.half_life_s)})"
        )
    else:
        uses = "no team with work has used anything yet"
    text = f"Fair share: ×{factor:g}; {uses} and its weight of {weight:g} gives it {due:.0%}."
    return OrderPart("fair_share", text, factor=factor)


def _guarantee(state: State, job: Job, standing: Standing, pool: str) -> OrderPart | None:
    team = job.spec.team
    guaranteed = team_rules(state.rules, team).guaranteed.get(pool, 0)
    if guaranteed == 0:
        return None
    held = held_by(other for other in index_of(state).holders() if other.holds_gpus).gpus
    holds = f"team {team} holds {held.get((Group('team', team), pool), 0)} of {guaranteed} guaranteed GPUs of {pool}"
    if standing.guaranteed:
        adds = GUARANTEED_PRIORITY / THOUSANDTHS
        text = f"Guarantee: +{adds:g}, it is inside: {holds}; nobody who borrows is planned in its way."
        return OrderPart("guarantee", text, adds=adds)
    if job.reason in _BEYOND_COUNTS:
        return OrderPart("guarantee", f"Guarantee: +0 as long as a limit of jobs keeps it waiting; {holds}.")
    needs = f"with its jobs that come first there is no room for {min(job.spec.sizes)} more"
    return OrderPart("guarantee", f"Guarantee: +0, it is outside and borrows: {holds}, and {needs}.")


def _overdue(state: State, job: Job, standing: Standing, now_ms: int) -> OrderPart | None:
    overdue_s, adds = state.rules.aging.overdue_s, OVERDUE_PRIORITY / THOUSANDTHS
    since_ms = None if overdue_s is None else job.submitted_ms + round(overdue_s * 1000)
    if job.restores:
        text = f"Overdue: +{adds:g}; its gang lost a node, so it goes before all others until it is placed again."
        return OrderPart("overdue", text, adds=adds)
    if overdue_s is None or since_ms is None:
        return None
    at, after = f"{moment_text(since_ms, now_ms)} ({from_now_text(since_ms, now_ms)})", duration_text(overdue_s)
    if standing.overdue:
        text = f"Overdue: +{adds:g} since {at}, {after} after its submission; it goes before all that isn't overdue."
        return OrderPart("overdue", text, adds=adds, since_ms=since_ms)
    text = f"Overdue: not yet; from {at} on, {after} after its submission, it goes before all that isn't overdue."
    return OrderPart("overdue", text, since_ms=since_ms)
