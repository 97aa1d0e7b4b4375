"""JSON that does not fit its struct, made to fit: what cannot be mended is left out; names may be in either case."""

from __future__ import annotations

import types
from typing import Any, Union, get_args, get_origin

import msgspec


def mended(value: Any, shape: Any) -> Any:
    """As much of `value` as fits the type `shape`; None if nothing does."""
    for option in get_args(shape) if get_origin(shape) in (Union, types.UnionType) else (shape,):
        if option is Any:
            return value
        if isinstance(option, type) and issubclass(option, msgspec.Struct):
            if (fit := _object(value, option)) is not None:
                return fit
        elif get_origin(option) is list and isinstance(value, list):
            return [fit for each in value if (fit := mended(each, get_args(option)[0])) is not None]
        elif option is str and isinstance(value, str | int | float):
            return str(value)
        elif option is bool and isinstance(value, bool):
            return value
    return None


def _object(value: Any, shape: type[msgspec.Struct]) -> dict[str, Any] | None:
    if isinstance(value, str) and "state" in shape.__struct_fields__:
        return {"state": value}  # a status that is nothing but its state
    if not isinstance(value, dict):
        return None
    found = {}
    for field in msgspec.structs.fields(shape):
        given = value.get(field.encode_name, value.get(field.name))
        if given is not None and (fit := mended(given, field.type)) is not None:
            found[field.encode_name] = fit
    return found
