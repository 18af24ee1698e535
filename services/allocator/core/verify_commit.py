"""An independent check of what a decision is about to commit, against the state it is committed to. Shares no code with planning.

Works on sets of (node, local GPU), the units executors act on, so a fault in the numbering of the grid can't hide itself.
"""

from __future__ import annotations

from math import ceil
from statistics import NormalDist

from schemas.decisions import Effect, Placed, Preempted, Promised, Scaled, StopOrdered, Waits
from schemas.nodes import Health
from schemas.records import Now
from schemas.status import JobState, NodeGpus
from services.allocator.core.config import Policy
from services.allocator.core.groups import Group, groups_of, limits_of, maximum_of
from services.allocator.core.state import State
from services.allocator.core.verify_preempted import check_preempted

Card = tuple[str, int]
ROUNDING_S = 0.001
"""Less than this a sum of seconds may be off, but no hold is told by: it must not make one a step longer here than in the plan."""
_ALIVE = ("placed", "running")
_CAUSES = ("overrun", "node_withdrawn", "reserved", "higher_priority", "rules", "applications")


def verify_commit(state: State, effects: list[Effect], policy: Policy, now: Now) -> list[str]:
    """Violations as sentences; empty: every constraint holds after the effects. Called before they are enacted."""
    violations: list[str] = []
    held = _held_by_jobs(state, violations)
    apps: dict[str, set[Card]] = {
        app_id: {(part.node, gpu) for part in app.parts for gpu in part.gpus} for app_id, app in state.apps.items()
    }
    kept: dict[str, set[Card]] = {app_id: set(cards) for app_id, cards in apps.items()}
    for effect in effects:
        if isinstance(effect, Scaled):
            violations += _check_scaled(state, effect, apps, policy, now)
            apps[effect.app_id] = _cards(effect.placed)
    violations += _check_rules(state, [effect for effect in effects if isinstance(effect, Placed)])
    violations += _check_held(state, effects, now)
    violations += _check_once(effects)
    violations += _check_promises(state, effects)
    for effect in effects:
        if isinstance(effect, Placed):
            violations += _check_placed(state, effect)
            violations += _check_window(state, effect, policy, now)
            for card in sorted(_cards(effect.placed)):
                if card in held:
                    violations.append(f"{effect.job_id} on {card}: held by {held[card]}")
                held[card] = effect.job_id
        elif isinstance(effect, Preempted):
            violations += check_preempted(state, effect, effects, policy, now)
            violations += _check_taken(state, effect, held | _held_by_apps(kept), policy, now)
        elif isinstance(effect, StopOrdered | Waits) and effect.job_id not in state.jobs:
            violations.append(f"effect on unknown job {effect.job_id}")
    for app_id in sorted(apps):
        for card in sorted(apps[app_id]):
            if card in held:
                violations.append(f"{app_id} on {card}: held by {held[card]}")
            held[card] = app_id
            if card in kept.get(app_id, set()):
                continue
            if not _open_to_new(state, card):
                violations.append(f"{app_id} gains {card}, which takes nothing new")
            if _reserved(state, card, now, now.domain_ms + policy.step_ms):
                violations.append(f"{app_id} gains {card}, which is reserved")
    return violations


def _check_rules(state: State, placed: list[Placed]) -> list[str]:
    """No start takes a group above its maximum of GPUs or of running jobs. A group may be above one already: rules change."""
    rules, found = state.rules, []
    held: dict[tuple[Group, str], int] = {}
    running: dict[Group, int] = {}
    started = {effect.job_id: (effect.pool, effect.gpus) for effect in placed if effect.job_id in state.jobs}
    grown: set[tuple[Group, str]] = set()
    for job in state.jobs.values():
        alive = sum(len(part.gpus) for part in job.parts if part.status in _ALIVE)
        if job.job_id not in started and not alive:
            continue
        pool, gpus = started.get(job.job_id, (job.pool, alive))
        for group in groups_of(job.spec):
            held[group, pool] = held.get((group, pool), 0) + gpus
            running[group] = running.get(group, 0) + 1
            if job.job_id in started:
                grown.add((group, pool))
    for group, pool in sorted(grown):
        most, count = maximum_of(rules, group, pool), limits_of(rules, group).running_max
        if most is not None and held[group, pool] > most:
            found.append(f"{group.words} would hold {held[group, pool]} GPUs of {pool}, {most} allowed")
        if count is not None and running[group] > count:
            found.append(f"{group.words} would run {running[group]} jobs, {count} allowed")
    return found


def _check_once(effects: list[Effect]) -> list[str]:
    """A job starts once, and waits for one pool, however many pools it accepts."""
    found, said = [], set[tuple[str, str]]()
    for effect in effects:
        if isinstance(effect, Placed | Waits | Preempted):
            kind = "waits" if isinstance(effect, Waits) else "is given GPUs"
            if (effect.job_id, kind) in said:
                found.append(f"{effect.job_id} {kind} twice in one decision")
            said.add((effect.job_id, kind))
    return found


def _check_taken(state: State, effect: Preempted, held: dict[Card, str], policy: Policy, now: Now) -> list[str]:
    """The block that a job takes can be had: it is its victims' or nobody's, takes something new, and no operator reserved it."""
    found = []
    for card in sorted(_cards(effect.placed)):
        if card in held and held[card] not in effect.victims:
            found.append(f"{effect.job_id} takes {card}: held by {held[card]}, which nobody stops")
        if not _open_to_new(state, card):
            found.append(f"{effect.job_id} takes {card}, which takes nothing new")
        if _reserved(state, card, now, now.domain_ms + policy.step_ms):
            found.append(f"{effect.job_id} takes {card}, which is reserved")
    return found


def _check_window(state: State, effect: Placed, policy: Policy, now: Now) -> list[str]:
    """No start on what is reserved, nor on what will be before the job is expected to have left (`Policy.hold_quantile`), in whole steps.

    The block that running jobs left for it was judged when they were told to: it only must not be reserved by now.
    """
    block = state.preemptions.get(effect.job_id)
    if block is not None and _cards(block.placed) == _cards(effect.placed):
        until_ms = now.domain_ms + 1
    else:
        steps = max(1, min(policy.steps, ceil((_hold_s(effect, policy) - ROUNDING_S) / policy.step_s)))
        until_ms = now.domain_ms + steps * policy.step_ms
    return [
        f"{effect.job_id} on {card}, which is reserved"
        for card in sorted(_cards(effect.placed))
        if _reserved(state, card, now, until_ms)
    ]


def _hold_s(effect: Placed, policy: Policy) -> float:
    """How long the job counts as holding GPUs that others were promised: between P50 and P90 as if its logarithm were normal. Data that
    has to be brought is not in it."""
    p50_s, p90_s = effect.p50_s - effect.staging_s, effect.p90_s - effect.staging_s
    if p50_s <= 0:
        return p90_s
    normal = NormalDist()
    return float(p50_s * (p90_s / p50_s) ** (normal.inv_cdf(policy.hold_quantile) / normal.inv_cdf(0.9)))


def _check_held(state: State, effects: list[Effect], now: Now) -> list[str]:
    """A block that running jobs leave for a waiting one goes to nobody else, from the decision on that takes it."""
    started = {effect.job_id for effect in effects if isinstance(effect, Placed)}
    blocks = {
        job_id: _cards(held.placed)
        for job_id, held in state.preemptions.items()
        if held.until_ms > now.domain_ms and job_id not in started
    }
    blocks |= {effect.job_id: _cards(effect.placed) for effect in effects if isinstance(effect, Preempted)}
    return [
        f"{name} gets {sorted(_cards(effect.placed) & cards)}, held for {job_id}"
        for effect in effects
        if blocks and isinstance(effect, Placed | Scaled)
        for name in [effect.job_id if isinstance(effect, Placed) else effect.app_id]
        for job_id, cards in blocks.items()
        if job_id != name and _cards(effect.placed) & cards
    ]


def _cards(placed: list[NodeGpus]) -> set[Card]:
    return {(item.node, gpu) for item in placed for gpu in item.gpus}


def _held_by_jobs(state: State, violations: list[str]) -> dict[Card, str]:
    held: dict[Card, str] = {}
    for job in state.jobs.values():
        if not job.parts:
            continue  # the many; the index that planning uses is not asked on purpose
        for part in job.parts:
            if part.status not in _ALIVE:
                continue
            for gpu in part.gpus:
                if (part.node, gpu) in held:
                    violations.append(f"{job.job_id} and {held[part.node, gpu]} both hold {part.node}/{gpu}")
                held[part.node, gpu] = job.job_id
    return held


def _held_by_apps(apps: dict[str, set[Card]]) -> dict[Card, str]:
    return {card: app_id for app_id in sorted(apps) for card in apps[app_id]}


def _open_to_new(state: State, card: Card) -> bool:
    node = state.nodes.get(card[0])
    if node is None or node.draining or node.silent_until_ms or node.health in (Health.SUSPECT, Health.LOST):
        return False
    if card[1] >= node.size or not node.healthy[card[1]] or card[1] in node.quarantined:
        return False
    if not node.machine:
        return True
    cut, on = state.cuts.get(node.machine), card[1] // node.slots_per_card
    if any(order.machine == node.machine and on in order.cards for order in state.repartitions.values()):
        return False
    return cut is not None and on < len(cut.pools) and cut.pools[on] == node.pool


def _check_placed(state: State, effect: Placed) -> list[str]:
    job = state.jobs.get(effect.job_id)
    if job is None or job.state is not JobState.QUEUED or job.parts:
        return [f"{effect.job_id} is placed but not queued"]
    found = []
    if effect.attempt != job.attempt + 1:
        found.append(f"{effect.job_id}: attempt {effect.attempt} after {job.attempt}")
    if effect.gpus not in job.spec.sizes or effect.gpus & (effect.gpus - 1):
        found.append(f"{effect.job_id}: size {effect.gpus} is not offered or no power of two")
    if effect.pool not in job.pools:
        found.append(f"{effect.job_id}: pool {effect.pool} is not acceptable")
    for name in sorted({item.node for item in effect.placed}):
        if name in state.nodes and state.nodes[name].pool != effect.pool:
            found.append(f"{effect.job_id} on {name}: of pool {state.nodes[name].pool}, not of {effect.pool}")
    cards = _cards(effect.placed)
    if len(cards) != effect.gpus:
        found.append(f"{effect.job_id}: {len(cards)} GPUs for size {effect.gpus}")
    found += [
        f"{effect.job_id} on {card}, which takes nothing new" for card in sorted(cards) if not _open_to_new(state, card)
    ]
    return found + _check_shape(state, effect)


def _check_shape(state: State, effect: Placed) -> list[str]:
    """One node: consecutive indices. Several: whole nodes that are neighbours in the pool's order. Slots: all on one card."""
    nodes = [item.node for item in effect.placed]
    on = {(card[0], card[1] // state.nodes[card[0]].slots_per_card) for card in _cards(effect.placed)}
    if any(state.nodes[name].slots_per_card > 1 for name in nodes) and len(on) > 1:
        return [f"{effect.job_id}: its slots lie on several cards {sorted(on)}"]
    if len(nodes) == 1:
        gpus = sorted(effect.placed[0].gpus)
        return (
            []
            if gpus == list(range(gpus[0], gpus[0] + len(gpus)))
            else [f"{effect.job_id}: GPUs {gpus} are not contiguous"]
        )
    names = _pool_order(state, effect.pool)
    found = [
        f"{effect.job_id}: takes part of {item.node} in a block over several nodes"
        for item in effect.placed
        if sorted(item.gpus) != list(range(state.nodes[item.node].size))
    ]
    places = [names.index(name) for name in nodes]
    if places != list(range(places[0], places[0] + len(places))):
        found.append(f"{effect.job_id}: nodes {nodes} are not neighbours")
    return found


def _pool_order(state: State, pool: str) -> list[str]:
    """Nodes as they are numbered: by their own order, those of a rack together where its first one is."""
    pool_order = sorted((node.order, node.node, node.rack) for node in state.nodes.values() if node.pool == pool)
    racks: dict[str, list[str]] = {}
    for _, name, rack in pool_order:
        racks.setdefault(rack, []).append(name)
    return [name for members in racks.values() for name in members]


def _check_promises(state: State, effects: list[Effect]) -> list[str]:
    """A big job's planned start moves later, or is taken back, for a stated cause only; and nothing else is said of it."""
    found = []
    said: dict[str, Promised] = {effect.job_id: effect for effect in effects if isinstance(effect, Promised)}
    for job_id, effect in said.items():
        if job_id not in state.jobs:
            found.append(f"effect on unknown job {job_id}")
        elif _is_later(state, job_id, effect.start_ms) and effect.cause not in _CAUSES:
            found.append(f"the planned start of {job_id} moves later for {effect.cause or 'no cause'}")
    told = {effect.job_id: effect.planned_start_p50_ms for effect in effects if isinstance(effect, Waits)}
    found += [
        f"{job_id} is told a later start than it was promised"
        for job_id, start_ms in told.items()
        if start_ms is not None and job_id not in said and _is_later(state, job_id, start_ms)
    ]
    return found


def _is_later(state: State, job_id: str, start_ms: int | None) -> bool:
    promise = state.promises.get(job_id)
    if promise is None or promise.start_ms is None:
        return False
    return start_ms is None or start_ms > promise.start_ms


def _check_scaled(state: State, effect: Scaled, apps: dict[str, set[Card]], policy: Policy, now: Now) -> list[str]:
    app = state.apps.get(effect.app_id)
    if app is None:
        return [f"unknown application {effect.app_id} is scaled"]
    before, after = apps[effect.app_id], _cards(effect.placed)
    found = []
    used = app.switched if app.bucket == now.domain_ms // (policy.step_s * 1000) else 0
    # After its peak was lowered an application gives back what the cap lets it, step by step.
    most = max(app.spec.peak_gpus, len(before) - max(0, app.spec.switch_max - used))
    staying = sum(card in after - before or not _drains(state, card) for card in after)
    if staying > most:
        found.append(f"{effect.app_id}: {staying} GPUs above its peak {app.spec.peak_gpus}")
    # What a reservation takes away is nobody's choice.
    chosen = {card for card in before ^ after if card in after or not _taken_away(state, card, policy, now)}
    if before and chosen and used + len(chosen) > app.spec.switch_max:  # the cap may have been lowered since
        found.append(f"{effect.app_id}: {used} + {len(chosen)} switches in a step, {app.spec.switch_max} allowed")
    if effect.switched != (len(chosen) if before else 0):
        found.append(f"{effect.app_id}: counts {effect.switched} switches instead of {len(chosen)}")
    return found


def _drains(state: State, card: Card) -> bool:
    """Whether the card is on its way out: an application has it until its node's deadline, beside what it gained elsewhere."""
    node = state.nodes.get(card[0])
    return node is not None and node.draining


def _taken_away(state: State, card: Card, policy: Policy, now: Now) -> bool:
    """Whether a reservation holds the card within the step that begins now, or its node is to be empty by then."""
    end_ms = now.domain_ms + policy.step_ms
    node = state.nodes.get(card[0])
    if node is not None and node.draining and node.drain_deadline_ms < end_ms:
        return True
    return _reserved(state, card, now, end_ms)


def _reserved(state: State, card: Card, now: Now, until_ms: int) -> bool:
    """Whether a reservation holds the card at any moment from now on and before `until_ms`."""
    return any(
        reserved.node == card[0]
        and (not reserved.gpus or card[1] in reserved.gpus)
        and reserved.from_ms < until_ms
        and reserved.until_ms > now.domain_ms
        for reserved in state.reservations.values()
    )
