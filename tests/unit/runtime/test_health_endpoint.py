"""The loopback endpoint: alive, ready or why not, metrics; and the file that tells where it is."""

from __future__ import annotations

import os
from pathlib import Path

import aiohttp
import pytest

from schemas.records import Now, Record
from services.runtime.health import HealthServer, read_health
from services.runtime.metrics import Metrics


def server(tmp_path: Path, metrics: Metrics, reasons: list[str | None], port: int = 0) -> HealthServer:
    return HealthServer(
        "intake", "intake-0", run_dir=tmp_path, port=port, metrics=metrics, not_ready=lambda: reasons[-1]
    )


async def test_answers_on_a_free_loopback_port_and_says_where(tmp_path: Path):
    metrics, reasons = Metrics("intake", "intake-0"), ["rebuilding"]
    health = server(tmp_path, metrics, reasons)
    await health.start()
    written = read_health(tmp_path, "intake-0")
    assert written is not None
    assert (written.service, written.pid, written.port) == ("intake", os.getpid(), health.port)
    metrics.observe_batch([Record("jobs", 0, 0, None, b"", (), 1_000)], Now(domain_ms=0, wall_ms=1_020))
    metrics.set_lag({("jobs", 0): 7})
    metrics.dead_letters.labels("malformed-json").inc()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{health.port}") as session:
        async with session.get("/healthz") as response:
            assert response.status == 200
            assert (await response.json())["service"] == "intake"
        async with session.get("/readyz") as response:
            assert (response.status, await response.json()) == (503, {"ready": False, "reason": "rebuilding"})
        reasons.append(None)
        async with session.get("/readyz") as response:
            assert response.status == 200
        async with session.get("/metrics") as response:
            text = await response.text()
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    await health.stop()
    assert 'gpugrid_hop_latency_seconds_bucket{le="0.02",topic="jobs"} 1.0' in text
    assert 'gpugrid_consumer_lag_records{partition="0",topic="jobs"} 7.0' in text
    assert 'gpugrid_dead_letters_total{reason="malformed-json"} 1.0' in text
    assert 'gpugrid_service{instance_id="intake-0",service="intake"} 1.0' in text
    assert read_health(tmp_path, "intake-0") is None


async def test_a_taken_port_is_one_sentence(tmp_path: Path):
    first = server(tmp_path, Metrics("a", "a"), [None])
    await first.start()
    second = server(tmp_path, Metrics("b", "b"), [None], port=first.port)
    with pytest.raises(OSError, match="is taken: choose another GPUGRID_HEALTH_PORT"):
        await second.start()
    await second.stop()
    await first.stop()
