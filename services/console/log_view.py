"""Readings and tables of the log commands: decisions, their replay, dead letters, topics."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from schemas.codec import encode_payload
from schemas.deadletters import DeadLetter
from schemas.topics import BY_NAME, TOPICS
from services.console.decision_log import (
    LogRecord,
    clusters_of,
    decisions_of,
    differences,
    effect_counts,
    effect_text,
    jobs_named,
    judged,
    manifests_of,
)
from services.console.durations import duration_text, moment_text
from services.console.errors import ConsoleError, UsageError
from services.console.facts import readable
from services.console.read import read_topics, topic_sizes
from services.console.session import Session
from services.console.tables import plain_table

TAIL_FACTOR = 3
TAIL_MIN = 500
"""Offsets read per decision wanted, and at least: records that lost a race are among them."""
MANIFEST_TAIL = 200
"""Newest offsets of `snapshots` in which a manifest is looked for; a snapshot is a few chunks and one manifest."""
EXCERPT_CHARACTERS = 120
EFFECTS_SHOWN_MAX = 6


async def load_decisions(
    session: Session, *, last: int, job: str | None, rejected: bool, cluster: str | None
) -> tuple[list[LogRecord], bool]:
    """The newest decisions, oldest first. With a job the whole log is searched."""
    wall_s, bus = session.clock().wall_s, session.bus()
    snapshots = await read_topics(bus, ["snapshots"], wall_s=wall_s, last={"snapshots": MANIFEST_TAIL})
    names = sorted(
        {(record.key or b"").decode("utf-8", "replace").split("/")[0] for record in snapshots.of("snapshots")}
    )
    anchors = {name: found[-1] for name in names if (found := manifests_of(snapshots.of("snapshots"), name))}
    if anchors and job is None:
        # From the anchor on everything is needed to know what counts; before it, ancestors of the anchor count.
        since = {
            ("decisions", record.partition): anchor.decisions_next_offset
            for record in snapshots.of("snapshots")
            for name, anchor in anchors.items()
            if (record.key or b"").decode("utf-8", "replace").startswith(f"{name}/")
        }
        tail = max(TAIL_MIN, last * TAIL_FACTOR)
        reading = await read_topics(bus, ["decisions"], wall_s=wall_s, last={"decisions": tail}, since=since)
    else:
        reading = await read_topics(bus, ["decisions"], wall_s=wall_s)
    records = reading.of("decisions")
    chosen: list[LogRecord] = []
    for name in [cluster] if cluster else clusters_of(records):
        chosen.extend(judged(decisions_of(records, name), anchors.get(name)))
    chosen = [one for one in chosen if (rejected or one.accepted) and (job is None or job in jobs_named(one.decision))]
    chosen.sort(key=lambda one: (one.decision.wall_ms, one.decision.sequence))
    return chosen[-last:], reading.complete and snapshots.complete


def decision_row(one: LogRecord) -> dict[str, Any]:
    """What `decisions --json` has of one record."""
    row: dict[str, Any] = msgspec.json.decode(encode_payload(one.decision))
    return {"offset": one.offset, "accepted": one.accepted, **row}


def decisions_table(chosen: Sequence[LogRecord], job: str | None, now_ms: int) -> Table:
    """One line per decision; with a job, what it did to that job."""
    table = plain_table("N", "WHEN", "CLUSTER", "EPOCH", "INPUTS", "DID", "EFFECTS", right=("N", "EPOCH", "INPUTS"))
    for one in chosen:
        decision = one.decision
        effects = [effect for effect in decision.effects if job is None or job in encode_payload(effect).decode()]
        texts = [effect_text(effect) for effect in effects[:EFFECTS_SHOWN_MAX]]
        if len(effects) > EFFECTS_SHOWN_MAX:
            texts.append(f"… {len(effects) - EFFECTS_SHOWN_MAX} more")
        did = "claim" if decision.kind.value == "claim" else effect_counts(decision) or "nothing"
        table.add_row(
            str(decision.sequence),
            moment_text(decision.now_ms, now_ms),
            decision.cluster,
            str(decision.epoch),
            str(len(decision.inputs)),
            Text(did if one.accepted else f"{did} (rejected)", style="" if one.accepted else "red"),
            "; ".join(texts),
        )
    return table


async def replay(session: Session, number: int, cluster: str | None) -> dict[str, Any]:
    """Decide `number` again from the newest snapshot before it and the decisions in between; says whether the bytes agree."""
    from services.allocator.shell.warmup import use_kernel_cache

    use_kernel_cache()
    from schemas.decisions import RecordKind
    from schemas.records import Now
    from services.allocator.core import decide
    from services.allocator.core.reader import is_next
    from services.allocator.shell.log import load
    from services.console.settings import settings_of

    bus = session.bus()
    reading = await read_topics(bus, ["decisions"], wall_s=session.clock().wall_s)
    records = reading.of("decisions")
    name = the_cluster(clusters_of(records), cluster)
    partition = next(record.partition for record in records if (record.key or b"").decode("utf-8", "replace") == name)
    settings = settings_of(session, name)
    loaded = await load(bus, name, partition, settings.policy.step_ms, "gpugrid-console", until=number - 1)
    state = loaded.state
    if state.sequence != number - 1:
        raise ConsoleError(f"There is no decision {number} in cluster {name}: its log ends at {state.sequence}.")
    recorded = next((one for _, one in decisions_of(records, name) if is_next(state, one)), None)
    if recorded is None:
        raise ConsoleError(f"There is no accepted decision {number} in cluster {name}: its log ends at {number - 1}.")
    writer = msgspec.structs.replace(settings, writer=recorded.writer, code_version=recorded.code_version)
    jobs_before, nodes_before = len(state.jobs), len(state.nodes)
    if recorded.kind is RecordKind.CLAIM:
        again = decide.claim(state, Now(recorded.now_ms, recorded.wall_ms), writer)
    else:
        again = decide.replay(state, recorded, writer)
    bytes_then, bytes_now = encode_payload(recorded), encode_payload(again)
    return {
        "cluster": name,
        "sequence": number,
        "id": recorded.id,
        "identical": bytes_then == bytes_now,
        "bytes": len(bytes_then),
        "folded_decisions": loaded.decisions_read,
        "jobs_before": jobs_before,
        "nodes_before": nodes_before,
        "inputs": len(recorded.inputs),
        "effects": [effect_text(effect) for effect in recorded.effects],
        "code_version": recorded.code_version,
        "differences": differences(recorded, again),
    }


def replay_text(result: dict[str, Any]) -> str:
    """The answer of `replay-decision` in sentences."""
    head = (
        f"Decision {result['sequence']} of {result['cluster']}: {result['inputs']} inputs, {result['jobs_before']} jobs and"
        f" {result['nodes_before']} nodes before it ({result['folded_decisions']} decisions folded after the snapshot)."
    )
    if result["identical"]:
        return f"{head}\nIdentical: {result['bytes']} bytes, id {result['id']}."
    lines = [head, "Different:"] + [f"  {line}" for line in result["differences"]]
    if any(line.startswith("config_digest") for line in result["differences"]):
        lines.append("The policy is another one: set the same GPUGRID_ variables that the allocator ran with.")
    elif result["code_version"]:
        lines.append(f"It was decided by code version {result['code_version']}; replay it with that version.")
    return "\n".join(lines)


def the_cluster(names: Sequence[str], wanted: str | None) -> str:
    """The cluster asked for, or the only one. ConsoleError/UsageError otherwise."""
    if not names:
        raise ConsoleError("Nothing has been decided yet.")
    if wanted is None and len(names) > 1:
        raise UsageError(f"Several clusters are decided for: name one with --cluster ({', '.join(names)}).")
    if wanted is not None and wanted not in names:
        raise UsageError(f"No decisions of cluster {wanted}; there are {', '.join(names)}.")
    return wanted or names[0]


async def load_dead_letters(
    session: Session, *, last: int, reason: str | None, service: str | None
) -> tuple[list[DeadLetter], bool]:
    """The newest dead letters, oldest first."""
    limits = {} if reason or service else {"dead-letters": last}
    reading = await read_topics(session.bus(), ["dead-letters"], wall_s=session.clock().wall_s, last=limits)
    letters = [
        envelope.event
        for record in reading.of("dead-letters")
        if (envelope := readable(record)) is not None and isinstance(envelope.event, DeadLetter)
    ]
    letters = [
        one
        for one in letters
        if (reason is None or one.reason == reason) and (service is None or one.service == service)
    ]
    letters.sort(key=lambda one: (one.wall_ms, one.topic, one.partition, one.offset))
    return letters[-last:], reading.complete


def letters_table(letters: Sequence[DeadLetter]) -> Table:
    """One line per dead letter."""
    table = plain_table("WHEN", "FROM", "KEY", "SERVICE", "REASON", "DETAIL", "VALUE")
    newest_ms = max(one.wall_ms for one in letters)
    for one in letters:
        row = letter_row(one)
        text = row["value_text"] or ""
        table.add_row(
            moment_text(one.wall_ms, newest_ms),
            f"{one.topic}/{one.partition}/{one.offset}",
            row["key_text"] or "",
            one.service,
            Text(one.reason, style="red"),
            one.detail,
            Text(text[:EXCERPT_CHARACTERS] + ("…" if len(text) > EXCERPT_CHARACTERS else "")),
        )
    return table


def letter_row(one: DeadLetter) -> dict[str, Any]:
    """What `dead-letters --json` has: the letter, with the original bytes also as text where they are text."""
    row: dict[str, Any] = msgspec.to_builtins(one)
    return {**row, "key_text": _text(one.key), "value_text": _text(one.value)}


def _text(encoded: str | None) -> str | None:
    if encoded is None:
        return None
    try:
        return b64decode(encoded).decode("utf-8", "replace")
    except ValueError:
        return None


async def load_topics(session: Session) -> list[dict[str, Any]]:
    """Every topic as data, with what the broker holds."""
    sizes = await topic_sizes(session.bus(), [topic.name for topic in TOPICS])
    rows = []
    for size in sizes:
        topic = BY_NAME[size.topic]
        rows.append(
            {
                "topic": topic.name,
                "key": topic.key,
                "partitions": size.partitions,
                "offsets": size.offsets,
                "retention_s": None if topic.retention_ms is None else topic.retention_ms // 1000,
                "public": topic.public,
                "writers": list(topic.writers),
                "readers": list(topic.readers),
                "carries": topic.carries,
            }
        )
    return rows


def topics_table(rows: Sequence[dict[str, Any]]) -> Table:
    """One line per topic."""
    table = plain_table(
        "TOPIC", "KEY", "PARTS", "HELD", "KEPT", "PUBLIC", "WRITTEN BY", "READ BY", "CARRIES", right=("PARTS", "HELD")
    )
    for row in rows:
        kept = "compacted" if row["retention_s"] is None else duration_text(row["retention_s"])
        table.add_row(
            row["topic"], row["key"], str(row["partitions"]), str(row["offsets"]), kept, "yes" if row["public"] else "",
            " ".join(row["writers"]), " ".join(row["readers"]), row["carries"],
        )  # fmt: skip
    return table
