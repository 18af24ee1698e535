"""The commit check finds every breach of the rules of a shared cluster: maxima, numbers of jobs, places taken, blocks held."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from schemas.commands import ChangeRules, DrainNode, ReserveBlock
from schemas.decisions import Effect, Placed, Preempted, Scaled
from schemas.jobs import CheckpointMode, CheckpointPolicy
from schemas.records import Now
from schemas.rules import Aging, Limits, QueueRules, Rules, TeamRules
from schemas.status import NodeGpus
from services.allocator.core.state import Preemption
from services.allocator.core.verify_commit import verify_commit
from tests import build
from tests.allocator_driver import SETTINGS, Driver

HOUR_MS = 3_600_000
SAVES = CheckpointPolicy(mode=CheckpointMode.SIGNAL, wait_s=60.0, cost_s=30.0)
QUEUES = {
    "urgent": QueueRules(preempts=True, runtime_min_s=600.0, victims_max=2),
    "night": QueueRules(preemptible=True),
}


def change(driver: Driver, **rules) -> None:
    document = Rules(version=driver.state.rules.version + 1, **rules)
    driver.give(ChangeRules(cluster=build.CLUSTER, rules=document, ordered_ms=driver.now_ms))


def found(driver: Driver, *effects: Effect) -> list[str]:
    return verify_commit(driver.state, list(effects), SETTINGS.policy, Now(driver.now_ms, driver.wall_ms))


def on(node: str, first: int, gpus: int) -> list[NodeGpus]:
    return [NodeGpus(node=node, gpus=list(range(first, first + gpus)))]


def start(job_id: str, first: int, gpus: int, node: str = "n1") -> Placed:
    return Placed(
        job_id=job_id, attempt=1, pool=build.POOL, gpus=gpus, placed=on(node, first, gpus), p50_s=60.0, p90_s=90.0
    )


# --- maxima and numbers of jobs


def two_start() -> Driver:
    """`runs` holds half of n0; `x` and `y`, of the same team, user and queue, wait for their forecasts."""
    driver = Driver().give(build.node("n0"), build.node("n1", order=1))
    driver.give(build.accepted("runs", 4), build.forecast("runs", {4: 3600}))
    assert driver.job("runs").parts
    return driver.give(build.accepted("x", 2), build.accepted("y", 2))


SIX, FIVE = Limits(maximum={build.POOL: 6}), Limits(maximum={build.POOL: 5})
OVER: dict[str, tuple[dict[str, object], str]] = {
    "organisation": ({"organisation": SIX}, "the organisation would hold 8 GPUs of h100, 6 allowed"),
    "team": ({"teams": {"blue": TeamRules(maximum={build.POOL: 7})}}, "team blue would hold 8 GPUs of h100, 7 allowed"),
    "each team": ({"each_team": TeamRules(maximum={build.POOL: 4})}, "team blue would hold 8 GPUs of h100, 4 allowed"),
    "a team that doesn't borrow": (
        {"teams": {"blue": TeamRules(guaranteed={build.POOL: 4}, borrows=False)}},
        "team blue would hold 8 GPUs of h100, 4 allowed",
    ),
    "user": (
        {"teams": {"blue": TeamRules(users={"ann": FIVE})}},
        "user blue/ann would hold 8 GPUs of h100, 5 allowed",
    ),
    "each user": ({"each_team": TeamRules(each_user=FIVE)}, "user blue/ann would hold 8 GPUs of h100, 5 allowed"),
    "running jobs of the organisation": ({"organisation": Limits(running_max=2)}, "the organisation would run 3 jobs"),
    "running jobs of a team": ({"teams": {"blue": TeamRules(running_max=1)}}, "team blue would run 3 jobs, 1 allowed"),
    "running jobs of a user": (
        {"each_team": TeamRules(each_user=Limits(running_max=2))},
        "user blue/ann would run 3 jobs, 2 allowed",
    ),
}


@pytest.mark.parametrize("case", sorted(OVER))
def test_starts_take_a_group_above_what_it_may_hold_or_run(case: str) -> None:
    rules, sentence = OVER[case]
    driver, both = two_start(), (start("x", 0, 2), start("y", 2, 2))
    assert found(driver, *both) == []
    change(driver, **rules)
    assert any(sentence in said for said in found(driver, *both)), found(driver, *both)


def test_a_queues_maximum_counts_its_own_jobs_alone() -> None:
    driver = two_start()
    queue = driver.job("x").spec.queue
    change(driver, queues={queue: QueueRules(maximum={build.POOL: 7}), "other": QueueRules(running_max=0)})
    assert found(driver, start("x", 0, 2), start("y", 2, 2)) == [f"queue {queue} would hold 8 GPUs of h100, 7 allowed"]
    assert found(driver, start("x", 0, 2)) == []


def test_a_group_above_a_lowered_maximum_is_no_fault_of_those_who_start_elsewhere() -> None:
    driver = two_start()
    driver.give(build.accepted("red", 1, team="red", user="bob"))
    change(driver, teams={"blue": TeamRules(maximum={build.POOL: 1}, running_max=0)})
    assert found(driver, start("red", 4, 1)) == []
    assert len(found(driver, start("x", 0, 2))) == 2


# --- places taken


def night_runs() -> Driver:
    """Two jobs of queue `night` fill n0 for an hour already, a third a part of n1; `now` waits for its forecast."""
    driver = Driver().give(build.node("n0"), build.node("n1", order=1))
    change(driver, queues=QUEUES)
    for job_id, size in (("a", 4), ("b", 4), ("c", 2)):
        driver.give(build.accepted(job_id, size, queue="night", checkpoint=SAVES, priority=3))
        driver.give(build.forecast(job_id, {size: 6 * 3600}))
        driver.give(build.started(job_id, driver.job(job_id).parts[0].node, at_ms=driver.now_ms))
    assert [driver.job(job_id).parts[0].node for job_id in "abc"] == ["n0", "n0", "n1"]
    driver.pass_ms(HOUR_MS)
    return driver.give(build.accepted("now", 8, at_ms=driver.now_ms, queue="urgent", priority=9))


def taken(driver: Driver, *victims: str, node: str = "n0", job_id: str = "now") -> Preempted:
    return Preempted(
        job_id=job_id,
        pool=build.POOL,
        placed=on(node, 0, 8),
        victims=list(victims),
        until_ms=driver.now_ms + 960_000,
        wait_saved_s=5 * 3600.0,
        at_stake_gpu_s=8 * 3630.0,
    )


def _respecified(driver: Driver, job_id: str, **changed: object) -> None:
    job = driver.job(job_id)
    job.spec = replace(job.spec, **changed)


def _plain_job_takes(driver: Driver) -> Preempted:
    driver.give(build.accepted("plain", 8, at_ms=driver.now_ms, priority=9))
    return taken(driver, "a", "b", job_id="plain")


def _job_that_runs_takes(driver: Driver) -> Preempted:
    return taken(driver, "b", job_id="a")


def _changed(job_id: str, **changed: object) -> Callable[[Driver], Preempted]:
    def make(driver: Driver) -> Preempted:
        _respecified(driver, job_id, **changed)
        return taken(driver, "a", "b")

    return make


def _of_state(job_id: str, **changed: object) -> Callable[[Driver], Preempted]:
    def make(driver: Driver) -> Preempted:
        for name, value in changed.items():
            setattr(driver.job(job_id), name, value)
        return taken(driver, "a", "b")

    return make


def _only_just_started(driver: Driver) -> Preempted:
    driver.job("b").started_ms = driver.now_ms - 599_000
    return taken(driver, "a", "b")


def _others_are_leaving(driver: Driver) -> Preempted:
    driver.give(build.accepted("first", 2, at_ms=driver.now_ms, queue="urgent", priority=9))
    driver.job("c").stop_cause = "preempted"
    driver.state.preemptions["first"] = Preemption(build.POOL, _block_of(driver, "c"), ["c"], driver.now_ms + 960_000)
    return taken(driver, "a", "b")


def _block_of(driver: Driver, job_id: str) -> list[NodeGpus]:
    return [NodeGpus(node=part.node, gpus=list(part.gpus)) for part in driver.job(job_id).parts]


def _drained(driver: Driver) -> Preempted:
    driver.give(DrainNode(node="n0", cluster=build.CLUSTER, ordered_ms=driver.now_ms, deadline_s=86_400.0))
    return taken(driver, "a", "b")


def _reserved(driver: Driver) -> Preempted:
    window = {"from_ms": driver.now_ms, "until_ms": driver.now_ms + HOUR_MS, "ordered_ms": driver.now_ms}
    driver.give(ReserveBlock(reservation_id="r", cluster=build.CLUSTER, node="n0", gpus=[5], **window))
    return taken(driver, "a", "b")


BREACHES: dict[str, tuple[Callable[[Driver], Preempted], str]] = {
    "a queue that may not": (_plain_job_takes, "plain may not take a place"),
    "a job that holds GPUs": (_job_that_runs_takes, "a may not take a place"),
    "a job nobody knows": (lambda d: taken(d, "a", job_id="ghost"), "ghost may not take a place"),
    "more than allowed": (lambda d: taken(d, "a", "b", "c"), "now takes 3 places, 2 allowed"),
    "more than allowed beside those who leave": (_others_are_leaving, "now takes 2 places beside 1, 2 allowed"),
    "from a queue that keeps its places": (_changed("b", queue="day"), "b may not lose its place to now"),
    "from one that doesn't run yet": (_of_state("b", started_ms=None), "b may not lose its place to now"),
    "from one nobody knows": (lambda d: taken(d, "a", "ghost"), "ghost may not lose its place to now"),
    "from one that can't save": (_changed("b", checkpoint=CheckpointPolicy()), "b can't save its work"),
    "from the same one twice": (_of_state("b", preempted_by=["now"]), "lost its place to now before"),
    "too early": (_only_just_started, "b has not run for 600 s yet"),
    "too often": (_of_state("b", preempted_ms=[build.START_MS + 1] * 3), "b has lost its place 3 times in 86400 s"),
    "from one that took its place itself": (_of_state("b", took_place=True), "b took its place by rule itself"),
    "for less than it costs": (
        lambda d: replace(taken(d, "a", "b"), wait_saved_s=9.0), "for less waiting than saving the work costs"
    ),
    "telling less than is at stake": (
        lambda d: replace(taken(d, "a", "b"), at_stake_gpu_s=7 * 3630.0),
        "tells 25410 GPU-seconds at stake instead of 29040",
    ),
    "saving more than can be planned": (
        lambda d: replace(taken(d, "a", "b"), wait_saved_s=90_000.0), "can't save 90000 s of waiting"
    ),
    "from an equal": (_changed("b", priority=9), "b is not of lower priority than now"),
    "from one of higher priority": (_changed("b", priority=50), "b is not of lower priority than now"),
    "from one that holds nothing there": (lambda d: taken(d, "a", "c"), "c holds nothing of the block taken for now"),
    "where one stays that nobody stops": (lambda d: taken(d, "a"), "held by b, which nobody stops"),
    "on a node that is drained": (_drained, "now takes ('n0', 0), which takes nothing new"),
    "on a reserved block": (_reserved, "now takes ('n0', 5), which is reserved"),
}  # fmt: skip


def test_a_place_taken_by_rule_passes() -> None:
    driver = night_runs()
    assert found(driver, taken(driver, "a", "b")) == []


@pytest.mark.parametrize("case", sorted(BREACHES))
def test_a_place_taken_against_the_rules(case: str) -> None:
    make, sentence = BREACHES[case]
    driver = night_runs()
    effect = make(driver)
    assert any(sentence in said for said in found(driver, effect)), found(driver, effect)


@pytest.mark.parametrize(
    ("rules", "changed", "waits_hours"),
    [
        ({}, {}, 5.0),  # five hours of waiting: a little more than an equal
        ({"aging": Aging(overdue_s=3600.0)}, {}, 2.0),
        ({"teams": {"blue": TeamRules(guaranteed={build.POOL: 8})}}, {}, 0.0),
        ({"fair_share": 1.0}, {}, 0.0),
        ({}, {"deadline_ms": build.START_MS + 2 * HOUR_MS}, 0.0),
        ({}, {"restores": True}, 0.0),
    ],
)
def test_an_equal_may_be_pushed_out_where_all_that_counts_in_the_order_makes_it_less(
    rules: dict[str, object], changed: dict[str, object], waits_hours: float
) -> None:
    driver = night_runs()
    change(driver, queues=QUEUES, **rules)
    _respecified(driver, "b", priority=9)
    job = driver.job("now")
    if "deadline_ms" in changed:
        _respecified(driver, "now", **changed)
    job.restores = bool(changed.get("restores", job.restores))
    job.submitted_ms = driver.now_ms - int(waits_hours * HOUR_MS)
    assert found(driver, taken(driver, "a", "b")) == []


def test_places_taken_in_several_pools_by_one_decision_count_together() -> None:
    driver = night_runs()
    driver.give(build.accepted("too", 2, at_ms=driver.now_ms, queue="urgent", priority=9))
    other = replace(taken(driver, "c", job_id="too"), placed=on("n1", 0, 2))
    assert "too takes 1 places beside 2, 2 allowed" in found(driver, taken(driver, "a", "b"), other)


# --- blocks held


def test_a_block_that_is_being_left_goes_to_nobody_else() -> None:
    driver = night_runs()
    driver.give(build.application("chat", floor=1, peak=2))
    driver.give(build.accepted("thief", 2, at_ms=driver.now_ms))
    block = on("n1", 4, 4)
    driver.state.preemptions["now"] = Preemption(build.POOL, block, ["c"], driver.now_ms + 960_000)
    sentence = "gets [('n1', 6), ('n1', 7)], held for now"
    assert f"thief {sentence}" in found(driver, start("thief", 6, 2))
    chat = Scaled(app_id="chat", pool=build.POOL, placed=on("n1", 6, 2), switched=2)
    assert f"chat {sentence}" in found(driver, chat)
    driver.pass_ms(960_000)
    assert not any("held for" in said for said in found(driver, start("thief", 6, 2)))


def test_nor_in_the_decision_that_takes_it() -> None:
    driver = night_runs()
    driver.give(build.accepted("thief", 2, at_ms=driver.now_ms))
    effects = taken(driver, "c", node="n1"), start("thief", 6, 2)
    assert "thief gets [('n1', 6), ('n1', 7)], held for now" in found(driver, *effects)


def test_the_job_it_is_held_for_starts_on_it_though_a_window_has_come_nearer_but_not_inside_one() -> None:
    """Its plan fitted before the window when the others were told to leave; they took their time."""
    driver = night_runs()
    driver.give(build.accepted("soon", 2, at_ms=driver.now_ms, queue="urgent", priority=9))
    window = {"from_ms": driver.now_ms + 60_000, "until_ms": driver.now_ms + HOUR_MS, "ordered_ms": driver.now_ms}
    driver.give(ReserveBlock(reservation_id="r", cluster=build.CLUSTER, node="n1", **window))
    assert "soon on ('n1', 6), which is reserved" in found(driver, start("soon", 6, 2))
    driver.state.preemptions["soon"] = Preemption(build.POOL, on("n1", 6, 2), ["c"], driver.now_ms + 960_000)
    assert found(driver, start("soon", 6, 2)) == []
    driver.pass_ms(60_000)
    assert "soon on ('n1', 6), which is reserved" in found(driver, start("soon", 6, 2))
