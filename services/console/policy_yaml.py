"""A file of rules as YAML: read as plain data, with what YAML lets pass silently refused. Pure.

Aliases and repeated keys are errors: an alias can blow a small file up to any size, and of two equal keys YAML keeps the last one
without a word. Read next: `policy_file.py`.
"""

from __future__ import annotations

from typing import Any

import yaml


class YamlError(ValueError):
    """Why a document can't be used, for people."""


def read_yaml(document: bytes) -> Any:
    """The document as plain data. Raises YamlError."""
    try:
        root = yaml.compose(document, Loader=yaml.SafeLoader)
        if root is None:
            return {}
        _refuse_repetitions(root)
        return yaml.load(document, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise YamlError(" ".join(str(error).split())) from None
    except RecursionError:
        raise YamlError("it is nested too deeply") from None


def _refuse_repetitions(root: Any) -> None:
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        line = node.start_mark.line + 1
        if id(node) in seen:
            raise YamlError(f"line {line} is used again by an alias: write it out")
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            keys: set[str] = set()
            for key, value in node.value:
                if str(key.value) in keys:
                    raise YamlError(f"line {key.start_mark.line + 1}: {key.value} is there twice")
                keys.add(str(key.value))
                waiting += [key, value]
