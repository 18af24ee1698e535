"""`python -m services.forecaster`: configuration from `GPUGRID_*`, then run until told to stop."""

from __future__ import annotations

import os
import sys

from services.forecaster.shell.app import ForecasterConfig, run_forecaster
from services.runtime.config import ConfigError, load
from services.runtime.process import EXIT_CONFIGURATION, run_service

if __name__ == "__main__":
    try:
        config = load(ForecasterConfig, os.environ)
    except ConfigError as error:
        print(f"forecaster: {error}", file=sys.stderr)
        sys.exit(EXIT_CONFIGURATION)
    sys.exit(
        run_service(
            "forecaster",
            lambda stop: run_forecaster(config, os.environ, stop),
            instance_id=config.instance_id,
            log_level=config.log_level,
        )
    )
