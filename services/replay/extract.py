"""Makes the bundled extracts from the full public traces: `python -m services.replay.extract SOURCE [--target FOLDER]`.

SOURCE is a folder with `philly/philly_jobs.csv.gz` and `servegen2025/rate_by_client_<model>.csv.gz` (columns as in
data/README.md). Writes the same bytes every time. Refuses to guess: a missing file or column ends it with one sentence.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

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
PHILLY_COLUMNS = ("submit_time", "num_gpus", "span_s", "run_s", "vc")


class SourceError(Exception):
    """A source file is missing or has other columns."""


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise SourceError(
            f"can't read {path}: {error}; SOURCE must be a folder with philly/ and servegen2025/"
        ) from None


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    path.write_bytes(gzip.compress(text.getvalue().encode(), 9, mtime=0))


def extract_philly(source: Path, target: Path) -> int:
    """Write the jobs of DAYS and of the evenings before; returns how many."""
    rows = _rows(source / "philly" / "philly_jobs.csv.gz")
    if not rows or not set(PHILLY_COLUMNS) <= set(rows[0]):
        raise SourceError(f"philly_jobs.csv.gz needs the columns {', '.join(PHILLY_COLUMNS)}")
    kept = []
    for row in rows:
        date, _, clock = row["submit_time"].partition(" ")
        if date in DAYS or (date in DAYS.values() and clock >= EVENING_FROM):
            kept.append([row[column] for column in PHILLY_COLUMNS])
    _write(target / "philly_days.csv.gz", PHILLY_COLUMNS, kept)
    return len(kept)


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
        windows = extract_servegen(options.source, options.target)
    except SourceError as error:
        print(f"extract: {error}", file=sys.stderr)
        return 1
    print(
        f"{jobs} jobs of {len(DAYS)} days, {windows} windows of {len(CLIENTS)} applications written to {options.target}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
