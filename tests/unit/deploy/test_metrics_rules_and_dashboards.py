"""What is documented, exposed, asked for in rules and drawn in dashboards is one set of metrics; rules pass Prometheus's own checker."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry
from typer.main import get_command

from deploy.backends.running import scrape_targets
from deploy.backends.system_packages import promtool_path
from deploy.grafana.__main__ import FOLDER
from deploy.grafana.dashboards import DASHBOARDS
from deploy.grafana.grafana_json import grafana_json
from services.allocator.shell.grid_metrics import GridMetrics
from services.console.app import build_app
from services.forecaster.shell.model_metrics import ModelMetrics
from services.runtime.metrics import Metrics
from services.telemetry.core.handler import TelemetryHandler
from services.telemetry.shell.agent import Agent, AgentSettings
from services.telemetry.shell.metrics import AgentMetrics, TelemetryMetrics
from tests.build import catalog

ROOT = Path(__file__).parents[3]
PROMETHEUS = ROOT / "deploy" / "prometheus"
NAME = re.compile(r"\bgpugrid[_:][a-z0-9_:]+")
SUFFIXES = ("_bucket", "_count", "_sum")
OWN = ("gpugrid_executor_reports_waiting", "gpugrid_executor_runs")
"""Made in the executor's own wiring, which needs a running one; the source is looked at instead."""


def documented() -> dict[str, str]:
    """Name → type."""
    lines = (ROOT / "docs" / "metrics.md").read_text().splitlines()
    rows = [line.split("|") for line in lines if line.startswith("| `gpugrid_")]
    return {row[1].strip(" `"): row[2].strip() for row in rows}


def exposed() -> dict[str, str]:
    registry = CollectorRegistry()
    GridMetrics(registry)
    ModelMetrics(registry)
    registry.register(TelemetryMetrics(TelemetryHandler(catalog())))
    registry.register(
        AgentMetrics(Agent(AgentSettings(nodes=("n0",), cluster="c0", pool="h100", partition=0), None, None, None))
    )
    found = {}
    for each in (*registry.collect(), *Metrics("x", "x-0").registry.collect()):
        found[f"{each.name}_total" if each.type == "counter" else each.name] = each.type
    return found


def asked(expression: str) -> set[str]:
    names = set()
    for name in NAME.findall(expression):
        suffix = next((end for end in SUFFIXES if name.endswith(end)), "")
        names.add(name.removesuffix(suffix))
    return names


def recorded() -> set[str]:
    groups = yaml.safe_load((PROMETHEUS / "recording.rules.yml").read_text())["groups"]
    return {rule["record"] for group in groups for rule in group["rules"]}


def test_the_page_documents_exactly_what_is_exposed() -> None:
    shown = {name: kind for name, kind in documented().items() if name not in OWN}
    assert shown == exposed()
    wiring = (ROOT / "services" / "executor" / "__main__.py").read_text()
    assert all(f'"{name}"' in wiring for name in OWN)


def test_no_metric_is_named_by_a_job() -> None:
    assert "job_id" not in (ROOT / "docs" / "metrics.md").read_text()


def test_rules_ask_for_what_there_is() -> None:
    for file in ("recording.rules.yml", "alerts.rules.yml"):
        for group in yaml.safe_load((PROMETHEUS / file).read_text())["groups"]:
            for rule in group["rules"]:
                assert asked(rule["expr"]) <= set(documented()) | recorded(), rule
                if "alert" in rule:
                    assert rule["labels"]["severity"] in ("page", "ticket")
                    assert rule["annotations"]["action"], "an alert says what to do"


def test_every_query_of_a_dashboard_asks_for_what_there_is() -> None:
    queries = [query for board in DASHBOARDS for _, row in board.rows for panel in row for query, _ in panel.queries]
    assert len(queries) > 40
    for query in queries:
        assert asked(query) <= set(documented()) | recorded(), query
        assert asked(query) or query.startswith("up"), query


def test_the_dashboards_files_are_what_the_code_says() -> None:
    for board in DASHBOARDS:
        written = json.loads((FOLDER / f"{board.uid}.json").read_text())
        assert written == grafana_json(board), "run `python -m deploy.grafana`"
        places = [(one["gridPos"]["x"], one["gridPos"]["y"]) for one in written["panels"]]
        assert len(places) == len(set(places)), "panels lie on one another"


def test_prometheus_own_checker_accepts_rules_configuration_and_the_alerts_tests(tmp_path: Path) -> None:
    promtool = promtool_path()
    if promtool is None:
        pytest.skip("SKIPPED, NOT PROVEN: promtool is not here; `python -m deploy.backends install` gets it")
    for words in (
        ["check", "config", "prometheus.yml"],
        ["check", "rules", "recording.rules.yml", "alerts.rules.yml"],
        ["test", "rules", "alerts.test.yml"],
    ):
        done = subprocess.run([promtool, *words], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    panels = [query for board in DASHBOARDS for _, row in board.rows for panel in row for query, _ in panel.queries]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(panels)]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", "--lint=none", str(tmp_path / "panels.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_and_pages_name_commands_that_exist() -> None:
    known = set(get_command(build_app()).commands)  # type: ignore[attr-defined]
    text = (PROMETHEUS / "alerts.rules.yml").read_text()
    named = set(re.findall(r"gpugrid ([a-z-]+)", text))
    assert named <= known, named - known


def test_a_run_folders_processes_are_named_for_prometheus(tmp_path: Path) -> None:
    (tmp_path / "health").mkdir()
    told = {"service": "intake", "instance_id": "intake-0", "pid": 1, "port": 17123}
    (tmp_path / "health" / "intake-0.json").write_text(json.dumps(told))
    labels = {"service": "intake", "process": "intake-0"}
    assert scrape_targets(tmp_path) == [{"targets": ["127.0.0.1:17123"], "labels": labels}]
