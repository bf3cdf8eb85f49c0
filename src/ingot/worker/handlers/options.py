"""Options of built-in handlers: the payload of a job, validated before any file is downloaded."""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec

from ingot.worker.job import NoRetry

_ERROR_LOCATION: Final = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<option>.*)`)?$", re.DOTALL)
_UNKNOWN_FIELD: Final = re.compile(r"^Object contains unknown field `(?P<option>.*)`$", re.DOTALL)
O = TypeVar("O", bound=msgspec.Struct)  # noqa: E741


def read_options(payload: Any, kind: type[O]) -> O:
    """Decode the payload of a job. Null means no options. Raises `NoRetry` with the name of an invalid option."""
    try:
        return msgspec.convert({} if payload is None else payload, kind)
    except msgspec.ValidationError as error:
        raise NoRetry(_error_message(str(error), kind)) from None


def _error_message(error_text: str, kind: type[msgspec.Struct]) -> str:
    match = _ERROR_LOCATION.match(error_text)
    assert match is not None
    what, option = match["what"], match["option"]
    if (unknown := _UNKNOWN_FIELD.match(what)) is not None:
        return f"unknown option {unknown['option'][:64]!r}; the options are {', '.join(kind.__struct_fields__)}"
    if option:
        return f"the option {option} is invalid: {what[0].lower()}{what[1:]}"
    return f"the options are invalid: {what[0].lower()}{what[1:]}"
