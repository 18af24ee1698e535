"""Does a document of rules hold together? Every contradiction as a sentence, all of them at once, before anything takes effect."""

from __future__ import annotations

from collections.abc import Mapping

from schemas.rules import Limits, Rules, TeamRules


def contradictions(rules: Rules, pools: Mapping[str, int] | None = None) -> list[str]:
    """What is wrong with the rules as a whole; empty: they can be put in force. `pools`: GPUs per pool, where they are known."""
    found: list[str] = []
    named = [("the organisation", rules.organisation), ("each team", rules.each_team)]
    named += [(f"team {name}", team) for name, team in rules.teams.items()]
    named += [(f"queue {name}", queue) for name, queue in rules.queues.items()]
    for words, limits in named:
        found += _unknown_pools(words, limits.maximum, pools)
        if isinstance(limits, TeamRules):
            found += _team(words, limits, rules.organisation, pools)
    found += _guarantees(rules, pools)
    found += [
        f"queue {name} both preempts and is preemptible: jobs would push each other out in turn"
        for name, queue in rules.queues.items()
        if queue.preempts and queue.preemptible
    ]
    return found


def _team(words: str, team: TeamRules, organisation: Limits, pools: Mapping[str, int] | None) -> list[str]:
    found = _unknown_pools(f"{words} (guaranteed)", team.guaranteed, pools)
    for pool, gpus in team.guaranteed.items():
        if gpus > team.maximum.get(pool, gpus):
            found.append(f"{words} is guaranteed {gpus} GPUs of {pool} but may hold {team.maximum[pool]} at most")
    for pool, gpus in team.maximum.items():
        if gpus > organisation.maximum.get(pool, gpus):
            found.append(
                f"{words} may hold {gpus} GPUs of {pool}, the organisation as a whole {organisation.maximum[pool]}"
            )
    users = [(f"user {name} of {words}", limits) for name, limits in team.users.items()]
    for who, limits in [*users, (f"each user of {words}", team.each_user)]:
        found += _unknown_pools(who, limits.maximum, pools)
        for pool, gpus in limits.maximum.items():
            if gpus > team.maximum.get(pool, gpus):
                found.append(f"{who} may hold {gpus} GPUs of {pool}, the whole team {team.maximum[pool]}")
    return found


def _guarantees(rules: Rules, pools: Mapping[str, int] | None) -> list[str]:
    """What all teams are guaranteed together must be there, and inside what the organisation may hold."""
    promised: dict[str, int] = {}
    for team in rules.teams.values():
        for pool, gpus in team.guaranteed.items():
            promised[pool] = promised.get(pool, 0) + gpus
    found = []
    for pool, gpus in promised.items():
        most = rules.organisation.maximum.get(pool)
        if most is not None and gpus > most:
            found.append(f"teams are guaranteed {gpus} GPUs of {pool}, the organisation may hold {most}")
        if pools is not None and pool in pools and gpus > pools[pool]:
            found.append(f"teams are guaranteed {gpus} GPUs of {pool}, which has {pools[pool]}")
    if rules.each_team.guaranteed:
        found.append("each_team can't be guaranteed GPUs: nobody knows how many teams there will be; name the teams")
    return found


def _unknown_pools(words: str, gpus: Mapping[str, int], pools: Mapping[str, int] | None) -> list[str]:
    if pools is None:
        return []
    known = ", ".join(sorted(pools)) or "none"
    return [f"{words} names the pool {pool}; the cluster has {known}" for pool in gpus if pool not in pools]
