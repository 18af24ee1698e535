"""Run a node agent: `python -m services.telemetry.agent`. A process of its own, because it belongs on the node."""

from __future__ import annotations

import asyncio
import os
import sys

from services.runtime.config import ConfigError, catalog_in, load
from services.runtime.process import EXIT_CONFIGURATION, run_service
from services.runtime.surroundings import surrounded
from services.telemetry.shell.agent import Agent
from services.telemetry.shell.config import AgentConfig, agent_settings, source_of
from services.telemetry.shell.metrics import AgentMetrics

SERVICE = "agent"


def main() -> int:
    """Read the configuration, then sample until told to stop."""
    try:
        config = load(AgentConfig, os.environ)
        catalog = catalog_in(config.catalog)
        settings = agent_settings(config, catalog)
    except ConfigError as error:
        print(f"{SERVICE}: {error}", file=sys.stderr)
        return EXIT_CONFIGURATION

    async def run(stop: asyncio.Event) -> None:
        async with surrounded(SERVICE, config, os.environ) as around:
            agent = Agent(settings, around.bus, around.clock, source_of(config, settings, catalog, around.clock))
            around.metrics.registry.register(AgentMetrics(agent))
            around.not_ready = None
            await agent.run(stop)

    return run_service(SERVICE, run, instance_id=settings.client_id, log_level=config.log_level)


if __name__ == "__main__":
    raise SystemExit(main())
