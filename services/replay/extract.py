"""Makes the bundled extracts from the full public traces: `python -m services.replay.extract SOURCE [--target FOLDER]`.

SOURCE is a folder with `philly/philly_jobs.csv.gz`, `philly/philly_vc_nodes.csv`, `openb2023/openb_pod_list_default.csv.gz`,
`lingjun2023/crux_jobs.csv`, `helios2020/earth_vc_usage_5min.csv.gz`, `helios2020/earth_vc_gpus_daily.csv` and
`servegen2025/rate_by_client_<model>.csv.gz`, with the columns named in data/README.md.
Writes the same bytes every time. Refuses to guess: a missing file or column ends it with one sentence.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from services.replay.core.flows import Sample, jobs_of

DAYS = {
    "2017-11-08": "2017-11-07",
    "2017-11-09": "2017-11-08",
    "2017-11-10": "2017-11-09",
    "2017-11-13": "2017-11-12",
    "2017-11-14": "2017-11-13",
    "2017-11-15": "2017-11-14",
    "2017-11-16": "2017-11-15",
    "2017-11-17": "2017-11-16",
    "2017-11-20": "2017-11-19",
    "2017-11-21": "2017-11-20",
    "2017-11-22": "2017-11-21",
    "2017-11-28": "2017-11-27",
}
"""Twelve working days late in the trace (the holiday of 23 November left out), so that weeks of history lie before them,
each with the day before: from EVENING_FROM on its jobs are kept, too; they are what the evening left behind."""
EVENING_FROM = "18:00:00"
CLIENTS = (("chat", "m-small", "c5"), ("assistant", "m-small", "c31"), ("documents", "m-mid", "c40"))
"""Application, model, client: three clients with a clear daily rhythm, one peaking in the evening, two during the day."""
OPENB_COLUMNS = (
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "qos",
    "creation_time",
    "scheduled_time",
    "deletion_time",
)
OPENB_FROM_S = 115 * 86_400
"""Before day 115 the trace has 19 pods."""
LINGJUN_COLUMNS = ("submit_s", "num_gpus", "duration_s")
HELIOS_COLUMNS = ("submit_s", "vc", "num_gpus", "run_s")
USAGE_COLUMNS = ("minute", "vc", "running_gpus", "pending_gpus", "running_gpu_jobs", "pending_gpu_jobs")
PHILLY_COLUMNS = ("submit_time", "num_gpus", "span_s", "run_s", "vc")


class SourceError(Exception):
    """A source file is missing or has other columns."""


def _rows(path: Path) -> list[dict[str, str]]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise SourceError(
            f"can't read {path}: {error}; SOURCE must be a folder with philly/, openb2023/, lingjun2023/, helios2020/ and servegen2025/"
        ) from None


def _columns(rows: list[dict[str, str]], name: str, columns: Sequence[str]) -> None:
    if not rows or not set(columns) <= set(rows[0]):
        raise SourceError(f"{name} needs the columns {', '.join(columns)}")


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    path.write_bytes(gzip.compress(text.getvalue().encode(), 9, mtime=0))


def extract_philly(source: Path, target: Path) -> int:
    """Write the jobs of DAYS and of the evenings before; returns how many."""
    rows = _rows(source / "philly" / "philly_jobs.csv.gz")
    _columns(rows, "philly_jobs.csv.gz", PHILLY_COLUMNS)
    kept = []
    for row in rows:
        date, _, clock = row["submit_time"].partition(" ")
        if date in DAYS or (date in DAYS.values() and clock >= EVENING_FROM):
            kept.append([row[column] for column in PHILLY_COLUMNS])
    _write(target / "philly_days.csv.gz", PHILLY_COLUMNS, kept)
    return len(kept)


def extract_openb(source: Path, target: Path) -> int:
    """Write the pods that asked for GPUs, were scheduled and ended, from OPENB_FROM_S on; returns how many."""
    rows = _rows(source / "openb2023" / "openb_pod_list_default.csv.gz")
    _columns(rows, "openb_pod_list_default.csv.gz", OPENB_COLUMNS)
    kept = [
        [row[column] for column in OPENB_COLUMNS]
        for row in rows
        if int(row["num_gpu"]) and row["scheduled_time"] and row["deletion_time"]
        if float(row["creation_time"]) >= OPENB_FROM_S
    ]
    _write(target / "openb_pods.csv.gz", OPENB_COLUMNS, kept)
    return len(kept)


def extract_lingjun(source: Path, target: Path) -> int:
    """Write all jobs; returns how many."""
    rows = _rows(source / "lingjun2023" / "crux_jobs.csv")
    _columns(rows, "crux_jobs.csv", LINGJUN_COLUMNS)
    _write(
        target / "lingjun_jobs.csv.gz", LINGJUN_COLUMNS, ([row[column] for column in LINGJUN_COLUMNS] for row in rows)
    )
    return len(rows)


def extract_helios(source: Path, target: Path) -> int:
    """Write the jobs that explain the curves of every virtual cluster, and each change of their quotas; returns how many jobs."""
    rows = _rows(source / "helios2020" / "earth_vc_usage_5min.csv.gz")
    _columns(rows, "earth_vc_usage_5min.csv.gz", USAGE_COLUMNS)
    curves: dict[str, list[Sample]] = {}
    for row in rows:
        sample = Sample(int(row["minute"]) * 60, *(int(row[column]) for column in USAGE_COLUMNS[2:]))
        curves.setdefault(row["vc"], []).append(sample)
    found = sorted((job.submit_s, vc, job.gpus, job.run_s) for vc, curve in curves.items() for job in jobs_of(curve))
    _write(target / "helios_jobs.csv.gz", HELIOS_COLUMNS, ([str(value) for value in job] for job in found))
    daily = _rows(source / "helios2020" / "earth_vc_gpus_daily.csv")
    header = ("date", *sorted(curves))
    _columns(daily, "earth_vc_gpus_daily.csv", header)
    quotas = [[row[column] for column in header] for row in daily]
    changes = [row for before, row in zip([[], *quotas], quotas, strict=False) if row[1:] != before[1:]]
    _write(target / "helios_quotas.csv.gz", header, changes)
    return len(found)


def extract_philly_quotas(source: Path, target: Path) -> int:
    """Write the nodes of each virtual cluster; returns how many clusters."""
    rows = _rows(source / "philly" / "philly_vc_nodes.csv")
    _columns(rows, "philly_vc_nodes.csv", ("vc", "node num"))
    _write(target / "philly_vcs.csv.gz", ("vc", "nodes"), ([row["vc"], row["node num"]] for row in rows))
    return len(rows)


def extract_servegen(source: Path, target: Path) -> int:
    """Write the clients' rates. Returns the windows.

    A window in which the whole model has no data is left blank, and so are its neighbours, which are recorded in part only.
    """
    series: dict[str, dict[int, str]] = {}
    for app, model, client in CLIENTS:
        rows = _rows(source / "servegen2025" / f"rate_by_client_{model}.csv.gz")
        if not rows or client not in rows[0]:
            raise SourceError(f"rate_by_client_{model}.csv.gz needs the column {client}")
        silent = [all(float(rate) == 0 for name, rate in row.items() if name != "window_start_s") for row in rows]
        series[app] = {
            int(row["window_start_s"]): "" if any(silent[max(place - 1, 0) : place + 2]) else row[client]
            for place, row in enumerate(rows)
        }
    starts = sorted(set.intersection(*(set(rates) for rates in series.values())))
    header = ["window_start_s", *(app for app, _, _ in CLIENTS)]
    rows_out = [[str(start), *(series[app][start] for app, _, _ in CLIENTS)] for start in starts]
    _write(target / "servegen_apps.csv.gz", header, rows_out)
    return len(rows_out)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m services.replay.extract", description=__doc__)
    parser.add_argument("source", type=Path, help="folder of the full traces")
    parser.add_argument("--target", type=Path, default=Path(__file__).parent / "data", help="where the extracts go")
    options = parser.parse_args(arguments)
    try:
        jobs = extract_philly(options.source, options.target)
        pods = extract_openb(options.source, options.target)
        lingjun = extract_lingjun(options.source, options.target)
        helios = extract_helios(options.source, options.target)
        clusters = extract_philly_quotas(options.source, options.target)
        windows = extract_servegen(options.source, options.target)
    except SourceError as error:
        print(f"extract: {error}", file=sys.stderr)
        return 1
    print(
        f"{jobs} jobs of {len(DAYS)} days, {clusters} virtual clusters, {pods} pods, {lingjun} Lingjun jobs, {helios} Helios jobs, "
        f"{windows} windows of {len(CLIENTS)} applications written to {options.target}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
