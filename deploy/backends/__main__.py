"""`python -m deploy.backends status | install [--jaeger] | targets RUN_DIR`: what `make test-infra` needs, and what Prometheus scrapes."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from deploy.backends.jaeger_build import VERSION, JaegerBuildError, build_jaeger, jaeger_path
from deploy.backends.running import scrape_targets
from deploy.backends.system_packages import (
    PackageInstallError,
    chromium_path,
    install_chromium,
    install_prometheus,
    prometheus_path,
)
from deploy.local.cache import CacheUnusableError


def main() -> int:
    """0 if everything asked for is there; 1 with a sentence for each thing that is not."""
    parser = argparse.ArgumentParser(prog="python -m deploy.backends", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("status", help="say what is there")
    install = actions.add_parser("install", help="install what takes a minute")
    install.add_argument(
        "--jaeger", action="store_true", help="build Jaeger too, if it is missing: twelve minutes, once"
    )
    targets = actions.add_parser("targets", help="a run folder's processes as Prometheus's file_sd")
    targets.add_argument("run_dir", type=Path)
    asked = parser.parse_args()
    if asked.action == "targets":
        print(json.dumps(scrape_targets(asked.run_dir), indent=2))
        return 0
    if asked.action == "install":
        return _install(jaeger=asked.jaeger)
    print(f"prometheus: {prometheus_path() or 'missing'}")
    print(f"chromium: {chromium_path() or 'missing'}")
    print(f"jaeger {VERSION}: {jaeger_path() or 'missing'}")
    return 0


def _install(*, jaeger: bool) -> int:
    code = 0
    for wanted, get in ((True, install_prometheus), (True, install_chromium), (jaeger, build_jaeger)):
        if not wanted:
            continue
        try:
            print(get(lambda text: print(text, flush=True)))
        except (PackageInstallError, JaegerBuildError, CacheUnusableError) as error:
            print(f"SKIPPED: {error}", file=sys.stderr)
            code = 1
    return code


if __name__ == "__main__":
    raise SystemExit(main())
