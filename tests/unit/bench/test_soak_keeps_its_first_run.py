"""A kept undisturbed run is used for the same events and sources only."""

from pathlib import Path

import msgspec
import pytest

from bench.pipeline.facts import facts
from bench.soak.publish import Progress
from bench.soak.run import RunResult, SoakOptions, Undisturbed, undisturbed

OPTIONS = SoakOptions(events=1_200)
RUN = RunResult(
    took_s=1.0,
    publish_s=1.0,
    drained_s=1.0,
    events_per_s=1.0,
    jobs=1,
    resent=0,
    open_max=1,
    samples=[],
    kills=[],
    counts={},
    certain={"jobs": 1},
    decisions_by={},
    metered_gpu_h=0.5,
    used={},
    wrong=[],
)


def never(run: str, progress: Progress) -> None:
    raise AssertionError("a run was started")


def kept(folder: Path, options: SoakOptions, commit: str) -> Path:
    path = folder / "calm.json"
    machine = msgspec.structs.replace(facts(), commit=commit)
    path.write_bytes(msgspec.json.encode(Undisturbed(facts=machine, options=options, run=RUN)))
    return path


def test_a_kept_run_of_the_same_events_and_sources_is_not_made_again(tmp_path: Path) -> None:
    assert undisturbed(OPTIONS, tmp_path, never, kept(tmp_path, OPTIONS, facts().commit)) == RUN


def test_a_kept_run_of_other_events_is_refused(tmp_path: Path) -> None:
    path = kept(tmp_path, msgspec.structs.replace(OPTIONS, seed=2), facts().commit)
    with pytest.raises(ValueError, match=r"calm\.json is of .*seed=2.*: remove it to make the run again"):
        undisturbed(OPTIONS, tmp_path, never, path)


def test_a_kept_run_of_other_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at 0123456789ab, not of"):
        undisturbed(OPTIONS, tmp_path, never, kept(tmp_path, OPTIONS, "0123456789ab"))


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "calm.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match="holds no undisturbed run"):
        undisturbed(OPTIONS, tmp_path, never, path)
