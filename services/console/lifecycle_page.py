"""`docs/lifecycle.md`, drawn from the tables that the allocator and the executor run on.

`python -m services.console.lifecycle_page` writes it; a test fails when page and tables differ. Owns: the words around the tables.
Refuses: knowing a transition of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from services.allocator.core import phases
from services.executor.core import lifecycle

PAGE = Path(__file__).resolve().parents[2] / "docs" / "lifecycle.md"

INTRODUCTION = """\
# The life of a job, and of one attempt on one node

<!-- written by `python -m services.console.lifecycle_page` from the allocator's core/phases.py and the executor's core/lifecycle.py -->

The allocator keeps a *job* over all its attempts and nodes; an executor keeps an *attempt* on one node. Both move by a table, (state,
event) → state, and by nothing else. What the tables don't list is either ignored (said again, or overtaken) or a bug.

## A job
"""

RULES = """
- **Public states.** `job-status` shows `queued` for {waiting}, `running` for checkpointing too, and `refused` for what intake
  never let in.
- **Restarts.** `restart: {{"mode": "on_failure", "attempts_max": 3, "backoff_s": 60}}`: after a failure the job waits 60, 120, 240 …
  seconds (at most 64 times the first) and starts again from its last checkpoint, at most three starts in all; with `always` there is no
  such limit, and the first pause is 10 s at least. Interruptions (drain, lost node, broken gang) are no failures and have no limit: a
  gang whose parts break because one of its nodes is lost, or while it is being stopped, did not fail. A real-time application is always
  started again, by its executor: after 1, 2, 4 … 64 s.
- **Time limit.** At the limit its executor asks the job for a checkpoint, stops it, and it ends as `timed_out`. The executor measures on
  the machine, by a clock that nobody sets (what ran before its own restart, by the system's clock); a gang's limit is that of the part
  that began first. Where that doesn't happen the allocator orders the stop 15 minutes after the limit, counted from the report of the
  start: so late because the clocks of two allocators may differ. A changed limit (`gpugrid change JOB --limit`) counts at once, also for
  a running job.
- **Overtime.** A job that runs beyond its forecast's P90 keeps its GPUs: the forecaster makes a new forecast for what is left, the grid is
  planned with it, its status says `overtime`, and only the limit ends the job.
- **Cancel.** While it waits, a job is cancelled at once; while it holds GPUs, after its checkpoint and its stop. The end that was first
  counts: a job that completed before its stop was carried out is completed.
- **A start nobody confirms.** An executor that says nothing about a placement for 15 minutes is taken to be away: the job waits for
  another place with the cause `start_timeout`, which is no failure, and its node gets nothing new until its executor speaks, or for
  half an hour.
- **Applications.** The start of an application with a readiness probe is given up like that of a job, node by node: after 15 minutes
  without a word about it its GPUs there are taken back, and it gets others. One without a probe counts as serving where it is placed.
  Once its executor has spoken of it, it serves on through any silence (no process of it needs its executor), its probe answered or not;
  its status stays what was said last, and its executor carries out what was decided meanwhile when it is back: other GPUs, a start anew
  if it had ended, a stop if it was placed elsewhere. From then on it loses its GPUs on a node only when that node is lost or drained.
  While a node drains, an application keeps what it holds there and grows elsewhere, as late as its `switch_max` per step allows and one
  step ahead, so that the last new GPU is ready when the deadline takes the last old one; meanwhile it may hold more than its peak, by no
  more than what is on its way out. Only what can't be had elsewhere, or not in the steps that the deadline leaves, is missing at the
  deadline and given afterwards, `switch_max` a step. (Without a forecast it moves its floor that way, the rest afterwards.)
- **Lost.** A node silent for too long is lost, its jobs wait for a place again with what they had saved, also where that
  is heard only later: until the next attempt begins it counts. So does its end: if it turns out to have failed by itself (alone, not as
  part of a gang) or to have reached its limit, that is how it ended. If it completed after all, that wins at any time, and a relaunch is
  stopped. `gpugrid forget NODE` says that it is gone for good: the same, at once.

## An attempt on one node
"""


def page() -> str:
    """The whole document."""
    waiting = ", ".join(phase.value for phase in phases.WAITING if phase is not phases.Phase.QUEUED)
    return (
        INTRODUCTION
        + _diagram(phases.PHASES, phases.Phase.ACCEPTED, phases.FINAL)
        + _table(phases.PHASES, phases.IGNORED, phases.Phase, phases.Happening)
        + RULES.format(waiting=waiting)
        + _diagram(lifecycle.TRANSITIONS, lifecycle.State.WAITING, lifecycle.FINAL)
        + _table(lifecycle.TRANSITIONS, lifecycle.IGNORED, lifecycle.State, lifecycle.Event)
    )


def _diagram(table: Mapping[Any, Enum], first: Enum, final: Iterable[Enum]) -> str:
    """Mermaid: one arrow per pair of states, labelled with all events that lead there."""
    labels: dict[tuple[str, str], list[str]] = {}
    for (state, event), to in table.items():
        if to is not state:
            labels.setdefault((state.value, to.value), []).append(event.value)
    arrows = [f"    {of} --> {to}: {', '.join(events)}" for (of, to), events in labels.items()]
    ends = [f"    {state.value} --> [*]" for state in final]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {first.value}", *arrows, *ends, "```", ""])


def _table(
    table: Mapping[Any, Enum],
    ignored: Iterable[Any],
    states: Iterable[Enum],
    events: Iterable[Enum],
) -> str:
    """Rows are states, columns events; `·` ignored, empty: can't happen."""
    nothing = list(ignored)
    columns = list(events)
    lines = [
        "",
        "Rows are states, columns events; `·`: changes nothing, empty: can't happen.",
        "",
        "| | " + " | ".join(event.value for event in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for state in states:
        cells = []
        for event in columns:
            to = table.get((state, event))
            cells.append(to.value if to is not None else "·" if (state, event) in nothing else "")
        lines.append(f"| **{state.value}** | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
