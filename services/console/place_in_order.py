"""What the allocator's own state adds to `gpugrid why` of a waiting job: its place in the order, who took its place, what is reserved.

Owns: reading that state, and that an answer without it is still an answer. The numbers and words of the order: `order_parts`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from schemas.executions import StopCause
from schemas.rules import Aging
from schemas.sharing import CUT_WAIT_S
from services.allocator.core.config import Policy
from services.allocator.core.held import losses, protected_until_ms
from services.allocator.core.layout import layout_of
from services.allocator.core.reasons import Reason
from services.allocator.core.state import Job, State
from services.console.advice import AGING_HELP
from services.console.durations import duration_text, from_now_text, moment_text
from services.console.errors import ConsoleError
from services.console.facts import JobView, World
from services.console.near_parts import near_parts
from services.console.order_parts import place_of
from services.console.policy_orders import Standing, standing_on
from services.console.read import READ_DEADLINE_S
from services.console.sentences import Explanation, gpu_ranges, position_text
from services.console.session import Session
from services.runtime.bus.port import BusError

RESERVATIONS_NAMED_MAX = 3
"""`gpugrid reservations` has all."""


async def load_allocator_state(session: Session, view: JobView, world: World) -> Standing | None:
    """The state of the job's cluster; None where it can't be had: what the topics say is told all the same."""
    partitions = {node.cluster: world.node_partition[name] for name, node in sorted(world.nodes.items())}
    if view.cluster not in partitions:
        return None
    try:
        async with asyncio.timeout(READ_DEADLINE_S):
            return await standing_on(session, view.cluster, partitions[view.cluster])
    except (BusError, ConsoleError, TimeoutError) as error:
        session.note(f"What the rules make of its priority isn't shown: the allocator's state can't be read ({error}).")
        return None


def with_place(explanation: Explanation, known: Standing) -> Explanation:
    """The explanation of a waiting job with what the state adds to it."""
    return with_state(explanation, known.state, known.settings.policy, known.now_ms)


def with_state(explanation: Explanation, state: State, policy: Policy, now_ms: int) -> Explanation:
    """The same for the page, which has the state at hand."""
    job = state.jobs.get(explanation.job_id)
    if job is None or job.parts or not job.pools:
        return explanation
    order = place_of(state, job, policy, now_ms)
    near = near_parts(state, job, order.pool, now_ms)
    told = [*_lost_place(state, job, now_ms), *_reserved(state, job, order.pool, now_ms)]
    told += _cut_for_it(state, job, order.pool, now_ms)
    told += [*(part.sentence for part in near), *order.lines()]
    help_ = [
        _aging_help(state.rules.aging, job.submitted_ms, now_ms) if line == AGING_HELP else line
        for line in explanation.would_help
    ]
    placed = replace(explanation, order=order, near=near, lines=[*explanation.lines, *told], would_help=help_)
    if order.position is None or explanation.position is None:
        return placed
    said, counts = position_text(explanation.position), position_text(order.position)
    return replace(placed, position=order.position, sentence=explanation.sentence.replace(said, counts))


def _lost_place(state: State, job: Job, now_ms: int) -> list[str]:
    """A job that had to make room and has not been placed again."""
    if job.cause != StopCause.PREEMPTED.value or not job.preempted_by:
        return []
    kept = f"{job.fraction:.0%} of its work is saved" if job.fraction > 0 else "none of its work is saved"
    return [
        f"It lost its place to {job.preempted_by[-1]}, whose queue may take places from queue {job.spec.queue}, and is back in the"
        f" queue since {moment_text(job.queued_ms, now_ms)} ({from_now_text(job.queued_ms, now_ms)}); {kept}."
        " The same job can't take its place again." + _how_often(state, job, now_ms)
    ]


def _how_often(state: State, job: Job, now_ms: int) -> str:
    """Against what its queue allows."""
    queue = state.rules.queues.get(job.spec.queue)
    if queue is None or not queue.preemptible:
        return " Its queue no longer gives places."
    lately, within = losses(job, queue, now_ms), duration_text(queue.preempted_window_s)
    said = (
        f" It lost its place {_times(len(lately))} within {within}; its queue allows that {_times(queue.preempted_max)}"
    )
    until_ms = protected_until_ms(job, queue, now_ms)
    if until_ms is None:
        return said + "."
    return f"{said}: nobody takes it before {moment_text(until_ms, now_ms)} ({from_now_text(until_ms, now_ms)})."


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _reserved(state: State, job: Job, pool: str, now_ms: int) -> list[str]:
    """Which reservations stand in the way of a job that waits for one: those that hold its block, else all of the pool."""
    if job.reason != Reason.RESERVED.public_name:
        return []
    nodes = {node.node for node in layout_of(state, pool).nodes}
    ahead = [one for one in state.reservations.values() if one.until_ms > now_ms and one.node in nodes]
    named = [one for one in ahead if one.reservation_id in job.holders] or ahead
    named.sort(key=lambda one: (one.from_ms, one.reservation_id))
    lines = []
    for one in named[:RESERVATIONS_NAMED_MAX]:
        gpus = f"GPUs {gpu_ranges(one.gpus)} of {one.node}" if one.gpus else f"all of {one.node}"
        begins = f"from {moment_text(one.from_ms, now_ms)} " if one.from_ms > now_ms else ""
        until = f"{moment_text(one.until_ms, now_ms)} ({from_now_text(one.until_ms, now_ms)})"
        lines.append(f"Reservation {one.reservation_id} keeps {gpus} {begins}until {until}.")
    if len(named) > RESERVATIONS_NAMED_MAX:
        lines.append(f"{len(named) - RESERVATIONS_NAMED_MAX} more: `gpugrid reservations`.")
    return lines


def _cut_for_it(state: State, job: Job, pool: str, now_ms: int) -> list[str]:
    """Which orders bring the slots that it waits for, and how far they are."""
    if job.reason != Reason.CUT_UNDER_WAY.public_name:
        return []
    lines = []
    for order in (order for order in state.repartitions.values() if order.pool == pool):
        cards = f"cards {gpu_ranges(order.cards)} of {order.machine}"
        if order.asked:
            lines.append(
                f"Order {order.request_id}: {cards} are being cut for {pool}; that takes {duration_text(CUT_WAIT_S)} at most."
            )
            continue
        by = f"{moment_text(order.deadline_ms, now_ms)} ({from_now_text(order.deadline_ms, now_ms)})"
        lines.append(
            f"Order {order.request_id}: {cards} are cut for {pool} as soon as they are empty; what still runs there by {by} is"
            " checkpointed and stopped."
        )
    return lines[:RESERVATIONS_NAMED_MAX]


def _aging_help(aging: Aging, submitted_ms: int, now_ms: int) -> str:
    """What waiting alone brings under these rules."""
    grows = aging.per_hour > 0 and aging.priority_max > 0
    raises = f"Waiting raises it by at most {aging.priority_max:g} (aging)" if grows else "Waiting doesn't raise it"
    if aging.overdue_s is None:
        return (
            f"{raises}, and no job is ever overdue here (`aging.overdue_s`): work of higher value can keep it waiting."
        )
    since_ms = submitted_ms + round(aging.overdue_s * 1000)
    if since_ms <= now_ms:
        return "It is overdue: nothing that isn't is planned in its way."
    return (
        f"{raises}; {duration_text(aging.overdue_s)} after its submission ({moment_text(since_ms, now_ms)}) it is overdue and goes"
        " before all that isn't, so it doesn't starve."
    )
