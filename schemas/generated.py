"""The generated files: what they should be, and how those on disk differ. Owns `json/`, `asyncapi.yaml` and the tables in docs.

The files are committed and reviewed; a contract test fails on any difference, so a struct can't change its contract
unnoticed. Examples are written by hand and only read here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Any

from schemas import asyncapi, event_table, json_schema
from schemas.registry import TYPES
from schemas.yaml_writer import to_yaml

PACKAGE = Path(__file__).parent
DOCUMENT = Path("docs/events.md")
"""Relative to the checkout; absent in an installed package, where nothing is written."""


class ExampleError(Exception):
    """An event type lacks its examples."""


def examples(type_name: str, kind: str, package: Path = PACKAGE) -> dict[str, Any]:
    """The hand-written examples (`kind`: valid or invalid) of an event type by file name, in that order."""
    folder = package / "examples" / type_name / kind
    found = {path.name: json.loads(path.read_bytes()) for path in sorted(folder.glob("*.json"))}
    if not found:
        raise ExampleError(f"{type_name} has no {kind} example: write one into schemas/examples/{type_name}/{kind}/")
    return found


def wanted(package: Path = PACKAGE) -> dict[Path, str]:
    """Every generated file with its content."""
    first = {name: next(iter(examples(name, "valid", package).values())) for name in TYPES}
    files = {
        package / "json" / json_schema.file_name(name): json.dumps(json_schema.document(name), indent=2) + "\n"
        for name in TYPES
    }
    files[package / "asyncapi.yaml"] = to_yaml(asyncapi.document(first))
    document = package.parent / DOCUMENT
    if document.exists():
        files[document] = event_table.filled(document.read_text())
    return files


def differences(package: Path = PACKAGE) -> Iterator[str]:
    """One unified diff per file that isn't what it should be: missing, changed, or left over."""
    files = wanted(package)
    for path, content in files.items():
        found = path.read_text() if path.exists() else ""
        if found != content:
            name = str(path.relative_to(package.parent))
            yield "".join(unified_diff(found.splitlines(True), content.splitlines(True), name, f"{name} (wanted)"))
    for path in _left_over(package, files):
        yield f"{path.relative_to(package.parent)}: no event type has this file any more\n"


def write(package: Path = PACKAGE) -> list[Path]:
    """Write what differs; returns the files touched."""
    files = wanted(package)
    stale = [path for path, content in files.items() if not path.exists() or path.read_text() != content]
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(files[path])
    gone = _left_over(package, files)
    for path in gone:
        path.unlink()
    return stale + gone


def _left_over(package: Path, files: dict[Path, str]) -> list[Path]:
    return [path for path in sorted((package / "json").glob("*")) if path not in files]
