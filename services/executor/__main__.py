"""Run an executor: `python -m services.executor`. All wiring is here."""

from __future__ import annotations

import asyncio
import os
import sys

from prometheus_client import Gauge

from services.executor.shell.config import (
    ExecutorConfig,
    cluster_of,
    driver_of,
    memory_of,
    nodes_dir,
    settings_of,
    sharing_of,
)
from services.executor.shell.journal_store import FileJournal, JournalError
from services.executor.shell.loop import Executor
from services.runtime.config import ConfigError, load
from services.runtime.lag import lag_measured
from services.runtime.metrics import Metrics
from services.runtime.process import EXIT_CONFIGURATION, run_service, settle_memory
from services.runtime.surroundings import surrounded

SERVICE = "executor"


def main() -> int:
    """Read the configuration, then serve the nodes until told to stop."""
    try:
        config = load(ExecutorConfig, os.environ)
        cluster = cluster_of(config)
        settings = settings_of(config, cluster)
    except ConfigError as error:
        print(f"{SERVICE}: {error}", file=sys.stderr)
        return EXIT_CONFIGURATION

    async def run(stop: asyncio.Event) -> None:
        async with surrounded(SERVICE, config, os.environ) as around:
            driver = driver_of(config, settings, cluster, around.clock)
            cutter, cut = sharing_of(config, settings, driver, around.clock)
            executor = Executor(
                settings,
                around.bus,
                around.clock,
                driver,
                lambda node: FileJournal(nodes_dir(config) / node / "journal", durable=config.journal_fsync),
                spans=around.tracing,
                memory=memory_of(config),
                cutter=cutter,
                cut=cut,
            )
            _measure(executor, around.metrics)
            settle_memory()
            running = asyncio.create_task(executor.run(stop))
            around.not_ready = "reading placements"
            ready = asyncio.create_task(executor.ready.wait())
            await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
            around.not_ready = None
            try:
                async with lag_measured(around.metrics, around.clock, executor.lag):
                    await running
            except JournalError as error:
                raise ConfigError(str(error)) from None
            finally:
                ready.cancel()

    return run_service(SERVICE, run, instance_id=settings.client_id, log_level=config.log_level)


def _measure(executor: Executor, metrics: Metrics) -> None:
    waiting = Gauge(
        "gpugrid_executor_reports_waiting", "Reports Kafka has not acknowledged.", registry=metrics.registry
    )
    waiting.set_function(lambda: executor.reports_waiting)
    runs = Gauge("gpugrid_executor_runs", "Attempts alive on this executor's nodes.", registry=metrics.registry)
    runs.set_function(lambda: sum(len(node.state.runs) for node in executor.nodes.values()))


if __name__ == "__main__":
    raise SystemExit(main())
