"""`gpugrid conform` as a person runs it, against an executor process on a real Kafka."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.local.broker import EmbeddedBroker
from deploy.local.topics import create_topics
from services.console.conform.scenarios import SCENARIOS

pytestmark = [pytest.mark.kafka]
ROOT = Path(__file__).parents[2]
PATIENCE_S = 150.0
CATALOG = """
default_cluster = "c0"
[clusters.c0]
partition = 0
[clusters.c0.pools.h100]
gpus = 8
node_gpus = 8
gpu_model = "H100"
memory_mib = 81920
"""


def test_gpugrids_executor_keeps_its_contract_over_kafka(
    kafka_factory: Callable[[], EmbeddedBroker], tmp_path: Path
) -> None:
    broker = kafka_factory()
    create_topics(broker.address)
    (tmp_path / "catalog.toml").write_text(CATALOG)
    environment = os.environ | {
        "GPUGRID_BOOTSTRAP": broker.address,
        "GPUGRID_CATALOG": str(tmp_path / "catalog.toml"),
        "GPUGRID_CLUSTERS": "c0",
        "GPUGRID_RUN_DIR": str(tmp_path / "run"),
        "GPUGRID_NODES": "n00",
        "GPUGRID_DRIVER": "process",
        "GPUGRID_INSTANCE_ID": "executor-0",
    }
    executor = subprocess.Popen([sys.executable, "-m", "services.executor"], cwd=ROOT, env=environment)
    try:
        command = [sys.executable, "-m", "services.console", "--bootstrap", broker.address, "conform", "--json", "n00"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, cwd=ROOT)
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads(done.stdout)
        assert (found["wrong"], len(found["scenarios"])) == (0, len(SCENARIOS))
    finally:
        executor.terminate()
        executor.wait(PATIENCE_S)
