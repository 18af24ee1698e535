"""What a GPU can do, by the model's name: peak speed, memory, memory bandwidth. From the makers' data sheets.

Dense (not sparse) tensor throughput at 16 bits; SXM parts where there are several. An unknown name gets an A100's figures and is
flagged. Owns facts; refuses how much of the peak work achieves (`training_cost.py`). Read next: `kind_models.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Card:
    """`flops`: peak dense 16-bit FLOP/s, `bytes_s`: memory bandwidth."""

    name: str
    flops: float
    memory_bytes: float
    bytes_s: float
    known: bool = True


CARDS = (
    Card("B200", 2.25e15, 180e9, 8.0e12),
    Card("H200", 9.89e14, 141e9, 4.8e12),
    Card("H100", 9.89e14, 80 * GIB, 3.35e12),
    Card("H800", 9.89e14, 80 * GIB, 3.35e12),
    Card("A100", 3.12e14, 80 * GIB, 2.04e12),
    Card("A800", 3.12e14, 80 * GIB, 2.04e12),
    Card("L40S", 3.62e14, 48 * GIB, 8.64e11),
    Card("L40", 1.81e14, 48 * GIB, 8.64e11),
    Card("A40", 1.50e14, 48 * GIB, 6.96e11),
    Card("A10", 1.25e14, 24 * GIB, 6.0e11),
    Card("L4", 1.21e14, 24 * GIB, 3.0e11),
    Card("V100", 1.25e14, 32 * GIB, 9.0e11),
    Card("P100", 1.87e13, 16 * GIB, 7.32e11),
    Card("T4", 6.5e13, 16 * GIB, 3.2e11),
)
"""Longer names first where one begins with another."""
UNKNOWN = Card("unknown", 3.12e14, 80 * GIB, 2.04e12, known=False)


def card_of(gpu_model: str) -> Card:
    """The card whose name stands in a pool's `gpu_model` ("NVIDIA H100 80GB HBM3" is an H100)."""
    told = gpu_model.upper().replace("-", " ").replace("_", " ").split()
    return next((card for card in CARDS if any(word.startswith(card.name) for word in told)), UNKNOWN)
