"""A whole service around the echo handler, as `__main__` of a real one: `python -m tests.contract.served_echo IN OUT`."""

from __future__ import annotations

import asyncio
import os
import sys

from services.runtime.config import ServiceConfig
from services.runtime.process import run_configured
from services.runtime.surroundings import serve_handler
from tests.contract.faust_echo import Echo


async def main(config: ServiceConfig, stop: asyncio.Event) -> None:
    await serve_handler("echo", Echo(sys.argv[1], sys.argv[2]), config, os.environ, stop)


if __name__ == "__main__":
    raise SystemExit(run_configured("echo", ServiceConfig, main, os.environ))
