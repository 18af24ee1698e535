"""The answer to "where is my job, why has it not started, who holds the cards?" in sentences. Pure.

Owns: what would help, per reason code, and the wording of every state. The codes and their own sentences live with their
owners (`services.allocator.core.reasons`, `services.intake.core.refusals`); a test asserts that every code has advice.
Read next: `shape` (shortage or fragmentation), `tables`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schemas.executions import FailureCause, StopCause
from schemas.status import JobState, JobStatusChanged
from services.allocator.core.reasons import SENTENCES as REASON_SENTENCES
from services.allocator.core.reasons import Reason
from services.console.accepted_pools import pools_sentence
from services.console.advice import REASON_HELP, code_sentence, refusal_help
from services.console.durations import duration_text, from_now_text, moment_text
from services.console.facts import JobView, World
from services.console.shape import Cause, pool_shape, shape_sentence
from services.console.similar import suggestion

if TYPE_CHECKING:
    from services.console.near_parts import NearPart
    from services.console.order_parts import PlaceInOrder

HOLDERS_NAMED_MAX = 5
"""More names than that don't help a person; the count follows, `--json` has all."""
IMPOSSIBLE = (Reason.SIZE_EXCEEDS_POOL, Reason.SIZE_EXCEEDS_CARD, Reason.MEMORY_EXCEEDS_GPU)
"""No waiting helps, so neither a start nor holders are named: what the pool is made of stands in the way."""
WITHHELD = (Reason.RESERVED, Reason.TO_BE_CUT, Reason.CUT_UNDER_WAY)
"""Among the holders are orders of operators then, which are no jobs."""

STOP_SENTENCES: dict[StopCause, str] = {
    StopCause.CANCELLED: "it was cancelled",
    StopCause.TIME_LIMIT: "it reached its time limit",
    StopCause.DRAIN: "its node is being drained",
    StopCause.NODE_LOST: "its node was lost",
    StopCause.GANG_BROKEN: "another part of its gang ended",
    StopCause.FENCED: "a newer attempt or owner replaced it",
    StopCause.PREEMPTED: "a job of a queue that may take its place needed its GPUs",
    StopCause.SCALED_DOWN: "the application gave these GPUs back",
}
FAILURE_SENTENCES: dict[FailureCause, str] = {
    FailureCause.EXIT_CODE: "its process ended with an exit code other than 0",
    FailureCause.SIGNAL: "its process was ended by a signal",
    FailureCause.SPAWN: "its process could not be started (does the command exist on the node?)",
    FailureCause.WORKING_DIRECTORY: "its working directory does not exist on the node",
    FailureCause.PREFLIGHT: "the node's checks before the start failed (driver, ports or versions of a gang)",
    FailureCause.DISK_FULL: "the node's disk is full",
    FailureCause.UNKNOWN: "it ended and the node could not tell how",
}


@dataclass(frozen=True, slots=True)
class Holder:
    """Someone who holds GPUs that the job waits for."""

    job_id: str
    gpus: int
    nodes: tuple[str, ...]
    application: bool
    expected_end_ms: int | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """`sentence` answers the question; `lines` add facts; `would_help` says what a person can do; `order`: of a waiting job, its
    priority as it counts now, where the allocator's state was read (`place_in_order`), `near`: what racks, NVLink and data make of it."""

    job_id: str
    state: str
    sentence: str
    reason: str | None = None
    position: int | None = None
    planned_start_p50_ms: int | None = None
    planned_start_p90_ms: int | None = None
    cause: str | None = None
    holders: list[Holder] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    would_help: list[str] = field(default_factory=list)
    order: PlaceInOrder | None = None
    near: list[NearPart] = field(default_factory=list)


def explain(view: JobView, world: World, now_ms: int) -> Explanation:
    """Where a job is and why, from what the topics say at `now_ms` (domain time)."""
    status = view.status
    if status is None:
        since = f" {from_now_text(view.accepted_ms, now_ms)}" if view.accepted_ms is not None else ""
        return Explanation(
            view.job_id,
            view.state,
            f"{view.job_id} was let in{since}; no decision has named it yet.",
            would_help=["Nothing to do for a second or two; if it stays so, `gpugrid doctor` shows who lags behind."],
        )
    if status.state is JobState.QUEUED and view.is_application:
        return Explanation(
            view.job_id,
            view.state,
            f"{view.job_id} is registered and holds no GPUs now.",
            reason=status.reason,
            lines=_application_lines(view),
            would_help=["It gets its floor with the next decision that finds room; `gpugrid grid` shows when."],
        )
    if status.state is JobState.QUEUED:
        return _explain_queued(view, status, world, now_ms)
    if status.state is JobState.REFUSED:
        return _explain_refused(view, status)
    if status.state in (JobState.STARTING, JobState.RUNNING, JobState.STOPPING):
        return _explain_placed(view, status, world, now_ms)
    return _explain_ended(view, status, now_ms)


def explain_unseen(job_id: str, submitted_ms: int | None, similar: Sequence[str], now_ms: int) -> Explanation:
    """A job that intake has not answered for. `submitted_ms`: its event is in job-events."""
    if submitted_ms is not None:
        return Explanation(
            job_id,
            "submitted",
            f"{job_id} was submitted {from_now_text(submitted_ms, now_ms)} and intake has not handled it yet.",
            would_help=[
                "Look at `gpugrid dead-letters` (unreadable events go there) and `gpugrid doctor` (intake's lag)."
            ],
        )
    hint = suggestion(similar, "gpugrid jobs --all")
    return Explanation(job_id, "unknown", f"No job or application is named {job_id}.{hint}")


def reason_named(name: str | None) -> Reason | None:
    """The planner's code of a public name, or None if it is somebody else's."""
    if not name:
        return None
    try:
        return Reason[name.upper().replace("-", "_")]
    except KeyError:
        return None


def _explain_queued(view: JobView, status: JobStatusChanged, world: World, now_ms: int) -> Explanation:
    reason = reason_named(status.reason)
    why = REASON_SENTENCES[reason] if reason is not None else code_sentence(status.reason) or status.detail
    if reason is Reason.NONE or not why:
        why = "It is about to start."
    code = f" ({status.reason})" if status.reason else ""
    parts = [f"{view.job_id} waits{code}: {_ended(_lowered(why))}"]
    position = view.position or status.position
    if position is not None:
        parts.append(position_text(position))
    parts.append(_start_of(reason, status, now_ms))
    holders = [] if reason in IMPOSSIBLE else _holders(status, world)
    holding = [holder for holder in holders if holder.gpus]
    orders = [holder for holder in holders if holder.job_id not in world.jobs and reason in WITHHELD]
    before = [holder for holder in holders if not holder.gpus and holder not in orders]
    if holding:
        parts.append(f"The GPUs are held by {_holders_text(holding, now_ms)}.")
    if before:
        parts.append(f"Planned on them before it: {_holders_text(before, now_ms)}.")
    if orders:
        parts.append(f"Kept free of new work by {_holders_text(orders, now_ms)}.")
    lines = [] if not status.detail or status.detail == why else [status.detail]
    sizes = list(view.job.sizes) if view.job else []
    if accepted := pools_sentence(view):
        lines.append(accepted)
    pools: Sequence[str | None] = view.pools or _pools(world) or [None]
    cause: Cause | None = None
    for pool in pools:
        shape = pool_shape(world, pool)
        lines.append(shape_sentence(shape, sizes))
        cause = shape.cause(sizes) if cause is None or shape.cause(sizes) is Cause.FRAGMENTATION else cause
    if status.submitted_ms is not None:
        lines.append(f"Submitted {from_now_text(status.submitted_ms, now_ms)}.")
    return Explanation(
        view.job_id,
        view.state,
        " ".join(parts),
        reason=status.reason,
        position=position,
        planned_start_p50_ms=status.planned_start_p50_ms,
        planned_start_p90_ms=status.planned_start_p90_ms,
        cause=cause.value if cause else None,
        holders=holders,
        lines=lines,
        would_help=list(REASON_HELP[reason]) if reason is not None else [],
    )


def _explain_refused(view: JobView, status: JobStatusChanged) -> Explanation:
    code = status.reason or "unknown"
    known = code_sentence(status.reason)
    why = status.detail or known or "no reason was given"
    return Explanation(
        view.job_id,
        view.state,
        f"{view.job_id} was refused ({code}): {_ended(why)}",
        reason=status.reason,
        lines=[known] if known and known != why else [],
        would_help=list(refusal_help(code)),
    )


def _explain_placed(view: JobView, status: JobStatusChanged, world: World, now_ms: int) -> Explanation:
    where = _placed_text(status)
    lines: list[str] = []
    kind = "application" if view.is_application else "job"
    lines.extend(_application_lines(view))
    if status.state is JobState.STARTING:
        since = f", decided {from_now_text(status.time_ms, now_ms)}"
        sentence = f"{view.job_id} has its GPUs ({where}){since}; its process has not reported yet."
    elif status.state is JobState.STOPPING:
        sentence = (
            f"{view.job_id} is being stopped on {where}{_because(_stop_cause(view.job_id, world) or status.reason)}."
        )
    else:
        # The executor's clock may be a moment ahead of ours.
        run_s = max(0.0, (now_ms - status.started_ms) / 1000) if status.started_ms is not None else None
        since = f" for {duration_text(run_s)}" if run_s is not None else ""
        sentence = f"{view.job_id} has run{since} on {where}."
        if status.attempt > 1:
            lines.append(f"This {kind} is in its attempt number {status.attempt}.")
        size, end_ms = view.run_forecast(), view.expected_end_ms()
        if size is not None and end_ms is not None and status.started_ms is not None:
            late_ms = status.started_ms + round(size.p90_s * 1000)
            lines.append(
                f"Expected to end {moment_text(end_ms, now_ms)} (P50, {from_now_text(end_ms, now_ms)}),"
                f" {moment_text(late_ms, now_ms)} at P90."
            )
    if status.detail and not _because(status.detail).startswith(" because"):
        lines.append(status.detail)
    if accepted := pools_sentence(view):
        lines.append(accepted)
    help_ = ["`gpugrid nodes` shows whether the node is alive."] if status.state is JobState.STARTING else []
    return Explanation(view.job_id, view.state, sentence, reason=status.reason, lines=lines, would_help=help_)


def _application_lines(view: JobView) -> list[str]:
    """What an application may hold; its GPUs follow its demand step by step."""
    spec = view.application
    if spec is None:
        return []
    return [
        f"It may hold {spec.floor_gpus} (never lent) to {spec.peak_gpus} GPUs and changes by at most {spec.switch_max} per"
        f" step; it is planned at the {spec.quantile:.0%} quantile of its demand plus {spec.headroom:.0%}."
    ]


def _explain_ended(view: JobView, status: JobStatusChanged, now_ms: int) -> Explanation:
    word = {
        JobState.COMPLETED: "completed",
        JobState.FAILED: "failed",
        JobState.CANCELLED: "was cancelled",
        JobState.TIMED_OUT: "was stopped at its time limit",
    }[status.state]
    when = f" {from_now_text(status.ended_ms, now_ms)}" if status.ended_ms is not None else ""
    ran = ""
    if status.ended_ms is not None and status.started_ms is not None:
        ran = f" after running {duration_text((status.ended_ms - status.started_ms) / 1000)}"
    code = status.reason or status.detail
    because = _because(code) if status.state is JobState.FAILED else ""
    lines = [status.detail] if status.detail and status.detail != code else []
    if status.started_ms is not None and status.submitted_ms is not None:
        waited_ms = max(0, status.started_ms - status.submitted_ms)  # a wrong clock may say otherwise
        waited = duration_text(waited_ms / 1000)
        lines.append(f"It had waited {waited} before it started; attempts: {max(1, status.attempt)}.")
    elif status.started_ms is None:
        lines.append("It never started.")
    help_: list[str] = []
    if status.state is JobState.FAILED:
        help_ = [
            f"`gpugrid logs {view.job_id}` shows its last output, `gpugrid trace {view.job_id}` where time went."
            if status.started_ms is not None
            else "Correct what the cause names, and submit it again."
        ]
    if status.state is JobState.TIMED_OUT:
        help_ = ["Submit it again with a longer --limit, or with checkpoints so that it can go on where it was."]
    sentence = f"{view.job_id} {word}{when}{ran}{because}."
    return Explanation(view.job_id, view.state, sentence, reason=status.reason, lines=lines, would_help=help_)


def position_text(position: int) -> str:
    return f"Position {position} in the queue."


def _start_of(reason: Reason | None, status: JobStatusChanged, now_ms: int) -> str:
    if reason in IMPOSSIBLE:
        return "As it is, it can never start."
    if reason is Reason.TAKES_A_PLACE:
        return "It starts as soon as they have left."
    return _planned_start(status, now_ms)


def _planned_start(status: JobStatusChanged, now_ms: int) -> str:
    p50_ms, p90_ms = status.planned_start_p50_ms, status.planned_start_p90_ms
    if p50_ms is None:
        return "No start is planned within the horizon yet."
    text = f"Earliest planned start {moment_text(p50_ms, now_ms)} ({from_now_text(p50_ms, now_ms)})"
    if p90_ms is not None and p90_ms != p50_ms:
        text += f", by {moment_text(p90_ms, now_ms)} if what it waits for takes long (P90)"
    return text + "."


def _holders(status: JobStatusChanged, world: World) -> list[Holder]:
    found = []
    for job_id in status.holders:
        view = world.jobs.get(job_id)
        placed = view.status.placed if view and view.status else []
        found.append(
            Holder(
                job_id,
                sum(len(part.gpus) for part in placed),
                tuple(part.node for part in placed),
                view.is_application if view else False,
                view.expected_end_ms() if view else None,
            )
        )
    return found


def _holders_text(holders: Sequence[Holder], now_ms: int) -> str:
    texts = []
    for holder in holders[:HOLDERS_NAMED_MAX]:
        facts = []
        if holder.gpus:
            facts.append(f"{holder.gpus} GPU{'s' if holder.gpus > 1 else ''} on {_names(holder.nodes)}")
        if holder.application:
            facts.append("real-time application")
        if holder.expected_end_ms is not None:
            facts.append(f"expected to end {from_now_text(holder.expected_end_ms, now_ms)}")
        texts.append(f"{holder.job_id} ({', '.join(facts)})" if facts else holder.job_id)
    if len(holders) > HOLDERS_NAMED_MAX:
        texts.append(f"{len(holders) - HOLDERS_NAMED_MAX} more")
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + " and " + texts[-1]


def _placed_text(status: JobStatusChanged) -> str:
    parts = [f"{part.node}: {gpu_ranges(part.gpus)}" for part in status.placed]
    count = sum(len(part.gpus) for part in status.placed)
    return f"{count} GPU{'' if count == 1 else 's'} at {'; '.join(parts)}" if parts else "no GPUs"


def gpu_ranges(gpus: Sequence[int]) -> str:
    """`0-3,6` for [0, 1, 2, 3, 6]."""
    ranges: list[list[int]] = []
    for gpu in sorted(gpus):
        if ranges and gpu == ranges[-1][1] + 1:
            ranges[-1][1] = gpu
        else:
            ranges.append([gpu, gpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _because(code: str | None) -> str:
    if not code:
        return ""
    for cause in (*StopCause, *FailureCause):
        if cause.value == code:
            text = STOP_SENTENCES[cause] if isinstance(cause, StopCause) else FAILURE_SENTENCES[cause]
            return f" because {text}"
    return f" ({code})"


def _stop_cause(job_id: str, world: World) -> str | None:
    """Why a job is being stopped, from its placement."""
    for placed in world.placements.values():
        for one in placed.assignments:
            if one.job_id == job_id and one.stop_cause is not None:
                return one.stop_cause.value
    return None


def _pools(world: World) -> Sequence[str | None]:
    return sorted({node.pool for node in world.nodes.values()})


def _names(nodes: Sequence[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more" if nodes else "no node"


def _lowered(sentence: str) -> str:
    """A sentence that goes on after a colon; words in capitals (GPU) stay."""
    first = sentence.split(" ", 1)[0]
    return sentence if first.isupper() or not first[1:].islower() else sentence[0].lower() + sentence[1:]


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?")) else sentence + "."
