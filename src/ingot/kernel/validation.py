"""Checks of plain values at the door of every room: what is refused has a name and a hint, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from ingot.kernel.errors import InvalidInput

NUMBER_MAX = 2**53  # The largest whole number that every reader of JSON takes in exactly.
FORMATTED_VALUE_CHARS_MAX = 64

S = TypeVar("S", bound=msgspec.Struct)


def format_value(value: object) -> str:
    """A value as a message shows it: short, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # A number too long to be written out, or an object that cannot show itself.
        return f"a {type(value).__name__}"
    return text if len(text) <= FORMATTED_VALUE_CHARS_MAX else f"{text[:FORMATTED_VALUE_CHARS_MAX]}…"


def check_text(value: object, *, name: str, hint: str | None = None) -> str:
    """A text, whatever is in it."""
    if not isinstance(value, str):
        raise InvalidInput(f"the {name} is a {type(value).__name__}; it is a text", hint=hint)
    return str.__str__(value)


def check_length(value: str, *, name: str, chars_max: int) -> str:
    """A text of 1 to `chars_max` characters that can be stored."""
    if not 1 <= len(value) <= chars_max:
        raise InvalidInput(f"the {name} has {len(value)} characters; it goes from 1 to {chars_max}")
    return check_storable(value, name=name)


def check_storable(value: str, *, name: str) -> str:
    """A text that every engine can keep."""
    if "\x00" in value or (not value.isascii() and _has_lone_surrogate(value)):
        raise InvalidInput(f"the {name} has characters that cannot be stored")
    return value


def _has_lone_surrogate(value: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in value)


def check_number(value: object, *, name: str, minimum: float, maximum: float) -> float:
    """A number within its bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"{name} is a {type(value).__name__}; it is a number")
    if not minimum <= value <= maximum:
        raise InvalidInput(f"{name} is {format_value(value)}; it goes from {minimum:g} to {maximum:g}")
    return value


def check_seconds(value: object, *, name: str, maximum: float) -> float:
    """A number of seconds, from none to `most`."""
    return check_number(value, name=name, minimum=0, maximum=maximum)


def check_integer(value: object, *, name: str, minimum: int, maximum: int) -> int:
    """A whole number within its bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{name} is a {type(value).__name__}; it is a whole number")
    if not minimum <= value <= maximum:
        raise InvalidInput(f"{name} is {format_value(value)}; it goes from {minimum} to {maximum}")
    return int(value)


def check_boolean(value: object, *, name: str) -> bool:
    """Yes or no, and nothing that is only taken for it."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} is a {type(value).__name__}; it is true or false")
    return value


def check_instance(value: object, kind: type[S], *, name: str) -> S:
    """One of the structs that a call takes."""
    if not isinstance(value, kind):
        raise InvalidInput(f"the {name} is a {type(value).__name__}; it is a {kind.__name__}")
    return value


def check_list(values: object, *, name: str) -> list[object]:
    """The values of a list or of anything else that yields them; one text is not meant as many."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidInput(f"{name} is one {type(values).__name__}; it is a list")
    return list(values)


def check_field_types(value: S) -> S:
    """The same struct with every value of its declared type, so that what is stored can be read again."""
    try:
        return msgspec.convert(msgspec.to_builtins(value), type(value), strict=True)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"the {type(value).__name__} cannot be stored: {error}") from error
