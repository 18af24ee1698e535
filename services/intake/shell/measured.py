"""The shipped table of measured speeds (`data/gpu_speeds.toml`; where it comes from stands in `data/README.md`)."""

from __future__ import annotations

from importlib.resources import files

import msgspec

from services.intake.core.speeds import Measured


def shipped_speeds() -> Measured:
    """Read it; it is part of the code, so a fault in it is one of ours."""
    document = files("services.intake").joinpath("data/gpu_speeds.toml").read_bytes()
    return msgspec.toml.decode(document, type=Measured)
