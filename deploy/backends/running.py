"""Back ends that run as long as a `with` block: a trace store, a collector before it, Prometheus; on free loopback ports.

Owns: their command lines, files and readiness. Each dies with this process, however that ends. Refuses: installing.
Read next: `jaeger_build.py`, `prometheus_install.py`.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.backends.jaeger_build import jaeger_path
from deploy.backends.system_packages import prometheus_path
from deploy.local.guarded import GuardedProcess
from deploy.local.ports import free_port

COLLECTOR_FILE = Path(__file__).parents[1] / "collector" / "collector.yaml"
STORE_FILE = COLLECTOR_FILE.with_name("store.yaml")
PROMETHEUS_FOLDER = Path(__file__).parents[1] / "prometheus"
HOST = "127.0.0.1"
READY_S_MAX = 60.0
STOP_S_MAX = 5.0
POLL_S = 0.05
SCRAPE_S = 1
"""Tests wait for a scrape; a real one comes every 15 s."""


class BackendError(RuntimeError):
    """It is not installed, or did not come up; the message says which and where its log is."""


class TraceStore:
    """Jaeger: OTLP in at `otlp`, traces out of its query API."""

    def __init__(self, otlp: str, query: str) -> None:
        self.otlp = otlp
        self._query = query

    def trace(self, trace_id: str) -> list[dict[str, Any]]:
        """The spans of a trace with their process's service name as `service`; empty if the store has none."""
        try:
            found = get_json(f"{self._query}/api/traces/{trace_id}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return []
            raise
        spans: list[dict[str, Any]] = []
        for each in found.get("data") or []:
            names = {key: process["serviceName"] for key, process in each["processes"].items()}
            spans.extend({**span, "service": names[span["processID"]]} for span in each["spans"])
        return spans

    def search(self, service: str, operation: str, limit: int = 100) -> list[dict[str, Any]]:
        """Spans of one name, of the newest traces that have it."""
        asked = urllib.parse.urlencode({"service": service, "operation": operation, "limit": limit, "lookback": "1h"})
        found = get_json(f"{self._query}/api/traces?{asked}").get("data") or []
        return [span for each in found for span in each["spans"] if span["operationName"] == operation]

    def services(self) -> list[str]:
        return sorted(get_json(f"{self._query}/api/services").get("data") or [])


class MetricStore:
    """Prometheus: `query` is an instant query."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Series with `metric` and `value`."""
        return self._get("query", query=expression)["result"]

    def exemplars(self, expression: str, start_s: float, end_s: float) -> list[dict[str, Any]]:
        return self._get("query_exemplars", query=expression, start=str(start_s), end=str(end_s))

    def _get(self, what: str, **parameters: str) -> Any:
        return get_json(f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}")["data"]


@contextmanager
def trace_store(folder: Path) -> Iterator[TraceStore]:
    """A Jaeger with its traces in memory."""
    otlp, query, grpc, health = (free_port() for _ in range(4))
    environment = {
        "GPUGRID_STORE_HTTP": f"{HOST}:{otlp}",
        "GPUGRID_STORE_QUERY": f"{HOST}:{query}",
        "GPUGRID_STORE_QUERY_GRPC": f"{HOST}:{grpc}",
        "GPUGRID_STORE_HEALTH": f"{HOST}:{health}",
    }
    with _jaeger("store", STORE_FILE, folder, environment) as process:
        _until_ready(process, f"http://{HOST}:{health}/status")
        yield TraceStore(f"http://{HOST}:{otlp}", f"http://{HOST}:{query}")


@contextmanager
def collector(
    folder: Path, store: TraceStore, *, sampling_wait: str = "1s", sampling_pct: float = 10.0
) -> Iterator[str]:
    """Our collector configuration in front of a store; yields its OTLP address."""
    port = free_port()
    environment = {
        "GPUGRID_COLLECTOR_HTTP": f"{HOST}:{port}",
        "GPUGRID_TRACE_STORE": store.otlp,
        "GPUGRID_SAMPLING_WAIT": sampling_wait,
        "GPUGRID_SAMPLING_PERCENT": f"{sampling_pct:g}",
    }
    with _jaeger("collector", COLLECTOR_FILE, folder, environment) as process:
        _until_ready(process, f"http://{HOST}:{port}/v1/traces", codes=(405, 400))
        yield f"http://{HOST}:{port}"


@contextmanager
def metric_store(folder: Path, targets: Sequence[Mapping[str, Any]]) -> Iterator[MetricStore]:
    """A Prometheus with our rules that scrapes `targets` (file_sd entries)."""
    binary = prometheus_path()
    if binary is None:
        raise BackendError("Prometheus is not installed: python -m deploy.backends install")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "targets.json").write_text(json.dumps(list(targets)))
    text = (PROMETHEUS_FOLDER / "prometheus.yml").read_text().replace("15s", f"{SCRAPE_S}s")
    for rules in PROMETHEUS_FOLDER.glob("*.rules.yml"):
        (folder / rules.name).write_text(rules.read_text())
    (folder / "prometheus.yml").write_text(text)
    port = free_port()
    command = [
        str(binary),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={HOST}:{port}",
        "--enable-feature=exemplar-storage",
        "--log.level=warn",
    ]
    with _running(command, folder / "prometheus.log", {}) as process:
        _until_ready(process, f"http://{HOST}:{port}/-/ready")
        yield MetricStore(f"http://{HOST}:{port}")


def scrape_targets(run_dir: Path) -> list[dict[str, Any]]:
    """The processes of a run folder as Prometheus's file_sd wants them, from their health files."""
    found = []
    for path in sorted((run_dir / "health").glob("*.json")):
        told = json.loads(path.read_text())
        labels = {"service": told["service"], "process": told["instance_id"]}
        found.append({"targets": [f"{HOST}:{told['port']}"], "labels": labels})
    return found


def get_json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=READY_S_MAX) as answer:  # noqa: S310 - loopback addresses of our own
        return json.loads(answer.read())


@contextmanager
def _jaeger(name: str, config: Path, folder: Path, environment: Mapping[str, str]) -> Iterator[GuardedProcess]:
    binary = jaeger_path()
    if binary is None:
        raise BackendError("Jaeger is not built: python -m deploy.backends install --jaeger")
    # It would trace itself, and hold up its own end by ten seconds for that.
    environment = {**environment, "OTEL_TRACES_SAMPLER": "always_off"}
    with _running([str(binary), "--config", str(config)], folder / f"{name}.log", environment) as process:
        yield process


@contextmanager
def _running(command: list[str], log_path: Path, environment: Mapping[str, str]) -> Iterator[GuardedProcess]:
    process = GuardedProcess(command, log_path=log_path, env={**os.environ, **environment})
    try:
        yield process
    finally:
        process.stop(STOP_S_MAX)


def _until_ready(process: GuardedProcess, url: str, codes: tuple[int, ...] = (200,)) -> None:
    deadline = time.monotonic() + READY_S_MAX
    while time.monotonic() < deadline and process.poll() is None:
        if _code(url) in codes:
            return
        time.sleep(POLL_S)
    raise BackendError(f"{url} did not come up: its log is {process.log_path}")


def _code(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - loopback addresses of our own
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
