"""Judges the evidence of a run by the script, and two runs by each other. Everything wrong becomes a sentence.

Owns what must hold. Metered GPU time (`services.console.metering`, what `gpugrid report` shows) is compared job by job with the
executions read here, and, where a job's length is certain, both with the script. Read next: `run.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

from bench.soak.evidence import Evidence, Violations
from bench.soak.script import ATTEMPTS, CANCELLED, Fate, Planned, Script, job_id_of, number_of
from schemas.status import JobState

ENDING = {
    Fate.COMPLETES: "JobCompleted",
    Fate.GANG: "JobCompleted",
    Fate.FAILS: "JobFailed",
    Fate.FAILS_TWICE: "JobFailed",
    Fate.TIMES_OUT: "JobStopped",
    Fate.CANCELLED_ANYWHERE: "JobStopped",
}
"""What an executor must say of every attempt."""


def recorded_gpu_ms(evidence: Evidence) -> dict[int, int]:
    """GPU-milliseconds per job by its starts and ends."""
    found: dict[int, int] = {}
    for key, start in evidence.starts.items():
        end = evidence.ends.get(key)
        if end is not None:
            found[key[0]] = found.get(key[0], 0) + len(start.gpus) * (end.time_ms - start.time_ms)
    return found


def judge(script: Script, evidence: Evidence, metered_gpu_ms: Mapping[str, int]) -> list[str]:
    """What must hold of any run of the script."""
    wrong = evidence.violations
    _events(script, evidence, wrong)
    attempts = _attempts(evidence)
    recorded = recorded_gpu_ms(evidence)
    for job in script.jobs:
        _finals(job, evidence, wrong)
        _executions(job, attempts.get(job.number, {}), evidence, wrong)
        _gpu_time(job, recorded.get(job.number, 0), metered_gpu_ms.get(job.job_id, 0), wrong)
    strangers = {number_of(name) for name in metered_gpu_ms} - {job.number for job in script.jobs}
    strangers |= {key[0] for key in evidence.starts if key[0] >= len(script.jobs)}
    for number in sorted(number for number in strangers if number is not None):
        wrong.add("jobs nobody submitted", job_id_of(number))
    if sum(recorded.values()) != sum(metered_gpu_ms.values()):
        hours = f"{sum(metered_gpu_ms.values())} metered, {sum(recorded.values())} recorded GPU-ms"
        wrong.add("metered hours differ from the executions", hours)
    for sentence in overlaps(evidence):
        wrong.add("GPUs held twice", sentence)
    return wrong.sentences()


def compare(calm: Mapping[str, int], disturbed: Mapping[str, int]) -> list[str]:
    """Differences between two runs' certain counts."""
    return [
        f"{name}: {calm.get(name, 0)} undisturbed, {disturbed.get(name, 0)} disturbed"
        for name in sorted({*calm, *disturbed})
        if calm.get(name, 0) != disturbed.get(name, 0)
    ]


def certain_counts(script: Script, evidence: Evidence) -> dict[str, int]:
    """Counts that no disturbance may change: per type over different jobs and attempts, repetitions aside."""
    fate = {job.number: job.fate for job in script.jobs}
    free = Fate.CANCELLED_ANYWHERE
    found = Counter(
        {
            "events published": len(evidence.events),
            "jobs accepted": len(evidence.digests),
            "jobs amended": len(evidence.amended),
            "jobs revoked": len(evidence.revoked),
        }
    )
    for number, (_, state) in evidence.finals.items():
        found[f"jobs {state.value}"] += number in fate
    for number, numbers in evidence.placed.items():
        found["attempts placed"] += 0 if fate.get(number) is free else len(numbers)
    for (number, *_), start in evidence.starts.items():
        found["parts started"] += fate.get(number) is not free
        found["GPUs started on"] += 0 if fate.get(number) is free else len(start.gpus)
    for (number, *_), end in evidence.ends.items():
        found[f"parts {end.how} {end.cause}".rstrip()] += fate.get(number) is not free
    recorded = recorded_gpu_ms(evidence)
    found["GPU-ms of certain length"] = sum(
        recorded.get(job.number, 0) for job in script.jobs if job.gpu_ms is not None
    )
    return dict(found)


def overlaps(evidence: Evidence) -> list[str]:
    """GPUs on which two parts ran at one moment."""
    by_gpu: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for key, start in evidence.starts.items():
        end = evidence.ends.get(key)
        if end is not None:
            for gpu in start.gpus:
                by_gpu.setdefault((key[2], gpu), []).append((start.time_ms, end.time_ms, key[0]))
    found = []
    for (node, gpu), spans in sorted(by_gpu.items()):
        spans.sort()
        for (_, end_ms, one), (start_ms, _, other) in pairwise(spans):
            if start_ms < end_ms:
                found.append(f"{job_id_of(one)} and {job_id_of(other)} on {node}/{gpu} at {start_ms}")
    return found


def _events(script: Script, evidence: Evidence, wrong: Violations) -> None:
    """Input and refusals, by their numbers."""
    if len(evidence.events) != script.ids:
        wrong.add("events lost", f"{script.ids} different ones were published, {len(evidence.events)} are there")
    for number in sorted(script.changed ^ evidence.amended):
        wrong.add("changes lost or invented", job_id_of(number))
    for number in sorted({job.number for job in script.jobs if job.fate in CANCELLED} ^ evidence.revoked):
        wrong.add("cancellations lost or invented", job_id_of(number))
    for origin in sorted(evidence.refusable - evidence.letters.keys()):
        wrong.add("refusals without a dead letter", str(origin))
    for origin, reason in evidence.letters.items():
        if origin not in evidence.refusable:
            wrong.add("dead letters of what is right", f"{origin}: {reason}")


def _attempts(evidence: Evidence) -> dict[int, dict[int, list[str]]]:
    """Job → attempt → nodes that started it."""
    found: dict[int, dict[int, list[str]]] = {}
    for number, attempt, node in evidence.starts:
        found.setdefault(number, {}).setdefault(attempt, []).append(node)
    return found


def _finals(job: Planned, evidence: Evidence, wrong: Violations) -> None:
    final, newest = evidence.finals.get(job.number), evidence.newest.get(job.number)
    if final is None:
        wrong.add("jobs without a final state", f"{job.job_id} ({job.fate.value})")
    elif final[1] is not job.final:
        wrong.add("jobs with another final state", f"{job.job_id} is {final[1].value}, not {job.final.value}")
    elif newest is not None and newest[1] is not final[1]:
        wrong.add("jobs that went on after their end", f"{job.job_id} was {final[1].value}, now {newest[1].value}")
    let_in = job.number in evidence.digests
    if let_in == (job.final is JobState.REFUSED):
        wrong.add("jobs let in or refused wrongly", job.job_id)


def _executions(job: Planned, attempts: Mapping[int, list[str]], evidence: Evidence, wrong: Violations) -> None:
    least, most = ATTEMPTS[job.fate]
    if not least <= len(attempts) <= most:
        wrong.add("jobs that ran too often or too seldom", f"{job.job_id} ({job.fate.value}) {len(attempts)} times")
    placed = evidence.placed.get(job.number, [])
    if len(placed) != len(set(placed)) or len(placed) > most:
        wrong.add("attempts placed twice", f"{job.job_id}: {placed}")
    for attempt, nodes in attempts.items():
        for node in nodes:
            end = evidence.ends.get((job.number, attempt, node))
            if end is None:
                wrong.add("executions without an end", f"{job.job_id} attempt {attempt} on {node}")
            elif end.how != ENDING.get(job.fate):
                wrong.add("executions that ended otherwise", f"{job.job_id} attempt {attempt}: {end.how} {end.cause}")


def _gpu_time(job: Planned, recorded: int, metered: int, wrong: Violations) -> None:
    if recorded != metered:
        wrong.add("jobs metered otherwise", f"{job.job_id}: {metered} GPU-ms instead of {recorded}")
    if job.gpu_ms is not None and recorded != job.gpu_ms:
        wrong.add("jobs that ran longer or shorter", f"{job.job_id}: {recorded} GPU-ms instead of {job.gpu_ms}")
