"""The decision log as everyone must read it: which records count, what each one did, how a replay differs. Pure.

The rule of acceptance is the allocator's own (`services.allocator.core.reader`). Forwards from a snapshot it needs no older
record; backwards the accepted records are the snapshot's ancestors. Importing this costs numba's import, so commands
import it when they run. The state at a decision comes from `services.allocator.shell.log.load`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from schemas.decisions import (
    DecisionMade,
    Effect,
    Placed,
    Preempted,
    Promised,
    Scaled,
    SnapshotCompleted,
    StopOrdered,
    Waits,
)
from schemas.records import Record
from services.allocator.core.reader import is_next
from services.allocator.core.state import State
from services.console.errors import ConsoleError
from services.console.facts import readable
from services.console.sentences import gpu_ranges


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record of the log; `accepted` False: it lost a race and counts for nobody."""

    offset: int
    decision: DecisionMade
    accepted: bool


def clusters_of(records: Sequence[Record]) -> list[str]:
    """Clusters whose decisions are among the records."""
    return sorted({record.key.decode("utf-8", "replace") for record in records if record.key is not None})


def decisions_of(records: Sequence[Record], cluster: str) -> list[tuple[int, DecisionMade]]:
    """(offset, decision) of one cluster, in log order."""
    found = []
    for record in records:
        if record.key is not None and record.key.decode("utf-8", "replace") != cluster:
            continue
        envelope = readable(record)
        if envelope is not None and isinstance(envelope.event, DecisionMade) and envelope.event.cluster == cluster:
            found.append((record.offset, envelope.event))
    return found


def judged(log: Sequence[tuple[int, DecisionMade]], anchor: SnapshotCompleted | None) -> list[LogRecord]:
    """Every record with whether the log accepts it. Without an anchor the log has to begin with record 1."""
    if not log:
        return []
    first = log[0][1]
    state = State(cluster=first.cluster)
    begin = 0
    accepted: set[str] = set()
    if anchor is not None:
        begin = anchor.decisions_next_offset
        state.sequence, state.last_id, state.epoch = anchor.sequence, anchor.id, anchor.epoch
        accepted |= _ancestors([decision for offset, decision in log if offset < begin], anchor.id)
    for offset, decision in log:
        if offset >= begin and is_next(state, decision):
            state.sequence, state.last_id, state.epoch = decision.sequence, decision.id, decision.epoch
            accepted.add(decision.id)
    if not accepted:
        raise ConsoleError("The beginning of the decision log is gone and no snapshot stands in for it.")
    return [LogRecord(offset, decision, decision.id in accepted) for offset, decision in log]


def _ancestors(decisions: Sequence[DecisionMade], last_id: str) -> set[str]:
    parents = {decision.id: decision.parent for decision in decisions}
    found: set[str] = set()
    while last_id in parents and last_id not in found:
        found.add(last_id)
        last_id = parents[last_id]
    return found


def differences(recorded: DecisionMade, again: DecisionMade) -> list[str]:
    """Fields in which a replayed decision differs, as lines for a person."""
    lines = []
    for name in DecisionMade.__struct_fields__:
        was, now = getattr(recorded, name), getattr(again, name)
        if was != now:
            lines.append(f"{name}: recorded {_short(was)}, replayed {_short(now)}")
    return lines


def _short(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 200 else f"{text[:200]}… ({len(text)} characters)"


def manifests_of(records: Sequence[Record], cluster: str) -> list[SnapshotCompleted]:
    """Manifests of a cluster's snapshots, oldest first."""
    found = []
    for record in records:
        envelope = readable(record)
        if envelope is not None and isinstance(envelope.event, SnapshotCompleted) and envelope.event.cluster == cluster:
            found.append(envelope.event)
    return sorted(found, key=lambda manifest: manifest.sequence)


def jobs_named(decision: DecisionMade) -> set[str]:
    """Jobs and applications that a decision touches: its effects, traces and inputs."""
    named = set(decision.traces)
    for effect in decision.effects:
        named.add(effect.app_id if isinstance(effect, Scaled) else effect.job_id)
    for item in decision.inputs:
        try:
            body = msgspec.json.decode(item.payload, type=_About)
        except msgspec.DecodeError:
            continue
        named.update(one for one in (body.job_id, body.app_id) if one)
    return named


class _About(msgspec.Struct):
    job_id: str | None = None
    app_id: str | None = None


def effect_text(effect: Effect) -> str:
    """What one effect did, for a person."""
    if isinstance(effect, Placed):
        where = " ".join(f"{part.node}:{gpu_ranges(part.gpus)}" for part in effect.placed)
        return f"start {effect.job_id} on {where}"
    if isinstance(effect, Scaled):
        where = " ".join(f"{part.node}:{gpu_ranges(part.gpus)}" for part in effect.placed) or "nothing"
        return f"scale {effect.app_id} to {where}"
    if isinstance(effect, Preempted):
        return f"stop {', '.join(effect.victims)} for {effect.job_id}"
    if isinstance(effect, StopOrdered):
        return f"stop {effect.job_id} ({effect.cause.value})"
    if isinstance(effect, Promised):
        why = f" ({effect.cause})" if effect.cause else ""
        return f"{effect.job_id} {'loses its planned start' if effect.start_ms is None else 'has a planned start'}{why}"
    return f"{effect.job_id} waits ({effect.reason})"


def effect_counts(decision: DecisionMade) -> str:
    """Effects in a few words: `2 starts, 1 scaling, 5 reasons`."""
    words = {
        Placed: "start",
        Scaled: "scaling",
        StopOrdered: "stop",
        Preempted: "preemption",
        Promised: "planned start",
        Waits: "reason",
    }
    parts = []
    for kind, word in words.items():
        count = sum(isinstance(effect, kind) for effect in decision.effects)
        if count:
            parts.append(f"{count} {word}{'' if count == 1 else 's'}")
    return ", ".join(parts)
