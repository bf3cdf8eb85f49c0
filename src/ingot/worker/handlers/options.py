"""The options of a handler: its payload, checked whole before a file is fetched."""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec

from ingot.worker.job import NoRetry

_ERROR_LOCATION: Final = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<option>.*)`)?$", re.DOTALL)
_UNKNOWN_FIELD: Final = re.compile(r"^Object contains unknown field `(?P<option>.*)`$", re.DOTALL)
O = TypeVar("O", bound=msgspec.Struct)  # noqa: E741


def read_options(payload: Any, kind: type[O]) -> O:
    """What the payload asks for; one that is null asks for nothing. Raises `NoRetry`, which names the wrong option."""
    try:
        return msgspec.convert({} if payload is None else payload, kind)
    except msgspec.ValidationError as error:
        raise NoRetry(_error_message(str(error), kind)) from None


def _error_message(told: str, kind: type[msgspec.Struct]) -> str:
    found = _ERROR_LOCATION.match(told)
    assert found is not None
    what, option = found["what"], found["option"]
    if (unknown := _UNKNOWN_FIELD.match(what)) is not None:
        return f"there is no option {unknown['option'][:64]!r}; there are {', '.join(kind.__struct_fields__)}"
    if option:
        return f"the option {option} is not right: {what[0].lower()}{what[1:]}"
    return f"the options are not right: {what[0].lower()}{what[1:]}"
