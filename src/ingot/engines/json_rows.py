"""Decoding of rows that a database returns as JSON text: microseconds in the text become `datetime` in the structs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from types import GenericAlias, NoneType
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from ingot.kernel.clock import to_datetime
from ingot.kernel.msgspec_warmup import prepare_structs

T = TypeVar("T")
Decode = Callable[[Any], Any]
Build = Callable[[Any], Any]

_decoders: dict[Any, Decode] = {}


def decode(kind: type[T], text: bytes | str) -> T:
    """Decode JSON text as this type: a struct, or a list of structs. Columns without a field are ignored."""
    if kind not in _decoders:
        _decoders[kind] = _decoder(kind)
    value: T = _decoders[kind](text)
    return value


def _decoder(kind: Any) -> Decode:
    row, build = _plan(kind)
    prepare_structs()  # Another thread may decode the same type at the same time.
    decode_row = msgspec.json.Decoder(row).decode
    return decode_row if build is None else lambda text: build(decode_row(text))


def _plan(kind: Any) -> tuple[Any, Build | None]:
    """Return the type that msgspec decodes, and the function that builds `kind` from its value.

    A type without times in it is decoded directly, and the function is `None`.
    """
    if kind is datetime:
        return int, to_datetime
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        columns = {field.name: _plan(field.type) for field in msgspec.structs.fields(kind)}
        builds = {name: build for name, (_, build) in columns.items() if build is not None}
        if not builds:
            return kind, None
        row = msgspec.defstruct(f"{kind.__name__}Row", [(name, type) for name, (type, _) in columns.items()])
        return row, partial(_build_struct, kind, builds)
    for part in get_args(kind):
        row, build = _plan(part)
        if build is not None and get_origin(kind) is list:
            return GenericAlias(list, row), partial(_build_list, build)
        if build is not None and set(get_args(kind)) == {part, NoneType}:
            return row | None, partial(_build_optional, build)
        if build is not None:
            raise TypeError(f"rows cannot be decoded as {kind}")
    return kind, None


def _build_struct(kind: Callable[..., Any], builds: dict[str, Build], row: Any) -> Any:
    values = msgspec.structs.asdict(row)
    for name, build in builds.items():
        values[name] = build(values[name])
    return kind(**values)


def _build_list(build: Build, rows: list[Any]) -> list[Any]:
    return [build(row) for row in rows]


def _build_optional(build: Build, value: Any) -> Any:
    return None if value is None else build(value)
