"""What is wrong with a body or a query, in words that help: which values there are, and which field was meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect

from ingot.kernel.errors import InvalidInput

DETAIL_CHARS_MAX: Final = 500
VALUES_SHOWN_MAX: Final = 40
ANY_KEY: Final = "[...]"  # What stands in a place for any value of a mapping.
NAME_CHARS_MAX: Final = 64
QUERY_PARAMETER: Final = "query parameter"
_LOCATION = re.compile(r" - at `\$([^`]*)`$")
_NUMBER = re.compile(r"[-+0-9.eE]+")
_LOCATION_SEGMENT = re.compile(r"(?<=\.)[^.\[]+|\[\.{3}\]")
_BOUND_MESSAGE = re.compile(r"Expected `(\w+)` (?:of length )?([<>]=) ([0-9.]+) - at (`key` in )?`\$\.?([^`]*)`$")
_UNITS: Final = {  # One of them, and several.
    "str": ("character", "characters"),
    "bytes": ("byte", "bytes"),
    "array": ("entry", "entries"),
    "object": ("entry", "entries"),
}
_UNKNOWN_FIELD_MESSAGE = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


def invalid_body(error: msgspec.ValidationError, kind: Any) -> InvalidInput:
    """What a body of this kind has wrong."""
    if found := _BOUND_MESSAGE.match(str(error)):
        return _out_of_bounds_error(*found.groups())
    said, names = _split_message(error)
    if found := _UNKNOWN_FIELD_MESSAGE.match(said):
        return _unknown_name_error(
            "field", found[1], (name for one in _types_at(kind, names) for name in _field_names(one)), names
        )
    return InvalidInput(_truncate(f"{error}{_allowed_values_text(_types_at(kind, names), kind, names)}"))


def invalid_query(error: msgspec.ValidationError, kind: Any) -> InvalidInput:
    """What a query of this kind has wrong."""
    if found := _BOUND_MESSAGE.match(str(error)):
        return _out_of_bounds_error(*found.groups())
    said, names = _split_message(error)
    if found := _UNKNOWN_FIELD_MESSAGE.match(said):
        return _unknown_name_error(
            QUERY_PARAMETER, found[1], (name for one in _types_at(kind, names) for name in _field_names(one)), names
        )
    about = f"the {QUERY_PARAMETER} `{names[-1]}` is wrong: " if names else f"a {QUERY_PARAMETER} is wrong: "
    return InvalidInput(
        _truncate(f"{about}{said[:1].lower()}{said[1:]}{_allowed_values_text(_types_at(kind, names), kind, names)}")
    )


def _out_of_bounds_error(kind: str, sign: str, bound: str, is_name: str | None, field: str) -> InvalidInput:
    """A value that is too large or too small, too long or too short."""
    subject = f"a name in `{field}`" if is_name else f"`{field}`"
    amount = f"{'at least' if sign == '>=' else 'at most'} {float(bound):.10g}"
    if kind not in _UNITS:
        return InvalidInput(f"{subject} must be {amount}")
    return InvalidInput(f"{subject} must have {amount} {_UNITS[kind][float(bound) != 1]}")


def reject_numeric_timestamps(given: Mapping[str, str], kind: Any) -> None:
    """Raises `InvalidInput` for a moment in a query that is a number: which moment that is, nobody says."""
    for name in _timestamp_fields(kind) & given.keys():
        if _NUMBER.fullmatch(given[name]):
            raise InvalidInput(
                f"the {QUERY_PARAMETER} `{name}` is wrong: it is a number", hint="Write 2027-01-31T12:00:00Z."
            )


@cache
def _timestamp_fields(kind: Any) -> frozenset[str]:
    info = _type_info(kind)
    assert isinstance(info, inspect.StructType)
    return frozenset(
        field.encode_name
        for field in info.fields
        if any(isinstance(part, inspect.DateTimeType) for part in _flatten_type(field.type))
    )


def _split_message(error: msgspec.ValidationError) -> tuple[str, list[str]]:
    """What is said, and the names that lead to the place it is said of."""
    text = str(error)
    place = _LOCATION.search(text)
    return (text, []) if place is None else (text[: place.start()], _LOCATION_SEGMENT.findall(place[1]))


def _unknown_name_error(what: str, name: str, known: Iterable[str], names: list[str]) -> InvalidInput:
    there, name = sorted(set(known)), name[:NAME_CHARS_MAX]
    near = get_close_matches(name, there, n=1)
    where = f" in `{'.'.join(names)}`" if names else ""
    meant = f"; did you mean `{near[0]}`?" if near else ""
    takes = f"It takes {', '.join(there[:VALUES_SHOWN_MAX])}." if there else "It takes none."
    return InvalidInput(_truncate(f"there is no {what} `{name}`{where}{meant}"), hint=takes)


def _allowed_values_text(places: Iterable[inspect.Type], kind: Any, names: list[str]) -> str:
    """The values that can stand there, when they can be told one by one."""
    values = [str(value) for place in places for value in _allowed_values(place)]
    if not values and names:  # It may be what tells the kinds of a union apart.
        values = [
            str(one.tag)
            for one in _types_at(kind, names[:-1])
            if isinstance(one, inspect.StructType) and one.tag_field == names[-1]
        ]
    return f"; it is one of {', '.join(dict.fromkeys(values))}" if values else ""


@cache
def _type_info(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _types_at(kind: Any, names: Iterable[str]) -> list[inspect.Type]:
    """What can stand at a place."""
    places = list(_flatten_type(_type_info(kind)))
    for name in names:
        if name == ANY_KEY:
            places = [
                part
                for place in places
                if isinstance(place, inspect.DictType)
                for part in _flatten_type(place.value_type)
            ]
            continue
        fields = [
            field
            for place in places
            if isinstance(place, inspect.StructType)
            for field in place.fields
            if field.encode_name == name
        ]
        places = [part for field in fields for part in _flatten_type(field.type)]
    return places


def _flatten_type(place: inspect.Type) -> Iterator[inspect.Type]:
    """A type, or those that it is one of, or many of."""
    match place:
        case inspect.UnionType():
            for one in place.types:
                yield from _flatten_type(one)
        case inspect.Metadata():
            yield from _flatten_type(place.type)
        case inspect.ListType() | inspect.VarTupleType():
            yield from _flatten_type(place.item_type)
        case _:
            yield place


def _field_names(place: inspect.Type) -> Iterator[str]:
    if isinstance(place, inspect.StructType):
        yield from (field.encode_name for field in place.fields)
        if place.tag_field is not None:
            yield place.tag_field


def _allowed_values(place: inspect.Type) -> Iterable[Any]:
    match place:
        case inspect.EnumType():
            return [one.value for one in place.cls]
        case inspect.LiteralType():
            return place.values
        case _:
            return ()


def _truncate(text: str) -> str:
    return text if len(text) <= DETAIL_CHARS_MAX else f"{text[:DETAIL_CHARS_MAX]}…"
