"""How fast a job runs in each pool it accepts, beside the one it prefers: its own word, measurements, the operator's numbers.

Owns the order of the sources, and that one job's speeds all come from one of them: numbers of different sources don't compare. Refuses
files: the measured table is an argument (`shell/measured.py` reads the shipped one). Read next: `route.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct

from schemas.catalog import Pool
from schemas.jobs import JobSpec

ANY_FAMILY = "any"
"""The row for models that nobody measured."""
SPEED_MIN, SPEED_MAX = 0.001, 1000.0
DIGITS = 4
"""Nobody knows a ratio better; and short numbers are the same bytes everywhere."""
Ask = Callable[[str, Pool], float | None]
"""Speed of a pool by its name and what it is; None: this source doesn't know."""
_WORDS = re.compile(r"[a-z]+|\d+")


class Family(Struct, frozen=True, forbid_unknown_fields=True):
    """Models measured together. `names`: what a job's `base_model` begins with; `speeds`: by GPU model, beside each other."""

    names: list[str]
    speeds: dict[str, float]


class Measured(Struct, frozen=True, forbid_unknown_fields=True):
    """Measured speeds by family of models; `any` stands for all others."""

    families: dict[str, Family] = {}


def names_model(name: str, gpu_model: str) -> bool:
    """Whether a pool of `gpu_model` is meant by `name`: every word of it stands there ("A100" is "NVIDIA A100-SXM4-80GB")."""
    told = set(_gpu_words(name))
    return bool(told) and told <= set(_gpu_words(gpu_model))


def speeds_of(spec: JobSpec, pools: Sequence[tuple[str, Pool]], measured: Measured) -> tuple[dict[str, float], str]:
    """Speed of each acceptable pool, the first one's being 1, and the source. Empty: all alike, or nothing is known.

    The job's own; else measurements of its family of models; else the operator's numbers; else measurements of all families.
    """
    if len(pools) < 2:
        return {}, ""
    for source, ask in _sources(spec, measured):
        found = [ask(name, pool) for name, pool in pools]
        known = [speed for speed in found if speed is not None]
        if len(known) < len(pools):
            continue
        beside = {name: _rounded(speed / known[0]) for (name, _), speed in zip(pools, known, strict=True)}
        return (beside, source) if set(beside.values()) != {1.0} else ({}, "")
    return {}, ""


def _sources(spec: JobSpec, measured: Measured) -> list[tuple[str, Ask]]:
    family, of_any = _family(spec, measured), measured.families.get(ANY_FAMILY)
    found: list[tuple[str, Ask]] = [("job", partial(told_speed, spec))]
    if family is not None:
        found.append(("measured", partial(_measured_speed, family)))
    found.append(("catalog", lambda _, pool: pool.speed))
    if of_any is not None:
        found.append(("measured", partial(_measured_speed, of_any)))
    return found


def told_speed(spec: JobSpec, name: str, pool: Pool) -> float | None:
    """What the job itself says of a pool: by its name, else by its GPU model."""
    if name in spec.speeds:
        return spec.speeds[name]
    return next((speed for told, speed in spec.speeds.items() if names_model(told, pool.gpu_model)), None)


def _family(spec: JobSpec, measured: Measured) -> Family | None:
    base_model = "" if spec.model is None else spec.model.base_model or ""
    told = _plain(base_model.rpartition("/")[2])
    for family in measured.families.values():
        if told and any(told.startswith(_plain(name)) for name in family.names):
            return family
    return None


def _measured_speed(family: Family, _: str, pool: Pool) -> float | None:
    return next((speed for model, speed in family.speeds.items() if names_model(model, pool.gpu_model)), None)


def _gpu_words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _plain(text: str) -> str:
    return "".join(_WORDS.findall(text.lower()))


def _rounded(speed: float) -> float:
    return round(min(max(speed, SPEED_MIN), SPEED_MAX), DIGITS)
