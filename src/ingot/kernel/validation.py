"""Validation of arguments. All checks raise `InvalidInput`, with the name of the value in the message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from ingot.kernel.errors import InvalidInput

NUMBER_MAX = 2**53  # Larger integers are not exact in all JSON decoders.
FORMATTED_VALUE_CHARS_MAX = 64

S = TypeVar("S", bound=msgspec.Struct)


def format_value(value: object) -> str:
    """Return a short representation of any value for a message."""
    try:
        text = repr(value)
    except Exception:  # An integer with too many digits, or an object whose `repr` fails.
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= FORMATTED_VALUE_CHARS_MAX else f"{text[:FORMATTED_VALUE_CHARS_MAX]}…"


def check_text(value: object, *, name: str, hint: str | None = None) -> str:
    """Return the value if it is a string."""
    if not isinstance(value, str):
        raise InvalidInput(f"{name} must be a string, got {type(value).__name__}", hint=hint)
    return str.__str__(value)


def check_length(value: str, *, name: str, chars_max: int) -> str:
    """Return a storable string of 1 to `chars_max` characters."""
    if not 1 <= len(value) <= chars_max:
        raise InvalidInput(f"{name} must have 1 to {chars_max} characters, got {len(value)}")
    return check_storable(value, name=name)


def check_storable(value: str, *, name: str) -> str:
    """Return a string that every engine can store."""
    if "\x00" in value or (not value.isascii() and _has_lone_surrogate(value)):
        raise InvalidInput(f"{name} contains characters that cannot be stored: NUL or unpaired surrogates")
    return value


def _has_lone_surrogate(value: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in value)


def check_number(value: object, *, name: str, minimum: float, maximum: float) -> float:
    """Return a number between `minimum` and `maximum`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"{name} must be a number, got {type(value).__name__}")
    if not minimum <= value <= maximum:
        raise InvalidInput(f"{name} must be between {minimum:g} and {maximum:g}, got {format_value(value)}")
    return value


def check_seconds(value: object, *, name: str, maximum: float) -> float:
    """Return a number of seconds between 0 and `maximum`."""
    return check_number(value, name=name, minimum=0, maximum=maximum)


def check_integer(value: object, *, name: str, minimum: int, maximum: int) -> int:
    """Return an integer between `minimum` and `maximum`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{name} must be an integer, got {type(value).__name__}")
    if not minimum <= value <= maximum:
        raise InvalidInput(f"{name} must be between {minimum} and {maximum}, got {format_value(value)}")
    return int(value)


def check_boolean(value: object, *, name: str) -> bool:
    """Return a boolean. Other truthy or falsy values are rejected."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} must be true or false, got {type(value).__name__}")
    return value


def check_instance(value: object, struct_type: type[S], *, name: str) -> S:
    """Return the value if it is a struct of this type."""
    if not isinstance(value, struct_type):
        raise InvalidInput(f"{name} must be of type {struct_type.__name__}, got {type(value).__name__}")
    return value


def check_list(values: object, *, name: str) -> list[object]:
    """Return the elements of a list or another iterable. Strings and bytes are rejected."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidInput(f"{name} must be a list, got {type(values).__name__}")
    return list(values)


def check_field_types(value: S) -> S:
    """Return the struct with every field converted to its declared type, so that it can be read again once stored."""
    try:
        return msgspec.convert(msgspec.to_builtins(value), type(value), strict=True)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{type(value).__name__} has a field with an invalid value: {error}") from error
