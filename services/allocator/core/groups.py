"""Which groups a batch-like job belongs to, and what the rules allow each of them: organisation, team, user, queue.

A user's limits are those inside a team: the same person in two teams counts apart. Read `quotas.py` for what becomes of them.
"""

from __future__ import annotations

from typing import NamedTuple

from schemas.jobs import JobSpec
from schemas.rules import Limits, Rules, TeamRules

NO_LIMITS = Limits()


class Group(NamedTuple):
    """`kind`: organisation, team, user or queue; `name`: empty for the organisation, team/user for a user."""

    kind: str
    name: str

    @property
    def words(self) -> str:
        """For people: `team vision`, `user vision/ann`, `the organisation`."""
        return f"{self.kind} {self.name}" if self.name else "the organisation"


def groups_of(spec: JobSpec) -> tuple[Group, ...]:
    """From the widest to the narrowest."""
    return (
        Group("organisation", ""),
        Group("team", spec.team),
        Group("user", f"{spec.team}/{spec.user}"),
        Group("queue", spec.queue),
    )


def team_rules(rules: Rules, team: str) -> TeamRules:
    return rules.teams.get(team, rules.each_team)


def limits_of(rules: Rules, group: Group) -> Limits:
    """A group's limits; none where the rules don't speak of it."""
    if group.kind == "organisation":
        return rules.organisation
    if group.kind == "team":
        return team_rules(rules, group.name)
    if group.kind == "user":
        team, _, user = group.name.partition("/")
        of_team = team_rules(rules, team)
        return of_team.users.get(user, of_team.each_user)
    return rules.queues.get(group.name, NO_LIMITS)


def maximum_of(rules: Rules, group: Group, pool: str) -> int | None:
    """GPUs of the pool that the group's batch-like jobs may hold at once; None: all. A team that doesn't borrow: what is guaranteed."""
    limits = limits_of(rules, group)
    most = limits.maximum.get(pool)
    if isinstance(limits, TeamRules) and not limits.borrows:
        guaranteed = limits.guaranteed.get(pool, 0)
        return guaranteed if most is None else min(most, guaranteed)
    return most
