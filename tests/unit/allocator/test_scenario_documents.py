"""scenario.v1: every malformed file is refused with the field and the reason; plan.v1 shows what was planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.allocator.core.heuristic import plan_fast
from services.allocator.core.scenario import ScenarioError, node_sizes, plan_document, problem_of, read_scenario

GOOD: dict[str, Any] = {
    "format": "scenario.v1",
    "horizon_steps": 4,
    "gpus": 4,
    "node_gpus": 4,
    "realtime": [{"id": "rt", "priority": 5, "demand": [1, 1, 2, 1], "held": [3]}],
    "batch": [
        {"id": "run", "priority": 1, "running": {"first_gpu": 0, "gpus": 2, "remaining_steps": 2}},
        {"id": "j", "priority": 3, "requested_gpus": 1, "duration_steps": {"1": 3, "2": 2}},
    ],
}


def changed(path: str, value: object) -> bytes:
    document = json.loads(json.dumps(GOOD))
    *parents, last = path.split("/")
    target = document
    for part in parents:
        target = target[int(part)] if part.isdigit() else target[part]
    target[int(last) if last.isdigit() else last] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("format", "scenario.v2", "$.format"),
        ("horizon_steps", 97, "$.horizon_steps"),
        ("horizon_steps", "24", "$.horizon_steps"),
        ("gpus", -1, "$.gpus"),
        ("node_gpus", 0, "$.node_gpus"),
        ("nodes", [8], "$.nodes"),
        ("decay_end", 1.5, "$.decay_end"),
        ("realtime/0/demand", [1, 1], "$.realtime[0].demand"),
        ("realtime/0/demand/2", -1, "$.realtime[0].demand[2]"),
        ("realtime/0/held", [9], "$.realtime[0].held[0]"),
        ("realtime/0/priority", -5, "$.realtime[0].priority"),
        ("batch/1/id", "run", "$.batch[1].id"),
        ("batch/1/duration_steps", {}, "$.batch[1].duration_steps"),
        ("batch/1/duration_steps", {"3": 1}, "$.batch[1].duration_steps.3"),
        ("batch/1/duration_steps", {"1": 0}, "$.batch[1].duration_steps.1"),
        ("batch/1/requested_gpus", 4, "$.batch[1].requested_gpus"),
        ("batch/1/earliest_step", -1, "$.batch[1].earliest_step"),
        ("batch/0/running/remaining_steps", 0, "$.batch[0].running.remaining_steps"),
        ("batch/0/running/first_gpu", 3, "$.batch[0].running"),
        ("batch/0/running/gpus", 4, "$.batch[0].running"),  # runs into GPU 3, which rt holds
    ],
)
def test_refusals_name_the_field(path: str, value: object, field: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        read_scenario(changed(path, value))
    assert refused.value.field == field
    assert refused.value.reason


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b'{"format": "scenario.v1"}', b'{"gpus": NaN}'])
def test_what_is_not_a_scenario_is_refused(data: bytes) -> None:
    with pytest.raises(ScenarioError):
        read_scenario(data)


def test_plan_document_lists_running_placed_and_waiting_jobs() -> None:
    scenario = read_scenario(changed("batch/1/earliest_step", 1))
    problem = problem_of(scenario)
    document = plan_document(problem, plan_fast(problem, 0), 1.5)
    assert [job.id for job in document.batch] == ["run", "j"]
    assert document.batch[0].start_step == 0
    assert [(row.id, row.reason) for row in document.waiting] == [("j", "not_before")]
    assert [len(gpus) for gpus in document.realtime[0].gpus] == [1, 1, 2, 1]
    assert document.score.unmet == 0


def test_nodes_may_have_unequal_sizes() -> None:
    document = json.loads(json.dumps(GOOD)) | {"gpus": 18, "nodes": [8, 4, 6]}
    assert node_sizes(read_scenario(json.dumps(document).encode())) == (8, 4, 6)
    document = json.loads(json.dumps(GOOD)) | {"gpus": 10}
    assert node_sizes(read_scenario(json.dumps(document).encode())) == (4, 4, 2)


def test_the_data_folder_holds_the_seven_files() -> None:
    assert len(list((Path(__file__).parents[2] / "data" / "scenarios").glob("*.json"))) == 7
