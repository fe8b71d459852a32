"""Python's values as JSON has them."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import os
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard


def is_mapping(value: Any) -> TypeGuard[Mapping[Any, Any]]:
    """isinstance(), by which type checkers know what is in it."""
    return isinstance(value, Mapping)


def is_path(value: Any) -> TypeGuard[os.PathLike[str]]:
    """The same."""
    return isinstance(value, os.PathLike)


def is_sequence(value: Any) -> TypeGuard[list[Any]]:
    """Whether it is a list, or as good as one."""
    return isinstance(value, (list, tuple))


def is_iterable(value: Any) -> TypeGuard[Iterable[Any]]:
    """The same."""
    return isinstance(value, Iterable)


def jsonable(value: Any) -> Any:
    """The value with dates, paths, models of Pydantic and the like as JSON writes them.

    Raises:
        TypeError: There is no such form of it.
    """
    if (
        value is None
        or isinstance(value, (str, bool, int, float))
        and not isinstance(value, enum.Enum)
    ):
        return value
    if isinstance(value, enum.Enum):
        return jsonable(value.value)
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if is_mapping(value):
        return {str(jsonable(name)): jsonable(part) for name, part in value.items()}
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return f"PT{value.total_seconds():g}S"
    if isinstance(value, (uuid.UUID, decimal.Decimal)):
        return str(value)
    if is_path(value):
        return os.fspath(value)
    if isinstance(value, (bytes, bytearray)):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if is_iterable(value):
        return [jsonable(part) for part in value]
    raise TypeError(f"no JSON for a value of the type {type(value).__name__}")
