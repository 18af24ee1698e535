"""All judges of a run. They know topics and machines, not faults: what may go wrong doesn't excuse what must not.

Read next: `check_log.py`, `check_jobs.py`, `check_machines.py`, `check_rules.py`, `check_reservations.py`.
"""

from __future__ import annotations

from tests.simulation.system.check_applications import held_by_applications
from tests.simulation.system.check_jobs import check_jobs, lives_of
from tests.simulation.system.check_log import LogWalk, last_shown
from tests.simulation.system.check_machines import check_machines
from tests.simulation.system.check_planned_starts import PlannedStarts
from tests.simulation.system.check_pools import PoolsWalk
from tests.simulation.system.check_reservations import ReservationsWalk
from tests.simulation.system.check_rules import RulesWalk
from tests.simulation.system.check_slots import check_slots
from tests.simulation.system.evidence import Evidence

INTERNAL = "internal_error"


def check(evidence: Evidence) -> list[str]:
    """Everything that must not be, as sentences; empty: the run was fine."""
    lives = lives_of(evidence)
    log = LogWalk(evidence, lives).walk()
    rules = RulesWalk(evidence).walk()
    return [
        *evidence.ended_by_itself,
        *evidence.refused_plans,
        *log.violations,
        *last_shown(evidence, log.state),
        *check_jobs(evidence, lives),
        *check_machines(evidence, lives, rules.given_up, held_by_applications(log.state)),
        *check_slots(evidence, log.state),
        *rules.violations,
        *ReservationsWalk(evidence).walk().violations,
        *PoolsWalk(evidence).walk().violations,
        *PlannedStarts(evidence).walk().violations,
        *[f"dead letter: {letter}" for letter in evidence.dead_letters if getattr(letter, "reason", "") == INTERNAL],
    ]
