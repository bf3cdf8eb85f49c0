"""The calls of our functions, made from their signatures: `CALL.open_key` is `SELECT * FROM ingot.open_key($1, $2)`."""

from __future__ import annotations

import re
from importlib import resources
from typing import Final

import msgspec

_FUNCTION = re.compile(r"CREATE OR REPLACE FUNCTION ingot\.(\w+)\s*\((.*?)\)\s*RETURNS\s+(\w+)", re.DOTALL)
_NESTED = re.compile(r"\([^()]*\)")


class FunctionCalls:
    """The calls of all functions in the schema, as attributes."""

    def __init__(self, package: str) -> None:
        for file in resources.files(package).iterdir():
            if file.name.endswith(".sql"):
                for name, parameters, returns in _FUNCTION.findall(file.read_text(encoding="utf-8")):
                    setattr(self, name, _call_text(name, parameters, returns))

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"there is no function ingot.{name}")


def json_text(value: object) -> str | None:
    """A value as functions take it that take JSON; `None` is NULL."""
    return None if value is None else msgspec.json.encode(value).decode()


def _call_text(name: str, parameters: str, returns: str) -> str:
    count = len([one for one in _NESTED.sub("", parameters).split(",") if one.strip()])
    values = ", ".join(f"${number}" for number in range(1, count + 1))
    return f"SELECT {'* FROM ' if returns == 'TABLE' else ''}ingot.{name}({values})"


CALL: Final = FunctionCalls("ingot.engines.postgres.functions")
