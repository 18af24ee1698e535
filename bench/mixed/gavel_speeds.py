"""`python -m bench.mixed.gavel_speeds simulation_throughputs.json > services/intake/data/gpu_speeds.toml`: Gavel's throughputs, reduced.

Of each model and batch size the steps per second of one job alone on one GPU, beside a V100; of each family of models the geometric
mean over its batch sizes; `any` is the geometric mean over the families. The same bytes for the same file.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Iterable, Mapping
from math import exp, log
from pathlib import Path

GPUS = ("v100", "p100", "k80")
REFERENCE = "v100"
ALONE_ON_ONE = re.compile(r"^\('(?P<model>[^']+?)(?: \(batch size \d+\))?', 1\)$")
NAMES = {
    "A3C": ["a3c"],
    "CycleGAN": ["cyclegan"],
    "LM": ["lstm", "wikitext"],
    "Recommendation": ["recoder", "autoencoder"],
    "ResNet-18": ["resnet18"],
    "ResNet-50": ["resnet50"],
    "Transformer": ["transformer"],
}
"""What a job's base model of the family is called (beginning, letters and digits alone)."""


def reduced(throughputs: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Speed beside a V100 by family and GPU. Combinations that ran out of memory (0 steps/s) are left out."""
    ratios: dict[str, dict[str, list[float]]] = {}
    for key, of_v100 in throughputs[REFERENCE].items():
        match = ALONE_ON_ONE.match(key)
        if match is None or not of_v100.get("null"):
            continue
        family = ratios.setdefault(match["model"], {gpu: [] for gpu in GPUS})
        for gpu in GPUS:
            steps_s = throughputs[gpu].get(key, {}).get("null")
            if steps_s:
                family[gpu].append(steps_s / of_v100["null"])
    table = {name: {gpu: _mean(found) for gpu, found in by_gpu.items()} for name, by_gpu in sorted(ratios.items())}
    table["any"] = {gpu: _mean([row[gpu] for row in table.values()]) for gpu in GPUS}
    return table


def _mean(ratios: Iterable[float]) -> float:
    logs = [log(ratio) for ratio in ratios]
    return round(exp(sum(logs) / len(logs)), 3)


def toml_of(table: Mapping[str, Mapping[str, float]]) -> str:
    lines = ["# Made by `python -m bench.mixed.gavel_speeds`; source and licence in README.md.", ""]
    for family, speeds in table.items():
        names = ", ".join(f'"{name}"' for name in NAMES.get(family, []))
        told = ", ".join(f"{gpu} = {speed}" for gpu, speed in speeds.items())
        lines += [f'[families."{family}"]', f"names = [{names}]", f"speeds = {{ {told} }}", ""]
    return "\n".join(lines[:-1]) + "\n"


def main(path: Path) -> None:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    sys.stdout.write(toml_of(reduced(json.loads(text))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
