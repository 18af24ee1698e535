"""Every rule of the table: one case that breaks it alone, the code and field it answers, and that the good case passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from schemas.catalog import Catalog, Cluster, Limits, Pool
from schemas.jobs import CheckpointMode, CheckpointPolicy, JobChanged, RestartMode, RestartPolicy
from services.intake.core.case import Case, change_case, registration_case, submission_case
from services.intake.core.refusals import SENTENCES, Reason
from services.intake.core.route import pool_for_application, pools_for_job
from services.intake.core.validate import CHECKPOINT_WAIT_S_MAX, RULES, SPEC_BYTES_MAX, validate
from tests.unit.intake.intake_builders import CATALOG, NOW_MS, application_spec, job_spec, registered, submitted


def job(**changes: Any) -> Case:
    return submission_case(submitted(**changes), CATALOG, NOW_MS)


def application(**changes: Any) -> Case:
    return registration_case(registered(**changes), CATALOG, NOW_MS)


def change(**changes: Any) -> Case:
    return change_case(JobChanged(job_id="j1", changed_ms=NOW_MS, **changes), CATALOG, NOW_MS)


DAY_MS = 86_400_000
BROKEN: list[tuple[Reason, str, Callable[[], Case]]] = [
    (Reason.INVALID_FIELD, "job_id", lambda: job(job_id="j1\n")),
    (Reason.INVALID_FIELD, "spec.user", lambda: job(user="ada\n")),
    (Reason.CLOCK_SKEW, "submitted_ms", lambda: job(submitted_ms=NOW_MS + DAY_MS + 1)),
    (Reason.CLOCK_SKEW, "ce_time", lambda: submission_case(submitted(), CATALOG, NOW_MS, NOW_MS + 2 * DAY_MS)),
    (Reason.CLOCK_SKEW, "registered_ms", lambda: application(registered_ms=NOW_MS + DAY_MS + 1)),
    (Reason.UNKNOWN_CLUSTER, "spec.cluster", lambda: job(cluster="mars")),
    (Reason.UNKNOWN_CLUSTER, "spec.cluster", lambda: application(cluster="mars")),
    (Reason.UNKNOWN_POOL, "spec.pools", lambda: job(pools=["h100", "tpu"])),
    (Reason.UNKNOWN_POOL, "spec.pool", lambda: application(pool="a100")),
    (Reason.UNKNOWN_GPU_MODEL, "spec.gpu_models", lambda: job(gpu_models=["H100", "MI300"])),
    (Reason.SPEED_UNUSABLE, "spec.speeds", lambda: job(speeds={"h100": 2.0, "tpu": 1.0})),
    (Reason.SPEED_UNUSABLE, "spec.speeds", lambda: job(pools=["h100", "l4"], speeds={"h100": 2.0})),
    (Reason.UNKNOWN_TEAM, "spec.team", lambda: job(team="strangers")),
    (Reason.UNKNOWN_TEAM, "spec.team", lambda: application(team="strangers")),
    (Reason.SIZE_REPEATED, "spec.sizes", lambda: job(sizes=[2, 4, 2])),
    (Reason.SIZE_NOT_POWER_OF_TWO, "spec.sizes", lambda: job(sizes=[2, 3])),
    (Reason.REQUESTED_SIZE_NOT_OFFERED, "spec.requested_gpus", lambda: job(sizes=[1, 2], requested_gpus=4)),
    (Reason.SIZE_EXCEEDS_POOL, "spec.sizes", lambda: job(sizes=[128])),
    (Reason.SIZE_EXCEEDS_POOL, "spec.sizes", lambda: job(sizes=[16], pools=["l4"])),
    (Reason.MEMORY_EXCEEDS_GPU, "spec.memory_mib", lambda: job(memory_mib=100_000)),
    (Reason.MEMORY_EXCEEDS_GPU, "spec.memory_mib", lambda: job(memory_mib=30_000, pools=["l4"])),
    (Reason.MEMORY_EXCEEDS_GPU, "spec.memory_mib", lambda: application(memory_mib=100_000)),
    (Reason.TIME_LIMIT_TOO_LONG, "spec.time_limit_s", lambda: job(time_limit_s=1_209_601.0)),
    (Reason.TIME_LIMIT_TOO_LONG, "time_limit_s", lambda: change(time_limit_s=1_209_601.0)),
    (Reason.RESTART_CONTRADICTION, "spec.restart.attempts_max", lambda: job(restart=RestartPolicy(attempts_max=3))),
    (
        Reason.RESTART_CONTRADICTION,
        "spec.restart.attempts_max",
        lambda: job(restart=RestartPolicy(mode=RestartMode.ON_FAILURE)),
    ),
    (
        Reason.CHECKPOINT_WAIT_TOO_LONG,
        "spec.checkpoint.wait_s",
        lambda: job(checkpoint=CheckpointPolicy(mode=CheckpointMode.SIGNAL, wait_s=CHECKPOINT_WAIT_S_MAX + 1)),
    ),
    (Reason.COMMAND_OR_TEMPLATE, "spec.command", lambda: job(command=None)),
    (Reason.COMMAND_OR_TEMPLATE, "spec.template", lambda: job(template="simulated")),
    (Reason.COMMAND_OR_TEMPLATE, "spec.command", lambda: application(template=None)),
    (Reason.COMMAND_UNUSABLE, "spec.command", lambda: job(command=[" "])),
    (Reason.COMMAND_UNUSABLE, "spec.command", lambda: job(command=["train", "a\0b"])),
    (Reason.COMMAND_UNUSABLE, "spec.working_directory", lambda: job(working_directory="/a\0")),
    (Reason.ENVIRONMENT_UNUSABLE, "spec.environment", lambda: job(environment={"A=B": "1"})),
    (Reason.ENVIRONMENT_UNUSABLE, "spec.environment", lambda: job(environment={"": "1"})),
    (Reason.ENVIRONMENT_UNUSABLE, "spec.environment", lambda: application(environment={"A": "\0"})),
    (Reason.ENVIRONMENT_UNUSABLE, "spec.environment", lambda: job(environment=dict.fromkeys("ABCD", ""))),
    (
        Reason.SPEC_TOO_LARGE,
        "spec",
        lambda: job(labels={f"l{i}": "x" * 4_000 for i in range(1 + SPEC_BYTES_MAX // 4_000)}),
    ),
    (Reason.FLOOR_EXCEEDS_PEAK, "spec.floor_gpus", lambda: application(floor_gpus=17)),
    (Reason.PEAK_EXCEEDS_POOL, "spec.peak_gpus", lambda: application(peak_gpus=65)),
    (Reason.PEAK_EXCEEDS_POOL, "spec.peak_gpus", lambda: application(peak_gpus=13, pool="l4")),
    (Reason.SWITCH_MAX_ABSURD, "spec.switch_max", lambda: application(switch_max=33)),
]


@pytest.mark.parametrize(("reason", "field", "case"), BROKEN, ids=lambda value: getattr(value, "value", ""))
def test_a_broken_rule_answers_its_code_its_field_and_what_to_do(
    reason: Reason, field: str, case: Callable[[], Case]
) -> None:
    refusals = validate(case())
    assert [(refusal.reason, refusal.field) for refusal in refusals] == [(reason, field)]
    assert refusals[0].sentence.startswith(field) or field in refusals[0].sentence


def test_every_rule_of_the_table_has_a_case_that_breaks_it() -> None:
    assert {reason for reason, _ in RULES} == {reason for reason, _, _ in BROKEN}


def test_every_reason_has_a_sentence_and_a_spelling_of_its_own() -> None:
    assert set(SENTENCES) == set(Reason)
    assert all(reason.sentence.endswith(".") for reason in Reason)
    assert len(set(SENTENCES.values())) == len(Reason)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"submitted_ms": 0},
        {"submitted_ms": NOW_MS + 3_600_000},
        {"sizes": [64]},
        {"sizes": [128, 1]},
        {"cluster": "c1", "sizes": [16]},
        {"pools": ["l4", "l4"]},
        {"memory_mib": 81_920},
        {"restart": RestartPolicy(mode=RestartMode.ON_FAILURE, attempts_max=3)},
        {"command": None, "template": "simulated"},
        {"time_limit_s": 1_209_600.0},
    ],
)
def test_what_keeps_the_rules_passes(changes: dict[str, Any]) -> None:
    assert validate(job(**changes)) == []


@pytest.mark.parametrize("changes", [{}, {"floor_gpus": 16}, {"pool": "l4", "peak_gpus": 12}, {"switch_max": 32}])
def test_an_application_that_keeps_the_rules_passes(changes: dict[str, Any]) -> None:
    assert validate(application(**changes)) == []


def test_all_broken_rules_are_reported_in_the_order_of_the_table() -> None:
    found = [refusal.reason for refusal in validate(job(sizes=[3, 3], team="strangers", command=None))]
    expected = [
        Reason.UNKNOWN_TEAM, Reason.SIZE_REPEATED, Reason.SIZE_NOT_POWER_OF_TWO, Reason.COMMAND_OR_TEMPLATE,
    ]  # fmt: skip
    assert found == expected


def test_a_catalog_without_teams_lets_every_team_submit() -> None:
    open_catalog = structs.replace(CATALOG, teams=[])
    assert validate(submission_case(submitted(team="strangers"), open_catalog, NOW_MS)) == []


def test_pools_are_those_that_can_form_a_block_and_have_the_memory() -> None:
    cluster = CATALOG.clusters["c0"]
    assert pools_for_job(job_spec(), cluster) == ["h100", "l4"]
    assert pools_for_job(job_spec(pools=["l4", "h100"]), cluster) == ["l4", "h100"]
    assert pools_for_job(job_spec(memory_mib=30_000), cluster) == ["h100"]
    assert pools_for_job(job_spec(sizes=[8]), cluster) == ["h100", "l4"]
    assert pools_for_job(job_spec(sizes=[16]), cluster) == ["h100"]


def test_blocks_of_whole_nodes_only_where_nodes_are_not_a_power_of_two() -> None:
    odd = Cluster(partition=0, pools={"odd": Pool(gpus=36, node_gpus=6, gpu_model="X", memory_mib=1)})
    catalog = Catalog(clusters={"c0": odd}, default_cluster="c0", limits=Limits())
    assert validate(submission_case(submitted(sizes=[4]), catalog, NOW_MS)) == []
    found = validate(submission_case(submitted(sizes=[8]), catalog, NOW_MS))
    assert [refusal.reason for refusal in found] == [Reason.SIZE_EXCEEDS_POOL]


def test_an_application_goes_to_the_first_pool_that_can_hold_its_peak() -> None:
    cluster = CATALOG.clusters["c0"]
    assert pool_for_application(application_spec(), cluster) == "h100"
    assert pool_for_application(application_spec(peak_gpus=12, pool="l4"), cluster) == "l4"
