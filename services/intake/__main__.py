"""`python -m services.intake`: configuration from `GPUGRID_*`, then run until told to stop."""

from __future__ import annotations

import os
import sys

from services.intake.shell.app import IntakeConfig, run_intake
from services.runtime.config import ConfigError, load
from services.runtime.process import EXIT_CONFIGURATION, run_service

if __name__ == "__main__":
    try:
        config = load(IntakeConfig, os.environ)
    except ConfigError as error:
        print(f"intake: {error}", file=sys.stderr)
        sys.exit(EXIT_CONFIGURATION)
    sys.exit(
        run_service(
            "intake",
            lambda stop: run_intake(config, os.environ, stop),
            instance_id=config.instance_id,
            log_level=config.log_level,
        )
    )
