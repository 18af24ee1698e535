"""Fold inputs into the state: what is derived from events alone, without planning. Deterministic, and every event is harmless twice.

One function per event type, one table from type to function: the table is the list of what the allocator listens to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from schemas import commands, decisions, executions, forecasts, jobs, nodes
from schemas.executions import StopCause
from schemas.records import Now
from services.allocator.core.departures import (
    enrol,
    is_of_former_life,
    is_ordered_before,
    node_forgotten,
    release_node,
)
from services.allocator.core.fold_executions import EXECUTION_FOLDS, take_report
from services.allocator.core.lifecycle import finish, move, order_stop
from services.allocator.core.near import links_of
from services.allocator.core.phases import Happening
from services.allocator.core.rule_checks import contradictions
from services.allocator.core.slots import called, cards_shaped, mark_absent, repartition_cards
from services.allocator.core.speeds import speed_in
from services.allocator.core.state import (
    CLOSED_APPS_MAX,
    EARLY_FORECASTS_MAX,
    EARLY_NODES_MAX,
    FINISHED_KEPT_MS,
    App,
    Changes,
    Job,
    Node,
    Reserved,
    State,
    has_aged,
    keep_early,
)

Fold = Callable[[State, Any, str, Now, Changes], None]
"""(state, event, traceparent, now, changes)"""


def _job_accepted(state: State, event: jobs.JobAccepted, traceparent: str, now: Now, changes: Changes) -> None:
    if event.job_id in state.jobs or event.job_id in state.finished or event.job_id in state.apps:
        return
    state.arrivals += 1
    job = Job(
        job_id=event.job_id,
        spec=event.spec,
        pools=list(event.pools),
        submitted_ms=event.submitted_ms,
        accepted_ms=event.accepted_ms,
        arrival=state.arrivals,
        seen_wall_ms=now.wall_ms,
        traceparent=traceparent,
        skewed=event.skewed,
        queued_ms=now.domain_ms,
        speeds=dict(event.speeds),
    )
    early = state.early_forecasts.pop(event.job_id, None)
    if early is not None:
        job.forecast, job.forecast_prior = early, False
    state.jobs[event.job_id] = job
    changes.job(job)


def _job_amended(state: State, event: jobs.JobAmended, traceparent: str, now: Now, changes: Changes) -> None:
    job = state.jobs.get(event.job_id)
    if job is None:
        return
    job.spec = replace(
        job.spec,
        priority=job.spec.priority if event.priority is None else event.priority,
        time_limit_s=job.spec.time_limit_s if event.time_limit_s is None else event.time_limit_s,
    )
    changes.job(job)


def _job_revoked(state: State, event: jobs.JobRevoked, traceparent: str, now: Now, changes: Changes) -> None:
    app = state.apps.get(event.job_id)
    if app is not None and event.revoked_ms >= app.accepted_ms:  # else a repetition from before it was registered again
        changes.app(app)
        del state.apps[event.job_id]
        state.closed_apps[event.job_id] = event.revoked_ms
        while len(state.closed_apps) > CLOSED_APPS_MAX:
            del state.closed_apps[next(iter(state.closed_apps))]
    job = state.jobs.get(event.job_id)
    if job is None:
        return
    if job.holds_gpus:
        order_stop(job, StopCause.CANCELLED, changes)
    else:
        finish(state, job, Happening.CANCEL, now.domain_ms, event.cause or StopCause.CANCELLED.value, changes)


def _application_accepted(
    state: State, event: jobs.ApplicationAccepted, traceparent: str, now: Now, changes: Changes
) -> None:
    app = state.apps.get(event.app_id)
    if app is None:
        if event.accepted_ms <= state.closed_apps.get(event.app_id, -1):
            return  # a repetition: it was revoked meanwhile
        app = App(
            app_id=event.app_id,
            spec=event.spec,
            pool=event.pool,
            accepted_ms=event.accepted_ms,
            digest=event.digest,
            traceparent=traceparent,
            since_ms=now.domain_ms,
            forecast=state.early_demand.pop(event.app_id, None),
        )
        state.apps[event.app_id] = app
    elif event.accepted_ms >= app.accepted_ms and app.pool == event.pool:
        app.spec, app.digest, app.accepted_ms = event.spec, event.digest, event.accepted_ms
    changes.app(app)


def _duration_forecast(
    state: State, event: forecasts.DurationForecast, traceparent: str, now: Now, changes: Changes
) -> None:
    job = state.jobs.get(event.job_id)
    if job is None:
        if event.job_id not in state.finished:
            keep_early(state.early_forecasts, event.job_id, list(event.sizes), EARLY_FORECASTS_MAX)
        return
    if event.attempt and event.attempt != job.attempt:
        return
    started_without = job.holds_gpus and not job.forecast
    job.forecast, job.forecast_prior = list(event.sizes), event.prior
    # Who was placed by the planner's own prior, as no forecast came in time, is believed to run for what the late one says.
    if job.holds_gpus and (event.attempt == job.attempt or (started_without and not event.attempt)):
        if 0 < job.placed_p90_s < event.elapsed_s and not job.overtime:
            job.overtime = True
            changes.job(job)
        for size in event.sizes:
            if size.gpus == job.gpus:
                speed = speed_in(job, job.pool)
                job.placed_p50_s, job.placed_p90_s = size.p50_s / speed, size.p90_s / speed


def _demand_forecast(
    state: State, event: forecasts.DemandForecast, traceparent: str, now: Now, changes: Changes
) -> None:
    if len(event.p50) != len(event.p90):
        return  # half a forecast is none: the last one goes on
    app = state.apps.get(event.app_id)
    if app is None:
        keep_early(state.early_demand, event.app_id, event, EARLY_FORECASTS_MAX)
    elif app.forecast is None or event.made_ms >= app.forecast.made_ms:
        app.forecast = event


def _node_state(state: State, event: nodes.NodeStateChanged, traceparent: str, now: Now, changes: Changes) -> None:
    node = state.nodes.get(event.node)
    healthy = _by_index(event)
    if node is None:
        if event.health is nodes.Health.LOST or not healthy or is_of_former_life(state, event):
            return
        drained_ms = state.early_drains.pop(event.node, None)
        state.nodes[event.node] = node = Node(
            node=event.node,
            pool=event.pool,
            order=event.order,
            size=len(healthy),
            health=event.health,
            healthy=healthy,
            rack=event.rack,
            incarnation=event.incarnation,
            said_ms=event.time_ms,
            draining=drained_ms is not None,
            drain_deadline_ms=drained_ms or 0,
            machine=event.machine or "",
            slots_per_card=event.slots_per_card,
            links=[] if event.topology is None else links_of(event.topology.nvlink_domains, len(healthy)),
        )
        enrol(state, node)
        if (report := state.early_reports.pop(event.node, None)) is not None:
            take_report(node, report)
        mark_absent(state, node)
        own = state.nodes.get(node.machine)
        if own is not None and own.draining:  # the machine was drained before this pool of its cards was heard of
            node.draining, node.drain_deadline_ms = True, own.drain_deadline_ms
        changes.nodes[event.node] = None
        return
    if (event.incarnation, event.time_ms) < (node.incarnation, node.said_ms):
        return  # from a telemetry that was frozen, or sent twice
    returned = event.incarnation > node.incarnation
    node.health, node.incarnation, node.said_ms = event.health, event.incarnation, event.time_ms
    before = node.healthy
    if healthy:
        node.size = max(node.size, len(healthy))
        node.healthy = healthy + [False] * (node.size - len(healthy))
        mark_absent(state, node)
    if node.healthy != before:  # who runs on these cards is told (`remarks.py`), whatever becomes of it
        here = (job for job in state.jobs.values() if any(part.node == event.node for part in job.parts))
        changes.jobs.update(dict.fromkeys(job.job_id for job in here))
    if event.topology is not None:
        node.links = links_of(event.topology.nvlink_domains, node.size)
    if event.health is nodes.Health.LOST or returned:
        release_node(state, event.node, now, changes)
    changes.nodes[event.node] = None


def _by_index(event: nodes.NodeStateChanged) -> list[bool]:
    """Per local index whether its GPU is healthy. One that isn't listed is not there, and the others keep their places."""
    listed = {gpu.index: gpu.healthy for gpu in event.gpus}
    return [listed.get(index, False) for index in range(max(listed, default=-1) + 1)]


def _drain_node(state: State, event: commands.DrainNode, traceparent: str, now: Now, changes: Changes) -> None:
    known, deadline_ms = called(state, event.node), event.ordered_ms + int(event.deadline_s * 1000)
    if not known and not is_ordered_before(state, event.node, event.ordered_ms):
        keep_early(state.early_drains, event.node, deadline_ms, EARLY_NODES_MAX)
    for node in known:
        node.draining, node.drain_deadline_ms = True, deadline_ms


def _undrain_node(state: State, event: commands.UndrainNode, traceparent: str, now: Now, changes: Changes) -> None:
    state.early_drains.pop(event.node, None)
    for node in called(state, event.node):
        node.draining, node.drain_deadline_ms = False, 0


def _checkpoint_job(state: State, event: commands.CheckpointJob, traceparent: str, now: Now, changes: Changes) -> None:
    job = state.jobs.get(event.job_id)
    if job is not None and job.holds_gpus:
        job.checkpoint_request += 1
        move(job, Happening.CHECKPOINT)
        changes.job(job)


def _reserve_block(state: State, event: commands.ReserveBlock, traceparent: str, now: Now, changes: Changes) -> None:
    """Of a node that nobody has heard of yet, too: it counts from the node's first moment on."""
    if event.until_ms <= max(event.from_ms, now.domain_ms) or is_ordered_before(state, event.node, event.ordered_ms):
        return
    state.reservations[event.reservation_id] = Reserved(
        reservation_id=event.reservation_id,
        node=event.node,
        gpus=sorted(event.gpus),
        from_ms=event.from_ms,
        until_ms=event.until_ms,
    )
    early = [name for name, reserved in state.reservations.items() if reserved.node not in state.nodes]
    for name in early[:-EARLY_NODES_MAX]:
        del state.reservations[name]


def _release_block(state: State, event: commands.ReleaseBlock, traceparent: str, now: Now, changes: Changes) -> None:
    state.reservations.pop(event.reservation_id, None)


def _plan_improved(state: State, event: decisions.PlanImproved, traceparent: str, now: Now, changes: Changes) -> None:
    known = state.advice.get(event.pool)
    if known is None or known.sequence < event.sequence:
        state.advice[event.pool] = event


def _change_rules(state: State, event: commands.ChangeRules, traceparent: str, now: Now, changes: Changes) -> None:
    """Only a newer version counts, and only one that holds together: a wrong document must not stop a cluster."""
    if event.rules.version > state.rules.version and not contradictions(event.rules):
        state.rules = event.rules


def _ignored(state: State, event: Any, traceparent: str, now: Now, changes: Changes) -> None:
    """Covered, but nothing the grid depends on."""


FOLDS: dict[type, Fold] = {
    jobs.JobAccepted: _job_accepted,
    jobs.JobAmended: _job_amended,
    jobs.JobRevoked: _job_revoked,
    jobs.ApplicationAccepted: _application_accepted,
    forecasts.DurationForecast: _duration_forecast,
    forecasts.DemandForecast: _demand_forecast,
    forecasts.ArrivalForecast: _ignored,
    nodes.NodeStateChanged: _node_state,
    nodes.NodeForgotten: node_forgotten,
    commands.DrainNode: _drain_node,
    commands.UndrainNode: _undrain_node,
    commands.ForgetNode: _ignored,  # telemetry obeys it, and says so on node-states
    commands.CheckpointJob: _checkpoint_job,
    commands.ReserveBlock: _reserve_block,
    commands.ReleaseBlock: _release_block,
    commands.ChangeRules: _change_rules,
    commands.RepartitionCards: repartition_cards,
    executions.JobProgressed: _ignored,
    decisions.PlanImproved: _plan_improved,
    executions.CardsShaped: cards_shaped,
    **EXECUTION_FOLDS,
}


def fold(state: State, event: Any, traceparent: str, now: Now, changes: Changes) -> None:
    """Change the state by one event. KeyError for a type the allocator does not listen to: the shell filters by FOLDS."""
    FOLDS[type(event)](state, event, traceparent, now, changes)


def forget_aged_advice(state: State, now_ms: int) -> None:
    """Drop answers of full mode that are too old to help."""
    for pool in [pool for pool, advice in state.advice.items() if has_aged(advice, now_ms)]:
        del state.advice[pool]


def forget_reservations(state: State, now_ms: int) -> None:
    """Drop windows that are over."""
    for name in [name for name, reserved in state.reservations.items() if reserved.until_ms <= now_ms]:
        del state.reservations[name]


def forget_finished(state: State, now_ms: int) -> None:
    """Drop ids of jobs that ended so long ago that no input can name them any more."""
    while state.finished:
        job_id = next(iter(state.finished))
        if now_ms - state.finished[job_id].ended_ms < FINISHED_KEPT_MS:
            return
        del state.finished[job_id]
