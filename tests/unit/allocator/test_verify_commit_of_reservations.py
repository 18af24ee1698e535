"""The commit check keeps reserved GPUs free by a reading of its own: nothing new on them, nor what is expected to be there still."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from schemas.commands import ReleaseBlock, ReserveBlock
from schemas.decisions import Placed, Scaled
from schemas.records import Now
from schemas.status import NodeGpus
from services.allocator.core.fold import fold
from services.allocator.core.state import Changes
from services.allocator.core.verify_commit import verify_commit
from tests import build
from tests.allocator_driver import SETTINGS, Driver

HOUR_MS = 3_600_000
"""One step of the driver's grid, of which there are 24."""


def reserve(from_hours: float, until_hours: float, *gpus: int, node: str = "n0", name: str = "r") -> ReserveBlock:
    return ReserveBlock(
        reservation_id=name,
        cluster=build.CLUSTER,
        node=node,
        from_ms=build.START_MS + int(from_hours * HOUR_MS),
        until_ms=build.START_MS + int(until_hours * HOUR_MS),
        ordered_ms=build.START_MS,
        gpus=list(gpus),
    )


def release(name: str = "r") -> ReleaseBlock:
    return ReleaseBlock(reservation_id=name, cluster=build.CLUSTER, ordered_ms=build.START_MS)


def waiting(*orders: ReserveBlock | ReleaseBlock) -> Driver:
    """A node of four GPUs with these orders; `j` waits for its forecast."""
    driver = Driver().give(build.node("n0", gpus=4))
    for order in orders:
        driver.give(order)
    return driver.give(build.accepted("j", 2))


def start(*gpus: int, hours: float = 0.5, p90_hours: float | None = None, staging_hours: float = 0.0) -> Placed:
    """`j` starts on these GPUs of the node, for so long beside what its data takes to arrive."""
    return Placed(
        job_id="j",
        attempt=1,
        pool=build.POOL,
        gpus=len(gpus),
        placed=[NodeGpus(node="n0", gpus=list(gpus))],
        p50_s=(hours + staging_hours) * 3600,
        p90_s=((hours if p90_hours is None else p90_hours) + staging_hours) * 3600,
        staging_s=staging_hours * 3600,
    )


def found(driver: Driver, *effects: Placed | Scaled) -> list[str]:
    return verify_commit(driver.state, list(effects), SETTINGS.policy, Now(driver.now_ms, driver.wall_ms))


REFUSED = {
    "the whole node, now": (reserve(0, 2), start(0, 1)),
    "one of its GPUs": (reserve(0, 2, 1), start(0, 1)),
    "within the step that begins now": (reserve(0.9, 2), start(0, 1)),
    "before the job is expected to have left": (reserve(1.5, 2), start(0, 1, hours=2)),
    "in the second of the steps that the job holds": (reserve(1.9, 3), start(0, 1, hours=1, p90_hours=3)),
    "after the data has come, not before": (reserve(1.9, 3), start(0, 1, hours=1.2, staging_hours=5)),
}
LEGAL = {
    "the other GPUs": (reserve(0, 2, 2, 3), start(0, 1)),
    "another node": (reserve(0, 2, node="n7"), start(0, 1)),
    "just after the job's steps": (reserve(1, 2), start(0, 1, hours=1)),
    "after its P70, before its P90": (reserve(2, 3), start(0, 1, hours=1, p90_hours=3)),
    "while the data that it waits for would be there": (reserve(2, 3), start(0, 1, hours=1, staging_hours=5)),
    "beyond the grid": (reserve(24, 30), start(0, 1, hours=40)),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_a_start_meets_a_reservation(case: str) -> None:
    order, effect = REFUSED[case]
    assert any("which is reserved" in sentence for sentence in found(waiting(order), effect))
    assert found(waiting(), effect) == []
    assert found(waiting(order, release()), effect) == []


@pytest.mark.parametrize("case", sorted(LEGAL))
def test_a_start_beside_a_reservation_is_legal(case: str) -> None:
    order, effect = LEGAL[case]
    assert found(waiting(order), effect) == []


def test_a_window_that_is_over_keeps_nobody_away() -> None:
    driver = waiting(reserve(0, 2))
    driver.pass_ms(2 * HOUR_MS)
    assert found(driver, start(0, 1)) == []


def test_an_application_gains_nothing_that_is_reserved() -> None:
    driver = Driver().give(build.node("n0", gpus=4), reserve(0.5, 2, 3))
    driver.give(build.application("chat", floor=1, peak=4))
    held = [gpu for part in driver.state.apps["chat"].parts for gpu in part.gpus]
    assert held
    assert 3 not in held
    wanted = sorted({*held, 3})
    gains = Scaled(app_id="chat", pool=build.POOL, placed=[NodeGpus(node="n0", gpus=wanted)], switched=1)
    assert found(driver, gains) == ["chat gains ('n0', 3), which is reserved"]


def test_a_lowered_switch_cap_does_not_keep_an_application_on_what_is_taken_away() -> None:
    """It switched more in this step than it may from now on; to lose GPUs is no switch."""
    driver = Driver().give(build.node("n0", gpus=4)).give(build.application("chat", floor=1, peak=4))
    app = driver.state.apps["chat"]
    app.spec = msgspec.structs.replace(app.spec, switch_max=1)
    app.bucket, app.switched = driver.now_ms // HOUR_MS, 2
    fold(driver.state, reserve(0, 2), "", Now(driver.now_ms, driver.wall_ms), Changes())
    gone = Scaled(app_id="chat", pool=build.POOL, placed=[], switched=0)
    assert found(driver, gone) == []
    gains = Scaled(app_id="chat", pool=build.POOL, placed=[NodeGpus(node="n7", gpus=[0])], switched=1)
    assert "chat: 2 + 1 switches in a step, 1 allowed" in found(driver, gains)


def started_inside(driver: Driver, windows: list[ReserveBlock]) -> list[str]:
    """Jobs that the last decision starts on GPUs that are reserved at its moment."""
    record = driver.decided.record
    return [
        effect.job_id
        for effect in record.effects
        if isinstance(effect, Placed)
        for window in windows
        if window.from_ms <= record.now_ms < window.until_ms
        for part in effect.placed
        if part.node == window.node and set(part.gpus) & set(window.gpus or range(4))
    ]


@pytest.mark.parametrize("seed", range(6))
def test_what_the_planner_starts_keeps_every_window_by_both_readings(seed: int) -> None:
    """The driver asserts that the check has nothing to say; beside it, by the orders' words: nothing starts inside a window."""
    dice, ended, windows = Random(seed), 0, list[ReserveBlock]()
    driver = Driver().give(build.node("n0", gpus=4), build.node("n1", gpus=4, order=1))
    for number in range(25):
        driver.pass_ms(dice.randrange(HOUR_MS))
        if dice.random() < 0.4:
            from_hours = (driver.now_ms - build.START_MS) / HOUR_MS + dice.choice([-1.0, 0.0, 0.5, 2.0, 7.5])
            gpus = dice.choice([[], [0, 1], [3]])
            windows.append(
                reserve(from_hours, from_hours + 3, *gpus, node=dice.choice(["n0", "n1"]), name=f"r{number}")
            )
            driver.give(windows[-1])
            assert not started_inside(driver, windows)
        size = dice.choice([1, 1, 2, 2, 4, 8])
        driver.give(build.accepted(f"j{number}", size, at_ms=driver.now_ms))
        driver.give(build.forecast(f"j{number}", {size: dice.choice([600, 3600, 9000, 30_000])}))
        assert not started_inside(driver, windows)
        for job in [job for job in driver.state.jobs.values() if job.parts and dice.random() < 0.4]:
            ended += 1
            for report in (build.started, build.completed):
                at = {"at_ms": driver.now_ms, "attempt": job.attempt}
                driver.give(*[report(job.job_id, part.node, **at) for part in list(job.parts)])
                assert not started_inside(driver, windows)
    assert ended >= 4
