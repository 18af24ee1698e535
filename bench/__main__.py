"""`python -m bench [NAME …]`: run benchmarks in turn; without names all but the soak. `python -m bench.NAME --help` has the options.

Each runs as a process of its own, so that none measures another's warm caches or leftovers.
"""

from __future__ import annotations

import subprocess
import sys

COMMANDS: dict[str, list[str]] = {
    "allocator": ["-m", "bench.allocator"],
    "backtest": ["-m", "bench.backtest"],
    "mixed": ["-m", "bench.mixed"],
    "places": ["-m", "bench.mixed.places"],
    "rules": ["-m", "bench.rules"],
    "latency": ["-m", "bench.pipeline", "latency"],
    "throughput": ["-m", "bench.pipeline", "throughput"],
    "forecast": ["-m", "bench.forecast"],
    "forecaster-speed": ["-m", "bench.forecaster", "speed"],
    "forecaster-accuracy": ["-m", "bench.forecaster", "accuracy"],
    "telemetry": ["-m", "bench.telemetry"],
    "page": ["-m", "bench.page"],
    "soak": ["-m", "bench.soak"],
    "days": ["-m", "services.console", "simulate", "--seeds", "10", "--json-file", "bench/results/days.json"],
}

ONLY_BY_NAME = ("soak",)
"""Takes an hour."""


def main(names: list[str]) -> int:
    """Exit code 0 if every benchmark ran; 2 for a name that is none."""
    unknown = [name for name in names if name not in COMMANDS]
    if unknown:
        print(f"bench: no benchmark {', '.join(unknown)}; there are {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    for name in names or [name for name in COMMANDS if name not in ONLY_BY_NAME]:
        print(f"== {name}", flush=True)
        code = subprocess.run([sys.executable, *COMMANDS[name]], check=False).returncode
        if code != 0:
            print(f"bench: {name} ended with exit code {code}; the others were not run.", file=sys.stderr)
            return code
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
