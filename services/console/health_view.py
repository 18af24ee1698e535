"""What the processes of a stack say about themselves: ready or why not, and how far they lag behind. Loopback HTTP only."""

from __future__ import annotations

import http.client
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from services.runtime.health import FOLDER, HOST, HealthFile

ASK_WAIT_S = 1.0
"""A health endpoint answers in milliseconds; one that takes longer is stuck, and that is the finding."""
LAG_RECORDS_MAX = 1_000
"""Three seconds of the busiest stream we promise to keep up with (300 events/s)."""
_LAG = re.compile(rb'^gpugrid_consumer_lag_records\{partition="(\d+)",topic="([^"]+)"\} ([0-9.e+]+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Health:
    """One process. `reason` "" when ready; `lag`: records not yet read, by topic."""

    instance_id: str
    service: str
    pid: int
    reason: str
    lag: Mapping[str, int] = field(default_factory=dict)


def healths(run_dir: Path) -> list[Health]:
    """Every process that has written where it can be asked, by name."""
    found = []
    for file in sorted((run_dir / FOLDER).glob("*.json")):
        try:
            facts = msgspec.json.decode(file.read_bytes(), type=HealthFile)
        except (OSError, msgspec.DecodeError):
            continue
        found.append(_asked(facts))
    return found


def _asked(facts: HealthFile) -> Health:
    try:
        status, body = _get(facts.port, "/readyz")
        reason = "" if status == http.client.OK else _reason(body)
        _, metrics = _get(facts.port, "/metrics")
    except (OSError, http.client.HTTPException) as error:
        return Health(facts.instance_id, facts.service, facts.pid, f"does not answer ({error})")
    return Health(facts.instance_id, facts.service, facts.pid, reason, lag_of(metrics))


def lag_of(metrics: bytes) -> dict[str, int]:
    """Lag per topic in a Prometheus exposition, partitions added up."""
    lag: dict[str, int] = {}
    for _, topic, value in _LAG.findall(metrics):
        lag[topic.decode()] = lag.get(topic.decode(), 0) + int(float(value))
    return dict(sorted(lag.items()))


def _reason(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body).get("reason", "not ready"))
    except (msgspec.DecodeError, AttributeError):
        return "not ready"


def _get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=ASK_WAIT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
