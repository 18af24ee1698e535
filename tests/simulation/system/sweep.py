"""Many seeds on all cores: which fail, how long it takes, and what to type to see one again.

Owns: the pool, the counting, and the parts: a sweep may be run in pieces, on several days or machines, each written to a file, and the
files merged. Results don't depend on the number of workers or pieces. Read next: `run.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import msgspec

from services.allocator.shell.warmup import use_kernel_cache

CHUNK_SEEDS = 8
"""Per task: a few seconds, so that progress moves and both cores end together."""
WORKERS_MAX = 2
FAILURES_KEPT_MAX = 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """One seed in short."""

    seed: int
    digest: str
    violations: tuple[str, ...]
    took_s: float
    counts: dict[str, int]
    kinds: tuple[str, ...] = ()


@dataclass
class Swept:
    """`took_s`: processor seconds of all runs; `faults`: by kind, how many seeds met it; `ranges`: (first seed, count) of each part."""

    seeds: int = 0
    took_s: float = 0.0
    slowest_s: float = 0.0
    failed: list[Outcome] = field(default_factory=list)
    failures: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    ranges: list[tuple[int, int]] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.took_s += outcome.took_s
        self.slowest_s = max(self.slowest_s, outcome.took_s)
        _count(self.counts, outcome.counts)
        _count(self.faults, dict.fromkeys(outcome.kinds, 1))
        if outcome.violations:
            self.failures += 1
            if len(self.failed) < FAILURES_KEPT_MAX:
                self.failed.append(outcome)

    def merge(self, part: Swept) -> None:
        """Add another part. ValueError if some seed is in both."""
        for first, count in part.ranges:
            for begin, length in self.ranges:
                if first < begin + length and begin < first + count:
                    raise ValueError(
                        f"seeds {max(first, begin)} to {min(first + count, begin + length) - 1} are in two parts"
                    )
        self.seeds += part.seeds
        self.took_s += part.took_s
        self.slowest_s = max(self.slowest_s, part.slowest_s)
        self.failures += part.failures
        self.failed = [*self.failed, *part.failed][:FAILURES_KEPT_MAX]
        _count(self.counts, part.counts)
        _count(self.faults, part.faults)
        self.ranges = sorted([*self.ranges, *part.ranges])


def _count(total: dict[str, int], more: dict[str, int]) -> None:
    for name, count in more.items():
        total[name] = total.get(name, 0) + count


def write_part(path: Path, swept: Swept) -> None:
    """One part as JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(swept), indent=1) + b"\n")


def read_part(path: Path) -> Swept:
    """What `write_part` wrote. ValueError if it is something else."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Swept)
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{path} is no part of a sweep: {error}") from None


def sweep(seeds: Sequence[int], *, workers: int = 0, done: Callable[[Outcome], None] = lambda outcome: None) -> Swept:
    """Run all seeds (a range), `workers` at a time (0: one per core, two at most)."""
    count = workers or min(os.cpu_count() or 1, WORKERS_MAX)
    swept = Swept(ranges=[(seeds[0], len(seeds))] if seeds else [])
    for outcome in _outcomes(seeds, count):
        swept.add(outcome)
        done(outcome)
    return swept


def command_of(seed: int) -> str:
    """What shows one seed again."""
    return f'make simulate ARGS="--seed {seed} --trace"'


def _outcomes(seeds: Sequence[int], workers: int) -> Iterator[Outcome]:
    chunks = [seeds[at : at + CHUNK_SEEDS] for at in range(0, len(seeds), CHUNK_SEEDS)]
    if workers <= 1 or len(chunks) <= 1:
        for chunk in chunks:
            yield from run_chunk(chunk)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=use_kernel_cache) as pool:
        for found in pool.map(run_chunk, chunks):
            yield from found


def run_chunk(seeds: Iterable[int]) -> list[Outcome]:
    """In a worker. Imports late, so that the kernel cache is named first."""
    use_kernel_cache()
    from tests.simulation.system.run import run_seed

    found = []
    for seed in seeds:
        ran = run_seed(seed)
        found.append(Outcome(seed, ran.digest, tuple(ran.violations), ran.took_s, ran.counts, ran.kinds))
    return found
