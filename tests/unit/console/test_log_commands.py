"""trace, decisions, replay-decision, audit, dead-letters, topics on a log that a real allocator wrote."""

from __future__ import annotations

import msgspec

from schemas.deadletters import dead_letter
from schemas.messages import message
from schemas.records import Now, Record
from schemas.topics import TOPICS
from tests import build
from tests.unit.console.console_rig import TRACEPARENT, Rig, contended


def test_decisions_lists_what_each_one_did() -> None:
    rig = contended()
    rows = rig.json("decisions")
    assert [row["sequence"] for row in rows] == [1, 2, 3, 4, 5]
    assert all(row["accepted"] for row in rows)
    assert "start big on n00:0-7 n01:0-7" in rig.run("decisions")
    assert [row["sequence"] for row in rig.json("decisions", "--last", "2")] == [4, 5]
    assert [row["sequence"] for row in rig.json("decisions", "--job", "small")] == [5]
    assert "small waits (waiting_for_gpus)" in rig.run("decisions", "--job", "small")
    assert rig.run("decisions", "--job", "nobody") == "No decision matches.\n"


def test_a_record_that_lost_a_race_is_shown_only_on_request() -> None:
    rig = contended()
    fork = msgspec.structs.replace(
        msgspec.json.decode(rig.records("decisions")[2].value or b"", type=type(_decision(rig, 2))),
        id="f" * 32,
        sequence=6,
    )
    rig.publish(fork, key="c0")
    assert [row["sequence"] for row in rig.json("decisions")] == [1, 2, 3, 4, 5]
    rows = rig.json("decisions", "--rejected")
    assert [(row["sequence"], row["accepted"]) for row in rows if not row["accepted"]] == [(6, False)]


def _decision(rig: Rig, index: int):
    from schemas.codec import decode_record

    return decode_record(rig.records("decisions")[index]).event


def test_every_decision_replays_to_the_same_bytes() -> None:
    rig = contended()
    for number in range(1, 6):
        answer = rig.json("replay-decision", str(number))
        assert answer["identical"], answer["differences"]
    assert "Identical: " in rig.run("replay-decision", "5")


def test_replay_starts_from_a_snapshot_when_there_is_one() -> None:
    rig = contended()
    rig.snapshot()
    rig.give(build.accepted("more", 1), build.forecast("more", {1: 60}))
    answer = rig.json("replay-decision", "6")
    assert answer["identical"]
    assert answer["folded_decisions"] == 0
    assert rig.json("replay-decision", "4")["folded_decisions"] == 3
    assert [row["sequence"] for row in rig.json("decisions", "--last", "3")] == [4, 5, 6]


def test_the_log_can_be_read_from_a_snapshot_after_retention_took_its_beginning() -> None:
    rig = contended()
    rig.snapshot()
    rig.give(build.accepted("more", 1), build.forecast("more", {1: 60}))
    rig.bus.trim(("decisions", 0), 3)
    assert [row["sequence"] for row in rig.json("decisions")] == [4, 5, 6]
    assert rig.json("replay-decision", "6")["identical"]
    rig.run("replay-decision", "4", code=1)
    assert "gpugrid: " in rig.stderr


def test_an_audit_judges_what_this_version_decided_and_names_what_another_one_did(monkeypatch) -> None:
    import services.console.settings as settings

    rig = contended()
    other = rig.json("audit")
    assert (other["verified"], other["violations"], other["unjudged"]) == (0, [], {"version rig": 4})
    assert "4 were made by version rig: followed, not judged" in rig.run("audit")
    original = settings.settings_of
    monkeypatch.setattr(
        settings,
        "settings_of",
        lambda session, cluster: msgspec.structs.replace(original(session, cluster), code_version="rig"),
    )
    same = rig.json("audit")
    assert (same["first"], same["last"], same["verified"], same["violations"]) == (1, 5, 4, [])
    assert "0 violations" in rig.run("audit")
    rig.snapshot()
    rig.give(build.accepted("more", 1), build.forecast("more", {1: 60}))
    rig.bus.trim(("decisions", 0), 3)
    late = rig.json("audit")
    assert (late["first"], late["last"], late["verified"]) == (6, 6, 1), "from the oldest snapshot on"


def test_a_decision_that_does_not_exist_is_named() -> None:
    rig = contended()
    rig.run("replay-decision", "99", code=1)
    assert "There is no decision 99 in cluster c0: its log ends at 5." in rig.stderr
    Rig().run("replay-decision", "1", code=1)


def test_another_policy_shows_as_a_difference(monkeypatch) -> None:
    import services.console.settings as settings

    rig = contended()
    original = settings.settings_of

    def changed(session, cluster):
        real = original(session, cluster)
        return msgspec.structs.replace(real, policy=msgspec.structs.replace(real.policy, seed=5))

    monkeypatch.setattr(settings, "settings_of", changed)
    out = rig.run("replay-decision", "5", code=1)
    assert "Different:" in out
    assert "config_digest: recorded" in out
    assert "The policy is another one" in out


def test_trace_falls_back_to_the_records_times() -> None:
    rig = contended()
    answer = rig.json("trace", "big")
    assert answer["trace_id"] == TRACEPARENT.split("-")[1]
    names = [span["name"] for span in answer["spans"]]
    for name in ("let in", "decided", "placement published", "started", "status running"):
        assert name in names
    assert "█" in rig.run("trace", "big")
    rig.run("trace", "bgi", code=1)
    assert "Did you mean big?" in rig.stderr


def test_dead_letters_show_reason_and_original() -> None:
    rig = Rig()
    assert rig.run("dead-letters") == "No dead letters.\n"
    for number, reason in enumerate(("malformed_json", "unknown_team")):
        record = Record("job-events", 1, number, b"j1", b"{oops", (), 0)
        letter = dead_letter(record, service="intake", reason=reason, detail="why", now=Now(0, build.START_MS + number))
        rig.publish_raw(
            message(letter, key=f"job-events/1/{number}", id=f"d{number}", source="/gpugrid/intake", time_ms=0)
        )
    rows = rig.json("dead-letters")
    assert [(row["reason"], row["value_text"], row["key_text"]) for row in rows] == [
        ("malformed_json", "{oops", "j1"),
        ("unknown_team", "{oops", "j1"),
    ]
    assert [row["reason"] for row in rig.json("dead-letters", "--reason", "unknown_team")] == ["unknown_team"]
    assert [row["reason"] for row in rig.json("dead-letters", "--service", "intake", "--last", "1")] == ["unknown_team"]
    table = rig.run("dead-letters")
    assert "job-events/1/0" in table
    assert "{oops" in table


def test_topics_lists_the_contract_with_sizes() -> None:
    rows = contended().json("topics")
    assert [row["topic"] for row in rows] == [topic.name for topic in TOPICS]
    assert next(row for row in rows if row["topic"] == "decisions")["offsets"] == 5
