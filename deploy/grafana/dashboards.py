"""The dashboards: rows of panels, each a title, its unit and its queries. Every name in a query is in docs/metrics.md (tested).

Read next: `grafana_json.py`, which makes Grafana's form of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Panel:
    """`queries`: (expression, legend). `about` is shown when a person hovers the title."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    about: str = ""
    kind: str = "timeseries"


@dataclass(frozen=True, slots=True)
class Dashboard:
    """`rows`: heading and its panels."""

    uid: str
    title: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]


def quantiles(name: str, by: str, window: str = "5m") -> tuple[tuple[str, str], ...]:
    """P50, P90 and P99 of a histogram."""
    inner = f"sum by (le, {by}) (rate({name}_bucket[{window}]))"
    return tuple((f"histogram_quantile({q}, {inner})", f"P{q * 100:.0f} {{{{{by}}}}}") for q in (0.5, 0.9, 0.99))


OVERVIEW = Dashboard(
    uid="gpugrid-overview",
    title="gpugrid: jobs, grid and time",
    rows=(
        (
            "Use",
            (
                Panel(
                    "Utilization in its three meanings",
                    "percentunit",
                    (("gpugrid_utilization_ratio", "{{pool}} {{meaning}}"),),
                    "Allocated is not busy, and busy is not effective.",
                ),
                Panel("Value per hour", "short", (("gpugrid_value_per_hour", "{{cluster}} {{source}}"),)),
                Panel(
                    "Real-time GPUs unmet",
                    "short",
                    (
                        ("gpugrid_realtime_unmet_gpus", "unmet {{pool}}"),
                        ("gpugrid_realtime_wanted_gpus", "wanted {{pool}}"),
                    ),
                ),
            ),
        ),
        (
            "Queue",
            (
                Panel("Waiting jobs by size", "short", (("gpugrid_queue_jobs", "{{size_class}}"),)),
                Panel("Why they wait", "short", (("gpugrid_queue_length", "{{reason}}"),)),
                Panel("Age of the oldest", "s", (("gpugrid_queue_oldest_seconds", "{{size_class}}"),)),
            ),
        ),
        (
            "Shortage or fragmentation",
            (
                Panel(
                    "Free GPUs and the largest block",
                    "short",
                    (("gpugrid_free_gpus", "free {{pool}}"), ("gpugrid_largest_block_gpus", "largest block {{pool}}")),
                ),
                Panel("Whole nodes free (schedulability)", "short", (("gpugrid_schedulability_nodes", "{{pool}}"),)),
                Panel("Free, but broken up", "short", (("gpugrid_fragmented_gpus", "{{pool}} {{form}}"),)),
            ),
        ),
        (
            "Where time goes",
            (
                Panel("Decision", "s", quantiles("gpugrid_decision_seconds", "mode")),
                Panel("Hop", "s", quantiles("gpugrid_hop_latency_seconds", "topic")),
                Panel(
                    "Submission to placement", "s", quantiles("gpugrid_submit_to_placed_seconds", "size_class", "1h")
                ),
                Panel("Placement to start", "s", quantiles("gpugrid_placed_to_running_seconds", "size_class", "1h")),
                Panel("Submission to start", "s", quantiles("gpugrid_submit_to_running_seconds", "size_class", "1h")),
            ),
        ),
        (
            "Forecasts",
            (
                Panel(
                    "Jobs within their bounds",
                    "percentunit",
                    (
                        ("gpugrid:forecast_p90_coverage:ratio_1d", "within P90, placed jobs"),
                        ("gpugrid_forecast_p90_coverage", "within P90, the forecaster's own count"),
                    ),
                ),
                Panel("Running beyond P90", "short", (("gpugrid_running_beyond_p90_jobs", "{{cluster}}"),)),
                Panel("Restarts of jobs", "short", (("sum(increase(gpugrid_job_restarts_total[1h]))", "per hour"),)),
            ),
        ),
    ),
)

HEALTH = Dashboard(
    uid="gpugrid-health",
    title="gpugrid: GPUs and processes",
    rows=(
        (
            "GPUs",
            (
                Panel("Nodes by health", "short", (("gpugrid_nodes", "{{pool}} {{health}}"),)),
                Panel("GPUs that take no work", "short", (("gpugrid_gpus_unplaceable", "{{pool}} {{why}}"),)),
                Panel("Findings", "short", (("gpugrid_findings", "{{code}} {{action}}"),)),
                Panel("Xid errors", "short", (("increase(gpugrid_xid_errors_total[1h])", "xid {{xid}}"),)),
                Panel(
                    "Readings not believed",
                    "short",
                    (("rate(gpugrid_telemetry_rejected_total[5m])", "{{reason}}"),),
                ),
            ),
        ),
        (
            "Cards",
            (
                Panel("Utilization", "percentunit", (("gpugrid_gpu_utilization_ratio", "{{node}} {{gpu}}"),)),
                Panel(
                    "Memory",
                    "percentunit",
                    (("gpugrid_gpu_memory_used_bytes / gpugrid_gpu_memory_total_bytes", "{{node}} {{gpu}}"),),
                ),
                Panel("Power", "watt", (("sum by (node) (gpugrid_gpu_power_watts)", "{{node}}"),)),
                Panel("Temperature", "celsius", (("max by (node) (gpugrid_gpu_temperature_celsius)", "{{node}}"),)),
                Panel("Throttled", "short", (("sum by (reason) (gpugrid_gpu_throttled)", "{{reason}}"),)),
                Panel("Uncorrectable errors", "short", (("gpugrid_gpu_ecc_uncorrected > 0", "{{node}} {{gpu}}"),)),
            ),
        ),
        (
            "Processes",
            (
                Panel("Up", "short", (('up{job="gpugrid"}', "{{service}}"),)),
                Panel("Restarts", "short", (("changes(gpugrid_start_time_seconds[1h])", "{{service}}"),)),
                Panel("Consumer lag", "short", (("sum by (topic) (gpugrid_consumer_lag_records)", "{{topic}}"),)),
                Panel("Events", "ops", (("sum by (topic) (rate(gpugrid_events_total[1m]))", "{{topic}}"),)),
                Panel("Refused", "short", (("increase(gpugrid_dead_letters_total[15m])", "{{reason}}"),)),
                Panel(
                    "Agents: samples dropped",
                    "short",
                    (("rate(gpugrid_agent_samples_dropped_total[5m])", "{{process}}"),),
                ),
                Panel("Executors: reports waiting", "short", (("gpugrid_executor_reports_waiting", "{{process}}"),)),
            ),
        ),
    ),
)

DASHBOARDS = (OVERVIEW, HEALTH)
