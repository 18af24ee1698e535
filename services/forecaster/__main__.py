"""`python -m services.forecaster`: configuration from `GPUGRID_*`, then run until told to stop."""

from __future__ import annotations

import os

from services.forecaster.shell.app import ForecasterConfig, run_forecaster
from services.runtime.process import run_configured

if __name__ == "__main__":
    raise SystemExit(
        run_configured(
            "forecaster", ForecasterConfig, lambda config, stop: run_forecaster(config, os.environ, stop), os.environ
        )
    )
