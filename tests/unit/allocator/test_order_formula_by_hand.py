"""The order formula of docs/policy.md against numbers worked out by hand: each part, its limits, and how the parts combine."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.commands import ChangeRules
from schemas.rules import Aging, Rules, TeamRules
from services.allocator.core.index import index_of
from services.allocator.core.precedence import precedence_of
from services.allocator.core.shares import Use, charged, faded, share_factors
from services.allocator.core.standing import Standing, ranked_priorities, standing_of
from services.allocator.core.state import Job
from tests import build
from tests.allocator_driver import POLICY, Driver

HOUR_MS = 3_600_000
WEEK_MS = 168 * HOUR_MS
AGING = Aging(after_s=1800, per_hour=0.5, priority_max=4)


def waiting(*, hours: float = 0.0, **changed) -> Job:
    """Submitted so many hours before `build.START_MS`."""
    at_ms = build.START_MS - round(hours * HOUR_MS)
    return Driver(at_ms=at_ms).give(build.accepted("j", 4, at_ms=at_ms, **changed)).job("j")


def standing(job: Job, aging: Aging = AGING, **changed) -> Standing:
    return standing_of(job, aging, build.START_MS, **changed)


@pytest.mark.parametrize(
    ("hours", "thousandths"),
    [
        (0.0, 0),
        (0.25, 0),
        (0.5, 0),  # exactly after_s
        (1.5, 500),  # one hour beyond: 0.5
        (2.5, 1000),
        (4.25, 1875),  # 3.75 h x 0.5
        (8.5, 4000),  # eight hours beyond: exactly the most
        (9.0, 4000),
        (1000.0, 4000),
    ],
)
def test_aging_is_nothing_until_its_time_then_a_slope_up_to_its_most(hours: float, thousandths: int) -> None:
    assert standing(waiting(hours=hours)).aging == thousandths


@pytest.mark.parametrize(
    ("aging", "thousandths"),
    [
        (Aging(), 1125),  # 5 h - half an hour, by 0.25
        (Aging(after_s=0, per_hour=0.25), 1250),
        (Aging(per_hour=0.0), 0),
        (Aging(priority_max=0.0), 0),
        (Aging(per_hour=100, priority_max=100), 100_000),
    ],
)
def test_after_slope_and_most_are_the_rules_own(aging: Aging, thousandths: int) -> None:
    assert standing(waiting(hours=5), aging).aging == thousandths


@pytest.mark.parametrize(
    ("left_h", "takes_h", "thousandths"),
    [
        (48, 0, 0),
        (24, 0, 0),  # a day before it
        (18, 0, 1000),  # 4 x (1 - 18/24)
        (12, 0, 2000),
        (12, 6, 3000),  # latest start in 6 h
        (6, 6, 4000),  # now
        (6, 12, 4000),  # too late: still wanted
        (-5, 0, 4000),  # past
        (30, 12, 1000),  # felt before its last day, for it runs long
    ],
)
def test_a_deadline_is_felt_from_a_day_before_the_latest_start(left_h: float, takes_h: float, thousandths: int) -> None:
    job = waiting(deadline_ms=build.START_MS + round(left_h * HOUR_MS))
    assert standing(job, takes_s=takes_h * 3600).deadline == thousandths


def test_without_a_deadline_nothing_is_urgent() -> None:
    assert standing(waiting(), takes_s=1e9).deadline == 0


@pytest.mark.parametrize(
    ("weights", "use", "factors"),
    [
        ((1, 1), (50, 50), (1000, 1000)),  # at its part: 2^-1 - 1/2 = 0
        ((1, 1), (100, 0), (750, 1500)),  # twice its part: 2^-2 - 1/2
        ((3, 1), (75, 25), (1000, 1000)),  # weights 3 : 1, use 3 : 1
        ((3, 1), (50, 50), (1167, 750)),  # 2/3 of its part, 1/2 -> on the line from 1 to 1/2: 1 - 2/3 x 1/2; twice: 1/4
        ((1, 3), (100, 0), (562, 1500)),  # four times its part: 2^-4 = 0.0625
        ((0.001, 1000), (100, 0), (500, 1500)),  # beyond all halvings: the least
        ((1, 1), (0, 0), (1000, 1000)),  # nobody used anything
    ],
)
def test_a_teams_factor_is_its_use_against_what_its_weight_gives_it(
    weights: tuple[float, float], use: tuple[int, int], factors: tuple[int, int]
) -> None:
    rules = Rules(fair_share=1.0, teams={n: TeamRules(weight=w) for n, w in zip("ab", weights, strict=True)})
    found = share_factors(rules, dict(zip("ab", use, strict=True)), "ba")
    assert (found["a"], found["b"]) == factors


@pytest.mark.parametrize(("strength", "least", "most"), [(0.0, 1000, 1000), (0.5, 750, 1250), (1.0, 500, 1500)])
def test_fair_share_says_how_far_factors_go(strength: float, least: int, most: int) -> None:
    teams = [f"t{number:02d}" for number in range(50)]
    found = share_factors(Rules(fair_share=strength), {"t00": 10**15}, teams)
    assert found["t00"] == least
    assert {found[name] for name in teams[1:]} == {most}


def test_use_of_teams_without_work_now_is_not_in_the_whole() -> None:
    found = share_factors(Rules(fair_share=1.0), {"a": 50, "b": 50, "gone": 10**9}, ["a", "b"])
    assert found == {"a": 1000, "b": 1000}


@pytest.mark.parametrize("parts_of_its_part", [0.25, 0.5, 1.5, 2.3, 3.7])
def test_straight_lines_stay_near_the_power(parts_of_its_part: float) -> None:
    used = round(parts_of_its_part * 10_000)
    found = share_factors(
        Rules(fair_share=1.0), {"a": used, "b": 100_000 - used}, [f"t{n}" for n in range(8)] + ["a", "b"]
    )
    power = 2.0**-parts_of_its_part
    assert power <= (found["a"] - 500) / 1000 + 0.001
    assert (found["a"] - 500) / 1000 <= power * 1.07


@pytest.mark.parametrize(
    ("weeks", "left"), [(0, 800), (0.5, 600), (1, 400), (1.5, 300), (2, 200), (3, 100), (39, 0), (400, 0)]
)
def test_use_halves_with_every_half_life(weeks: float, left: int) -> None:
    """Half a half-life is on the straight line: three quarters."""
    assert faded(Use(800, build.START_MS), build.START_MS + round(weeks * WEEK_MS), WEEK_MS / 1000) == left


def test_use_of_two_jobs_adds_after_fading() -> None:
    first = charged(Use(0, 0), 8, 0, 10 * HOUR_MS, 168 * 3600, 1)
    assert first == Use(80 * HOUR_MS, 10 * HOUR_MS)
    second = charged(first, 4, 10 * HOUR_MS + WEEK_MS - 5 * HOUR_MS, 10 * HOUR_MS + WEEK_MS, 168 * 3600, 1)
    assert second == Use(40 * HOUR_MS + 20 * HOUR_MS, 10 * HOUR_MS + WEEK_MS)
    assert charged(Use(0, 0), 8, 0, HOUR_MS, 168 * 3600, 4).gpu_ms == 2 * HOUR_MS, "four slots of a card are one GPU"
    assert charged(Use(7, 100), 8, 90, 50, 168 * 3600, 1) == Use(7, 100), "an end before the start is no use"


@pytest.mark.parametrize(
    ("declared", "aging", "deadline", "factor", "guaranteed", "overdue", "priority"),
    [
        (3_000, 0, 0, 1000, False, False, 3_000),
        (3_000, 500, 1_000, 1000, False, False, 4_500),
        (3_000, 500, 1_000, 1500, False, False, 6_750),  # the factor is on the sum
        (3_000, 500, 1_000, 500, False, False, 2_250),
        (3_000, 500, 1_000, 500, True, False, 202_250),  # but not on the bonuses
        (3_000, 500, 1_000, 1500, False, True, 406_750),
        (100_000, 4_000, 4_000, 1500, False, False, 162_000),  # the most a plain job has, aging as it is by default
        (1_000, 0, 0, 500, True, False, 200_500),  # the least inside a guarantee
        (100_000, 29_000, 4_000, 1500, False, False, 199_500),  # a `priority_max` of 29 stays below it
        (100_000, 30_000, 4_000, 1500, False, False, 201_000),  # one of 30 doesn't
        (100_000, 29_000, 4_000, 1500, True, False, 399_500),  # and below the least overdue
        (100_000, 4_000, 4_000, 1500, True, False, 362_000),
        (1_000, 0, 0, 500, False, True, 400_500),  # the least overdue
        (100_000, 4_000, 4_000, 1500, True, True, 762_000),
        (1_001, 0, 0, 999, False, False, 999),  # 999.999 rounded down
    ],
)
def test_the_parts_combine_as_the_formula_says(
    declared: int, aging: int, deadline: int, factor: int, guaranteed: bool, overdue: bool, priority: int
) -> None:
    assert Standing(declared, aging, deadline, factor, guaranteed, overdue).priority == priority


def test_all_parts_of_one_job_by_hand() -> None:
    """Priority 10, 2.5 h waited: + 1; 12 h to the deadline, 6 h to run: + 3; factor 1.25: 17.5; guaranteed and overdue: 617.5."""
    job = waiting(hours=2.5, priority=10, deadline_ms=build.START_MS + 12 * HOUR_MS)
    aging = Aging(after_s=1800, per_hour=0.5, overdue_s=7200)
    found = standing(job, aging, share_factor=1250, guaranteed=True, takes_s=6 * 3600)
    assert found == Standing(10_000, 1_000, 3_000, 1250, True, True)
    assert found.priority == 617_500
    one = np.array
    ranked = ranked_priorities(
        one([10]), one([job.submitted_ms]), one([job.spec.deadline_ms]), one([0]), aging, build.START_MS, 1250
    )
    assert ranked.tolist() == [(10_000 + 1_000 + 2_000) * 1250 // 1000 + 400_000], "many at once: without its run time"


@pytest.mark.parametrize(("waited_s", "overdue"), [(7199, False), (7200, True), (10_000, True)])
def test_overdue_begins_exactly_at_its_time(waited_s: int, overdue: bool) -> None:
    assert standing(waiting(hours=waited_s / 3600), Aging(overdue_s=7200)).overdue is overdue
    assert not standing(waiting(hours=waited_s / 3600), Aging(overdue_s=None)).overdue, "nobody is without the rule"


@pytest.mark.parametrize(("days", "overdue"), [(6.99, False), (7, True)])
def test_where_nobody_made_rules_a_job_is_overdue_after_a_week(days: float, overdue: bool) -> None:
    assert standing(waiting(hours=days * 24), Rules().aging).overdue is overdue


def test_the_planner_is_handed_these_numbers() -> None:
    """Red used 16 GPU-hours, blue nothing, of equal weight: 0.75 and 1.5. Blue is guaranteed four GPUs: one of its two jobs of four."""
    rules = Rules(version=1, fair_share=1.0, teams={"blue": TeamRules(guaranteed={build.POOL: 4})}, aging=AGING)
    driver = Driver().give(build.node("n0"), ChangeRules(cluster=build.CLUSTER, rules=rules, ordered_ms=build.START_MS))
    driver.give(build.accepted("r0", 8, team="red"), build.forecast("r0", {8: 36_000}))
    driver.give(build.started("r0", "n0", at_ms=driver.now_ms)).pass_ms(2 * HOUR_MS)
    for name, team, priority in [("b0", "blue", 8), ("b1", "blue", 6), ("r1", "red", 8)]:
        driver.give(build.accepted(name, 4, at_ms=driver.now_ms, team=team, priority=priority))
        driver.give(build.forecast(name, {4: 36_000}))
    driver.pass_ms(round(1.5 * HOUR_MS)).give()
    found = precedence_of(driver.state, index_of(driver.state), build.POOL, 256, frozenset(), POLICY, driver.now_ms)
    assert found.standings["b0"] == Standing(8_000, 500, 0, 1500, True, False)
    assert found.priorities == {
        "b0": 200_000 + 8_500 * 3 // 2,
        "b1": 6_500 * 3 // 2,
        "r1": 8_500 * 3 // 4,
    }
    assert found.admission.guaranteed == {"b0"}
    assert found.tier_max == 200_000
