"""A file of rules for people: TOML, or YAML by name, with the fields of `schemas.rules.Rules`. Every mistake is one sentence. Pure.

Read next: `policy_effect.py` (what a file would change), docs/policy.md.
"""

from __future__ import annotations

import msgspec

from schemas.rules import Rules
from services.console.errors import UsageError
from services.console.policy_yaml import YamlError, read_yaml

YAML_NAMES = (".yaml", ".yml")


def read_rules(document: bytes, name: str) -> Rules:
    """The rules in a document; YAML if `name` ends like one, else TOML. UsageError names the field, or the line that can't be read."""
    try:
        if name.lower().endswith(YAML_NAMES):
            return msgspec.convert(read_yaml(document), Rules)
        return msgspec.toml.decode(document, type=Rules)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name}: {error}. docs/policy.md lists every rule with an example.") from None
    except YamlError as error:
        raise UsageError(f"{name} can't be used: {error}.") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} is not TOML ({error}).") from None


def differences(before: Rules, after: Rules) -> list[str]:
    """What a document changes, a line per rule: `teams.vision.maximum.h100: 16 → 24`. The version is left out.

    A rule that one of them leaves out is shown as what it then is, its default.
    """
    told = {*_leaves(msgspec.to_builtins(before)), *_leaves(msgspec.to_builtins(after))}
    old, new = _leaves(_whole(before)), _leaves(_whole(after))
    lines = []
    for path in sorted(told - {"version"}):
        was, now = old.get(path, "not set"), new.get(path, "not set")
        if was != now:
            lines.append(f"{path}: {was} → {now}")
    return lines


def _whole(value: object) -> object:
    """As builtins, with the defaults, which encoding leaves out."""
    if isinstance(value, msgspec.Struct):
        return {name: _whole(inner) for name, inner in msgspec.structs.asdict(value).items()}
    if isinstance(value, dict):
        return {key: _whole(inner) for key, inner in value.items()}
    return msgspec.to_builtins(value)


def _leaves(value: object, path: str = "") -> dict[str, str]:
    if isinstance(value, dict):
        found: dict[str, str] = {}
        for key, inner in value.items():
            found |= _leaves(inner, f"{path}.{key}" if path else str(key))
        return found or ({path: "named"} if path else {})
    return {path: "not set" if value is None else str(value)}
