"""What people are told of a job that accepts several pools, and how they say so when they submit one."""

from __future__ import annotations

from msgspec.structs import replace

from schemas.codec import decode_record, encode
from schemas.records import Record
from schemas.status import JobState, JobStatusChanged, NodeGpus
from services.console import sentences
from services.console.accepted_pools import pools_sentence
from services.console.facts import JobView, WorldFold
from tests import build
from tests.mixed_pools import FAST, SLOW, accepted
from tests.unit.console.console_rig import Rig


def status(state: JobState, **fields) -> JobStatusChanged:
    return JobStatusChanged(job_id="j", state=state, time_ms=build.START_MS, sequence=3, cluster="c0", **fields)


def seen(*events) -> JobView:
    fold = WorldFold()
    for offset, event in enumerate(events):
        headers, value = encode(event, id=str(offset), source="/test", time_ms=build.START_MS)
        fold.take(Record("t", 0, offset, b"j", value, tuple(headers), 0))
    return fold.world.jobs["j"]


def test_a_waiting_job_tells_the_pools_it_accepts_and_where_it_is_planned() -> None:
    said = status(JobState.QUEUED, reason="waits_for_better_pool", pool=FAST)
    view = seen(replace(accepted("j", 2, speed=0.5), speeds_from="measured"), said)
    assert pools_sentence(view) == (
        "It prefers a-fast and accepts b-slow at 0.5 times the speed (by measurements of its kind of model); for now it is"
        " planned in a-fast, where it is worth most beside all that waits."
    )
    fold = WorldFold()
    assert pools_sentence(view) in sentences.explain(view, fold.world, build.START_MS).lines


def test_a_running_job_tells_what_it_got_and_ends_by_the_speed_of_that_pool() -> None:
    placed = [NodeGpus(node="s0", gpus=[0, 1])]
    said = status(JobState.RUNNING, pool=SLOW, placed=placed, started_ms=build.START_MS)
    view = seen(accepted("j", 2, speed=0.5), build.forecast("j", {2: 3600.0}), said)
    assert pools_sentence(view).endswith("(by its own word); it got b-slow.")
    assert view.expected_end_ms() == build.START_MS + 7_200_000


def test_a_job_of_one_pool_says_nothing_of_pools() -> None:
    assert pools_sentence(seen(build.accepted("j", 2), status(JobState.QUEUED, reason="behind_priority"))) == ""


def test_pools_gpu_models_and_speeds_are_flags_of_submit() -> None:
    rig = Rig()
    rig.run(
        "submit", "--gpus", "2", "--pool", "h100", "--gpu-model", "A100", "--speed", "h100=2.2", "--speed", "A100=1",
        "--", "true",
    )  # fmt: skip
    (record,) = rig.records("job-events")
    spec = decode_record(record).event.spec
    assert (spec.pools, spec.gpu_models, spec.speeds) == (["h100"], ["A100"], {"h100": 2.2, "A100": 1.0})
