"""Judges by what really ran on the machines: no card held twice, nothing that wasn't placed, every end reported as it was.

Owns: the comparison of truth with log and reports. Refuses: anybody's state, but for what the log leaves applications in the
end, which is judged by itself. Read next: `checks.py`, `check_applications.py`.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Set

from schemas.commands import DrainNode, RepartitionCards
from schemas.executions import JobCompleted, JobFailed, JobStopped, StopCause
from schemas.jobs import ApplicationRegistered, JobCancelled
from schemas.nodes import Health, NodeForgotten, NodeStateChanged
from tests.simulation.system.check_applications import Held
from tests.simulation.system.check_jobs import Attempt, Life
from tests.simulation.system.evidence import Evidence, heard
from tests.simulation.system.machine import Machine, Proc
from tests.simulation.system.world_slots import machine_of

HOURS_TOLERANCE_S = 0.2
LIMIT_TOLERANCE_S = 1.0
End = JobCompleted | JobFailed | JobStopped


def check_machines(evidence: Evidence, lives: dict[str, Life], given_up: Set[tuple[str, int]], held: Held) -> list[str]:
    """Sentences about what must not happen on a machine. `given_up`: attempts that the log took for lost, since nobody spoke of them;
    `held`: what the log leaves applications in the end."""
    found = [sentence for machine in evidence.machines.values() for sentence in _double_booked(machine)]
    ends = _reported_ends(evidence)
    gone = _gone_nodes(evidence)
    drains = _drained_nodes(evidence)
    for machine in evidence.machines.values():
        found += _twice_under_one_attempt(machine)
        for proc in machine.procs.values():
            if proc.application:
                continue
            life = lives.get(proc.key[0])
            attempt = None if life is None else life.attempts.get(proc.key[1])
            if life is None or attempt is None or machine.name not in attempt.cards:
                found.append(f"{_name(machine, proc)} runs, but the log never placed it there")
                continue
            found += _wrong_cards(machine, proc, attempt)
            found += _wrong_report(evidence, machine, proc, ends)
            lost = gone | {machine.name} if proc.key[:2] in given_up else gone
            found += _unfounded_stop(machine, proc, life, ends, lost, drains)
            found += _early_limit(evidence, machine, proc, life, ends)
    return found + _left_running(evidence) + _applications(evidence, held)


def _name(machine: Machine, proc: Proc) -> str:
    return f"{proc.key[0]} attempt {proc.key[1]} on {machine.name}"


def _double_booked(machine: Machine) -> list[str]:
    found = []
    for gpu in range(machine.gpus):
        stays = sorted((held for held in machine.held if gpu in held.gpus), key=lambda held: held.from_ms)
        for before, after in itertools.pairwise(stays):
            if before.until_ms is None or before.until_ms > after.from_ms:
                found.append(
                    f"{machine.name}/{gpu} is held by {before.key[0]} attempt {before.key[1]} and given to "
                    f"{after.key[0]} attempt {after.key[1]}"
                )
    return found


def _twice_under_one_attempt(machine: Machine) -> list[str]:
    seen: dict[tuple[str, int], Proc] = {}
    found = []
    for proc in machine.procs.values():
        if proc.application:
            continue
        known = seen.setdefault(proc.key[:2], proc)
        if known is not proc:
            found.append(f"{_name(machine, proc)} was started twice")
    return found


def _wrong_cards(machine: Machine, proc: Proc, attempt: Attempt) -> list[str]:
    held = next(held for held in machine.held if held.key == proc.key)
    if held.gpus != attempt.cards[machine.name]:
        return [f"{_name(machine, proc)} runs on {held.gpus}, the log placed it on {attempt.cards[machine.name]}"]
    return []


def _reported_ends(evidence: Evidence) -> dict[tuple[str, int, str], dict[str, End]]:
    """(job, attempt, node) → distinct end reports by id."""
    found: dict[tuple[str, int, str], dict[str, End]] = defaultdict(dict)
    for entry in evidence.said["executions"]:
        if isinstance(entry.event, JobCompleted | JobFailed | JobStopped):
            found[entry.event.job_id, entry.event.attempt, entry.event.node][entry.id] = entry.event
    return found


def _wrong_report(
    evidence: Evidence, machine: Machine, proc: Proc, ends: dict[tuple[str, int, str], dict[str, End]]
) -> list[str]:
    name = _name(machine, proc)
    reports = list(ends.get((proc.key[0], proc.key[1], machine.name), {}).values())
    if not proc.how:
        return [f"{name} still runs"] if evidence.drained else []
    if len(reports) > 1:
        return [f"{name} has {len(reports)} different ends: {[type(report).__name__ for report in reports]}"]
    if proc.how == "power":
        return []
    if not reports:
        return [f"{name} {proc.how} and nobody reported it"] if evidence.drained else []
    kinds = {"completed": (JobCompleted, JobStopped), "failed": (JobFailed, JobStopped), "stopped": (JobStopped,)}
    if not isinstance(reports[0], kinds[proc.how]):
        return [f"{name} {proc.how}, the report says {type(reports[0]).__name__}"]
    assert proc.until_ms is not None
    ran_s = (proc.until_ms - proc.from_ms) / 1000
    if abs(ran_s - reports[0].run_s) > HOURS_TOLERANCE_S:
        return [f"{name} ran {ran_s:.1f} s, {reports[0].run_s:.1f} s are reported"]
    return []


def _gone_nodes(evidence: Evidence) -> set[str]:
    """Nodes that the log heard to be lost or gone for good, to have come back, or to have lost what ran there."""
    found = set()
    incarnations: dict[str, int] = {}
    for record in evidence.accepted:
        for item in record.inputs:
            if item.type not in ("node.state-changed.v1", "node.forgotten.v1"):
                continue
            event = heard(item)
            assert isinstance(event, NodeStateChanged | NodeForgotten)
            returned = event.incarnation > incarnations.get(event.node, event.incarnation)
            incarnations[event.node] = max(event.incarnation, incarnations.get(event.node, 0))
            if isinstance(event, NodeForgotten) or event.health is Health.LOST or returned:
                found.add(event.node)
    for machine in evidence.machines.values():
        if machine.boots > 1:
            found.add(machine.name)
    return found


def _drained_nodes(evidence: Evidence) -> set[str]:
    """By their own names, and all nodes of a machine whose cards were ordered to be cut."""
    ordered = {entry.event.node for entry in evidence.said["commands"] if isinstance(entry.event, DrainNode)}
    cut = {entry.event.node for entry in evidence.said["commands"] if isinstance(entry.event, RepartitionCards)}
    return ordered | {name for name in evidence.machines if machine_of(name) in cut}


def _unfounded_stop(
    machine: Machine,
    proc: Proc,
    life: Life,
    ends: dict[tuple[str, int, str], dict[str, End]],
    gone: set[str],
    drains: set[str],
) -> list[str]:
    """Nothing is interrupted but for a cause that really was."""
    if proc.how != "stopped":
        return []
    report = next(iter(ends.get((proc.key[0], proc.key[1], machine.name), {}).values()), None)
    if not isinstance(report, JobStopped):
        return []
    attempt = life.attempts[proc.key[1]]
    nodes = set(attempt.cards)
    others = [event for node, (_, event) in attempt.ends.items() if node != machine.name]
    founded = {
        StopCause.CANCELLED: life.revoked_at is not None,
        StopCause.TIME_LIMIT: True,
        StopCause.DRAIN: bool(nodes & drains),
        StopCause.NODE_LOST: bool(nodes & gone),
        StopCause.FENCED: bool(nodes & gone) or _other_completed(life, attempt),
        StopCause.GANG_BROKEN: any(isinstance(event, JobFailed | JobStopped) for event in others) or bool(nodes & gone),
        StopCause.SCALED_DOWN: False,
        StopCause.PREEMPTED: attempt.number in life.places_lost,
    }
    if not founded[report.cause]:
        return [f"{_name(machine, proc)} was stopped: {report.cause.value}, and nothing says why"]
    return []


def _early_limit(
    evidence: Evidence, machine: Machine, proc: Proc, life: Life, ends: dict[tuple[str, int, str], dict[str, End]]
) -> list[str]:
    """No clock may take anything from a job's time. A gang's time is that of its part that began first."""
    report = next(iter(ends.get((proc.key[0], proc.key[1], machine.name), {}).values()), None)
    if not isinstance(report, JobStopped) or report.cause is not StopCause.TIME_LIMIT or proc.until_ms is None:
        return []
    assert life.accepted is not None
    parts = [other for each in evidence.machines.values() for other in each.procs.values()]
    begun_ms = min(other.from_ms for other in parts if other.key[:2] == proc.key[:2])
    ran_s, limit_s = (proc.until_ms - begun_ms) / 1000, min(proc.time_limit_s, life.accepted.spec.time_limit_s, 7200.0)
    if ran_s + LIMIT_TOLERANCE_S < limit_s:
        return [f"{_name(machine, proc)} was stopped for its limit of {limit_s:.0f} s after {ran_s:.0f} s"]
    return []


def _other_completed(life: Life, attempt: Attempt) -> bool:
    """A late end of another attempt wins over this one."""
    return any(other.completed_at() is not None for other in life.attempts.values() if other is not attempt)


def _left_running(evidence: Evidence) -> list[str]:
    if not evidence.drained:
        return []
    return [
        f"{_name(machine, proc)} runs on after everything ended"
        for machine in evidence.machines.values()
        for proc in machine.procs.values()
        if not proc.how and not proc.application
    ]


def _applications(evidence: Evidence, wanted: Held) -> list[str]:
    """In the end each application runs on the cards the log leaves it, and nowhere else; one that was cancelled nowhere."""
    if not evidence.drained:
        return []
    found = []
    for app_id, open_now in _open_applications(evidence).items():
        really = {
            machine.name: held.gpus
            for machine in evidence.machines.values()
            for held in machine.held
            if held.key[0] == app_id and held.until_ms is None and held.gpus
        }
        right = wanted.get(app_id, {}) if open_now else {}
        if really != right:
            found.append(f"{app_id} runs on {really}, but it should on {right}")
    return found


def _open_applications(evidence: Evidence) -> dict[str, bool]:
    """Whether upstream's last word, by its own time, was a registration."""
    words: dict[str, tuple[int, bool]] = {}
    for entry in evidence.said["job-events"]:
        event = entry.event
        if isinstance(event, ApplicationRegistered):
            words[event.app_id] = max(words.get(event.app_id, (0, False)), (event.registered_ms, True))
    for entry in evidence.said["job-events"]:
        event = entry.event
        if isinstance(event, JobCancelled) and event.job_id in words:
            words[event.job_id] = max(words[event.job_id], (event.cancelled_ms, False))
    return {app_id: registered for app_id, (_, registered) in words.items()}
