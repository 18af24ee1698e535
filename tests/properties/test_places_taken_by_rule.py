"""Random histories of policy preemption: nobody loses its place more often than its queue allows, every place taken saves more waiting
than saving work costs, and who took a place by rule never loses it by rule: docs/policy.md, "Taking a place".

The books are the test's own: from what it told the allocator and from the log's effects, and the plan that stops nobody from the
decision's problem. Every queue's role may be turned around on the way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from schemas.commands import ChangeRules
from schemas.decisions import Placed, Preempted
from schemas.executions import JobCheckpointed, StopCause
from schemas.jobs import CheckpointMode, CheckpointPolicy
from schemas.rules import QueueRules, Rules
from services.allocator.core import preempt, verify_commit
from tests import build
from tests.allocator_driver import POLICY, Driver

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
COSTS_S = (30.0, 120.0, 7200.0)
"""Of writing a checkpoint; the last is more than most waiting is worth."""
RUNTIME_MIN_S = 300.0


@dataclass
class Books:
    """By job: when it lost its place and to whom, when it runs since, when it saved last, until when a block is held for it, whether
    it took its place."""

    lost: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)
    saved: dict[str, int] = field(default_factory=dict)
    taking: dict[str, int] = field(default_factory=dict)
    took: set[str] = field(default_factory=set)
    evictions: int = 0
    most_often: int = 0

    def read(self, driver: Driver) -> None:
        """The effects of the last decision, judged by what was known before it."""
        record = driver.log[-1]
        for effect in record.effects:
            if isinstance(effect, Preempted):
                self._judged(driver, effect, record.now_ms)
                self.taking[effect.job_id] = effect.until_ms
            elif isinstance(effect, Placed):
                self.since.pop(effect.job_id, None)
                held = record.now_ms < self.taking.pop(effect.job_id, 0)
                (self.took.add if held else self.took.discard)(effect.job_id)

    def _judged(self, driver: Driver, effect: Preempted, now_ms: int) -> None:
        taker, lost, stake = driver.job(effect.job_id), 0.0, 0.0
        for name in effect.victims:
            victim = driver.job(name)
            queue = driver.state.rules.queues[victim.spec.queue]
            before = self.lost.setdefault(name, [])
            lately = [at_ms for at_ms, _ in before if at_ms > now_ms - queue.preempted_window_s * 1000]
            assert len(lately) < queue.preempted_max, f"{name} loses its place too often"
            assert effect.job_id not in {who for _, who in before}
            assert name not in self.took, "what took a place by rule loses it by rule"
            assert now_ms - self.since[name] >= RUNTIME_MIN_S * 1000, "it has only just come back"
            lost += victim.spec.priority * victim.gpus * victim.spec.checkpoint.cost_s
            unsaved_s = (now_ms - max(self.since[name], self.saved.get(name, 0))) / 1000
            stake += victim.gpus * (unsaved_s + victim.spec.checkpoint.cost_s)
            before.append((now_ms, effect.job_id))
            self.evictions += 1
            self.most_often = max(self.most_often, len(lately) + 1)
        [(posed, plan)] = zip(driver.decided.posed, driver.decided.plans, strict=True)
        start = int(plan.start[posed.problem.job_ids.index(effect.job_id)])
        wait_s = (start if start >= 0 else POLICY.steps) * POLICY.step_s
        assert 0 < effect.wait_saved_s <= wait_s
        gpus = sum(len(part.gpus) for part in effect.placed)
        whole = int(posed.problem.job_priority[[job.job_id for job in posed.queued].index(effect.job_id)]) / 1000
        assert taker.spec.priority <= whole
        assert whole * gpus * effect.wait_saved_s > lost, "it saves less waiting than saving work costs"
        assert effect.at_stake_gpu_s == pytest.approx(stake, abs=len(effect.victims))


def rules(dice: Random, version: int, turned: bool) -> ChangeRules:
    """Roles turned around: what took a place before would be the one to lose it."""
    taker, giver = ("night", "urgent") if turned else ("urgent", "night")
    queues = {
        taker: QueueRules(preempts=True, runtime_min_s=RUNTIME_MIN_S, victims_max=4),
        giver: QueueRules(
            preemptible=True,
            preempted_max=dice.choice([1, 2, 3]),
            preempted_window_s=dice.choice([1, 3, 8]) * 3600.0,
        ),
    }
    return ChangeRules(cluster=build.CLUSTER, rules=Rules(version=version, queues=queues), ordered_ms=build.START_MS)


def history(seed: int, *, turning: bool) -> Books:
    dice, books = Random(seed), Books()
    driver = Driver().give(build.node("n0"), rules(dice, 1, False))

    def give(*events) -> None:
        driver.give(*events)
        books.read(driver)

    for number in range(45):
        driver.pass_ms(dice.randrange(2 * MINUTE_MS, 25 * MINUTE_MS))
        for job in list(driver.state.jobs.values()):
            if not job.parts:
                continue
            if job.started_ms is None:
                books.since[job.job_id] = driver.now_ms
                give(build.started(job.job_id, "n0", at_ms=driver.now_ms, attempt=job.attempt))
            elif job.stop_cause:
                give(
                    build.stopped(job.job_id, "n0", driver.now_ms, StopCause.PREEMPTED, attempt=job.attempt)
                )  # fmt: skip
            elif dice.random() < (0.6 if job.job_id.startswith("u") and not turning else 0.05):
                give(build.completed(job.job_id, "n0", at_ms=driver.now_ms, attempt=job.attempt))
            elif dice.random() < 0.3:
                books.saved[job.job_id] = driver.now_ms
                give(
                    JobCheckpointed(
                        job_id=job.job_id, attempt=job.attempt, node="n0", cluster=build.CLUSTER,
                        time_ms=driver.now_ms, fraction=min(1.0, job.fraction + 0.05),
                    )
                )  # fmt: skip
        if dice.random() < 0.15:
            give(rules(dice, number + 2, turning and dice.random() < 0.5))
        urgent = dice.random() < 0.6
        job_id, size = f"{'u' if urgent else 'n'}{number}", dice.choice([1, 2, 4, 8])
        saves = CheckpointPolicy(mode=CheckpointMode.SIGNAL, wait_s=60.0, cost_s=COSTS_S[number % 3])
        queue = "urgent" if urgent else "night"
        priority = dice.choice([2, 4, 6, 9] if turning else [4, 9] if urgent else [2, 5])
        give(build.accepted(job_id, size, at_ms=driver.now_ms, queue=queue, priority=priority, checkpoint=saves))
        give(build.forecast(job_id, {size: dice.choice([900, 3600]) if urgent else 10 * 3600}))
    return books


@pytest.mark.parametrize("turning", [False, True])
def test_nobody_loses_its_place_too_often_nor_for_too_little_nor_after_it_took_it(turning: bool) -> None:
    found = [history(seed, turning=turning) for seed in range(5)]
    assert sum(one.evictions for one in found) > (10 if turning else 25)
    assert turning or max(one.most_often for one in found) >= 2, "and the limits are reached"


def _never_protected(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(preempt, "protected_until_ms", lambda *_: None)


def _takers_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = preempt._candidates

    def candidates(state: Any, *rest: Any) -> Any:
        took = [job for job in state.jobs.values() if job.took_place]
        for job in took:
            job.took_place = False
        found = real(state, *rest)
        for job in took:
            job.took_place = True
        return found

    patch.setattr(preempt, "_candidates", candidates)


def _work_costs_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(preempt, "PRIORITY_ONE", 0)


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (_never_protected, "loses its place too often"),
        (_takers_forgotten, "what took a place by rule loses it by rule"),
        (_work_costs_nothing, "it saves less waiting than saving work costs"),
    ],
)
def test_an_allocator_without_the_rule_is_found(plant: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    monkeypatch.setattr(verify_commit, "check_preempted", lambda *_: [])
    with pytest.raises(AssertionError, match=words):
        _histories(12)


def _histories(count: int) -> None:
    for seed in range(count):
        history(seed, turning=True)
