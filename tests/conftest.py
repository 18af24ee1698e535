"""Fixtures only. Builders of events and states live beside the tests that need them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from deploy.local.broker import EmbeddedBroker
from services.allocator.shell.warmup import use_kernel_cache


def pytest_configure(config: pytest.Config) -> None:
    """Compiled kernels are shared with the installed program; the cache has to be named before numba is imported.

    A shell ignores SIGINT for what it starts in the background, and all children would inherit that: tests interrupt theirs.
    """
    use_kernel_cache()
    signal.signal(signal.SIGINT, signal.default_int_handler)


JIT_OFF_EXAMPLES = 1 / 3
"""Without the JIT a kernel runs a hundred times slower, and what may differ there (wrapping, types) differs on almost any board:
every property is tried, with a third of its examples. What only the solver decides is left to the compiled run."""
EXAMPLES_MIN = 5


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("NUMBA_DISABLE_JIT") != "1":
        return
    for item in items:
        if item.get_closest_marker("full_mode"):
            item.add_marker(
                pytest.mark.skip(reason="the solver is the same without the JIT, and its warm starts take minutes")
            )
    for function in {item.function for item in items if isinstance(item, pytest.Function)}:
        if getattr(function, "is_hypothesis_test", False):
            # What @settings leaves on a test; applying the decorator a second time is refused.
            given = function._hypothesis_internal_use_settings
            fewer = max(EXAMPLES_MIN, round(given.max_examples * JIT_OFF_EXAMPLES))
            function._hypothesis_internal_use_settings = settings(given, max_examples=min(given.max_examples, fewer))


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`host:port` of a real Kafka, started once per session (and per xdist worker): use topic names of your own."""
    with EmbeddedBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker.address


@pytest.fixture
def kafka_factory(tmp_path: Path) -> Iterator[Callable[[], EmbeddedBroker]]:
    """Make a broker of one's own, ready to serve, for tests that kill and restart it; all are gone after the test."""
    brokers: list[EmbeddedBroker] = []

    def make() -> EmbeddedBroker:
        broker = EmbeddedBroker(tmp_path / f"broker-{len(brokers)}")
        brokers.append(broker)
        broker.start()
        broker.ready()
        return broker

    yield make
    for broker in brokers:
        broker.kill()
