"""The diagnosis: the first question with numbers, then each classic case by the facts that make it."""

from __future__ import annotations

import pytest

from schemas.nodes import Finding, FindingCode, Health
from services.console.diagnosis import CASES, Facts, Waiting, diagnose, diagnose_world, facts_of
from services.console.facts import World
from services.console.shape import NodeShape, PoolShape
from tests import build

HOUR = 3600.0


def pool(*free: int, gpus: int = 8) -> PoolShape:
    """Nodes of 8 with so many free GPUs each, at the end of the node."""
    return PoolShape(
        "h100", tuple(NodeShape(f"n{i}", gpus, tuple(range(gpus - n, gpus)), True) for i, n in enumerate(free))
    )


def waits(*sizes: int, waited_s: float = 600.0, reason: str = "", overtaken: int = 0, name: str = "j") -> Waiting:
    return Waiting(name, sizes, waited_s, reason, overtaken)


def facts(shape: PoolShape, *waiting: Waiting, **changed) -> Facts:
    return Facts(shape, waiting, **({"held": shape.gpus - shape.free} | changed))


def test_the_first_answer_is_the_documents_own_example():
    found = diagnose(facts(pool(2, 3, 8, 7), waits(16)))
    assert found.headline == "Fragmentation, not a shortage: 20 GPUs free, schedulability 1"
    assert found.numbers["free"] == 20
    assert found.numbers["schedulability"] == 1


SCATTERED = pool(*[1] * 8)
TABLE = {
    "nodes_missing": facts(PoolShape("h100", ()), waits(1)),
    "training_is_slow": facts(pool(0, 0), held=16, slow=("a", "b", "c", "d")),
    "nothing_waits": facts(pool(4, 8)),
    "impossible_sizes": facts(pool(8, 8), waits(64)),
    "nodes_unusable": facts(pool(0, 0, 0, 0), waits(2), unusable=8),
    "big_jobs_wait_for_whole_nodes": facts(SCATTERED, waits(8), held=56),
    "queueing_at_low_utilization": facts(pool(*[3] * 8), waits(4, waited_s=3 * HOUR), held=40),
    "free_cards_but_jobs_queue": facts(SCATTERED, waits(2), held=56),
    "small_jobs_crowd_out_big_ones": facts(pool(0, 0), waits(4, waited_s=2 * HOUR, overtaken=9)),
    "lent_to_applications": facts(pool(4, 4), waits(2, reason="application_return")),
    "total_shortage": facts(pool(0, 1), *[waits(1, name=f"j{n}") for n in range(5)]),
    "starts_soon": facts(pool(8, 8), waits(2)),
}


@pytest.mark.parametrize("name", TABLE)
def test_each_case_is_named_with_numbers_and_advice(name: str):
    found = diagnose(TABLE[name])
    assert found.case == name
    assert found.sentence.endswith(".")
    assert found.would_help or name == "nothing_waits"


def test_every_case_of_the_table_is_tried_here():
    assert [case.name for case in CASES] == list(TABLE)


@pytest.mark.parametrize(
    ("shape", "sizes", "cause"),
    [
        (pool(0, 0), (1,), "shortage"),
        (pool(1, 1), (2,), "fragmentation"),
        (pool(8, 0), (8,), "neither"),
        (pool(8, 8), (3,), "neither"),
    ],
)
def test_the_cause_of_one_waiting_job(shape: PoolShape, sizes: tuple[int, ...], cause: str):
    assert diagnose(facts(shape, waits(*sizes))).cause == cause


def test_jobs_that_fit_alone_but_not_together_lack_gpus():
    assert diagnose(facts(pool(0, 1), *[waits(1, name=f"j{n}") for n in range(9)])).cause == "shortage"


def world(*nodes, jobs=()) -> World:
    made = World()
    for one in nodes:
        made.nodes[one.node] = one
    for one in jobs:
        made.jobs[one.job_id] = one
    return made


def test_facts_come_from_the_topics():
    bad = build.node("n01", order=1, health=Health.SUSPECT)
    slow = Finding(code=FindingCode.SLOW_JOB, gpu=0, job_id="slow")
    found = facts_of(world(build.node("n00", unhealthy=(7,), findings=[slow]), bad), "h100", build.START_MS)
    assert (found.unusable, found.slow, found.shape.free) == (9, ("slow",), 7)


def test_without_nodes_there_is_one_answer_that_says_so():
    (found,) = diagnose_world(World(), build.START_MS)
    assert found.case == "nodes_missing"
