"""Error messages for invalid bodies and queries, with the allowed values or the most similar name."""

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
ANY_KEY: Final = "[...]"  # Stands for any key of a mapping in the locations that msgspec reports.
NAME_CHARS_MAX: Final = 64
QUERY_PARAMETER: Final = "query parameter"
_LOCATION = re.compile(r" - at `\$([^`]*)`$")
_NUMBER = re.compile(r"[-+0-9.eE]+")
_LOCATION_SEGMENT = re.compile(r"(?<=\.)[^.\[]+|\[\.{3}\]")
_BOUND_MESSAGE = re.compile(r"Expected `(\w+)` (?:of length )?([<>]=) ([0-9.]+) - at (`key` in )?`\$\.?([^`]*)`$")
_UNITS: Final = {  # Singular and plural.
    "str": ("character", "characters"),
    "bytes": ("byte", "bytes"),
    "array": ("entry", "entries"),
    "object": ("entry", "entries"),
}
_TYPE_MESSAGE = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_MISSING_FIELD_MESSAGE = re.compile(r"Object missing required field `([^`]+)`")
_ENUM_MESSAGE = re.compile(r"Invalid enum value (.*)", re.DOTALL)
_TIMESTAMP_MESSAGE: Final = "Invalid RFC3339 encoded datetime"
_JSON_TYPES: Final = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
}
_UNKNOWN_FIELD_MESSAGE = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


def invalid_body(error: msgspec.ValidationError, body_type: Any) -> InvalidInput:
    """Explain why a body does not fit its type."""
    if match := _BOUND_MESSAGE.match(str(error)):
        return _out_of_bounds_error(*match.groups())
    message, location = _split_message(error)
    types = _types_at(body_type, location)
    if match := _UNKNOWN_FIELD_MESSAGE.match(message):
        return _unknown_name_error("field", match[1], (name for type in types for name in _field_names(type)), location)
    path = _LOCATION.search(str(error))
    field = f"`{path[1].lstrip('.')}`" if path is not None else "the body"
    return InvalidInput(
        _truncate(f"{_describe_problem(message, field)}{_allowed_values_text(types, body_type, location)}")
    )


def invalid_query(error: msgspec.ValidationError, query_type: Any) -> InvalidInput:
    """Explain why a query does not fit its type."""
    if match := _BOUND_MESSAGE.match(str(error)):
        return _out_of_bounds_error(*match.groups())
    message, location = _split_message(error)
    types = _types_at(query_type, location)
    if match := _UNKNOWN_FIELD_MESSAGE.match(message):
        known_names = (name for type in types for name in _field_names(type))
        return _unknown_name_error(QUERY_PARAMETER, match[1], known_names, location)
    parameter = f"the {QUERY_PARAMETER} `{location[-1]}`" if location else "the query"
    return InvalidInput(
        _truncate(f"{_describe_problem(message, parameter)}{_allowed_values_text(types, query_type, location)}")
    )


def _describe_problem(message: str, field: str) -> str:
    """Return our wording of a message of msgspec about a field or a query parameter."""
    if match := _TYPE_MESSAGE.fullmatch(message):
        allowed = " or ".join(_JSON_TYPES.get(name, name) for name in match[1].split(" | "))
        return f"{field} must be {allowed}, got {_JSON_TYPES.get(match[2], match[2])}"
    if match := _MISSING_FIELD_MESSAGE.fullmatch(message):
        return f"`{match[1]}` is missing from {field}"
    if message == _TIMESTAMP_MESSAGE:
        return f"{field} must be a timestamp with a time zone, such as 2027-01-31T12:00:00Z"
    if match := _ENUM_MESSAGE.fullmatch(message):
        return f"{field} cannot be {match[1]}"
    return f"{field} is invalid: {message[:1].lower()}{message[1:]}"


def _out_of_bounds_error(type_name: str, sign: str, bound: str, key_marker: str | None, field: str) -> InvalidInput:
    """Describe a value that is too large or small, or too long or short.

    `key_marker` is not empty if the value is a key of the mapping `field`.
    """
    subject = f"a name in `{field}`" if key_marker else f"`{field}`"
    amount = f"{'at least' if sign == '>=' else 'at most'} {bound.removesuffix('.0')}"
    if type_name not in _UNITS:
        return InvalidInput(f"{subject} must be {amount}")
    return InvalidInput(f"{subject} must have {amount} {_UNITS[type_name][float(bound) != 1]}")


def reject_numeric_timestamps(params: Mapping[str, str], query_type: Any) -> None:
    """Raise `InvalidInput` if a timestamp in a query is a number, because the unit of the number is unknown."""
    for name in _timestamp_fields(query_type) & params.keys():
        if _NUMBER.fullmatch(params[name]):
            raise InvalidInput(
                f"the {QUERY_PARAMETER} `{name}` must be a timestamp, got a number",
                hint="Example: 2027-01-31T12:00:00Z.",
            )


@cache
def _timestamp_fields(query_type: Any) -> frozenset[str]:
    info = _type_info(query_type)
    assert isinstance(info, inspect.StructType)
    return frozenset(
        field.encode_name
        for field in info.fields
        if any(isinstance(type, inspect.DateTimeType) for type in _flatten_type(field.type))
    )


def _split_message(error: msgspec.ValidationError) -> tuple[str, list[str]]:
    """Split an error of msgspec into its message and the names that lead to the invalid value."""
    text = str(error)
    match = _LOCATION.search(text)
    return (text, []) if match is None else (text[: match.start()], _LOCATION_SEGMENT.findall(match[1]))


def _unknown_name_error(subject: str, name: str, known_names: Iterable[str], location: list[str]) -> InvalidInput:
    allowed, name = sorted(set(known_names)), name[:NAME_CHARS_MAX]
    similar = get_close_matches(name, allowed, n=1)
    where = f" in `{'.'.join(location)}`" if location else ""
    suggestion = f"; did you mean `{similar[0]}`?" if similar else ""
    hint = f"Allowed names: {', '.join(allowed[:VALUES_SHOWN_MAX])}." if allowed else "No names are allowed here."
    return InvalidInput(_truncate(f"unknown {subject} `{name}`{where}{suggestion}"), hint=hint)


def _allowed_values_text(types: Iterable[inspect.Type], root: Any, location: list[str]) -> str:
    """List the allowed values at a location of the type `root`, if they can be enumerated."""
    values = [str(value) for type in types for value in _allowed_values(type)]
    if not values and location:  # The field may be the tag of a union, whose values are the tags of its members.
        values = [
            str(type.tag)
            for type in _types_at(root, location[:-1])
            if isinstance(type, inspect.StructType) and type.tag_field == location[-1]
        ]
    return f"; allowed values: {', '.join(dict.fromkeys(values))}" if values else ""


@cache
def _type_info(type: Any) -> inspect.Type:
    return inspect.type_info(type)


def _types_at(root: Any, location: Iterable[str]) -> list[inspect.Type]:
    """Return the types that are allowed at a location of the type `root`."""
    types = list(_flatten_type(_type_info(root)))
    for name in location:
        if name == ANY_KEY:
            types = [
                value_type
                for type in types
                if isinstance(type, inspect.DictType)
                for value_type in _flatten_type(type.value_type)
            ]
            continue
        fields = [
            field
            for type in types
            if isinstance(type, inspect.StructType)
            for field in type.fields
            if field.encode_name == name
        ]
        types = [field_type for field in fields for field_type in _flatten_type(field.type)]
    return types


def _flatten_type(type: inspect.Type) -> Iterator[inspect.Type]:
    """Yield the members of a union, the items of a list, or the type itself."""
    match type:
        case inspect.UnionType():
            for member in type.types:
                yield from _flatten_type(member)
        case inspect.Metadata():
            yield from _flatten_type(type.type)
        case inspect.ListType() | inspect.VarTupleType():
            yield from _flatten_type(type.item_type)
        case _:
            yield type


def _field_names(type: inspect.Type) -> Iterator[str]:
    if isinstance(type, inspect.StructType):
        yield from (field.encode_name for field in type.fields)
        if type.tag_field is not None:
            yield type.tag_field


def _allowed_values(type: inspect.Type) -> Iterable[Any]:
    match type:
        case inspect.EnumType():
            return [member.value for member in type.cls]
        case inspect.LiteralType():
            return type.values
        case _:
            return ()


def _truncate(text: str) -> str:
    return text if len(text) <= DETAIL_CHARS_MAX else f"{text[:DETAIL_CHARS_MAX]}…"
