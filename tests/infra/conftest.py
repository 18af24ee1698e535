"""What a real back end needs, and a loud word where it is missing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from deploy.backends.jaeger_build import jaeger_path
from deploy.backends.running import TraceStore, collector, trace_store
from deploy.backends.system_packages import prometheus_path
from tests.infra.observed_stack import ObservedStack, observed_stack

MUST = "GPUGRID_INFRA_REQUIRED"
"""Set by `make test-infra`: there nothing may be skipped."""


def needed(present: object, what: str, get: str) -> None:
    if present is not None:
        return
    sentence = f"SKIPPED, NOT PROVEN: {what} is not here; `{get}` gets it"
    if os.environ.get(MUST):
        pytest.fail(sentence)
    pytest.skip(sentence)


@pytest.fixture(scope="session")
def jaeger() -> None:
    needed(jaeger_path(), "Jaeger", "python -m deploy.backends install --jaeger")


@pytest.fixture(scope="session")
def prometheus() -> None:
    needed(prometheus_path(), "Prometheus", "python -m deploy.backends install")


@pytest.fixture(scope="module")
def store(jaeger: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TraceStore]:
    with trace_store(tmp_path_factory.mktemp("store")) as found:
        yield found


@pytest.fixture(scope="module")
def stack(store: TraceStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ObservedStack, TraceStore]]:
    folder: Path = tmp_path_factory.mktemp("observed")
    with ExitStack() as before:
        otlp = before.enter_context(collector(folder, store, sampling_wait="1s", sampling_pct=100))
        with observed_stack(folder / "run", otlp, lose_collector=before.close) as found:
            yield found, store
