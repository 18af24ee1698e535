"""kill -9 of every service and of the broker, duplicated and shuffled input, two allocators of which one is frozen: the same
jobs complete as in an undisturbed replay, none is lost, none runs twice, and the decision log never forks."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from schemas.status import JobState
from services.replay.core.catalog import PARTITION
from services.replay.core.day import HOUR_MS
from services.replay.core.schedule import Publication, arrivals
from tests.end_to_end.replayed_stack import HOURS, Seen, Stack, overlaps, replay, short_day

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(900)]

KILLED = ("allocator", "intake", "executor", "kafka", "forecaster", "telemetry", "agent")
FROZEN_S = 14.0
"""Longer than a group waits for a silent member (10 s), so that the other allocator takes over while the first is frozen."""
SHUFFLED_JOBS = 4
RECOVERED_WAIT_S = 180.0


def check(found: Seen) -> None:
    """What must hold after any replay of the short day."""
    wanted = {job.job_id: JobState.COMPLETED for job in short_day().jobs}
    assert found.finals == wanted, "another set of jobs ended, or ended otherwise, than without disturbance"
    assert {job_id: found.shown[job_id] for job_id in wanted} == wanted, "people are shown something else"
    restarted = {job_id: starts for job_id, starts in found.starts.items() if {number for number, _ in starts} != {1}}
    assert restarted == {}, "a job ran twice"
    assert set(found.starts) == set(wanted)
    assert overlaps(found.spans) == [], "two jobs ran on one GPU at the same time"
    assert found.decided_twice == []
    assert found.without_reason == []


def tell(what: str, found: Seen) -> None:
    print(
        f"{what}: {len(found.finals)} jobs, {found.accepted} decisions by {len(found.writers)} writers, "
        f"{found.rejected} rejected, {found.dead_letters} dead letters"
    )


async def test_an_undisturbed_replay_completes_every_job(tmp_path: Path) -> None:
    found = await replay(tmp_path / "run")
    tell("undisturbed", found)
    check(found)
    assert found.rejected == 0
    assert found.dead_letters == 0


async def test_killing_every_service_and_the_broker_changes_nothing_in_the_end(tmp_path: Path) -> None:
    restarted: dict[str, tuple[int, int]] = {}

    async def kill_all(stack: Stack) -> None:
        for number, name in enumerate(KILLED, start=1):
            await stack.clock.sleep_until(stack.day.start_ms + round(HOURS * HOUR_MS * number / (len(KILLED) + 1)))
            before = await stack.running_pid(name)
            os.kill(before, signal.SIGKILL)
            await stack.until(
                lambda name=name, before=before: (
                    stack.supervisor.state == "ready" and stack.supervisor.pid(name) not in (0, before)
                ),
                f"{name} never came back",
                RECOVERED_WAIT_S,
            )
            restarted[name] = (before, stack.supervisor.pid(name))

    found = await replay(tmp_path / "run", kill_all)
    tell("killed", found)
    assert sorted(restarted) == sorted(KILLED)
    check(found)


async def test_duplicates_disorder_and_a_frozen_second_allocator_change_nothing_either(tmp_path: Path) -> None:
    async def freeze_the_owner(stack: Stack) -> None:
        await stack.clock.sleep_until(stack.day.start_ms + round(HOURS * HOUR_MS / 4))
        frozen = await stack.owner_pid()
        os.kill(frozen, signal.SIGSTOP)
        try:
            await asyncio.sleep(FROZEN_S)  # the one thing that is waited for is that nothing is heard for so long
        finally:
            os.kill(frozen, signal.SIGCONT)

    twice = duplicated_and_shuffled(arrivals(short_day(), PARTITION), Random(1))
    found = await replay(tmp_path / "run", freeze_the_owner, publications=twice, allocators=2)
    tell("duplicated, shuffled, frozen", found)
    check(found)
    assert len(found.writers) == 2, "both allocators decided, one after the other"


def duplicated_and_shuffled(publications: Sequence[Publication], dice: Random) -> list[Publication]:
    """Everything is published twice, and neighbours change places, the second time far from the first."""
    found: list[Publication] = []
    for start in range(0, len(publications), SHUFFLED_JOBS):
        window = list(publications[start : start + SHUFFLED_JOBS])
        again = list(publications[max(0, start - SHUFFLED_JOBS) : start])
        due_ms = max(entry.due_ms for entry in window)
        mixed = window + again
        dice.shuffle(mixed)
        found += [Publication(due_ms, f"{entry.id}#{start}", entry.message) for entry in mixed]
    return found
