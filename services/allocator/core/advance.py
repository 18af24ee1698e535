"""What every reader of the decision log does with an accepted record: the fold of its inputs and the effects it states.

`decide` does the same fold and the same enact around its planning; this half needs no planner, so readers start quickly.
Read `reader.py` for which records count.
"""

from __future__ import annotations

from schemas.base import Event
from schemas.codec import DecodeError, decode_payload
from schemas.decisions import DecisionInput, DecisionMade, RecordKind
from schemas.executions import NodeReported
from schemas.records import Now
from services.allocator.core.enact import enact
from services.allocator.core.fold import FOLDS, fold, forget_aged_advice, forget_finished, forget_reservations
from services.allocator.core.held import forget_preemptions
from services.allocator.core.promises import forget_promises
from services.allocator.core.silence import forget_silence, give_up_starts
from services.allocator.core.slots import ask_for_reshapes
from services.allocator.core.state import HEARD_MAX, OBEYED_MAX, Changes, State, forget_index

COMMANDS = "commands"
EXECUTIONS = "executions"


def advance(state: State, record: DecisionMade, step_ms: int) -> Changes:
    """Move the state over one accepted record. The caller has applied the rule of acceptance (`reader.py`)."""
    now = Now(record.now_ms, record.wall_ms)
    changes = Changes()
    forget_index(state)
    if record.kind is RecordKind.DECISION:
        fold_all(state, record.inputs, now, changes)
        enact(state, record.effects, record.sequence, step_ms, now, changes)
        ask_for_reshapes(state, now, changes)
    move(state, record)
    return changes


def fold_all(state: State, inputs: list[DecisionInput], now: Now, changes: Changes) -> None:
    """Fold a decision's inputs in order, then forget what ended long ago."""
    for item in inputs:
        try:
            event = decode_payload(item.type, item.payload)
        except DecodeError:
            continue  # the shell has dead-lettered it; a record never holds one, but an old log may
        if _is_repetition(state, item, event):
            continue
        if type(event) in FOLDS:
            fold(state, event, item.traceparent, now, changes)
    forget_finished(state, now.domain_ms)
    forget_aged_advice(state, now.domain_ms)
    forget_preemptions(state, now.domain_ms)
    forget_reservations(state, now.domain_ms)
    forget_promises(state)
    forget_silence(state, now.domain_ms)
    give_up_starts(state, now, changes)


def _is_repetition(state: State, item: DecisionInput, event: Event) -> bool:
    """Whether it was said before and would undo what was said since: a drain would come back after its undrain, and a report of what runs
    on a node would end what began there after it. Of jobs attempts tell old from new; an application has one, however often it comes back.
    """
    if item.topic == COMMANDS:
        return _known(state.obeyed, item.id, OBEYED_MAX)
    if item.topic == EXECUTIONS and (isinstance(event, NodeReported) or getattr(event, "job_id", "") in state.apps):
        return _known(state.heard, item.id, HEARD_MAX)
    return False


def _known(ids: dict[str, bool], id: str, known_max: int) -> bool:
    """It is from now on; the oldest are forgotten."""
    if id in ids:
        return True
    ids[id] = True
    while len(ids) > known_max:
        del ids[next(iter(ids))]
    return False


def move(state: State, record: DecisionMade) -> None:
    """The state now stands at this record: identity, times, covered positions."""
    state.sequence, state.last_id, state.epoch = record.sequence, record.id, record.epoch
    state.now_ms, state.wall_ms = record.now_ms, record.wall_ms
    for item in record.covered:
        state.covered[f"{item.topic}/{item.partition}"] = item.next_offset
