"""Acceptable pools by name and GPU model, and how fast a job runs in each beside the first: whose word counts."""

from __future__ import annotations

from msgspec import structs

from schemas.catalog import Cluster, Pool
from schemas.codec import decode_record
from schemas.jobs import JobAccepted, ModelFacts
from schemas.records import Record
from services.intake.core.handler import IntakeHandler
from services.intake.core.route import pools_for_job
from services.intake.core.speeds import Measured, names_model, speeds_of
from services.intake.shell.measured import shipped_speeds
from tests.unit.intake.intake_builders import CATALOG, NOW, job_spec, record_of, submitted


def pool(gpu_model: str, speed: float | None = None, memory_mib: int = 16_000) -> Pool:
    return Pool(gpus=16, node_gpus=8, gpu_model=gpu_model, memory_mib=memory_mib, speed=speed)


OLD = {"v100": pool("Tesla V100-SXM2-16GB"), "p100": pool("Tesla P100-PCIE-16GB")}
NEW = {"h100": pool("NVIDIA H100 80GB HBM3", 2.0), "a100": pool("NVIDIA A100-SXM4-80GB", 1.0)}
CLUSTER = Cluster(partition=0, pools=OLD | NEW)
MEASURED = shipped_speeds()


def test_a_gpu_model_is_named_by_words_that_stand_in_its_name() -> None:
    assert names_model("A100", "NVIDIA A100-SXM4-80GB")
    assert names_model("nvidia a100", "NVIDIA A100-SXM4-80GB")
    assert not names_model("A10", "NVIDIA A100-SXM4-80GB")
    assert not names_model("", "NVIDIA A100-SXM4-80GB")


def test_pools_come_by_name_first_then_by_gpu_model() -> None:
    assert pools_for_job(job_spec(gpu_models=["A100", "V100"]), CLUSTER) == ["a100", "v100"]
    assert pools_for_job(job_spec(pools=["h100"], gpu_models=["H100", "P100"]), CLUSTER) == ["h100", "p100"]
    assert pools_for_job(job_spec(speeds={"H100": 3.0, "a100": 1.5}), CLUSTER) == ["h100", "a100"]
    assert pools_for_job(job_spec(), CLUSTER) == ["v100", "p100", "h100", "a100"]


def test_the_jobs_own_word_counts_first_and_is_told_beside_its_first_pool() -> None:
    pools = [("a100", NEW["a100"]), ("h100", NEW["h100"])]
    spec = job_spec(speeds={"h100": 3.0, "A100": 1.5}, model=ModelFacts(base_model="resnet50"))
    assert speeds_of(spec, pools, MEASURED) == ({"a100": 1.0, "h100": 2.0}, "job")


def test_measurements_of_its_family_count_before_the_operators_numbers() -> None:
    told = [("v100", pool("Tesla V100", 1.0)), ("p100", pool("Tesla P100", 0.5))]
    resnet = job_spec(model=ModelFacts(base_model="org/ResNet-50"))
    assert speeds_of(resnet, told, MEASURED) == ({"v100": 1.0, "p100": 0.659}, "measured")
    assert speeds_of(job_spec(), told, MEASURED) == ({"v100": 1.0, "p100": 0.5}, "catalog")
    assert speeds_of(job_spec(), list(OLD.items()), MEASURED) == ({"v100": 1.0, "p100": 0.859}, "measured")


def test_one_source_speaks_for_all_pools_or_nobody_does() -> None:
    assert speeds_of(job_spec(), [("v100", OLD["v100"]), ("h100", NEW["h100"])], MEASURED) == ({}, "")
    assert speeds_of(job_spec(), list(NEW.items()), MEASURED) == ({"h100": 1.0, "a100": 0.5}, "catalog")
    assert speeds_of(job_spec(), list(OLD.items()), Measured()) == ({}, "")
    alike = [("x", pool("X", 2.0)), ("y", pool("Y", 2.0))]
    assert speeds_of(job_spec(), alike, MEASURED) == ({}, "")


def test_a_job_of_one_pool_has_no_speeds() -> None:
    assert speeds_of(job_spec(speeds={"h100": 2.0}), [("h100", NEW["h100"])], MEASURED) == ({}, "")


def test_a_repetition_repeats_the_speeds_even_when_the_catalog_says_otherwise_by_then() -> None:
    catalog = structs.replace(CATALOG, clusters={"c0": CLUSTER})
    first = IntakeHandler(catalog, measured=MEASURED)
    record = record_of(submitted(pools=["h100", "a100"]))
    said = first.handle(record, NOW)
    event = decode_record(
        Record(topic=said[0].topic, partition=0, offset=0, key=b"j1", value=said[0].value, headers=said[0].headers,
               timestamp_ms=0)
    ).event  # fmt: skip
    assert isinstance(event, JobAccepted)
    assert (event.pools, event.speeds, event.speeds_from) == (["h100", "a100"], {"h100": 1.0, "a100": 0.5}, "catalog")
    assert first.handle(record, NOW) == said


def test_a_job_that_accepts_one_pool_is_let_in_with_the_bytes_of_always() -> None:
    record = record_of(submitted(pools=["h100"]))
    value = IntakeHandler(CATALOG, measured=MEASURED).handle(record, NOW)[0].value
    assert value is not None
    assert b"speed" not in value


def test_the_shipped_table_has_every_family_beside_a_v100() -> None:
    assert set(MEASURED.families) >= {"ResNet-50", "Transformer", "any"}
    for family in MEASURED.families.values():
        assert family.speeds["v100"] == 1.0
        assert all(0.05 < speed < 5 for speed in family.speeds.values())
