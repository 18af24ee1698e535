"""Random valid structs of every event type, from the structs' own types and bounds."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

INT_BOUND = 2**53
"""Beyond it JSON readers in other languages lose digits; no field means such numbers."""


def events(struct: type[Any]) -> st.SearchStrategy[Any]:
    """Instances of a struct."""
    return _struct(inspect.type_info(struct))


def _of(kind: Any) -> st.SearchStrategy[Any]:
    match kind:
        case inspect.Metadata(type=inner):
            return _of(inner)
        case inspect.StructType():
            return st.deferred(lambda: _struct(kind))
        case inspect.IntType():
            low = kind.ge if kind.ge is not None else -INT_BOUND
            return st.integers(int(low), int(kind.le if kind.le is not None else INT_BOUND))
        case inspect.FloatType():
            return _float(kind)
        case inspect.StrType():
            return _text(kind)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.EnumType():
            return st.sampled_from(list(kind.cls))
        case inspect.UnionType():
            return st.one_of([_of(inner) for inner in kind.types])
        case inspect.ListType():
            length_max = min(kind.max_length if kind.max_length is not None else 3, 3)
            return st.lists(_of(kind.item_type), min_size=kind.min_length or 0, max_size=length_max)
        case inspect.DictType():
            return st.dictionaries(_of(kind.key_type), _of(kind.value_type), max_size=2)
        case inspect.RawType():
            return st.sampled_from([b'{"a":1}', b"[]", b"null", b'"x"']).map(msgspec.Raw)
    raise NotImplementedError(f"no strategy for {kind}: teach tests/contract/random_events.py this type")


def _struct(kind: inspect.StructType) -> st.SearchStrategy[Any]:
    given = {field.name: _of(field.type) for field in kind.fields if field.required}
    optional = {field.name: _of(field.type) for field in kind.fields if not field.required}
    return st.fixed_dictionaries(given, optional=optional).map(lambda values: kind.cls(**values))


def _float(kind: inspect.FloatType) -> st.SearchStrategy[float]:
    low, high = kind.ge if kind.ge is not None else kind.gt, kind.le if kind.le is not None else kind.lt
    return st.floats(
        min_value=low, max_value=high, exclude_min=kind.gt is not None, allow_nan=False, allow_infinity=False
    )


def _text(kind: inspect.StrType) -> st.SearchStrategy[str]:
    if kind.pattern is not None:
        return st.from_regex(kind.pattern.removesuffix("$"), fullmatch=True).map(lambda text: text[: kind.max_length])
    length_max = min(kind.max_length if kind.max_length is not None else 30, 30)
    # No surrogates: they are not text and no encoder writes them.
    return st.text(st.characters(exclude_categories=["Cs"]), min_size=kind.min_length or 0, max_size=length_max)
