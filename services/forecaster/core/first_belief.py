"""What is believed of a job from its own words: expected time, memory per offered size, and whose runs correct the expectation.

Owns: putting the kind's model, the pools' cards and the memory model together, once per job. Refuses: history. Read next:
`kind_models.py`, `expectations.py`, `job_memory.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from msgspec import structs

from schemas.catalog import Pool
from schemas.forecasts import SizeForecast
from schemas.jobs import JobSpec
from services.forecaster.core.cards import UNKNOWN, Card, card_of
from services.forecaster.core.duration import Facts
from services.forecaster.core.expectations import Key
from services.forecaster.core.job_memory import MIB, Memory, memory_of
from services.forecaster.core.kind_models import Expected, day_one_hazard, expected


@dataclass(frozen=True, slots=True)
class FirstBelief:
    """`expected` at the anchor size, None if the facts don't say; `memory` by size; `card_bytes`: of the largest card, 0 unknown."""

    expected: Expected | None
    keys: tuple[Key, ...]
    memory: tuple[tuple[int, Memory], ...]
    card_bytes: float

    def with_memory(self, sizes: list[SizeForecast]) -> list[SizeForecast]:
        """The forecasts with memory where it is known."""
        if not self.memory:
            return sizes
        by_size = dict(self.memory)
        return [self._one(size, by_size.get(size.gpus)) for size in sizes]

    def _one(self, size: SizeForecast, memory: Memory | None) -> SizeForecast:
        if memory is None:
            return size
        risk = memory.too_much(self.card_bytes) if self.card_bytes > 0 else None
        return structs.replace(
            size, memory_mib=memory.p50_mib(), memory_p90_mib=memory.p90_mib(), out_of_memory=risk
        )  # fmt: skip


def first_belief(spec: JobSpec, facts: Facts, pools: list[Pool]) -> FirstBelief | None:
    """None for a job that tells nothing of its model: history alone carries it. `pools`: those it may run in."""
    if spec.model is None:
        return None
    card: Card = card_of(pools[0].gpu_model) if pools else UNKNOWN
    subject = facts.subject
    kind = subject.kind
    found = expected(spec, facts.gpus, card)
    keys: tuple[Key, ...] = ((kind,), (kind, subject.team), (kind, subject.team, subject.user, subject.what))
    if spec.model.base_model:
        keys = (*keys[:2], (kind, "model", spec.model.base_model), keys[2])
    memory = tuple((gpus, one) for gpus in facts.sizes if (one := memory_of(spec, gpus)) is not None)
    card_bytes = max((pool.memory_mib for pool in pools), default=0) * MIB
    return FirstBelief(found, keys, memory, card_bytes)


def with_day_one(spec: JobSpec, facts: Facts, belief: FirstBelief | None) -> Facts:
    """The facts with the expectation as what history leans on before it knows anything."""
    if belief is None or belief.expected is None:
        return facts
    return replace(facts, prior=day_one_hazard(spec.kind, belief.expected))


def acceptable(pools: Mapping[str, Pool], names: list[str]) -> list[Pool]:
    """Pools a job may run in, the first one first; all of the cluster if it names none that is known."""
    return [pools[name] for name in names if name in pools] or list(pools.values())
