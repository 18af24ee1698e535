"""Run telemetry: `python -m services.telemetry`. All wiring is here; the node agent is `python -m services.telemetry.agent`."""

from __future__ import annotations

import asyncio
import os
import sys

from services.runtime.config import ConfigError, catalog_in, load
from services.runtime.process import EXIT_CONFIGURATION, run_service
from services.runtime.surroundings import serve_handler_in, surrounded
from services.telemetry.core.handler import TelemetryHandler
from services.telemetry.shell.config import TelemetryConfig, policy_of
from services.telemetry.shell.metrics import TelemetryMetrics

SERVICE = "telemetry"


def main() -> int:
    """Read the configuration, then follow the nodes until told to stop."""
    try:
        config = load(TelemetryConfig, os.environ)
        catalog = catalog_in(config.catalog)
        handler = TelemetryHandler(catalog, policy=policy_of(config))
    except ConfigError as error:
        print(f"{SERVICE}: {error}", file=sys.stderr)
        return EXIT_CONFIGURATION

    async def run(stop: asyncio.Event) -> None:
        async with surrounded(SERVICE, config, os.environ) as around:
            around.metrics.registry.register(TelemetryMetrics(handler))
            await serve_handler_in(around, handler, config, stop)

    return run_service(SERVICE, run, instance_id=config.instance_id, log_level=config.log_level)


if __name__ == "__main__":
    raise SystemExit(main())
