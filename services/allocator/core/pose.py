"""Pose the planning problem of one pool: from the cluster's state, at one moment, to the arrays the heuristic sees.

Steps are relative to now, so a job whose cells are free starts now and not at a boundary. P50 decides what batch work
takes from each other, a higher quantile what it may take from applications and reservations: `Policy.hold_quantile`
while a job is queued, P90 once it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from statistics import NormalDist

from schemas.forecasts import DemandForecast
from schemas.nodes import Health
from schemas.records import Now
from services.allocator.core.coming import coming_ms
from services.allocator.core.config import Policy
from services.allocator.core.fixed_point import PRIORITY_ONE
from services.allocator.core.gpu_states import CardState, GpuState
from services.allocator.core.held import held_blocks
from services.allocator.core.index import Index, index_of
from services.allocator.core.layout import Layout, layout_of
from services.allocator.core.leaving import demand_while_leaving
from services.allocator.core.near import data_rows, domain_numbers
from services.allocator.core.precedence import Claims, Precedence, planned_max_of, precedence_of
from services.allocator.core.problem import (
    Application,
    Option,
    Problem,
    QueuedJob,
    Reservation,
    RunningBlock,
    build_problem,
)
from services.allocator.core.reasons import Reason
from services.allocator.core.slots import card_states, is_row_of_order
from services.allocator.core.speeds import expected_s
from services.allocator.core.state import PARTS_ALIVE, App, Job, State
from services.allocator.core.topology import size_class

OVERDUE_STRETCH = 0.25
"""A job past its P90 is expected to need this share of its elapsed time more, never "any moment now"."""


@dataclass(frozen=True, slots=True)
class Posed:
    """The problem with what its rows stand for: queued jobs and applications in row order; `more`: others
    accept this pool, too, and wait behind the planned ones. `claims`: of jobs in `queued`, and perhaps of others. `left_ms`: by running
    job, how long it was placed to stay (`placed_left_ms`); empty where nobody has a claim."""

    pool: str
    layout: Layout
    problem: Problem
    queued: tuple[Job, ...]
    more: bool
    apps: tuple[App, ...]
    claims: Claims
    left_ms: Mapping[str, int]


def pose(
    state: State,
    pool: str,
    memory_mib: int,
    policy: Policy,
    now: Now,
    placed_elsewhere: frozenset[str],
    planned_elsewhere: frozenset[str] = frozenset(),
) -> Posed:
    """The problem of `pool` now. Jobs in `placed_elsewhere` already got a block in another pool of this decision, those in
    `planned_elsewhere` wait for one (`pool_choice.py`)."""
    layout = layout_of(state, pool)
    index = index_of(state)
    planned_max = planned_max_of(layout.gpus)
    precedence = precedence_of(
        state, index, pool, planned_max, placed_elsewhere, policy, now.domain_ms, planned_elsewhere
    )
    queued = precedence.queued
    apps = tuple(app for app in state.apps.values() if app.pool == pool)
    data_row, lacking = data_rows(layout.nodes, queued)
    coming = coming_ms(state, layout, now.domain_ms, remaining_s)
    problem = build_problem(
        steps=policy.steps,
        node_sizes=layout.planned_sizes,
        queued=[
            _queued(job, _offers(job, pool, policy, index), layout, memory_mib, precedence, data_row, policy, now)
            for job in queued
        ],
        running=_running(index.holders(), layout, precedence, policy, now),
        applications=[_application(app, layout, precedence, policy, now) for app in apps],
        reservations=_reservations(state, pool, layout, coming, policy, now),
        caps=precedence.admission.caps,
        gpu_state=_with(_gpu_states(state, layout), coming, GpuState.USABLE),
        domains=domain_numbers(layout.nodes),
        lacking=lacking,
        card_state=_with(card_states(state, layout), coming, CardState.COMING),
        penalty_ratio=policy.penalty_ratio,
        decay_end=policy.decay_end,
    )
    return Posed(
        pool=pool,
        layout=layout,
        problem=problem,
        queued=tuple(queued),
        more=precedence.more,
        apps=apps,
        claims=precedence.claims,
        left_ms={job.job_id: placed_left_ms(job, now.domain_ms) for job in index.holders() if not job.stop_cause}
        if precedence.claims.tiers
        else {},
    )


def remaining_s(job: Job, now_ms: int) -> tuple[float, float]:
    """(P50, P90) seconds a placed job still needs, given that it has run that long."""
    elapsed_s = max(0.0, (now_ms - (job.started_ms or job.placed_ms)) / 1000)
    left_of_limit_s = max(0.0, job.spec.time_limit_s - elapsed_s)
    overdue_s = elapsed_s * OVERDUE_STRETCH
    p50 = job.placed_p50_s - elapsed_s if elapsed_s < job.placed_p50_s else overdue_s
    p90 = job.placed_p90_s - elapsed_s if elapsed_s < job.placed_p90_s else overdue_s
    p50 = min(p50, left_of_limit_s)
    return p50, max(p50, min(p90, left_of_limit_s))


def placed_left_ms(job: Job, now_ms: int) -> int:
    """What a placed job still needs by P50, counted from the decision that placed it and not from its start, which comes a launch later:
    so a job that was let in before a moment is never expected to leave after it, unless it outlasts its P50."""
    elapsed_s = (now_ms - (job.started_ms or job.placed_ms)) / 1000
    if elapsed_s < job.placed_p50_s:
        return max(0, job.placed_ms + int(job.placed_p50_s * 1000) - now_ms)
    return int(remaining_s(job, now_ms)[0] * 1000)


def quantile_s(p50_s: float, p90_s: float, quantile: float) -> float:
    """Between P50 and P90 (and a little beyond), as if the logarithm were normal."""
    if p50_s <= 0 or quantile == 0.9:
        return p90_s
    share = NormalDist().inv_cdf(quantile) / NormalDist().inv_cdf(0.9)
    return p50_s * (p90_s / p50_s) ** share


def _steps_of(duration_s: float, policy: Policy) -> int:
    return max(1, min(ceil(duration_s / policy.step_s), 2 * policy.steps))


def _refusal(job: Job, most: int | None, memory_mib: int, precedence: Precedence, policy: Policy, now: Now) -> Reason:
    if memory_mib and job.spec.memory_mib > memory_mib:
        return Reason.MEMORY_EXCEEDS_GPU
    if most is not None and min(job.spec.sizes) > most:
        return Reason.SIZE_EXCEEDS_CARD
    if not job.forecast and now.wall_ms - job.seen_wall_ms < policy.forecast_wait_ms:
        return Reason.AWAITING_FORECAST
    if job.not_before_ms > now.domain_ms:
        return Reason.REQUEUE_BACKOFF
    return precedence.admission.refusals.get(job.job_id, Reason.NONE)


def _offers(job: Job, pool: str, policy: Policy, index: Index) -> tuple[Option, ...]:
    """The sizes a waiting job offers with their steps. Remembered: of thousands of jobs few change between two decisions."""
    known, in_pools = index.posed.get(job.job_id), dict[str, tuple[Option, ...]]()
    if known is not None:
        spec, forecast, fraction, by, options = known
        if spec is job.spec and forecast is job.forecast and fraction == job.fraction and by is policy:
            if pool in options:
                return options[pool]
            in_pools = options
    offers = []
    for gpus in sorted(set(job.spec.sizes)):
        if size_class(gpus) < 0:
            continue
        p50, p90 = expected_s(job, gpus, policy, pool)
        left = 1.0 - job.fraction
        hold_s = quantile_s(p50, p90, policy.hold_quantile)
        offers.append(Option(gpus, _steps_of(p50 * left, policy), _steps_of(hold_s * left, policy)))
    in_pools[pool] = tuple(offers)
    index.posed[job.job_id] = (job.spec, job.forecast, job.fraction, policy, in_pools)
    return in_pools[pool]


def _queued(
    job: Job,
    offers: tuple[Option, ...],
    layout: Layout,
    memory_mib: int,
    precedence: Precedence,
    data_row: dict[str, int],
    policy: Policy,
    now: Now,
) -> QueuedJob:
    most = layout.block_max
    return QueuedJob(
        id=job.job_id,
        priority=precedence.priorities[job.job_id],
        options=offers if most is None else tuple(offer for offer in offers if offer.gpus <= most),
        requested_gpus=job.spec.requested_gpus or max(job.spec.sizes),
        arrival=job.arrival,
        refusal=_refusal(job, most, memory_mib, precedence, policy, now),
        caps=precedence.admission.caps_of.get(job.job_id, ()),
        data=data_row.get(job.job_id, -1),
    )


def _running(
    holders: list[Job], layout: Layout, precedence: Precedence, policy: Policy, now: Now
) -> list[RunningBlock]:
    """One row per contiguous run of grid numbers that a placed job still holds (a broken gang may hold several)."""
    rows = []
    for job in holders:
        held = sorted(
            number
            for part in job.parts
            if part.status in PARTS_ALIVE and part.node in layout.first
            for number in layout.numbers(part.node, part.gpus)
        )
        if not held:
            continue
        p50, p90 = (0.0, 0.0) if job.stop_cause else remaining_s(job, now.domain_ms)
        start = 0
        for index in range(1, len(held) + 1):
            if index == len(held) or held[index] != held[index - 1] + 1:
                rows.append(
                    RunningBlock(
                        id=job.job_id,
                        priority=job.spec.priority * PRIORITY_ONE,
                        first_gpu=held[start],
                        gpus=index - start,
                        remaining_steps=_steps_of(p50, policy),
                        hold_steps=_steps_of(p90, policy),
                        arrival=job.arrival,
                        caps=precedence.admission.caps_of.get(job.job_id, ()),
                    )
                )
                start = index
    return rows


def demand_steps(app: App, policy: Policy, now_ms: int) -> list[int]:
    """GPUs the application asks for per step from now on: its quantile plus headroom, within floor and peak.

    A step asks for the most that any forecast step touching it asks for. Without a forecast: what it holds, at least the floor.
    """
    spec, forecast = app.spec, app.forecast
    floor = min(spec.floor_gpus, spec.peak_gpus)
    if forecast is None:
        held = sum(len(part.gpus) for part in app.parts)
        return [min(spec.peak_gpus, max(floor, held))] * policy.steps
    share = min(1.0, max(0.0, (spec.quantile - 0.5) / 0.4))
    factor = 1.0 + spec.headroom
    touched = _touched(forecast, policy, now_ms)
    begin, end = touched[0][0], touched[-1][1]
    wanted = [
        min(spec.peak_gpus, max(floor, ceil((p50 + share * max(0.0, p90 - p50)) * factor - 1e-9)))
        for p50, p90 in zip(forecast.p50[begin:end], forecast.p90[begin:end], strict=True)
    ]
    return [max(wanted[first - begin : last - begin]) for first, last in touched]


def _touched(forecast: DemandForecast, policy: Policy, now_ms: int) -> list[tuple[int, int]]:
    """Per planning step the range of forecast steps it touches; beyond the forecast its last step counts."""
    forecast_ms, last = forecast.step_s * 1000, len(forecast.p50) - 1
    begin, step_ms = now_ms - forecast.start_ms, policy.step_ms
    return [
        (
            min(max(0, (begin + step * step_ms) // forecast_ms), last),
            min(max(0, (begin + (step + 1) * step_ms - 1) // forecast_ms), last) + 1,
        )
        for step in range(policy.steps)
    ]


def _application(app: App, layout: Layout, precedence: Precedence, policy: Policy, now: Now) -> Application:
    held = [
        number for part in app.parts if part.node in layout.first for number in layout.numbers(part.node, part.gpus)
    ]
    used = app.switched if app.bucket == now.domain_ms // policy.step_ms else 0
    return Application(
        id=app.app_id,
        priority=app.spec.priority * PRIORITY_ONE + precedence.tier_max,
        demand=demand_while_leaving(app, demand_steps(app, policy, now.domain_ms), layout, policy, now.domain_ms),
        floor=min(app.spec.floor_gpus, app.spec.peak_gpus),
        held=tuple(sorted(held)) if held else None,
        switch_max=app.spec.switch_max,
        switch_left=max(0, app.spec.switch_max - used),
    )


def _with(states: list[int], coming: dict[int, int], state: int) -> list[int]:
    for number in coming:
        states[number] = state
    return states


def _reservations(
    state: State, pool: str, layout: Layout, coming: dict[int, int], policy: Policy, now: Now
) -> list[Reservation]:
    """What operators reserved, and blocks that are held for jobs whose place is being cleared. `coming`: until when orders to cut cards
    keep slots closed that are this pool's afterwards."""
    rows = []
    for reserved in state.reservations.values():
        if reserved.node not in layout.first or reserved.until_ms <= now.domain_ms:
            continue
        size = next(node.size for node in layout.nodes if node.node == reserved.node)
        start = max(0, (reserved.from_ms - now.domain_ms) // policy.step_ms)
        cut = is_row_of_order(state, reserved.reservation_id)
        for gpu in reserved.gpus or list(range(size)):
            if gpu < size:
                first = layout.first[reserved.node] + gpu
                until_ms = coming.get(first, reserved.until_ms) if cut else reserved.until_ms
                end = -(-(until_ms - now.domain_ms) // policy.step_ms)
                rows.append(Reservation(reserved.reservation_id, first, 1, int(start), int(end)))
    for job_id, held in held_blocks(state, pool, now.domain_ms):
        end = -(-(held.until_ms - now.domain_ms) // policy.step_ms)
        for part in (part for part in held.placed if part.node in layout.first):
            rows += [Reservation(job_id, number, 1, 0, int(end)) for number in layout.numbers(part.node, part.gpus)]
    return rows + _applications_drained(state, pool, layout, policy, now)


def _applications_drained(state: State, pool: str, layout: Layout, policy: Policy, now: Now) -> list[Reservation]:
    """What applications hold on draining nodes is theirs up to the deadline: jobs are stopped then, applications have moved
    (`leaving.py`)."""
    rows = []
    for app in state.apps.values():
        for part in app.parts if app.pool == pool else ():
            node = state.nodes.get(part.node)
            if node is None or not node.draining or part.node not in layout.first:
                continue
            start = max(0, (node.drain_deadline_ms - now.domain_ms) // policy.step_ms)
            numbers = layout.numbers(part.node, part.gpus) if start < policy.steps else []
            rows += [Reservation(f"drain/{part.node}"[:128], number, 1, start, policy.steps) for number in numbers]
    return rows


def _gpu_states(state: State, layout: Layout) -> list[int]:
    states: list[int] = []
    for node in layout.nodes:
        for index in range(node.size):
            if node.health is Health.LOST or index in node.absent:
                states.append(GpuState.UNUSABLE)
            elif not node.takes_new or not node.healthy[index] or index in node.quarantined:
                states.append(GpuState.HELD_ONLY)
            else:
                states.append(GpuState.USABLE)
    return states
