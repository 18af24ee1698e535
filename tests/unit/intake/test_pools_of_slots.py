"""Jobs for pools of slots: only by name, on one card, within a slot's memory. And a catalog that cuts more from a card than it has."""

from __future__ import annotations

import msgspec
import pytest

from schemas.catalog import Catalog, Cluster, Pool, SlotKind, Slots, read_catalog
from services.intake.core.case import submission_case
from services.intake.core.refusals import Reason
from services.intake.core.route import pools_for_job
from services.intake.core.validate import validate
from tests.unit.intake.intake_builders import NOW_MS, job_spec, submitted

WHOLE = Pool(gpus=16, node_gpus=8, gpu_model="H100", memory_mib=81_559)
HALF = Pool(
    gpus=32,
    node_gpus=16,
    gpu_model="H100",
    memory_mib=40_448,
    slots=Slots(of="h100", kind=SlotKind.MIG, per_card=2, profile="3g.40gb"),
)
CLUSTER = Cluster(partition=0, pools={"h100": WHOLE, "h100-half": HALF})
CATALOG = Catalog(clusters={"c0": CLUSTER}, default_cluster="c0")


def refused(**spec) -> list[Reason]:
    return [refusal.reason for refusal in validate(submission_case(submitted(cluster="c0", **spec), CATALOG, NOW_MS))]


def test_whoever_asks_for_gpus_gets_no_parts_of_them() -> None:
    assert pools_for_job(job_spec(sizes=[1], pools=[]), CLUSTER) == ["h100"]
    assert pools_for_job(job_spec(sizes=[1], pools=[], gpu_models=["H100"]), CLUSTER) == ["h100"]
    assert pools_for_job(job_spec(sizes=[1], pools=["h100-half"]), CLUSTER) == ["h100-half"]
    assert pools_for_job(job_spec(sizes=[1, 4], pools=["h100-half", "h100"]), CLUSTER) == ["h100-half", "h100"]


def test_a_job_that_fits_on_no_card_or_in_no_slot_is_refused() -> None:
    assert refused(sizes=[1, 2], pools=["h100-half"], memory_mib=40_448) == []
    assert refused(sizes=[4], pools=["h100-half"]) == [Reason.SIZE_EXCEEDS_POOL]
    assert refused(sizes=[1], pools=["h100-half"], memory_mib=40_449) == [Reason.MEMORY_EXCEEDS_GPU]


DOCUMENT = """
default_cluster = "c0"
[clusters.c0]
partition = 0
[clusters.c0.pools.h100]
gpus = 16
node_gpus = 8
gpu_model = "H100"
memory_mib = 81559
[clusters.c0.pools.part]
gpus = 32
node_gpus = {node_gpus}
gpu_model = "H100"
memory_mib = {memory_mib}
slots = {slots}
"""
MIG = '{ of = "h100", kind = "mig", per_card = 2, profile = "3g.40gb" }'
MPS = '{ of = "h100", kind = "mps", per_card = 2 }'


def test_a_catalog_of_slots_can_be_read() -> None:
    for slots in (MIG, MPS):
        catalog = read_catalog(DOCUMENT.format(node_gpus=16, memory_mib=40_779, slots=slots).encode())
        assert catalog.clusters["c0"].pools["part"].slots_per_card == 2


@pytest.mark.parametrize(
    ("slots", "node_gpus", "memory_mib", "words"),
    [
        (MPS, 16, 40_780, "at most 40779 MiB"),
        (MPS, 15, 40_000, "multiple of 2"),
        (MPS.replace("h100", "a100"), 16, 40_000, "pool of whole cards"),
        (MPS.replace("h100", "part"), 16, 40_000, "pool of whole cards"),
        (MPS.replace("mps", "mig"), 16, 40_000, "need a profile"),
        (MIG.replace("mig", "mps"), 16, 40_000, "have none"),
    ],
)
def test_a_catalog_that_cuts_more_than_there_is_or_nothing_is_refused(
    slots: str, node_gpus: int, memory_mib: int, words: str
) -> None:
    with pytest.raises((msgspec.ValidationError, ValueError), match=words):
        read_catalog(DOCUMENT.format(node_gpus=node_gpus, memory_mib=memory_mib, slots=slots).encode())
