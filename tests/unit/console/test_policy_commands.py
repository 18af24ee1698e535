"""`gpugrid policy` on a real decided log: what it shows, what a file would change, what it refuses, and that applying is one event."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.codec import decode_record
from schemas.commands import ChangeRules
from schemas.rules import Aging, Limits, Rules, TeamRules
from services.console.errors import UsageError
from services.console.policy_file import differences, read_rules
from tests import build
from tests.unit.console.console_rig import Rig, contended

RULES = """
fair_share = 0.5
half_life_s = 86400

[teams.red]
weight = 2
maximum = { h100 = 8 }
each_user.maximum = { h100 = 4 }

[each_team]
maximum = { h100 = 12 }
"""


@pytest.fixture
def rules_file(tmp_path: Path) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    return path


def shared() -> Rig:
    """Two nodes; `first` of team blue runs on 8 GPUs, `second` and `third` wait behind team red's 8."""
    rig = Rig().give(build.node("n00", order=0), build.node("n01", order=1))
    for job_id, team in (("first", "blue"), ("r0", "red"), ("second", "blue"), ("third", "red")):
        rig.give(build.accepted(job_id, 8, team=team), build.forecast(job_id, {8: 7200}))
    return rig


def test_show_without_rules_says_so_and_counts_all_the_same() -> None:
    rig = shared()
    text = rig.run("policy", "show")
    assert "has no rules of its own" in text
    groups = {row["group"]: row for row in rig.json_of("policy", "show")["groups"]}
    assert groups["team blue"]["gpus"] == 8
    assert groups["team blue"]["maximum"] is None
    assert groups["team red"]["waiting"] == 1
    assert groups["the organisation"]["gpus"] == 16


def test_check_names_what_changes_for_rules_and_jobs_and_changes_nothing(rules_file: Path) -> None:
    rig = shared()
    text = rig.run("policy", "check", str(rules_file))
    assert "teams.red.maximum.h100: not set → 8" in text
    found = rig.json_of("policy", "check", str(rules_file))
    after = {job["job_id"]: job["after"] for job in found["jobs"]}
    assert after["third"] == "quota_exceeded"
    assert rig.records("commands") == []


def test_apply_is_one_event_that_the_next_decision_follows(rules_file: Path) -> None:
    rig = shared()
    rig.run("policy", "apply", str(rules_file), "--yes", "--cause", "red joins")
    [record] = rig.records("commands")
    event = decode_record(record).event
    assert isinstance(event, ChangeRules)
    assert (event.rules.version, event.cause) == (1, "red joins")
    rig.give(event)
    assert "rules version 1" in rig.run("policy", "show")
    why = rig.run("why", "third")
    assert "quota_exceeded" in why
    assert "team red holds 8 of 8 GPUs of h100" in why


def test_an_answer_of_no_changes_nothing(rules_file: Path) -> None:
    rig = shared()
    rig.run("policy", "apply", str(rules_file), code=1, stdin="n\n")
    assert rig.records("commands") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("teams = 3", "Expected `object`"),
        ("[teams.red]\nmaximun = { h100 = 3 }", "maximun"),
        ("[teams.red]\nmaximum = { h100 = -3 }", "$.teams[...].maximum[...]"),
        ("= what", "is not TOML"),
    ],
)
def test_a_file_with_a_mistake_names_it(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=r".+") as caught:
        read_rules(text.encode(), "rules.toml")
    assert words in str(caught.value)
    path = tmp_path / "rules.toml"
    path.write_text(text)
    shared().run("policy", "check", str(path), code=2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[teams.red]\nguaranteed = { h100 = 32 }", "which has 16"),
        ("[teams.red]\nmaximum = { a100 = 2 }", "names the pool a100; the cluster has h100"),
    ],
)
def test_rules_that_do_not_fit_the_cluster_are_refused_with_the_reason(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    rig = shared()
    rig.run("policy", "apply", str(path), "--yes", code=1)
    assert words in rig.stderr
    assert rig.records("commands") == []


def test_an_old_version_is_refused(tmp_path: Path) -> None:
    rig = shared()
    rig.give(ChangeRules(cluster=build.CLUSTER, rules=Rules(version=4), ordered_ms=build.START_MS))
    path = tmp_path / "rules.toml"
    path.write_text("version = 4")
    rig.run("policy", "apply", str(path), "--yes", code=2)
    assert "Version 4 is in force" in rig.stderr


def test_a_cluster_nobody_has_is_named() -> None:
    contended().run("policy", "show", "--cluster", "c9", code=1)


def test_differences_name_every_leaf_that_changes() -> None:
    before = Rules(version=1, teams={"red": TeamRules(maximum={"h100": 8}, each_user=Limits(running_max=3))})
    after = Rules(version=2, teams={"red": TeamRules(maximum={"h100": 9})}, fair_share=1.0)
    assert differences(before, after) == [
        "fair_share: 0.0 → 1.0",
        "teams.red.each_user.running_max: 3 → not set",
        "teams.red.maximum.h100: 8 → 9",
    ]
    assert differences(after, after) == []


def test_a_rule_left_out_is_shown_as_its_default() -> None:
    plain, never = Rules(version=1), Rules(version=2, aging=Aging(overdue_s=None))
    week_s = Aging().overdue_s
    assert differences(plain, never) == [f"aging.overdue_s: {week_s} → not set"]
    assert differences(never, plain) == [f"aging.overdue_s: not set → {week_s}"]
