"""`gpugrid why` of a waiting job: what each rule in force makes of its priority, by the allocator's own numbers; nothing of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.commands import ChangeRules, ReserveBlock
from schemas.executions import StopCause
from schemas.jobs import CheckpointMode, CheckpointPolicy
from schemas.rules import Aging, QueueRules, Rules, TeamRules
from tests import build
from tests.unit.console.console_rig import Rig

HOUR_MS = 3_600_000
DAY_S = 86_400.0


def waiting(rules: Rules | None = None, **changed: Any) -> Rig:
    """One node of 8; `first` of team blue runs on all of it, `second` of team red waits."""
    rig = Rig().give(build.node("n00", order=0))
    if rules is not None:
        rig.give(ChangeRules(cluster=build.CLUSTER, rules=rules, ordered_ms=build.START_MS))
    rig.give(build.accepted("first", 8), build.forecast("first", {8: 40 * 3600}))
    rig.give(build.started("first", "n00", build.START_MS))
    rig.give(build.accepted("second", 8, **({"team": "red"} | changed)), build.forecast("second", {8: 7200}))
    return rig


def told(rig: Rig) -> str:
    return " ".join(rig.run("why", "second").split())


def order(rig: Rig) -> dict[str, Any]:
    found = rig.json("why", "second")["order"]
    assert isinstance(found, dict)
    return found


def parts(rig: Rig) -> dict[str, dict[str, Any]]:
    return {part["rule"]: part for part in order(rig)["parts"]}


def test_where_no_rule_says_anything_the_declared_priority_is_all() -> None:
    rig = waiting(Rules(version=1, aging=Aging(per_hour=0, overdue_s=None)))
    rig.clock.at_ms += 10 * HOUR_MS
    assert order(rig) == {"pool": "h100", "priority": 3.0, "declared": 3.0, "parts": [], "position": 1}
    text = told(rig)
    for word in ("counts with priority", "Aging:", "Deadline:", "Fair share", "Guarantee:", "Overdue:"):
        assert word not in text


def test_aging_tells_what_it_adds_and_when_it_is_at_its_most() -> None:
    rig = waiting()
    assert parts(rig).keys() == {"overdue"}, "half an hour has to pass first"
    rig.clock.at_ms += round(4.5 * HOUR_MS)
    assert "It counts with priority 4 now; 3 of it is declared." in told(rig)
    assert "Aging: +1, as it was submitted 4 h 30 min ago; it grows by 0.25 per hour beyond 30 min, up to 4." in told(
        rig
    )
    rig.clock.at_ms += 40 * HOUR_MS
    assert "Aging: +4" in told(rig)
    assert "that is the most that waiting gives" in told(rig)
    assert order(rig)["priority"] == 7.0


def test_a_deadline_tells_by_when_the_job_should_start() -> None:
    rig = waiting(deadline_ms=build.START_MS + 15 * HOUR_MS)
    found = parts(rig)["deadline"]
    assert (
        0 < found["adds"] == order(rig)["priority"] - 3
    )  # 3 h at P90, so 12 h are left of the day in which it is felt
    assert found["adds"] == pytest.approx(2.0)
    assert "it should start by" in found["sentence"]
    assert "(in 12 h)" in found["sentence"]
    rig.clock.at_ms += 13 * HOUR_MS
    assert "Deadline: +4;" in told(rig)
    assert "it should have started by" in told(rig)


def test_fair_share_tells_the_factor_use_and_weight() -> None:
    rig = waiting(Rules(version=1, fair_share=0.5, teams={"blue": TeamRules(weight=3)}))
    rig.clock.at_ms += HOUR_MS // 4
    assert parts(rig)["fair_share"]["factor"] == 1.25
    assert order(rig)["priority"] == 3.75
    assert "Fair share: ×1.25; team red used 0.0 of 2.0 GPU-hours (0%; use counts half after 7 d)" in told(rig)
    assert "its weight of 1 gives it 25%" in told(rig)


def test_inside_and_outside_of_a_guarantee() -> None:
    inside = waiting(Rules(version=1, teams={"red": TeamRules(guaranteed={"h100": 8})}))
    assert order(inside)["priority"] == 203.0
    says = "Guarantee: +200, it is inside: team red holds 0 of 8 guaranteed GPUs of h100; nobody who borrows is planned in its way."
    assert says in told(inside)
    outside = waiting(Rules(version=1, teams={"red": TeamRules(guaranteed={"h100": 4})}))
    assert order(outside)["priority"] == 3.0
    assert "Guarantee: +0, it is outside and borrows: team red holds 0 of 4 guaranteed GPUs of h100" in told(outside)


def test_a_limit_of_jobs_keeps_a_job_out_of_the_guarantee() -> None:
    rig = waiting(Rules(version=1, teams={"red": TeamRules(guaranteed={"h100": 8}, running_max=0)}))
    assert "Guarantee: +0 as long as a limit of jobs keeps it waiting; team red holds 0 of 8" in told(rig)
    assert order(rig)["priority"] == 3.0


def test_an_answer_without_the_allocators_state_is_still_an_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rig = waiting(Rules(version=1, fair_share=1.0))
    monkeypatch.setenv("GPUGRID_CATALOG", str(tmp_path / "gone.toml"))
    assert "second waits (waiting_for_gpus)" in told(rig)
    assert "the allocator's state can't be read" in " ".join(rig.stderr.split())
    assert rig.json("why", "second")["order"] is None


def test_a_job_for_a_pool_that_is_not_there_has_a_place_too() -> None:
    rig = Rig().give(build.node("n00", order=0))
    accepted = msgspec.structs.replace(build.accepted("second", 8), pools=["nowhere"])
    rig.give(accepted, build.forecast("second", {8: 600}))
    found = order(rig)
    assert [part["rule"] for part in found.pop("parts")] == ["overdue"]
    assert found == {"pool": "nowhere", "priority": 3.0, "declared": 3.0, "position": 1}


def test_overdue_tells_from_when_on_and_advice_follows_the_rules() -> None:
    rig = waiting(Rules(version=1, aging=Aging(per_hour=0, overdue_s=DAY_S)))
    assert "Overdue: not yet; from" in told(rig)
    assert parts(rig)["overdue"]["since_ms"] == build.START_MS + 24 * HOUR_MS
    assert parts(rig)["overdue"]["adds"] == 0
    rig.clock.at_ms += 25 * HOUR_MS
    assert parts(rig)["overdue"]["adds"] == 400
    assert order(rig)["priority"] == 403.0
    assert "(60 min ago), 24 h after its submission; it goes before all that isn't overdue." in told(rig)


@pytest.mark.parametrize(
    ("aging", "advice"),
    [
        (Aging(overdue_s=None), "Waiting raises it by at most 4 (aging), and no job is ever overdue here"),
        (Aging(per_hour=0, overdue_s=None), "Waiting doesn't raise it, and no job is ever overdue here"),
        (Aging(), "by at most 4 (aging); 7 d after its submission (22 Jan 08:00) it is overdue"),
        (Aging(overdue_s=DAY_S), "it is overdue and goes before all that isn't, so it doesn't starve."),
    ],
)
def test_what_waiting_alone_brings_depends_on_the_rules(aging: Aging, advice: str) -> None:
    from services.console.advice import REASON_HELP, Reason
    from services.console.place_in_order import with_place
    from services.console.policy_orders import load_standing
    from services.console.sentences import Explanation

    rig = waiting(Rules(version=1, aging=aging))
    known = rig.session.run(load_standing(rig.session, None), "Reading")
    behind = Explanation("second", "queued", "", would_help=list(REASON_HELP[Reason.BEHIND_PRIORITY]))
    helped = with_place(behind, known).would_help
    assert len(helped) == 2
    assert advice in helped[1]


def test_whoever_lost_its_place_by_rule_is_told_to_whom_and_when() -> None:
    queues = {"urgent": QueueRules(preempts=True, runtime_min_s=600.0), "night": QueueRules(preemptible=True)}
    saves = CheckpointPolicy(mode=CheckpointMode.SIGNAL, wait_s=60.0, cost_s=30.0)
    rig = Rig().give(build.node("n00", order=0))
    rig.give(ChangeRules(cluster=build.CLUSTER, rules=Rules(version=1, queues=queues), ordered_ms=build.START_MS))
    rig.give(build.accepted("second", 8, queue="night", checkpoint=saves), build.forecast("second", {8: 6 * 3600}))
    rig.give(build.started("second", "n00", build.START_MS))
    later_ms = build.START_MS + HOUR_MS
    rig.give(
        build.accepted("now", 8, queue="urgent", priority=9, at_ms=later_ms),
        build.forecast("now", {8: 6 * 3600}),
        at_ms=later_ms,
    )
    rig.give(
        build.stopped("second", "n00", later_ms, StopCause.PREEMPTED, checkpointed=True, fraction=0.25), at_ms=later_ms
    )
    rig.clock.at_ms += HOUR_MS // 6
    assert "It lost its place to now, whose queue may take places from queue night" in told(rig)
    assert "(10 min ago); 25% of its work is saved." in told(rig)
    assert "It lost its place once within 24 h; its queue allows that 3 times." in told(rig)
    rig.give(rules_of(2, QueueRules(preemptible=True, preempted_max=1)), at_ms=rig.clock.at_ms)
    assert "It lost its place once within 24 h; its queue allows that once: nobody takes it before" in told(rig)
    assert "(in 23 h 50 min)." in told(rig)
    rig.give(rules_of(3, QueueRules()), at_ms=rig.clock.at_ms)
    assert "Its queue no longer gives places." in told(rig)


def rules_of(version: int, night: QueueRules) -> ChangeRules:
    queues = {"urgent": QueueRules(preempts=True, runtime_min_s=600.0), "night": night}
    return ChangeRules(cluster=build.CLUSTER, rules=Rules(version=version, queues=queues), ordered_ms=build.START_MS)


def test_whoever_takes_a_place_is_told_so_and_that_it_starts_when_they_have_left() -> None:
    saves = CheckpointPolicy(mode=CheckpointMode.SIGNAL, wait_s=60.0, cost_s=30.0)
    rig = Rig().give(build.node("n00", order=0), rules_of(1, QueueRules(preemptible=True)))
    rig.give(build.accepted("night8", 8, queue="night", checkpoint=saves), build.forecast("night8", {8: 6 * 3600}))
    rig.give(build.started("night8", "n00", build.START_MS))
    later_ms = build.START_MS + HOUR_MS
    rig.give(
        build.accepted("second", 8, queue="urgent", priority=9, at_ms=later_ms),
        build.forecast("second", {8: 3600}),
        at_ms=later_ms,
    )
    assert "second waits (takes_a_place): running jobs of preemptible queues save their work and stop" in told(rig)
    assert "It starts as soon as they have left. The GPUs are held by night8 (8 GPUs on n00" in told(rig)


def test_a_reservation_in_the_way_is_named_with_its_end() -> None:
    rig = Rig().give(build.node("n00", order=0))
    until_ms = build.START_MS + 2 * HOUR_MS
    rig.give(
        ReserveBlock(
            reservation_id="n00-fan",
            cluster=build.CLUSTER,
            node="n00",
            gpus=[0, 1, 2, 3],
            from_ms=build.START_MS,
            until_ms=until_ms,
            ordered_ms=build.START_MS,
        )
    )
    rig.give(build.accepted("second", 8), build.forecast("second", {8: 600}))
    assert "Reservation n00-fan keeps GPUs 0-3 of n00 until" in told(rig)
    assert "(in 2 h)." in told(rig)
    assert "Kept free of new work by n00-fan." in told(rig)
    assert "Planned on them before it" not in told(rig)
