"""checkpoint, logs and events on a log that a real allocator wrote, and on files as an executor keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.codec import decode_record
from schemas.commands import CheckpointJob
from schemas.executions import JobCheckpointed
from schemas.jobs import CheckpointMode, CheckpointPolicy
from services.console.errors import ConsoleError
from services.console.job_logs import find_logs, follow, newest, tail
from services.executor.shell.drivers.job_log import LogLimits, rotate
from tests import build
from tests.unit.console.console_rig import Rig, contended

SAVES = CheckpointPolicy(mode=CheckpointMode.SIGNAL)


def failing(rig: Rig, *words: str) -> str:
    """What a command that fails says."""
    rig.run(*words, code=1)
    return rig.stderr


def running() -> Rig:
    rig = Rig().take_over()
    rig.give(build.node("n00"))
    rig.give(build.accepted("saver", 8, checkpoint=SAVES), build.forecast("saver", {8: 3600}))
    rig.give(build.started("saver", "n00", build.START_MS))
    return rig


def test_checkpoint_sends_the_order_to_the_jobs_cluster():
    rig = running()
    answer = rig.json("checkpoint", "saver")
    (record,) = rig.records("commands")
    assert decode_record(record).event == CheckpointJob(job_id="saver", cluster="c0", ordered_ms=build.START_MS)
    assert record.partition == 0
    assert answer["job_id"] == "saver"


@pytest.mark.parametrize(
    ("job_id", "says"),
    [("nobody", "No job or application is named nobody"), ("small", "submitted without a checkpoint mode")],
)
def test_checkpoint_says_why_it_asks_nobody(job_id: str, says: str):
    rig = contended()
    assert says in failing(rig, "checkpoint", job_id)
    assert rig.records("commands") == []


def test_a_waiting_job_is_not_asked():
    rig = running()
    rig.give(build.accepted("later", 8, checkpoint=SAVES), build.forecast("later", {8: 3600}))
    assert "later is queued" in failing(rig, "checkpoint", "later")


def test_events_shows_everything_about_a_job_in_order():
    rig = running()
    rig.give(
        JobCheckpointed(
            job_id="saver", attempt=1, node="n00", cluster="c0", time_ms=build.START_MS, fraction=0.25, location="/d"
        )
    )
    rig.give(build.completed("saver", "n00", build.START_MS + 1000), build.accepted("other", 1))
    rows = rig.json("events", "saver")
    types = [row["type"].removesuffix(".v1") for row in rows]
    assert types.index("job.accepted") < types.index("job.started") < types.index("job.checkpointed")
    assert types.index("job.checkpointed") < types.index("job.completed")
    assert {row["topic"] for row in rows} == {
        "jobs",
        "forecasts",
        "decisions",
        "placements",
        "executions",
        "job-status",
    }
    assert not [row for row in rows if "other" in row["what"]]
    said = rig.run("events", "saver")
    assert "25.0% safe at /d" in said
    assert "attempt 1 on n00" in said
    only = rig.json("events", "saver", "--topic", "executions")
    assert [row["type"] for row in only] == ["job.started.v1", "job.checkpointed.v1", "job.completed.v1"]


def test_events_of_an_unknown_job_is_an_error_with_a_hint():
    assert "Did you mean saver" in failing(running(), "events", "savr")


def output(run_dir: Path, name: str, content: str) -> Path:
    path = run_dir / "nodes" / name / "output.log"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    return path


def test_logs_shows_the_newest_attempt(tmp_path: Path):
    output(tmp_path, "n00/a/1-1", "old\n")
    output(tmp_path, "n01/a/2-1", "second node\n")
    output(tmp_path, "n00/a/2-1", "".join(f"line {number}\n" for number in range(100)))
    output(tmp_path, "n00/team%2Fb/1-1", "b\n")
    rig = Rig()
    shown = rig.run("logs", "a", "-n", "2", "--run-dir", str(tmp_path))
    assert shown.endswith("line 98\nline 99\n")
    assert rig.run("logs", "a", "--attempt", "1", "--run-dir", str(tmp_path)).endswith("old\n")
    assert rig.run("logs", "a", "--node", "n01", "--run-dir", str(tmp_path)).endswith("second node\n")
    assert rig.run("logs", "team/b", "--run-dir", str(tmp_path)).endswith("b\n")
    assert "it has not started" in failing(rig, "logs", "c", "--run-dir", str(tmp_path))
    assert [log.attempt for log in find_logs(tmp_path, "a")] == [1, 2, 2]


def test_following_goes_over_a_rotation_to_the_end_of_the_attempt(tmp_path: Path):
    path = output(tmp_path, "n00/a/1-1", "one\ntwo\n")
    log = newest(tmp_path, "a", node=None, attempt=None)
    content, offset = tail(path, 1)
    assert content == b"two\n"
    steps = iter(
        [
            lambda: path.write_text("one\ntwo\nthree\n"),
            lambda: None,
            lambda: path.write_text("new\n"),
            lambda: (path.write_text("new\nlast\n"), (path.parent / "exit.json").write_text("{}")),
        ]
    )
    seen = b"".join(follow(log, offset, lambda _: next(steps)()))
    assert seen == b"three\nnew\nlast\n"


@pytest.mark.parametrize("behind", [0, 1, 5_000])
def test_following_shows_every_line_that_a_rotation_kept(tmp_path: Path, behind: int):
    """Also what was written between the last look and the rotation, which only the copy holds."""
    path = output(tmp_path, "n00/a/1-1", "0\n")
    log = newest(tmp_path, "a", node=None, attempt=None)
    count = 1

    def grow(lines: int) -> None:
        nonlocal count
        with path.open("a") as file:
            file.writelines(f"{number}\n" for number in range(count, count + lines))
        count += lines

    def turn() -> None:
        grow(behind)
        rotate(path, LogLimits(bytes_max=1, kept=3))
        grow(1)

    steps = iter([lambda: grow(10), turn, lambda: grow(3), turn, lambda: (path.parent / "exit.json").write_text("{}")])
    seen = b"".join(follow(log, 0, lambda _: next(steps)()))
    assert [int(line) for line in seen.split()] == list(range(count))


def test_a_folder_without_the_job_says_where_to_look(tmp_path: Path):
    with pytest.raises(ConsoleError, match="another machine"):
        newest(tmp_path, "a", node=None, attempt=None)
