"""The checks that contract tests apply to good files and, to prove themselves, to planted bad ones.

Independent of msgspec: `jsonschema` under 2020-12 and under draft-07, the dialect AsyncAPI's tools know.
"""

from __future__ import annotations

from typing import Any

from jsonschema import Draft7Validator, Draft202012Validator

DIALECTS = (Draft202012Validator, Draft7Validator)


def schema_problems(schema: Any) -> list[str]:
    """What keeps a document from being a JSON Schema in both dialects; empty = nothing."""
    problems = []
    for dialect in DIALECTS:
        for error in dialect(dialect.META_SCHEMA).iter_errors(schema):
            problems.append(f"{dialect.__name__}: {error.message}")
    return problems


def payload_problems(schema: Any, payload: Any) -> list[str]:
    """What an independent validator finds wrong with a payload, in either dialect; empty = valid in both."""
    return [
        f"{dialect.__name__}: {error.json_path} {error.message}"
        for dialect in DIALECTS
        for error in dialect(schema).iter_errors(payload)
    ]


def refused_by_all(schema: Any, payload: Any) -> bool:
    """Whether both dialects refuse a payload."""
    return not any(dialect(schema).is_valid(payload) for dialect in DIALECTS)
