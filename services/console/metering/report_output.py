"""A report as a table, JSON rows, CSV, Parquet or one HTML page with plots and no other file. Pure, except that Parquet needs pyarrow."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict
from html import escape
from typing import Any

from rich.table import Table

from services.console.durations import duration_text, moment_text
from services.console.metering.report import Group, Report
from services.console.tables import plain_table

PARQUET_HELP = (
    "Parquet needs pyarrow: install gpugrid's extra with `pip install gpugrid[parquet]`, or choose --format csv."
)
NAMES_PLOTTED_MAX = 40
"""Bars in the picture; the table below it has all."""
PARTS = (("effective_h", "effective", "#2f6f9f"), ("idle_h", "idle", "#c9a227"), ("lost_h", "lost", "#b8483f"))
"""(field, name, colour): told apart without red and green."""
UNIT_PREFIX = "gpu_hours_per_"


class ParquetMissingError(Exception):
    """The optional library is not installed."""


def report_rows(report: Report) -> list[dict[str, Any]]:
    """One flat row per group, then the total; numbers unrounded, what does not exist is None."""
    units = sorted({unit for group in (*report.groups, report.total) for unit in group.hours_per_unit})
    return [_row(report, group, units) for group in (*report.groups, report.total)]


def _row(report: Report, group: Group, units: list[str]) -> dict[str, Any]:
    row = asdict(group)
    name, hours = row.pop("name"), row.pop("hours_per_unit")
    extra = {UNIT_PREFIX + unit.replace(",", "").replace(" ", "_"): hours.get(unit) for unit in units}
    return {report.by.value: name, **row, **extra}


def report_document(report: Report) -> dict[str, Any]:
    """What `report --json` has."""
    return {
        "by": report.by.value,
        "since_ms": report.window.since_ms,
        "until_ms": report.window.until_ms,
        "starved_after_s": report.starved_after_s,
        "rows": report_rows(report)[:-1],
        "total": report_rows(report)[-1],
    }


def report_table(report: Report) -> Table:
    """For a terminal: GPU-hours first, then what they bought; how requests were served only where applications tell it."""
    told = (report.total.requests_ok, report.total.latency_p50_s, report.total.latency_p99_s)
    serving = any(one is not None for one in told)
    slots = ("SLOT-H",) if report.total.slot_hours else ()
    headings = (
        report.by.value.upper(),
        "GPU-H",
        *slots,
        "EFFECTIVE",
        "IDLE",
        "LOST",
        "JOBS",
        "DONE",
        "SUCCESS",
        "GPU-H/DONE",
    )
    requests = ("REQUESTS OK", "LATENCY P50", "P99") if serving else ()
    rest = ("INTERRUPTED", "RESUMED", "STARVED", "RUN", "WAIT", *requests, "PER OUTPUT")
    table = plain_table(*headings, *rest, right=(*headings[1:], *rest[:-1]))
    for group in (*report.groups, report.total):
        table.add_row(
            group.name, _hours(group.held_h), *([_hours(group.slot_hours)] if slots else []),
            _hours(group.effective_h), _hours(group.idle_h), _hours(group.lost_h),
            str(group.jobs), str(group.completed), "" if group.success is None else f"{group.success:.0%}",
            "" if group.hours_per_completed is None else _hours(group.hours_per_completed),
            str(group.interruptions), str(group.resumptions), str(group.starved), str(group.running), str(group.waiting),
            *(_requests(group) if serving else ()),
            ", ".join(f"{_small(hours)} GPU-h per {unit}" for unit, hours in group.hours_per_unit.items()),
            end_section=group is report.groups[-1] if report.groups else False,
        )  # fmt: skip
    return table


def _requests(group: Group) -> tuple[str, str, str]:
    ok = "" if group.requests_ok is None else f"{group.requests_ok:.3%}"
    return ok, _latency(group.latency_p50_s), _latency(group.latency_p99_s)


def _latency(latency_s: float | None) -> str:
    return "" if latency_s is None else f"{latency_s * 1000:,.0f} ms" if latency_s < 10 else f"{latency_s:,.0f} s"


def _hours(hours: float) -> str:
    return f"{hours:,.1f}"


def _small(number: float) -> str:
    return f"{number:.3g}"


def report_csv(report: Report) -> str:
    """With a header line; the total is the last line and named so."""
    rows = report_rows(report)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def report_parquet(report: Report) -> bytes:
    """The groups without the total: programs add up themselves. ParquetMissingError without pyarrow."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ParquetMissingError(PARQUET_HELP) from None
    rows = report_rows(report)
    names = {name: _parquet_type(pa, name, rows) for name in rows[0]}
    window = {"since_ms": str(report.window.since_ms), "until_ms": str(report.window.until_ms)}
    schema = pa.schema(list(names.items()), metadata=window)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows[:-1], schema=schema), sink)
    return bytes(sink.getvalue().to_pybytes())


def _parquet_type(pa: Any, name: str, rows: list[dict[str, Any]]) -> Any:
    values = [row[name] for row in rows if row[name] is not None]
    if any(isinstance(value, str) for value in values):
        return pa.string()
    return pa.int64() if values and all(isinstance(value, int) for value in values) else pa.float64()


def report_html(report: Report, now_ms: int) -> str:
    """One page that can be mailed: plots as SVG, the numbers as a table, light and dark."""
    window = report.window
    title = f"GPU-hours by {report.by.value}"
    span = f"{moment_text(window.since_ms, now_ms)} to {moment_text(window.until_ms, now_ms)} UTC"
    rows = report_rows(report)
    if not report.total.slot_hours:
        for row in rows:
            del row["slot_hours"]
    heads = "".join(f"<th scope=col>{escape(_heading(name))}</th>" for name in rows[0])
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(_cell(value))}</td>" for value in row.values()) + "</tr>" for row in rows
    )
    legend = " ".join(f'<i style="background:{colour}"></i>{name}' for _, name, colour in PARTS)
    total = report.total
    facts = [
        ("GPU-hours held", _hours(total.held_h)),
        ("effective", f"{total.effective_h / total.held_h:.1%}" if total.held_h else "–"),
        ("jobs completed", f"{total.completed} of {total.jobs}"),
        ("success", "–" if total.success is None else f"{total.success:.1%}"),
        ("interruptions", str(total.interruptions)),
        (f"waited over {duration_text(report.starved_after_s)}", str(total.starved)),
    ]
    if total.requests_ok is not None:
        facts.append(("requests without an error", f"{total.requests_ok:.3%}"))
    tiles = "".join(f"<div><b>{escape(value)}</b>{escape(name)}</div>" for name, value in facts)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style><h1>{escape(title)}</h1><p>{escape(span)}</p>"
        f"<section class=tiles>{tiles}</section><p class=legend>{legend}</p>{_bars(report)}"
        f"<div class=scroll><table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div></html>\n"
    )


def _heading(name: str) -> str:
    return name.replace("_h", " GPU-h") if name.endswith("_h") else name.replace("_", " ")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return (
        f"{value:,.3g}"
        if isinstance(value, float) and abs(value) < 10
        else f"{value:,.1f}"
        if isinstance(value, float)
        else str(value)
    )


def _bars(report: Report) -> str:
    """One bar per group, cut into effective, idle and lost."""
    groups = report.groups[:NAMES_PLOTTED_MAX]
    most = max((group.held_h for group in groups), default=0.0) or 1.0
    height, left, width = 22, 170, 520
    parts = [
        f'<svg role=img aria-label="GPU-hours per {report.by.value}" viewBox="0 0 {left + width + 80} {height * len(groups) + 4}">'
    ]
    for place, group in enumerate(groups):
        y = place * height + 2
        parts.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(group.name[:24])}</text>')
        x = float(left)
        for field, name, colour in PARTS:
            length = getattr(group, field) / most * width
            if length > 0:
                words = escape(f"{group.name}: {getattr(group, field):,.1f} GPU-hours {name}")
                parts.append(
                    f'<rect x="{x:.1f}" y="{y}" width="{length:.1f}" height="{height - 5}" fill="{colour}"><title>{words}</title></rect>'
                )
            x += length
        parts.append(f'<text x="{x + 6:.1f}" y="{y + 14}">{_hours(group.held_h)}</text>')
    left_out = len(report.groups) - len(groups)
    note = f"<p>{left_out} more in the table.</p>" if left_out else ""
    return "".join(parts) + "</svg>" + note


_STYLE = (
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    "h1{font-size:1.5rem;margin:0}svg{width:100%;height:auto;max-width:48rem}svg text{font-size:12px;fill:currentColor}"
    ".tiles{display:flex;flex-wrap:wrap;gap:1.5rem;margin:1.2rem 0}.tiles div{font-size:.8rem;opacity:.9}"
    ".tiles b{display:block;font-size:1.4rem}.legend i{display:inline-block;width:.8em;height:.8em;margin:0 .4em 0 1em}"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}"
    "th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid #8884;white-space:nowrap}"
    "th:first-child,td:first-child{text-align:left}tbody tr:last-child{font-weight:600}"
)
