"""The life of a service's process: start, run until told to stop, drain, end with an exit code that says why.

Owns: signals, the drain limit, exit codes, logs' set-up. SIGTERM and SIGINT set the `stop` event that `main` watches; a
second signal, or a drain that takes too long, ends the process at once, which is safe because nothing uncommitted is lost.
Refuses to know what a service does. Read next: `config.py`, `health.py`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from services.runtime.bus.port import BusError
from services.runtime.config import ConfigError, ServiceConfig, load
from services.runtime.logs import set_up_logs

EXIT_OK = 0
EXIT_CONFIGURATION = 78
"""EX_CONFIG: starting again without a change will not help."""
EXIT_UNAVAILABLE = 69
"""EX_UNAVAILABLE: Kafka is away or refuses; starting again may help."""
EXIT_FAILED = 70
"""EX_SOFTWARE: an unexpected error; starting again continues from the log."""
DRAIN_S_MAX = 12.0
"""From the signal to the end. Supervisors kill after 15 to 30 s."""

Main = Callable[[asyncio.Event], Awaitable[None]]

K = TypeVar("K", bound=ServiceConfig)

log = logging.getLogger(__name__)


def run_configured(
    service: str, kind: type[K], main: Callable[[K, asyncio.Event], Awaitable[None]], environ: Mapping[str, str]
) -> int:
    """What a service's `__main__` does: read the configuration, then `run_service` with its instance and log level.

    raise SystemExit(run_configured("intake", IntakeConfig, serve, os.environ))
    """
    try:
        config = load(kind, environ)
    except ConfigError as error:
        print(f"{service}: {error}", file=sys.stderr)
        return EXIT_CONFIGURATION

    async def configured(stop: asyncio.Event) -> None:
        await main(config, stop)

    return run_service(service, configured, instance_id=config.instance_id, log_level=config.log_level)


def run_service(service: str, main: Main, *, instance_id: str = "", log_level: str = "info") -> int:
    """Run `main(stop)` to its end and return the exit code: `raise SystemExit(run_service("intake", main))`."""
    set_up_logs(service, instance_id or service, log_level)
    try:
        asyncio.run(_until_stopped(main))
    except ConfigError as error:
        print(f"{service}: {error}", file=sys.stderr)
        return EXIT_CONFIGURATION
    except BusError as error:
        log.error("ending: %s", error)
        return EXIT_UNAVAILABLE
    except Exception:
        log.critical("ending after an unexpected error", exc_info=True)
        return EXIT_FAILED
    return EXIT_OK


def settle_memory() -> None:
    """Call it when a service is warm: what lives now lives on, and the garbage collector need not look at it again.

    A full collection walks over every object that numba, LightGBM and the rest have made: 60 to 150 ms, now and then, in
    which nothing is answered.
    """
    gc.collect()
    gc.freeze()


async def _until_stopped(main: Main) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def told_to_stop(name: str) -> None:
        if stop.is_set():
            log.warning("%s again: ending at once", name)
            _end_at_once()
        log.info("%s: draining", name)
        stop.set()
        loop.call_later(DRAIN_S_MAX, _drained_too_long)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told_to_stop, number.name)
    await main(stop)


def _drained_too_long() -> None:
    log.error(
        "still not drained after %s s: ending at once; what was not committed is repeated on the next start",
        DRAIN_S_MAX,
    )
    _end_at_once()


def _end_at_once() -> None:
    logging.shutdown()
    os._exit(EXIT_FAILED)
