"""Policy preemption: only by rule, the least at stake first, the block held, nobody pushed out twice, and never without a start."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace as changed

from schemas.commands import ChangeRules
from schemas.decisions import Preempted, Waits
from schemas.executions import JobCheckpointed, StopCause
from schemas.jobs import CheckpointMode, CheckpointPolicy, JobRevoked
from schemas.rules import QueueRules, Rules, TeamRules
from services.allocator.core.commit import withheld
from services.allocator.core.phases import Phase
from tests import build
from tests.allocator_driver import Driver
from tests.mixed_pools import FAST, SLOW, accepted, node_of

HOUR_MS = 3_600_000
SAVES = CheckpointPolicy(mode=CheckpointMode.SIGNAL, wait_s=60.0, cost_s=30.0)


def rules(**changed) -> ChangeRules:
    queues = {
        "urgent": QueueRules(preempts=True, runtime_min_s=600.0, victims_max=2),
        "night": QueueRules(preemptible=True),
    }
    return ChangeRules(
        cluster=build.CLUSTER, rules=Rules(version=1, queues=queues, **changed), ordered_ms=build.START_MS
    )


def one_node(*, gpus: int = 8, **changed) -> Driver:
    return Driver().give(build.node("n0", gpus=gpus), rules(**changed))


def submit(driver: Driver, job_id: str, size: int, **changed) -> None:
    driver.give(build.accepted(job_id, size, at_ms=driver.now_ms, **changed))
    driver.give(build.forecast(job_id, {size: 6 * 3600}))


def night(driver: Driver, job_id: str, size: int, **changed) -> None:
    """A job that may be pushed out, and runs."""
    submit(driver, job_id, size, **({"queue": "night", "checkpoint": SAVES, "priority": 3} | changed))
    driver.give(build.started(job_id, "n0", at_ms=driver.now_ms))


def stopping(driver: Driver) -> set[str]:
    return {job.job_id for job in driver.state.jobs.values() if job.stop_cause == StopCause.PREEMPTED.value}


def leave(driver: Driver, job_id: str) -> None:
    driver.give(
        build.stopped(job_id, "n0", at_ms=driver.now_ms, cause=StopCause.PREEMPTED, attempt=driver.job(job_id).attempt)
    )


def test_an_urgent_job_takes_the_place_of_one_that_saves_and_gets_exactly_that_block() -> None:
    driver = one_node()
    night(driver, "n8", 8)
    driver.pass_ms(HOUR_MS)
    submit(driver, "now", 8, queue="urgent", priority=9)
    assert stopping(driver) == {"n8"}
    submit(driver, "thief", 8, priority=100)
    leave(driver, "n8")
    assert driver.job("now").phase is Phase.STARTING
    assert driver.job("n8").phase in (Phase.QUEUED, Phase.PLANNED)
    assert driver.job("thief").parts == []
    assert driver.state.preemptions == {}


def test_it_is_told_so_in_the_decision_that_takes_the_place_and_by_whom() -> None:
    driver = one_node()
    for name in ("a4", "b4"):
        night(driver, name, 4)
    driver.pass_ms(HOUR_MS)
    submit(driver, "now", 8, queue="urgent", priority=9)
    said = [effect for effect in driver.log[-1].effects if isinstance(effect, Waits) and effect.job_id == "now"]
    assert [(effect.reason, effect.holders) for effect in said] == [("takes_a_place", ["a4", "b4"])]
    assert driver.status("now").reason == "takes_a_place"
    driver.give()
    assert driver.log[-1].effects == [], "and the next one has nothing to add"


def test_who_was_to_take_a_place_by_a_refused_plan_is_not_told_so() -> None:
    driver = one_node()
    night(driver, "n8", 8)
    driver.pass_ms(HOUR_MS)
    submit(driver, "now", 8, queue="urgent", priority=9)
    told = withheld(driver.state, driver.log[-1].effects)
    assert [(effect.job_id, effect.reason, effect.holders) for effect in told] == [("now", "planned_later", [])]


@pytest.mark.parametrize(("cost_s", "victims"), [(10_000.0, set()), (30.0, {"n8"})])
def test_no_place_is_taken_for_less_waiting_than_saving_the_work_costs(cost_s: float, victims: set[str]) -> None:
    """To write for three hours so that somebody waits one hour less, at half its priority: no, 4 x 10,000 is more than 9 x 3,540."""
    driver = one_node()
    night(driver, "n8", 8, checkpoint=changed(SAVES, cost_s=cost_s), priority=4)
    driver.pass_ms(11 * HOUR_MS // 2)
    submit(driver, "now", 8, queue="urgent", priority=9)
    assert stopping(driver) == victims
    taken = [effect for effect in driver.log[-1].effects if isinstance(effect, Preempted)]
    told = [(effect.wait_saved_s, effect.at_stake_gpu_s) for effect in taken]
    assert told == [(3600 - 60, 8 * (11 * 1800 + 30))] * len(victims)


@pytest.mark.parametrize(
    "changed",
    [
        {"queue": "day"},  # not preemptible
        {"checkpoint": CheckpointPolicy()},  # can't save
        {"priority": 9},  # not of lower priority
    ],
)
def test_nobody_else_is_pushed_out(changed: dict[str, object]) -> None:
    driver = one_node()
    night(driver, "n8", 8, **changed)
    driver.pass_ms(HOUR_MS)
    submit(driver, "now", 8, queue="urgent", priority=9)
    assert stopping(driver) == set()


def test_a_job_that_has_only_just_started_is_left_alone_until_its_time() -> None:
    driver = one_node()
    night(driver, "n8", 8)
    driver.pass_ms(300_000)
    submit(driver, "now", 8, queue="urgent", priority=9)
    assert stopping(driver) == set()
    driver.pass_ms(400_000).give()
    assert stopping(driver) == {"n8"}


def test_the_least_work_at_stake_is_taken() -> None:
    driver = one_node()
    night(driver, "unsaved", 4)
    night(driver, "saved", 4)
    driver.pass_ms(HOUR_MS)
    saved = JobCheckpointed(
        job_id="saved", attempt=1, node="n0", cluster=build.CLUSTER, time_ms=driver.now_ms, fraction=0.2
    )
    driver.give(saved)
    submit(driver, "now", 4, queue="urgent", priority=9)
    assert stopping(driver) == {"saved"}


def test_no_more_places_than_allowed_and_none_if_that_would_not_be_enough() -> None:
    driver = one_node()
    for number in range(4):
        night(driver, f"n{number}", 2)
    driver.pass_ms(HOUR_MS)
    submit(driver, "all", 8, queue="urgent", priority=9)
    assert stopping(driver) == set()
    submit(driver, "half", 4, queue="urgent", priority=9)
    assert len(stopping(driver)) == 2


def test_none_is_stopped_if_a_quota_keeps_the_job_waiting_all_the_same() -> None:
    driver = one_node(teams={"red": TeamRules(maximum={build.POOL: 2})})
    night(driver, "n8", 8)
    driver.pass_ms(HOUR_MS)
    submit(driver, "now", 8, queue="urgent", priority=9, team="red")
    assert stopping(driver) == set()


def test_the_block_is_free_for_all_when_the_job_is_cancelled_or_its_victims_never_leave() -> None:
    for withdraw in (True, False):
        driver = one_node()
        night(driver, "n8", 8)
        driver.pass_ms(HOUR_MS)
        submit(driver, "now", 8, queue="urgent", priority=9)
        if withdraw:
            driver.give(JobRevoked(job_id="now", cluster=build.CLUSTER, revoked_ms=driver.now_ms))
        else:
            driver.pass_ms(HOUR_MS).give()
        assert driver.state.preemptions == {}


def test_gpus_that_the_same_decision_gives_away_are_not_held_for_another() -> None:
    driver = one_node()
    night(driver, "n4", 4)
    driver.pass_ms(HOUR_MS)
    driver.give(
        build.accepted("now", 8, at_ms=driver.now_ms, queue="urgent", priority=9),
        build.accepted("small", 1, at_ms=driver.now_ms, priority=1),
        build.forecast("now", {8: 6 * 3600}),
        build.forecast("small", {1: 3600}),
    )
    placed = driver.job("small").parts
    assert placed, "there was room for it"
    assert stopping(driver) == set(), "the block would have had the small job on it"
    driver.give(build.completed("small", "n0", at_ms=driver.now_ms))
    assert stopping(driver) == {"n4"}


def test_a_held_block_that_the_rules_forbid_by_now_keeps_no_other_waiting() -> None:
    driver = one_node()
    for name in ("n0", "n1"):
        night(driver, name, 4)
    driver.pass_ms(HOUR_MS)
    submit(driver, "barred", 4, queue="urgent", priority=9, team="red")
    submit(driver, "free", 4, queue="urgent", priority=9, team="blue")
    assert stopping(driver) == {"n0", "n1"}
    queues = driver.state.rules.queues
    newer = Rules(version=2, queues=queues, teams={"red": TeamRules(running_max=0)})
    stops = [build.stopped(name, "n0", at_ms=driver.now_ms, cause=StopCause.PREEMPTED) for name in ("n0", "n1")]
    driver.give(ChangeRules(cluster=build.CLUSTER, rules=newer, ordered_ms=driver.now_ms), *stops)
    assert driver.job("free").parts
    assert not driver.job("barred").parts


def back_in_place(driver: Driver) -> None:
    """ "n8" loses its place to "now", whose team then may run nothing, gets the place again, and the team may run jobs again."""
    night(driver, "n8", 8)
    driver.pass_ms(HOUR_MS)
    submit(driver, "now", 8, queue="urgent", priority=9, team="red")
    assert stopping(driver) == {"n8"}
    driver.give(barring(driver, version=2, teams={"red": TeamRules(running_max=0)}))
    leave(driver, "n8")
    driver.pass_ms(HOUR_MS).give()  # the block was held for too long: it is free for all
    assert driver.job("n8").parts, "it is placed again"
    driver.give(build.started("n8", "n0", at_ms=driver.now_ms, attempt=2))
    driver.pass_ms(HOUR_MS).give(barring(driver, version=3))
    assert not driver.job("now").parts, "and the other waits, by no rule"
    assert driver.job("now").reason not in ("running_limit", "takes_a_place")


def barring(driver: Driver, version: int, **changed) -> ChangeRules:
    newer = Rules(version=version, queues=driver.state.rules.queues, **changed)
    return ChangeRules(cluster=build.CLUSTER, rules=newer, ordered_ms=driver.now_ms)


def test_nobody_loses_its_place_to_the_same_job_twice() -> None:
    driver = one_node()
    back_in_place(driver)
    for _ in range(3):
        driver.pass_ms(HOUR_MS).give()
        assert stopping(driver) == set()
        assert driver.job("n8").parts
    assert driver.job("n8").preempted_by == ["now"]


def test_but_one_after_the_other_may_take_it_each_after_its_time() -> None:
    """The same place, an hour later, for a job that never took it: three times a day unless the queue says otherwise."""
    driver = one_node()
    back_in_place(driver)
    submit(driver, "second", 8, queue="urgent", priority=10, team="green")
    assert stopping(driver) == {"n8"}
    leave(driver, "n8")
    assert driver.job("second").parts
    driver.give(build.started("second", "n0", at_ms=driver.now_ms))
    driver.give(build.completed("second", "n0", at_ms=driver.now_ms))
    assert driver.job("now").parts, "what waits and is worth more comes before the victim"
    driver.give(build.started("now", "n0", at_ms=driver.now_ms))
    driver.give(build.completed("now", "n0", at_ms=driver.now_ms))
    assert driver.job("n8").attempt == 3
    driver.give(build.started("n8", "n0", at_ms=driver.now_ms, attempt=3)).pass_ms(500_000)
    submit(driver, "third", 8, queue="urgent", priority=9)
    assert stopping(driver) == set(), "it has not run for its time"
    driver.pass_ms(200_000).give()
    assert stopping(driver) == {"n8"}
    first_ms, *_ = lost_ms = list(driver.job("n8").preempted_ms)
    assert driver.job("n8").preempted_by == ["now", "second", "third"]
    leave(driver, "n8")
    driver.give(build.started("third", "n0", at_ms=driver.now_ms))
    driver.give(build.completed("third", "n0", at_ms=driver.now_ms))
    driver.give(build.started("n8", "n0", at_ms=driver.now_ms, attempt=4)).pass_ms(HOUR_MS)
    submit(driver, "fourth", 8, queue="urgent", priority=9)
    assert stopping(driver) == set(), "it lost its place three times today"
    driver.give(saved_now(driver, "n8")).pass_ms(first_ms + 24 * HOUR_MS - driver.now_ms - 1).give()
    assert stopping(driver) == set()
    driver.give(saved_now(driver, "n8")).pass_ms(1).give()
    assert stopping(driver) == {"n8"}, "the first time is a day ago"
    assert driver.job("n8").preempted_ms == [*lost_ms, first_ms + 24 * HOUR_MS]


def saved_now(driver: Driver, job_id: str) -> JobCheckpointed:
    attempt, at_ms = driver.job(job_id).attempt, driver.now_ms
    return JobCheckpointed(
        job_id=job_id, attempt=attempt, node="n0", cluster=build.CLUSTER, time_ms=at_ms, fraction=0.1
    )


def test_whoever_took_its_place_by_rule_keeps_it_though_its_queue_becomes_one_that_gives() -> None:
    driver = one_node()
    night(driver, "n8", 8)
    driver.pass_ms(HOUR_MS)
    submit(driver, "now", 8, queue="urgent", priority=4, checkpoint=SAVES)
    leave(driver, "n8")
    driver.give(build.started("now", "n0", at_ms=driver.now_ms))
    turned = {"day": QueueRules(preempts=True, runtime_min_s=600.0), "urgent": QueueRules(preemptible=True)}
    newer = Rules(version=2, queues=turned)
    driver.give(ChangeRules(cluster=build.CLUSTER, rules=newer, ordered_ms=driver.now_ms)).pass_ms(HOUR_MS)
    submit(driver, "later", 8, queue="day", priority=9)
    assert driver.job("now").took_place
    assert stopping(driver) == set()


def test_a_guarantee_keeps_no_running_job_in_its_place() -> None:
    """A queue that is preemptible is so inside a guarantee, too; a borrower of higher priority may take the place."""
    driver = one_node(teams={"blue": TeamRules(guaranteed={build.POOL: 8})})
    night(driver, "n8", 8, team="blue")
    driver.pass_ms(HOUR_MS)
    submit(driver, "low", 8, queue="urgent", priority=2, team="red")
    assert stopping(driver) == set()
    submit(driver, "now", 8, queue="urgent", priority=9, team="red")
    assert stopping(driver) == {"n8"}
    leave(driver, "n8")
    assert driver.job("now").parts, "the block is held for it"
    assert not driver.job("n8").parts, "although the victim waits inside its guarantee again"


@pytest.mark.parametrize("guaranteed", [0, 8])
def test_what_counts_is_the_declared_priority_of_who_runs_and_the_whole_one_of_who_waits(guaranteed: int) -> None:
    driver = one_node(teams={"red": TeamRules(guaranteed={build.POOL: guaranteed})})
    night(driver, "n8", 8, priority=9)
    driver.pass_ms(HOUR_MS)
    submit(driver, "now", 8, queue="urgent", priority=9, team="red")
    assert stopping(driver) == ({"n8"} if guaranteed else set()), "200 more inside a guarantee"
    driver.pass_ms(2 * HOUR_MS).give()
    assert stopping(driver) == {"n8"}, "or a little more by aging"


def test_every_victim_is_by_rule_and_every_preemption_ends() -> None:
    """Random arrivals, ends and time; the driver checks the log's readers and the independent check after every decision."""
    lost = sum(_random_history(Random(seed)) for seed in range(6))
    assert lost > 6


def _random_history(dice: Random) -> int:
    """How many places were lost."""
    driver, lost = one_node(), set()
    for number in range(50):
        driver.pass_ms(dice.randrange(30 * 60_000))
        for job in list(driver.state.jobs.values()):
            if job.parts and job.started_ms is None:
                driver.give(build.started(job.job_id, "n0", at_ms=driver.now_ms, attempt=job.attempt))
            elif job.stop_cause and dice.random() < 0.7:
                leave(driver, job.job_id)
            elif job.parts and dice.random() < (0.5 if job.spec.queue == "day" else 0.1):
                driver.give(build.completed(job.job_id, "n0", at_ms=driver.now_ms, attempt=job.attempt))
        queue = dice.choice(["urgent", "night", "night", "night", "day"])
        priority = {"urgent": 9, "night": 2, "day": 5}[queue]
        mode = SAVES if dice.random() < 0.8 else CheckpointPolicy()
        submit(driver, f"j{number}", dice.choice([1, 2, 4, 8]), queue=queue, priority=priority, checkpoint=mode)
        for preemptor, held in driver.state.preemptions.items():
            for victim in held.victims:
                job = driver.state.jobs.get(victim)
                if job is not None:
                    assert job.spec.queue == "night"
                    assert job.spec.checkpoint.mode is not CheckpointMode.NONE
                    assert job.preempted_by.count(preemptor) == 1
                lost.add((preemptor, victim))
    driver.pass_ms(10 * HOUR_MS).give()
    assert driver.state.preemptions == {}
    return len(lost)


def test_one_decision_stops_no_more_jobs_for_a_queue_than_allowed_however_many_pools_it_plans() -> None:
    driver = Driver().give(node_of(FAST, "f0"), node_of(SLOW, "s0"))
    queues = {
        "urgent": QueueRules(preempts=True, runtime_min_s=600.0, victims_max=1),
        "night": QueueRules(preemptible=True),
    }
    driver.give(ChangeRules(cluster=build.CLUSTER, rules=Rules(version=1, queues=queues), ordered_ms=build.START_MS))
    for job_id, pool, node in (("nf", FAST, "f0"), ("ns", SLOW, "s0")):
        driver.give(
            accepted(job_id, 2, pools=(pool,), queue="night", checkpoint=SAVES, priority=3),
            build.forecast(job_id, {2: 6 * 3600}),
        )
        driver.give(build.started(job_id, node, at_ms=driver.now_ms))
    driver.pass_ms(HOUR_MS)
    urgent = [
        accepted(f"u{pool}", 2, pools=(pool,), at_ms=driver.now_ms, queue="urgent", priority=9) for pool in (FAST, SLOW)
    ]
    driver.give(*urgent, *[build.forecast(job.job_id, {2: 3600}) for job in urgent])
    assert stopping(driver) == {"nf"}
    driver.give(build.stopped("nf", "f0", at_ms=driver.now_ms, cause=StopCause.PREEMPTED))
    driver.give()
    assert stopping(driver) == {"ns"}
