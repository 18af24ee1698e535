"""Executors that say nothing about what was placed on them: when a start is given up, and how long such a node gets nothing new.

Owns: the time-out of a start that nobody confirms, and forgetting old silence. A part counts as heard of once its executor said that it is
prepared, has taken it (`node.reported`), or runs. What is given up is lost, not failed: nothing of the job is known to have run, and
should it run after all, the executor's next placement no longer holds it and it is stopped there. An application with
a probe is given up alike where nobody has ever spoken of it; once somebody has, it stays whatever silence follows, since it needs no
executor to serve. Refuses: nodes that telemetry
doesn't hear (`fold.py`), and gangs some of whose nodes gave up by themselves (`fold_executions.py`). Read next: `advance.py`.
"""

from __future__ import annotations

from schemas.records import Now
from services.allocator.core.lifecycle import part_ended
from services.allocator.core.state import PART_LOST, PART_PLACED, SILENT_MS, App, Changes, Job, State

START_WALL_MS_MAX = 900_000
"""Wall time from a placement to the first word of its executor. Longer than a prepared gang waits for the others (600 s), so that their
word comes first, and three times what an executor may take before it says that a start is still under way."""
START_TIMEOUT = "start_timeout"
"""The job's cause until it is placed anew."""


def unheard(job: Job) -> list[str]:
    """Nodes of the job that have not said a word about it since it was placed."""
    return [part.node for part in job.parts if part.status == PART_PLACED and not part.prepared]


def start_due_wall_ms(job: Job) -> int | None:
    """Wall time at which the job's start is given up, or None if all its nodes have spoken. Jobs from logs without that time wait on."""
    return job.placed_wall_ms + START_WALL_MS_MAX if job.placed_wall_ms and unheard(job) else None


def serving_due_wall_ms(app: App) -> int | None:
    """Wall time at which the first of its nodes that never said a word about it is given up, or None."""
    return min(app.unheard.values()) + START_WALL_MS_MAX if app.unheard else None


def give_up_starts(state: State, now: Now, changes: Changes) -> None:
    """Parts whose executor stayed silent too long are lost; their nodes get nothing new until they speak, or for SILENT_MS."""
    for app in state.apps.values():
        for node in [node for node, since_ms in app.unheard.items() if now.wall_ms >= since_ms + START_WALL_MS_MAX]:
            _take_back(state, app, node, now, changes)
    for job in [job for job in state.jobs.values() if job.parts]:
        due_ms = start_due_wall_ms(job)
        if due_ms is None or now.wall_ms < due_ms:
            continue
        for node in unheard(job):
            if node in state.nodes:
                state.nodes[node].silent_until_ms = now.domain_ms + SILENT_MS
                changes.nodes[node] = None
            part_ended(state, job, node, PART_LOST, now.domain_ms, START_TIMEOUT, changes)


def _take_back(state: State, app: App, node: str, now: Now, changes: Changes) -> None:
    """Nothing is known to serve there: its GPUs elsewhere are the planner's to give, and what starts late after all is stopped."""
    changes.app(app)
    app.parts = [part for part in app.parts if part.node != node]
    del app.unheard[node]
    if node in state.nodes:
        state.nodes[node].silent_until_ms = now.domain_ms + SILENT_MS
        changes.nodes[node] = None


def forget_silence(state: State, now_ms: int) -> None:
    """Nodes that were silent for long are tried again."""
    for node in state.nodes.values():
        if node.silent_until_ms <= now_ms:
            node.silent_until_ms = 0
