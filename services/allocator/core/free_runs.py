"""Runs of neighbouring free GPUs of a node, or of free nodes of a row. Imports nothing heavy: commands that only read use it, too."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def runs_of(node: Sequence[bool]) -> list[tuple[int, int]]:
    """(first, length) of each run of free GPUs."""
    found: list[tuple[int, int]] = []
    for gpu, free in enumerate(node):
        if not free:
            continue
        if found and found[-1][0] + found[-1][1] == gpu:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((gpu, 1))
    return found


def longest_run(gpus: Collection[int]) -> int:
    """The longest run of neighbours among local indices, of GPUs or of nodes."""
    mine = set(gpus)
    row = [index in mine for index in range(max(mine, default=-1) + 1)]
    return max((length for _, length in runs_of(row)), default=0)
