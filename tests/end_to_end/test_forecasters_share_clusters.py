"""Two forecasters on a real Kafka: each trains for its own clusters, and whoever takes a cluster over answers with its model."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest

from deploy.local.broker import EmbeddedBroker
from deploy.local.topics import ensure_topics
from schemas.base import Event
from schemas.codec import decode_record
from schemas.forecasts import DurationForecast
from schemas.jobs import ModelFacts
from schemas.messages import message
from schemas.models import Choice, ModelChosen
from services.runtime.bus.kafka import KafkaBus
from services.runtime.health import read_health
from tests.build import accepted
from tests.unit.forecaster.forecaster_builders import completed, started

pytestmark = [pytest.mark.kafka, pytest.mark.end_to_end, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0
PARTITIONS = {"c0": 0, "c1": 3}
RUNS = 400
CATALOG = 'default_cluster = "c0"\n' + "".join(
    f"[clusters.{name}]\npartition = {partition}\n[clusters.{name}.pools.h100]\n"
    'gpus = 64\nnode_gpus = 8\ngpu_model = "H100"\nmemory_mib = 81920\n'
    for name, partition in PARTITIONS.items()
)


class Pair:
    """Processes by instance, a producer of their inputs, a reader of all they say."""

    def __init__(self, address: str, folder: Path) -> None:
        self.folder = folder
        (folder / "catalog.toml").write_text(CATALOG)
        self._environ = {
            **os.environ,
            "GPUGRID_BOOTSTRAP": address,
            "GPUGRID_CATALOG": str(folder / "catalog.toml"),
            "GPUGRID_RUN_DIR": str(folder),
            "GPUGRID_MODEL": "none",
            "GPUGRID_RETRAIN_RUNS_MIN": str(RUNS),
            "GPUGRID_RETRAIN_JUDGED_MIN": "50",
            "GPUGRID_TRAINING_PRIORITY": "nice",  # the machine that runs tests is seldom idle
        }
        bus = KafkaBus(address)
        topics = ("forecasts", "models")
        self.producer = bus.producer("test")
        self.reader = bus.reader("test", [(topic, number) for topic in topics for number in range(4)])
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.heard: list[Event] = []

    def spawn(self, instance: str) -> None:
        with (self.folder / f"{instance}.log").open("ab") as log:
            self.processes[instance] = subprocess.Popen(
                [sys.executable, "-m", "services.forecaster"],
                cwd=ROOT, env={**self._environ, "GPUGRID_INSTANCE_ID": instance}, stderr=log,
            )  # fmt: skip

    async def ready(self, instance: str) -> None:
        process = self.processes[instance]
        deadline_s = time.monotonic() + DEADLINE_S
        while (
            (health := read_health(self.folder, instance)) is None
            or health.pid != process.pid
            or not answers(health.port)
        ):
            assert time.monotonic() < deadline_s, self.log(instance)
            assert process.poll() is None, self.log(instance)
            await asyncio.sleep(0.05)

    def kill(self, instance: str) -> None:
        process = self.processes.pop(instance)
        process.send_signal(signal.SIGKILL)
        process.wait(10)

    async def send(self, cluster: str, *events: Event) -> None:
        stamp = time.time_ns()
        await self.producer.send_all(
            [
                message(
                    event, key="k", id=f"{stamp}-{place}", source="test", time_ms=now_ms(),
                    partition=PARTITIONS[cluster],
                )
                for place, event in enumerate(events)
            ]
        )  # fmt: skip

    async def hear(self, wanted: Callable[[Event], bool]) -> Event:
        """The first event that is wanted, among those heard before and to come."""
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            found = next((event for event in self.heard if wanted(event)), None)
            if found is not None:
                return found
            assert time.monotonic() < deadline_s, "\n".join(self.log(instance) for instance in ("f0", "f1"))
            self.heard += [
                decode_record(record).event for record in await self.reader.poll(max_records=500, timeout_s=0.5)
            ]

    async def forecast(self, cluster: str, job_id: str) -> DurationForecast:
        await self.send(cluster, accepted(job_id, 1, at_ms=now_ms(), cluster=cluster, model=facts(1e8)))
        found = await self.hear(lambda event: isinstance(event, DurationForecast) and event.job_id == job_id)
        assert isinstance(found, DurationForecast)
        return found

    def log(self, instance: str) -> str:
        path = self.folder / f"{instance}.log"
        return path.read_text()[-4_000:] if path.exists() else ""


def answers(port: int) -> bool:
    """Whether the process has its partitions and their history."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def facts(tokens: float) -> ModelFacts:
    return ModelFacts(dataset_tokens=tokens)


def past(cluster: str) -> list[Event]:
    """Runs whose length only the tokens tell, one an hour."""
    chance = np.random.default_rng(1)
    told: list[Event] = []
    for number in range(RUNS + 5):
        tokens = float(10 ** chance.uniform(6, 9))
        run_s = float(tokens**0.5 * chance.lognormal(0.0, 0.2))
        at_ms = now_ms() - (RUNS + 5 - number) * 3_600_000
        job_id = f"{cluster}-past{number}"
        told += [
            accepted(job_id, 1, at_ms=at_ms, cluster=cluster, model=facts(tokens)),
            started(job_id, at_ms, cluster=cluster),
            completed(job_id, at_ms + round(run_s * 1000), run_s, cluster=cluster),
        ]
    return told


@pytest.fixture
async def pair(kafka_factory: Callable[[], EmbeddedBroker], tmp_path: Path) -> AsyncIterator[Pair]:
    broker = kafka_factory()
    await ensure_topics(broker.address)
    pair = Pair(broker.address, tmp_path)
    await pair.producer.start()
    await pair.reader.start()
    yield pair
    for process in pair.processes.values():
        process.kill()
        process.wait(10)
    await pair.producer.stop()
    await pair.reader.stop()


async def test_clusters_are_split_and_a_model_outlives_its_trainer(pair: Pair):
    for instance in ("f0", "f1"):
        pair.spawn(instance)
        await pair.ready(instance)
    for cluster in PARTITIONS:
        await pair.send(cluster, *past(cluster))
    models = {}
    for cluster in PARTITIONS:
        found = await pair.hear(lambda event, c=cluster: isinstance(event, ModelChosen) and event.cluster == c)
        assert isinstance(found, ModelChosen)
        assert found.choice is Choice.TRAINED
        assert found.current is not None
        models[cluster] = found.current.version
    trainings = {name: re.findall(r"training (c\d) on", pair.log(name)) for name in ("f0", "f1")}
    assert trainings == {"f0": ["c0"], "f1": ["c1"]}, "each trains for the cluster that it owns"
    before = {cluster: await pair.forecast(cluster, f"{cluster}-before") for cluster in PARTITIONS}
    assert {cluster: one.model for cluster, one in before.items()} == models

    pair.kill("f1")  # f0 takes over what was f1's, and has the model from the topic
    for cluster in PARTITIONS:
        after = await pair.forecast(cluster, f"{cluster}-taken-over")
        assert (after.model, after.prior) == (models[cluster], False)
        assert after.sizes[0].p50_s == pytest.approx(before[cluster].sizes[0].p50_s, rel=0.1)

    pair.kill("f0")  # nobody is left: a new process has everything from Kafka
    pair.spawn("f1")
    await pair.ready("f1")
    for cluster in PARTITIONS:
        after = await pair.forecast(cluster, f"{cluster}-again")
        assert after.model == models[cluster]
        assert after.sizes[0].p50_s == pytest.approx(before[cluster].sizes[0].p50_s, rel=0.1)
