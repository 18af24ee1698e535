"""For a name that nobody knows: names that may have been meant, and how to say so."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

SIMILAR_MAX = 3


def similar_names(name: str, known: Sequence[str]) -> list[str]:
    """Names that a person may have meant."""
    return get_close_matches(name, known, n=SIMILAR_MAX, cutoff=0.6)


def suggestion(similar: Sequence[str], listing: str) -> str:
    """What follows "nobody is named so.": the similar names, or else the command that lists all."""
    return f" Did you mean {' or '.join(similar)}?" if similar else f" `{listing}` lists them."
