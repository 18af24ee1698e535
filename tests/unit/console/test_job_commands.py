"""submit, cancel, change, jobs, why: each as a person types it, on records that a real allocator wrote."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import msgspec
import pytest

from schemas.codec import decode_record
from schemas.jobs import (
    ApplicationRegistered,
    CheckpointMode,
    Dataset,
    JobCancelled,
    JobChanged,
    JobSubmitted,
    RestartMode,
)
from schemas.status import JobState, JobStatusChanged
from services.console.submission import trace_id_of
from tests import build
from tests.unit.console.console_rig import TRACEPARENT, Rig, contended


def sent(rig: Rig) -> list:
    return [decode_record(record) for record in rig.records("job-events")]


def test_submit_with_flags_publishes_one_event_that_any_upstream_could_have_sent() -> None:
    rig = Rig()
    out = rig.run(
        "submit", "--gpus", "2,4", "--priority", "7", "--team", "nlp", "--user", "ann", "--limit", "2h", "--id", "j1",
        "--checkpoint", "--attempts", "3", "--env", "A=b=c", "--label", "x=y", "--pool", "h100", "--cwd", "/data",
        "--", "python", "train.py", "--epochs", "3",
    )  # fmt: skip
    (envelope,) = sent(rig)
    event = envelope.event
    assert isinstance(event, JobSubmitted)
    assert event.job_id == "j1"
    assert event.submitted_ms == build.START_MS
    spec = event.spec
    assert (spec.sizes, spec.priority, spec.team, spec.user, spec.time_limit_s) == ([2, 4], 7, "nlp", "ann", 7200.0)
    assert spec.command == ["python", "train.py", "--epochs", "3"]
    assert (spec.environment, spec.labels, spec.pools, spec.working_directory) == (
        {"A": "b=c"},
        {"x": "y"},
        ["h100"],
        "/data",
    )
    assert spec.checkpoint.mode is CheckpointMode.SIGNAL
    assert (spec.restart.mode, spec.restart.attempts_max) == (RestartMode.ON_FAILURE, 3)
    assert envelope.source == "/gpugrid/console"
    assert out == f"j1  trace {trace_id_of(envelope.traceparent)}\n"
    assert rig.records("job-events")[0].key == b"j1"


def test_data_is_named_with_or_without_its_size() -> None:
    rig = Rig()
    rig.run("submit", "--dataset", "c4=300000", "--dataset", "tokenizer", "--", "true")
    (envelope,) = sent(rig)
    assert envelope.event.spec.datasets == [Dataset(name="c4", size_mib=300_000), Dataset(name="tokenizer")]


def test_every_submission_has_a_trace_and_an_id_of_its_own() -> None:
    rig = Rig()
    first, second = rig.json("submit", "--", "true"), rig.json("submit", "--command", "python 'my train.py'")
    assert first["id"] != second["id"]
    assert first["trace_id"] != second["trace_id"]
    assert len(first["trace_id"]) == 32
    commands = sorted(envelope.event.spec.command for envelope in sent(rig))
    assert commands == [["python", "my train.py"], ["true"]]
    assert first["id"].startswith("training-")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("one.json", '{"kind": "training", "sizes": [2], "priority": 5, "command": ["a"]}'),
        ("whole.json", '{"job_id": "w", "submitted_ms": 1, "spec": {"kind": "debug", "sizes": [1], "priority": 1, "command": ["a"]}}'),
        ("many.jsonl", '{"job_id": "a", "kind": "training", "sizes": [1], "priority": 5, "template": "t"}\n\n'
                       '{"job_id": "b", "kind": "training", "sizes": [1], "priority": 5, "template": "t"}\n'),
        ("list.json", '[{"app_id": "web", "priority": 5, "floor_gpus": 1, "peak_gpus": 4, "switch_max": 2}]'),
        ("one.toml", 'kind = "training"\nsizes = [2, 4]\npriority = 5\ncommand = ["python", "train.py"]\n'),
        ("many.toml", '[[jobs]]\njob_id = "a"\nkind = "debug"\nsizes = [1]\npriority = 5\ntemplate = "t"\n'),
    ],
)  # fmt: skip
def test_submit_reads_files_of_jobs_and_applications(tmp_path: Path, name: str, text: str) -> None:
    rig = Rig()
    file = tmp_path / name
    file.write_text(text)
    out = rig.run("submit", str(file), "--team", "nlp", "--user", "ann")
    events = [envelope.event for envelope in sent(rig)]
    assert len(out.splitlines()) == len(events) == (2 if name == "many.jsonl" else 1)
    for event in events:
        assert isinstance(event, JobSubmitted | ApplicationRegistered)
        assert (event.spec.team, event.spec.user) == ("nlp", "ann")
    if name == "whole.json":
        assert (events[0].job_id, events[0].submitted_ms) == ("w", build.START_MS)


def test_submit_reads_standard_input() -> None:
    rig = Rig()
    rig.run("submit", "-", stdin='{"kind": "debug", "sizes": [1], "priority": 5, "template": "t"}')
    assert len(sent(rig)) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["submit"], "Nothing to run"),
        (["submit", "--command", "x", "--template", "y"], "Too much to run"),
        (["submit", "--gpus", "two", "--", "x"], "give sizes the job can use"),
        (["submit", "--gpus", "0", "--", "x"], "give sizes the job can use"),
        (["submit", "--gpus", "2,6", "--", "x"], "instead of 6 offer 4 or 8"),
        (["submit", "--kind", "mining", "--", "x"], "no valid job: Invalid enum value 'mining'"),
        (["submit", "--id", "no spaces", "--", "x"], "no valid job"),
        (["submit", "--env", "A", "--", "x"], "no NAME=VALUE"),
        (["submit", "--speed", "h100=fast", "--", "x"], "is no number"),
        (["submit", "--dataset", "c4=much", "--", "x"], "is no size in MiB"),
        (["submit", "missing.json"], "can't be read: No such file"),
        (["submit", "--limit", "3x", "--", "x"], "is no duration"),
        (["submit", "--priority", "101", "--", "x"], "less than or equal to 100"),
        (["change", "j1"], "Nothing to change"),
        (["jobs", "--state", "sleeping"], "is no state; states are accepted"),
        (["drain"], "Missing argument"),
        (["decisions", "--last", "0"], "greater than or equal to 1"),
        (["nonsense"], "No such command"),
    ],
)
def test_wrong_usage_ends_with_code_2_and_one_sentence(words: list[str], said: str) -> None:
    rig = Rig()
    rig.run(*words, code=2)
    assert said in rig.stderr
    assert "Traceback" not in rig.stderr
    assert sent(rig) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "JSON"),
        ("[]", "holds no job"),
        ("[1]", "not int"),
        ('{"kind": "training"}', "missing required field"),
        ('{"kind": "training", "sizes": [0], "priority": 5, "template": "t"}', "$.sizes"),
        ('{"app_id": "web", "priority": 5}', "no valid application"),
        ('{"spec": {}, "extra": 1}', "extra can't stand beside spec"),
        ("\x00\xff", "JSON"),
    ],
)
def test_a_broken_file_is_refused_before_anything_is_sent(text: str, said: str) -> None:
    rig = Rig()
    rig.run("submit", "-", stdin=text, code=2)
    assert said in rig.stderr
    assert sent(rig) == []


def test_cancel_and_change_continue_the_jobs_trace() -> None:
    rig = contended()
    rig.run("cancel", "small", "--cause", "wrong data")
    rig.run("change", "big", "--priority", "9", "--limit", "1d")
    events = {type(envelope.event): envelope for envelope in sent(rig)}
    cancelled, changed = events[JobCancelled], events[JobChanged]
    assert (cancelled.event.job_id, cancelled.event.cause) == ("small", "wrong data")
    assert (changed.event.priority, changed.event.time_limit_s) == (9, 86_400.0)
    for envelope in (cancelled, changed):
        assert trace_id_of(envelope.traceparent) == trace_id_of(TRACEPARENT)
        assert envelope.traceparent != TRACEPARENT


def test_nothing_is_sent_about_a_job_that_does_not_exist_or_has_ended() -> None:
    rig = contended()
    rig.run("cancel", "smal", code=1)
    assert "Did you mean small?" in rig.stderr
    rig.give(
        build.completed("big", "n00", build.START_MS + 90_000), build.completed("big", "n01", build.START_MS + 90_000)
    )
    rig.run("change", "big", "--priority", "2", code=1)
    assert "big has ended already (completed)" in rig.stderr
    assert sent(rig) == []
    rig.run("cancel", "smal", "--anyway")
    assert len(sent(rig)) == 1


def test_a_job_that_is_only_submitted_can_be_cancelled_and_explained() -> None:
    rig = Rig()
    rig.run("submit", "--id", "fresh", "--", "x")
    assert rig.json("why", "fresh")["state"] == "submitted"
    rig.run("cancel", "fresh")
    assert len(sent(rig)) == 2


def test_jobs_shows_what_runs_and_waits_and_filters() -> None:
    rig = contended()
    rows = rig.json("jobs")
    assert [(row["job_id"], row["state"]) for row in rows] == [("big", "running"), ("small", "queued")]
    assert (
        rows[1] | {"reason": "waiting_for_gpus", "position": 1, "team": "red", "user": "bob", "sizes": [2, 4]}
        == rows[1]
    )
    assert rows[0]["placed"] == [{"node": "n00", "gpus": list(range(8))}, {"node": "n01", "gpus": list(range(8))}]
    assert [row["job_id"] for row in rig.json("jobs", "--team", "red")] == ["small"]
    assert [row["job_id"] for row in rig.json("jobs", "--user", "ann")] == ["big"]
    assert [row["job_id"] for row in rig.json("jobs", "--state", "running", "--state", "failed")] == ["big"]
    table = rig.run("jobs")
    assert "n00:0-7 n01:0-7" in table
    assert "waiting_for_gpus" in table


def test_ended_jobs_are_shown_on_request() -> None:
    rig = contended()
    rig.give(
        build.completed("big", "n00", build.START_MS + 90_000), build.completed("big", "n01", build.START_MS + 90_000)
    )
    assert [row["job_id"] for row in rig.json("jobs")] == ["small"]
    assert {row["job_id"]: row["state"] for row in rig.json("jobs", "--all")} == {
        "small": "starting",
        "big": "completed",
    }
    assert "big" in rig.run("jobs", "--state", "completed")
    assert "No job matches; 1 ended" in rig.run("jobs", "--team", "nobody")


def test_why_tells_reason_start_position_holders_and_cause() -> None:
    answer = contended().json("why", "small")
    assert (answer["state"], answer["reason"], answer["position"], answer["cause"]) == (
        "queued",
        "waiting_for_gpus",
        1,
        "shortage",
    )
    assert answer["planned_start_p50_ms"] > build.START_MS
    assert [(one["job_id"], one["gpus"]) for one in answer["holders"]] == [("big", 16)]
    assert answer["would_help"]


def test_why_tells_fragmentation_from_shortage() -> None:
    rig = Rig()
    rig.give(build.node("n00", order=0), build.node("n01", order=1))
    rig.give(
        build.accepted("a", 4),
        build.accepted("b", 4),
        build.accepted("c", 4),
        *(build.forecast(x, {4: 7200}) for x in "abc"),
    )
    rig.give(build.accepted("d", 8), build.forecast("d", {8: 7200}), at_ms=build.START_MS + 1000)
    free = sum(len(row["free"]) for row in rig.json("nodes"))
    assert free == 4
    rig.give(
        build.started("b", "n00", build.START_MS),
        build.completed("b", "n00", build.START_MS + 2000),
        at_ms=build.START_MS + 2000,
    )
    holds = {row["job_id"]: row["placed"] for row in rig.json("jobs") if row["placed"]}
    if len({part["node"] for placed in holds.values() for part in placed}) == 2:
        assert rig.json("why", "d")["cause"] == "fragmentation"


def test_an_application_is_explained_by_what_it_may_hold() -> None:
    rig = Rig()
    rig.give(build.application("web", floor=2, peak=6))
    answer = rig.json("why", "web")
    assert answer["sentence"] == "web is registered and holds no GPUs now."
    rig.give(build.node("n00"), at_ms=build.START_MS + 1000)
    answer = rig.json("why", "web")
    assert answer["state"] == "running"
    assert "on 3 GPUs at n00: " in answer["sentence"]  # its two, and an idle one on top
    assert "It may hold 2 (never lent) to 6 GPUs" in answer["lines"][0]
    (row,) = rig.json("jobs")
    assert (row["kind"], row["gpus"]) == ("application", 3)


def test_a_refused_job_is_explained_by_its_owner() -> None:
    rig = Rig()
    rig.publish(
        JobStatusChanged(
            job_id="bad", state=JobState.REFUSED, time_ms=build.START_MS, reason="unknown_team", detail="team x"
        )
    )
    text = rig.run("why", "bad")
    assert "bad was refused (unknown_team): team x." in text
    assert "What would help:" in text


def test_submit_wait_follows_to_the_end_and_its_exit_code_says_how_it_ended() -> None:
    rig = Rig()
    told: list[str] = []

    def play() -> None:
        deadline_s = time.monotonic() + 20
        while not sent(rig) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        for state in (JobState.QUEUED, JobState.RUNNING, JobState.FAILED):
            rig.publish(JobStatusChanged(job_id="j1", state=state, time_ms=build.START_MS, submitted_ms=build.START_MS))
            told.append(state.value)

    # Threads share the memory bus here only because appending wakes nobody who sleeps in another loop for long.
    player = threading.Thread(target=play)
    player.start()
    out = rig.run("submit", "--id", "j1", "--wait", "--timeout", "30s", "--", "x", code=1)
    player.join()
    assert told == ["queued", "running", "failed"]
    assert "failed" in out
    assert "Not completed." in rig.stderr


def test_waiting_has_an_end() -> None:
    rig = Rig()
    rig.run("submit", "--id", "j1", "--wait", "--timeout", "0.1", "--", "x", code=1)
    assert "j1 had not ended after" in rig.stderr


def test_unreadable_records_do_not_stop_a_reading() -> None:
    from schemas.records import Message

    rig = contended()
    rig.publish_raw(Message(topic="job-status", key=b"junk", value=b"{not json", headers=()))
    rig.publish_raw(Message(topic="job-status", key=b"gone", value=None))
    assert {row["job_id"] for row in rig.json("jobs")} == {"big", "small"}


def test_json_is_one_document() -> None:
    assert isinstance(json.loads(contended().run("why", "big", "--json")), dict)
    assert msgspec.json.decode(contended().run("jobs", "--json").encode())
