"""Enact effects: the part of a decision that planning added. The log's readers call exactly this, without planning."""

from __future__ import annotations

from schemas.decisions import Effect, Placed, Preempted, Promised, Scaled, StopOrdered, Waits
from schemas.executions import StopCause
from schemas.records import Now
from services.allocator.core.lifecycle import move, order_stop
from services.allocator.core.phases import Happening
from services.allocator.core.promises import promise_of
from services.allocator.core.state import App, Changes, Part, Preemption, State


def enact(state: State, effects: list[Effect], sequence: int, step_ms: int, now: Now, changes: Changes) -> None:
    """Change the state by the effects of decision `sequence`. Raises KeyError for ids the state doesn't know: a broken log."""
    for effect in effects:
        if isinstance(effect, Placed):
            _placed(state, effect, sequence, now, changes)
        elif isinstance(effect, Scaled):
            _scaled(state, effect, step_ms, now, changes)
        elif isinstance(effect, StopOrdered):
            order_stop(state.jobs[effect.job_id], effect.cause, changes)
        elif isinstance(effect, Preempted):
            _preempted(state, effect, now, changes)
        elif isinstance(effect, Promised):
            state.promises[effect.job_id] = promise_of(state, effect)
            changes.job(state.jobs[effect.job_id])
        else:
            _waits(state, effect, changes)


def _placed(state: State, effect: Placed, sequence: int, now: Now, changes: Changes) -> None:
    job = state.jobs[effect.job_id]
    move(job, Happening.PLACE)
    job.attempt, job.pool, job.gpus = effect.attempt, effect.pool, effect.gpus
    job.parts = [Part(node=placed.node, gpus=list(placed.gpus)) for placed in effect.placed]
    job.placed_ms, job.placed_wall_ms, job.placed_sequence = now.domain_ms, now.wall_ms, sequence
    job.started_ms = None
    job.placed_p50_s, job.placed_p90_s, job.staging_s = effect.p50_s, effect.p90_s, effect.staging_s
    job.fraction_at_start, job.cause, job.stop_cause = job.fraction, "", ""
    job.reason, job.holders, job.overtime, job.restores = "", [], False, False
    job.planned_start_p50_ms = job.planned_start_p90_ms = None
    job.took_place = state.preemptions.pop(job.job_id, None) is not None
    state.promises.pop(job.job_id, None)
    changes.job(job)


def _scaled(state: State, effect: Scaled, step_ms: int, now: Now, changes: Changes) -> None:
    app = state.apps[effect.app_id]
    changes.app(app)
    before = {part.node for part in app.parts}
    app.parts = [Part(node=placed.node, gpus=list(placed.gpus)) for placed in effect.placed]
    app.unheard = _unheard(app, before, now)
    bucket = now.domain_ms // step_ms
    app.switched = effect.switched if app.bucket != bucket else app.switched + effect.switched
    app.bucket = bucket
    changes.app(app)


def _unheard(app: App, before: set[str], now: Now) -> dict[str, int]:
    """Nodes that have still to say a word about an application that can be asked whether it serves."""
    known, there = app.unheard, [part.node for part in app.parts]
    if app.spec.readiness is None:
        return {}
    return {node: known.get(node, now.wall_ms) for node in there if node in known or node not in before}


def _preempted(state: State, effect: Preempted, now: Now, changes: Changes) -> None:
    state.preemptions[effect.job_id] = Preemption(
        pool=effect.pool, placed=list(effect.placed), victims=list(effect.victims), until_ms=effect.until_ms
    )
    for victim in effect.victims:
        job = state.jobs[victim]
        job.preempted_by.append(effect.job_id)
        job.preempted_ms.append(now.domain_ms)
        order_stop(job, StopCause.PREEMPTED, changes)
    changes.job(state.jobs[effect.job_id])


def _waits(state: State, effect: Waits, changes: Changes) -> None:
    job = state.jobs[effect.job_id]
    move(job, Happening.WAIT if effect.planned_start_p50_ms is None else Happening.PLAN)
    job.reason, job.holders = effect.reason, list(effect.holders)
    job.planned_start_p50_ms = effect.planned_start_p50_ms
    job.planned_start_p90_ms = effect.planned_start_p90_ms
    job.planned_pool = effect.pool or ""
    changes.job(job)
