"""`decide(state, inputs, now) → decision`: fold the inputs, plan, enact, and write down one record. Pure.

`decide` owns the state it is given and leaves it as of the new record; a caller whose record is not accepted throws the
state away and rebuilds it from the log. What every reader of the log does instead is `advance.py`: the same fold and the
same enact, without planning. `replay` proves that the two agree.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from schemas.codec import encode_payload
from schemas.decisions import Covered, DecisionInput, DecisionMade, Effect, Placed, RecordKind, StopOrdered, Waits
from schemas.records import Now
from services.allocator.core.advance import fold_all, move
from services.allocator.core.commit import newcomers, plan_effects, timed_stops, withheld
from services.allocator.core.config import Policy, config_digest
from services.allocator.core.enact import enact
from services.allocator.core.index import index_of
from services.allocator.core.plan import Plan
from services.allocator.core.pose import Posed
from services.allocator.core.preempt import due_starts
from services.allocator.core.slots import ask_for_reshapes
from services.allocator.core.state import Changes, State
from services.allocator.core.verify_commit import verify_commit

INPUT_TOPICS = ("jobs", "node-states", "commands", "executions", "forecasts")
"""What the allocator consumes, in canonical order: facts before beliefs, so that a forecast finds its job."""
TRACES_MAX = 512
"""Traceparents carried per record; a record that touches more jobs is a batch nobody follows by one trace."""


class Settings(Struct, frozen=True, kw_only=True):
    """What a decision depends on besides state, inputs and time. `writer` only names the process."""

    policy: Policy
    memory_mib: dict[str, int]
    code_version: str
    writer: str


@dataclass(frozen=True, slots=True)
class Decided:
    """A record ready to append, what it touched, and the problems and plans behind it (one per pool)."""

    record: DecisionMade
    changes: Changes
    posed: list[Posed]
    plans: list[Plan]
    violations: list[str]


def decide(
    state: State,
    inputs: list[DecisionInput],
    covered: list[Covered],
    now: Now,
    settings: Settings,
    *,
    plan: bool = True,
) -> Decided:
    """One decision over `inputs` (canonical order). `now` must not lie before the state's; it is raised to it if it does.

    Jobs that only just arrived, without their forecasts, are told to wait without a plan. A plan that the
    independent check refuses is not committed: but for the reasons to wait its effects are dropped, the violations returned.
    """
    now = Now(max(now.domain_ms, state.now_ms), max(now.wall_ms, state.wall_ms))
    changes = Changes()
    sequence = state.sequence + 1
    step_ms = settings.policy.step_ms
    index = index_of(state)
    fold_all(state, inputs, now, changes)
    index.touch(changes.jobs)
    effects: list[Effect] = timed_stops(state, now)
    effects += _legal_starts(state, settings.policy, now) if plan else []
    enact(state, effects, sequence, step_ms, now, changes)
    index.touch(effect.job_id for effect in effects if isinstance(effect, Placed | StopOrdered))
    posed: list[Posed] = []
    plans: list[Plan] = []
    violations: list[str] = []
    waits = newcomers(state, inputs, changes, settings.policy) if plan and not effects else None
    if waits is not None:
        enact(state, waits, sequence, step_ms, now, changes)
        index.touch(changes.jobs)
        effects = waits
    elif plan:
        planned, posed, plans = plan_effects(state, settings.memory_mib, settings.policy, now)
        violations = verify_commit(state, planned, settings.policy, now)
        if violations:
            planned = withheld(state, planned)
        enact(state, planned, sequence, step_ms, now, changes)
        index.touch(effect.job_id for effect in planned if isinstance(effect, Placed | Waits))
        effects = effects + planned
    ask_for_reshapes(state, now, changes)
    record = _record(state, inputs, covered, effects, now, settings, RecordKind.DECISION, state.epoch, changes)
    move(state, record)
    return Decided(record=record, changes=changes, posed=posed, plans=plans, violations=violations)


def _legal_starts(state: State, policy: Policy, now: Now) -> list[Effect]:
    """Starts on held blocks that have come free; one that the rules forbid by now doesn't keep the others."""
    kept: list[Effect] = []
    for start in due_starts(state, policy, now):
        if not verify_commit(state, [*kept, start], policy, now):
            kept.append(start)
    return kept


def claim(state: State, now: Now, settings: Settings) -> DecisionMade:
    """The record that takes over the cluster: a new epoch, nothing else. The state is not changed; `advance` does it."""
    now = Now(max(now.domain_ms, state.now_ms), max(now.wall_ms, state.wall_ms))
    return _record(state, [], [], [], now, settings, RecordKind.CLAIM, state.epoch + 1, Changes())


def replay(state: State, record: DecisionMade, settings: Settings) -> DecisionMade:
    """Decide again what `record` decided, from the state before it: the same bytes, if code and policy are the same."""
    again = Settings(
        policy=settings.policy, memory_mib=settings.memory_mib, code_version=record.code_version, writer=record.writer
    )
    return decide(state, record.inputs, record.covered, Now(record.now_ms, record.wall_ms), again).record


def _record(
    state: State,
    inputs: list[DecisionInput],
    covered: list[Covered],
    effects: list[Effect],
    now: Now,
    settings: Settings,
    kind: RecordKind,
    epoch: int,
    changes: Changes,
) -> DecisionMade:
    traces = {}
    for job_id in list(changes.jobs)[:TRACES_MAX]:
        owner = state.jobs.get(job_id) or changes.ended.get(job_id) or state.apps.get(job_id)
        if owner is not None and owner.traceparent:
            traces[job_id] = owner.traceparent
    unsigned = DecisionMade(
        cluster=state.cluster,
        sequence=state.sequence + 1,
        id="",
        parent=state.last_id,
        epoch=epoch,
        kind=kind,
        writer=settings.writer,
        now_ms=now.domain_ms,
        wall_ms=now.wall_ms,
        inputs=inputs,
        covered=covered,
        effects=effects,
        config_digest=config_digest(settings.policy),
        code_version=settings.code_version,
        traces=traces,
    )
    digest = hashlib.sha256(encode_payload(unsigned)).hexdigest()[:32]
    return msgspec.structs.replace(unsigned, id=digest)
