"""Full mode's answers as advice: named and in domain time, rebased on later problems, followed only where legal and better."""

from __future__ import annotations

from random import Random

import msgspec
import numpy as np
import pytest

from schemas.codec import encode_payload
from schemas.decisions import DecisionMade, PlanImproved, PlannedBlock, PlannedHold
from schemas.jobs import JobRevoked
from schemas.nodes import Health
from schemas.records import Now
from services.allocator.core.advice import Question, better_plan, improved, is_stale, known_of, question_of
from services.allocator.core.decide import replay
from services.allocator.core.heuristic import plan_fast
from services.allocator.core.pose import pose
from services.allocator.core.snapshot import restore, take
from services.allocator.core.state import State
from services.allocator.core.verify import verify_plan
from tests import build
from tests.allocator_driver import SETTINGS, Driver

STEP_MS = SETTINGS.policy.step_ms
WEAK = msgspec.structs.replace(SETTINGS, policy=msgspec.structs.replace(SETTINGS.policy, iterations=0))
SEARCH = 60  # candidate grids: enough to beat none at all


def busy(settings=SETTINGS, jobs: int = 16, seed: int = 1) -> Driver:
    """Two nodes, an application, and far more work than fits now."""
    driver, dice, events = Driver(settings), Random(seed), []
    for number in range(jobs):
        sizes = sorted({dice.choice([1, 2, 4, 8]), dice.choice([1, 2, 4])})
        hours = dice.randint(1, 9)
        events.append(build.accepted(f"j{number:02}", *sizes, priority=dice.randint(1, 9)))
        events.append(build.forecast(f"j{number:02}", {size: 3600.0 * hours / size for size in sizes}))
    nodes = [build.node("n00", gpus=4), build.node("n01", order=1, gpus=4)]
    return driver.give(*nodes, build.application("chat", floor=2, peak=4), *events)


def ask(driver: Driver) -> Question:
    now = Now(driver.now_ms, driver.wall_ms)
    question = question_of(driver.state, build.POOL, 81_920, driver.settings.policy, now)
    assert question is not None
    return question


def answer(driver: Driver, iterations: int = SEARCH) -> PlanImproved:
    """What a long search finds, as full mode's answer."""
    question = ask(driver)
    plan = plan_fast(question.posed.problem, iterations)
    return improved(question, plan, 0.01, None, driver.settings.policy)


def known_at(driver: Driver, event: PlanImproved, later_ms: int):
    policy, now = driver.settings.policy, Now(driver.now_ms + later_ms, driver.wall_ms + later_ms)
    posed = pose(driver.state, build.POOL, 81_920, policy, now, frozenset())
    return posed, *known_of(event, posed, policy, now)


def test_what_was_planned_is_known_again_at_the_same_moment() -> None:
    driver = busy()
    question = ask(driver)
    plan = plan_fast(question.posed.problem, 50)
    _, kept, segments = known_at(driver, improved(question, plan, 0.0, None, driver.settings.policy), 0)
    placed = plan.start >= 0
    assert kept[:, 0].tolist() == plan.start.tolist()
    assert kept[placed, 1].tolist() == plan.first_gpu[placed].tolist()
    assert kept[placed, 2].tolist() == plan.option[placed].tolist()
    assert sorted(map(tuple, segments.tolist())) == sorted(map(tuple, plan.segments.tolist()))


@pytest.mark.parametrize(("later_ms", "shift"), [(1, 0), (STEP_MS - 1, 0), (STEP_MS, 1), (3 * STEP_MS + 5, 3)])
def test_planned_moments_come_nearer_step_by_step(later_ms: int, shift: int) -> None:
    driver = busy()
    event = answer(driver, 50)
    _, before, _ = known_at(driver, event, 0)
    _, after, _ = known_at(driver, event, later_ms)
    placed = before[:, 0] >= 0
    assert after[placed, 0].tolist() == np.maximum(0, before[placed, 0] - shift).tolist()


def test_what_is_no_more_is_left_out() -> None:
    driver = busy()
    event = answer(driver, 50)
    gone = next(block.job_id for block in event.blocks if block.node == "n00")
    driver.give(JobRevoked(job_id=gone, cluster="c0", revoked_ms=driver.now_ms))
    blocks = [*event.blocks, PlannedBlock(job_id="j00", gpus=2, node="n07", gpu=0, start_ms=driver.now_ms)]
    blocks.append(PlannedBlock(job_id=blocks[0].job_id, gpus=64, node="n00", gpu=0, start_ms=driver.now_ms))
    posed, kept, _ = known_at(driver, msgspec.structs.replace(event, blocks=blocks), 0)
    assert gone not in posed.problem.job_ids
    assert (kept[:, 0] >= 0).any()


def test_a_better_plan_is_followed_and_the_decision_replays_to_the_same_bytes() -> None:
    driver = busy(WEAK)
    event = answer(driver)
    before = [decision_state(driver)]
    driver.take(event)
    driver.pass_ms(60_000)
    before.append(decision_state(driver))
    decided = driver.give(build.accepted("late", 1), build.forecast("late", {1: 900.0})).decided
    assert decided.plans[0].mode == "followed"
    assert decided.plans[0].value > plan_fast(decided.posed[0].problem, 0).value
    assert verify_plan(decided.posed[0].problem, decided.plans[0]) == []
    for state, record in zip(before, driver.log[-2:], strict=True):
        written = msgspec.json.decode(encode_payload(record), type=DecisionMade)
        assert encode_payload(replay(state, written, WEAK)) == encode_payload(record)


def decision_state(driver: Driver) -> State:
    """The state as a snapshot brings it back: advice outlives a takeover."""
    chunks, manifest = take(driver.state, "a", 0)
    state = restore(manifest, {chunk.index: chunk for chunk in chunks})
    assert state is not None
    return state


@pytest.mark.parametrize("seed", range(9))
def test_no_advice_however_wrong_leads_to_an_illegal_or_a_worse_plan(seed: int) -> None:
    driver, dice = busy(seed=seed), Random(seed)
    node = dice.choice(["n00", "n01"])
    if seed % 3 == 0:
        driver.give(build.node(node, order=int(node == "n01"), gpus=4, health=Health.SUSPECT))
    policy, now = driver.settings.policy, Now(driver.now_ms, driver.wall_ms)
    posed = pose(driver.state, build.POOL, 81_920, policy, now, frozenset())

    def moment() -> int:
        return driver.now_ms + dice.randint(-3, 26) * STEP_MS + dice.randint(-9, 9)

    blocks = [
        PlannedBlock(
            job_id=name, gpus=dice.choice([1, 2, 4, 8, 16]), node=dice.choice(["n00", "n01", "n02"]),
            gpu=dice.randint(0, 9), start_ms=moment(),
        )
        for name in dice.sample(posed.problem.job_ids, len(posed.problem.job_ids) // 2)
    ]  # fmt: skip
    holds = [
        PlannedHold(app_id="chat", node="n01", gpu=dice.randint(0, 9), from_ms=moment(), until_ms=moment())
        for _ in range(dice.randint(0, 4))
    ]
    event = PlanImproved(
        cluster="c0", pool=build.POOL, sequence=1, asked_ms=driver.now_ms, until_ms=driver.now_ms + 24 * STEP_MS,
        blocks=blocks, holds=holds,
    )  # fmt: skip
    plan = plan_fast(posed.problem, 4)
    found = better_plan(posed, event, plan, policy, now, 8)
    assert found.value >= plan.value
    assert verify_plan(posed.problem, found) == []


def test_stale_answers_are_recognised() -> None:
    driver = busy()
    event = answer(driver, 50)
    now_ms = driver.now_ms
    assert not is_stale(event, driver.state, now_ms)
    assert is_stale(event, driver.state, now_ms + 7 * 3600 * 1000), "a quarter of its day is over"
    newer = msgspec.structs.replace(event, sequence=event.sequence + 1)
    driver.take(newer)
    assert is_stale(event, driver.state, now_ms), "a newer answer is known"
    assert is_stale(msgspec.structs.replace(newer, sequence=99, blocks=[]), driver.state, now_ms), "nobody waits"


def test_advice_is_forgotten_with_time() -> None:
    driver = busy()
    driver.take(answer(driver, 50))
    assert driver.state.advice
    driver.pass_ms(7 * 3600 * 1000).give()
    assert not driver.state.advice


def test_nothing_is_asked_where_there_is_nothing_to_find() -> None:
    driver = busy(jobs=1)
    now = Now(driver.now_ms, driver.wall_ms)
    assert question_of(driver.state, build.POOL, 81_920, driver.settings.policy, now) is None
    assert question_of(driver.state, "elsewhere", 0, driver.settings.policy, now) is None
