"""Reading a cluster's state for `gpugrid policy`, and the order that changes its rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from schemas.commands import ChangeRules
from schemas.records import Now
from schemas.rules import Rules
from services.console import queries
from services.console.errors import ConsoleError, UsageError
from services.console.orders import publish_order
from services.console.session import Session
from services.console.settings import settings_of

if TYPE_CHECKING:
    from services.allocator.core.decide import Settings
    from services.allocator.core.state import State
    from services.console.policy_effect import JobEffect


@dataclass(frozen=True, slots=True)
class Standing:
    """A cluster as the log has it now."""

    cluster: str
    partition: int
    state: State
    settings: Settings
    now_ms: int


async def load_standing(session: Session, cluster: str | None) -> Standing:
    """The state of a cluster; of the only one if none is named. ConsoleError if there is none, or more than one."""
    world = await queries.load_world(session)
    known = {node.cluster: world.node_partition[name] for name, node in sorted(world.nodes.items())}
    if not known:
        raise ConsoleError("No node has reported yet, so there is no cluster to look at; `gpugrid doctor` tells more.")
    if cluster is None and len(known) > 1:
        raise UsageError(f"There are several clusters; name one with --cluster: {', '.join(sorted(known))}.")
    name = cluster or next(iter(known))
    if name not in known:
        raise ConsoleError(f"No cluster is named {name}; there is {', '.join(sorted(known))}.")
    return await standing_on(session, name, known[name])


async def standing_on(session: Session, cluster: str, partition: int) -> Standing:
    """The state of a cluster whose partition is known."""
    from services.allocator.shell.log import load

    settings = settings_of(session, cluster)
    loaded = await load(session.bus(), cluster, partition, settings.policy.step_ms, "gpugrid-console")
    now_ms = max(session.clock().now_ms(), loaded.state.now_ms)
    return Standing(cluster, partition, loaded.state, settings, now_ms)


def versioned(rules: Rules, in_force: int) -> Rules:
    """The rules with the next version, if they name none. UsageError for one that is not newer."""
    if rules.version == 0:
        return msgspec.structs.replace(rules, version=in_force + 1)
    if rules.version <= in_force:
        raise UsageError(
            f"Version {in_force} is in force and the file says {rules.version}: leave the version out, or raise it."
        )
    return rules


def contradictions_in(rules: Rules, standing: Standing) -> list[str]:
    """What is wrong with the rules on this cluster."""
    from services.allocator.core.rule_checks import contradictions
    from services.console.policy_effect import pool_sizes

    return contradictions(rules, pool_sizes(standing.state))


def require_sound(rules: Rules, standing: Standing) -> None:
    wrong = contradictions_in(rules, standing)
    if wrong:
        raise ConsoleError("The rules can't be put in force: " + "; ".join(wrong) + ".")


def effects_of(rules: Rules, standing: Standing) -> list[JobEffect]:
    """Jobs and applications for which the rules would make a difference if they were put in force now."""
    from services.console.policy_effect import foreseen

    found = foreseen(standing.state, rules, standing.settings, Now(standing.now_ms, standing.state.wall_ms))
    if found.violations:
        raise ConsoleError(f"A decision under these rules would not pass its check: {found.violations[0]}.")
    return found.jobs


async def change_rules(session: Session, standing: Standing, rules: Rules, cause: str) -> dict[str, Any]:
    """Order the rules. They are in force with the cluster's next decision."""
    now_ms = session.clock().now_ms()
    event = ChangeRules(cluster=standing.cluster, rules=rules, ordered_ms=now_ms, cause=cause)
    verb = f"rules/{rules.version}"
    sent = await publish_order(session, event, standing.cluster, verb, now_ms, standing.partition)
    return {"id": sent["id"], "cluster": standing.cluster, "version": rules.version, "trace_id": sent["trace_id"]}
