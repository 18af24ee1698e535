"""The configurations of collector and store: what a pipeline names is defined, and Jaeger's own checker agrees where it is."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
import yaml

from deploy.backends.jaeger_build import jaeger_path
from deploy.backends.running import COLLECTOR_FILE, STORE_FILE

VARIABLE = re.compile(r"\$\{env:([A-Z_]+)(:-[^}]*)?\}")


@pytest.mark.parametrize("path", [COLLECTOR_FILE, STORE_FILE], ids=lambda path: path.name)
def test_pipelines_are_made_of_what_is_defined_and_all_of_it_is_used(path) -> None:
    config = yaml.safe_load(path.read_text())
    pipelines = config["service"]["pipelines"].values()
    for kind in ("receivers", "processors", "exporters"):
        used = {name for pipeline in pipelines for name in pipeline.get(kind, [])}
        assert used == set(config.get(kind, {})), kind
    assert set(config["service"].get("extensions", [])) == set(config.get("extensions", {}))


def test_every_failed_slow_and_long_waiting_trace_is_kept_and_a_part_of_the_rest() -> None:
    sampling = yaml.safe_load(COLLECTOR_FILE.read_text())["processors"]["tail_sampling"]
    kinds = {policy["name"]: policy["type"] for policy in sampling["policies"]}
    assert kinds == {"failed": "status_code", "slow": "latency", "waited": "ottl_condition", "rest": "probabilistic"}


@pytest.mark.parametrize("path", [COLLECTOR_FILE, STORE_FILE], ids=lambda path: path.name)
def test_jaegers_own_checker_accepts_it(path) -> None:
    binary = jaeger_path()
    if binary is None:
        pytest.skip("SKIPPED, NOT PROVEN: Jaeger is not here; `python -m deploy.backends install --jaeger` builds it")
    needed = {name: "127.0.0.1:1" for name, default in VARIABLE.findall(path.read_text()) if not default}
    needed = {name: f"http://{value}" if name == "GPUGRID_TRACE_STORE" else value for name, value in needed.items()}
    command = [binary, "validate", "--config", str(path)]
    done = subprocess.run(
        command, env={**os.environ, **needed}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
