"""The days of the rules table: real jobs of real teams, and whose part of the pool each team's is.

Philly's virtual clusters with their node counts, Helios's virtual clusters with six months of quota changes in one day, openb's
shares of GPUs in quarters of a card, and Lingjun's gangs on Lingjun's racks, whose jobs nobody's team is known of. No applications:
rules limit batch-like jobs.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path

from services.replay.core.day import HOUR_MS, Day, DayJob
from services.replay.core.rulebook import RACK_ROWS, ROWS, Era, SharedDay, shared
from services.replay.core.span import Span, build_span
from services.replay.core.trace import Trace
from services.replay.shell.bundled import TEAM_UNKNOWN
from services.replay.shell.formats import CARD_SLOTS, open_shares, open_trace, quota_changes

SEED = 2
GPUS = 64
LOAD = 1.0
"""As much asked for as the pool can give: rules are for pools that are short."""


RACKS = Path(__file__).parents[2] / "tests/data/lingjun/racks.csv"


@dataclass(frozen=True, slots=True)
class Workload:
    """One trace of the table. `start`: a day on which several teams ask for much."""

    name: str
    words: str
    start: str
    node_gpus: int = 8
    gpus: int = GPUS
    rows: tuple[str, ...] = ROWS


WORKLOADS = {
    work.name: work
    for work in (
        Workload("philly", "Philly's virtual clusters, parts by their nodes", "2017-11-15"),
        Workload("helios", "Helios's virtual clusters, 16 quotas of six months in one day", "10"),
        Workload(
            "openb", "openb's shares of GPUs, 16 cards of four quarters, parts by earlier demand", "120", CARD_SLOTS
        ),
        Workload(
            "lingjun", "Lingjun's gangs on its first three racks, of nobody's team", "4", gpus=512, rows=RACK_ROWS
        ),
    )
}


def shared_day(name: str) -> SharedDay:
    """The day of one of WORKLOADS."""
    work = WORKLOADS[name]
    trace = open_shares() if name == "openb" else open_trace(name)
    knows_racks = work.rows == RACK_ROWS
    rows = tuple(row for row in trace.jobs if knows_racks or row.team != TEAM_UNKNOWN)
    span = build_span(_bare(trace, rows), work.start, SEED, days=1, gpus=work.gpus, load=LOAD, node_gpus=work.node_gpus)
    return shared(span.day, _eras(name, span), _hosts(work) if knows_racks else ())


def _hosts(work: Workload) -> list[int]:
    """Nodes of Lingjun's first racks, as many as the pool has."""
    left, found = work.gpus // work.node_gpus, []
    with RACKS.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found.append(min(left, int(row["hosts"])))
            left -= found[-1]
            if not left:
                break
    return found


def _bare(trace: Trace, rows: tuple) -> Trace:
    return replace(trace, series=(), jobs=rows)


def _eras(name: str, span: Span) -> list[Era]:
    day = span.day
    if name == "lingjun":
        return [Era(day.start_ms, {TEAM_UNKNOWN: 1.0})]
    if name == "openb":
        return [Era(day.start_ms, _asked(day, span.past))]
    changes = [parts for _, parts in quota_changes(name) if sum(parts.values()) > 0]  # all of Helios's were 0 on 9 May
    length_ms = round(day.hours * HOUR_MS) // len(changes)
    return [Era(day.start_ms + place * length_ms, parts) for place, parts in enumerate(changes)]


def _asked(day: Day, past: tuple[DayJob, ...]) -> dict[str, float]:
    """GPU-hours that each team asked for before the day."""
    found = dict.fromkeys(sorted({job.spec.team for job in day.jobs}), 0.0)
    for job in past:
        if job.spec.team in found:
            found[job.spec.team] += job.requested * job.run_s[job.requested] / 3600
    return found
