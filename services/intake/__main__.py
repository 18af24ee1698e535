"""`python -m services.intake`: configuration from `GPUGRID_*`, then run until told to stop."""

from __future__ import annotations

import os

from services.intake.shell.app import IntakeConfig, run_intake
from services.runtime.process import run_configured

if __name__ == "__main__":
    raise SystemExit(
        run_configured("intake", IntakeConfig, lambda config, stop: run_intake(config, os.environ, stop), os.environ)
    )
