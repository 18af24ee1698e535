"""Per application: what was needed, what was forecast for it just before, what it held, what is forecast now. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.demand import DemandObserved
from schemas.forecasts import DemandForecast


@dataclass(slots=True)
class AppDemand:
    """`observed`: end of window → GPUs needed; `fan`: step → (P50, P90) of the last forecast made before the step began."""

    observed: dict[int, float] = field(default_factory=dict)
    window_s: float = 0.0
    per_gpu: float = 1.0
    unit: str = ""
    fan: dict[int, tuple[float, float]] = field(default_factory=dict)
    forecast: DemandForecast | None = None

    def saw(self, event: DemandObserved) -> None:
        self.observed[event.time_ms] = event.load / event.per_gpu
        self.window_s, self.per_gpu, self.unit = event.window_s, event.per_gpu, event.unit

    def foresaw(self, event: DemandForecast) -> None:
        """Records come in the order they were made: a later one replaces what it still can foresee."""
        self.forecast = event
        for index, (p50, p90) in enumerate(zip(event.p50, event.p90, strict=False)):
            start_ms = event.start_ms + index * event.step_s * 1000
            if start_ms + event.step_s * 1000 > event.made_ms:
                self.fan[start_ms] = (p50, p90)

    def prune(self, before_ms: int) -> None:
        for kept in (self.observed, self.fan):
            for time_ms in [time_ms for time_ms in kept if time_ms < before_ms]:
                kept.pop(time_ms)
