"""Run the allocator: `python -m services.allocator`. All wiring is here; kernels are compiled before the group is joined."""

from __future__ import annotations

import asyncio
import os
import sys

from services.allocator.shell.warmup import use_kernel_cache, warm_up

use_kernel_cache()  # numba reads its cache folder when it is imported, so this comes first

from services.allocator.shell.full_mode import FullMode  # noqa: E402
from services.allocator.shell.full_process import ProcessSolver  # noqa: E402
from services.allocator.shell.loop import Allocator  # noqa: E402
from services.allocator.shell.observe import DecisionObserver  # noqa: E402
from services.allocator.shell.settings import AllocatorConfig, settings_of  # noqa: E402
from services.runtime.config import ConfigError, catalog_in, load  # noqa: E402
from services.runtime.lag import lag_measured  # noqa: E402
from services.runtime.process import EXIT_CONFIGURATION, run_service, settle_memory  # noqa: E402
from services.runtime.surroundings import surrounded  # noqa: E402

SERVICE = "allocator"
READY_POLL_S = 0.1


def main() -> int:
    """Read the configuration, then own clusters until told to stop."""
    try:
        config = load(AllocatorConfig, os.environ)
        catalog = catalog_in(config.catalog)
    except ConfigError as error:
        print(f"{SERVICE}: {error}", file=sys.stderr)
        return EXIT_CONFIGURATION

    async def run(stop: asyncio.Event) -> None:
        async with surrounded(SERVICE, config, os.environ) as around:
            around.not_ready = "compiling kernels"
            await asyncio.to_thread(warm_up)
            settings = settings_of(config, catalog)
            observer = DecisionObserver(around.tracing, around.metrics)
            full_mode = None
            if config.full_s > 0:
                full_mode = FullMode(ProcessSolver(), config.full_s, config.full_every_s, observer.count_answer)
            allocator = Allocator(
                around.bus,
                around.clock,
                catalog,
                settings.__getitem__,
                instance_id=around.instance_id,
                observe=observer,
                full_mode=full_mode,
            )
            settle_memory()
            running = asyncio.create_task(allocator.run(stop))
            async with lag_measured(around.metrics, around.clock, allocator.lag):
                while not running.done():
                    around.not_ready = None if allocator.joined else "joining its group"
                    await asyncio.wait([running], timeout=READY_POLL_S)
            await running

    return run_service(SERVICE, run, instance_id=config.instance_id, log_level=config.log_level)


if __name__ == "__main__":
    raise SystemExit(main())
