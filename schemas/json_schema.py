"""One JSON Schema document per event type, from its struct. Owns the shape of the files in `json/`; they are the frozen truth.

Dialect 2020-12, restricted to what draft-07 reads the same way (no fixed-length tuples, no `$ref` with siblings that
matter), because AsyncAPI's tools know nothing newer. Read next: `generated.py`, which writes and compares the files.
"""

from __future__ import annotations

from typing import Any

import msgspec

from schemas.registry import TYPES

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def file_name(type_name: str) -> str:
    """Of the schema of an event type, in `json/`."""
    return f"{type_name}.schema.json"


def document(type_name: str) -> dict[str, Any]:
    """The JSON Schema of one event type's payload."""
    struct, topic = TYPES[type_name]
    schema = msgspec.json.schema(struct)
    definitions = schema["$defs"]
    root = definitions.pop(struct.__name__)
    described: dict[str, Any] = {
        "$schema": DIALECT,
        "$id": f"urn:gpugrid:event:{type_name}",
        "title": type_name,
        "description": f"{root['description']} Topic: {topic}.",
    }
    described |= {name: value for name, value in root.items() if name not in ("title", "description")}
    if definitions:
        described["$defs"] = {name: definitions[name] for name in sorted(definitions)}
    return _portable(described)


def _portable(node: Any) -> Any:
    """Without OpenAPI's `discriminator`, which AsyncAPI spells otherwise; the tag's `enum` already tells the cases apart."""
    if isinstance(node, dict):
        return {name: _portable(value) for name, value in node.items() if name != "discriminator"}
    if isinstance(node, list):
        return [_portable(value) for value in node]
    return node
