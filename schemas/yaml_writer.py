"""Plain YAML from plain data: just enough for a document people read, so that `schemas` needs no YAML package.

Mappings and sequences in block style; every scalar as JSON, which is YAML. Refuses nothing, but text must be printable
(control characters have other escapes in YAML). A contract test reads it back with a real parser.
"""

from __future__ import annotations

import json
from typing import Any

PLAIN_KEY = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-$")
INDENT = "  "


def to_yaml(value: Any) -> str:
    """The document, ending in a line break."""
    return "\n".join(_lines(value, "")) + "\n"


def _lines(value: Any, indent: str) -> list[str]:
    if isinstance(value, dict) and value:
        return [line for name, inner in value.items() for line in _entry(f"{_key(name)}:", inner, indent)]
    if isinstance(value, list) and value:
        return [line for inner in value for line in _item(inner, indent)]
    return [indent + _scalar(value)]


def _entry(head: str, value: Any, indent: str) -> list[str]:
    if isinstance(value, dict | list) and value:
        return [indent + head, *_lines(value, indent + INDENT)]
    return [f"{indent}{head} {_scalar(value)}"]


def _item(value: Any, indent: str) -> list[str]:
    lines = _lines(value, indent + INDENT)
    return [f"{indent}- {lines[0].removeprefix(indent + INDENT)}", *lines[1:]]


def _scalar(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    # YAML 1.1 reads 1e+18 as text; with a point it is a number in every version.
    return text.replace("e", ".0e") if isinstance(value, float) and "e" in text and "." not in text else text


def _key(name: str) -> str:
    plain = name and set(name) <= PLAIN_KEY and name[0].isalpha()
    # Words that YAML reads as something else than text.
    return (
        name
        if plain and name.lower() not in ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
        else json.dumps(name)
    )
