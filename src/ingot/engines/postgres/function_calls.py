"""Statements that call our SQL functions, generated from their signatures.

`CALL.open_key` is `SELECT * FROM ingot.open_key($1, $2)`.
"""

from __future__ import annotations

import re
from importlib import resources
from typing import Final

import msgspec

_FUNCTION = re.compile(r"CREATE OR REPLACE FUNCTION ingot\.(\w+)\s*\((.*?)\)\s*RETURNS\s+(\w+)", re.DOTALL)
_NESTED = re.compile(r"\([^()]*\)")


class FunctionCalls:
    """Statements that call the functions of the schema, as attributes."""

    def __init__(self, package: str) -> None:
        for file in resources.files(package).iterdir():
            if file.name.endswith(".sql"):
                for name, parameters, returns in _FUNCTION.findall(file.read_text(encoding="utf-8")):
                    setattr(self, name, _call_text(name, parameters, returns))

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"there is no function ingot.{name}")


def json_text(value: object) -> str | None:
    """Encode a parameter as JSON. `None` becomes NULL."""
    return None if value is None else msgspec.json.encode(value).decode()


def _call_text(name: str, parameters: str, returns: str) -> str:
    count = len([parameter for parameter in _NESTED.sub("", parameters).split(",") if parameter.strip()])
    values = ", ".join(f"${number}" for number in range(1, count + 1))
    return f"SELECT {'* FROM ' if returns == 'TABLE' else ''}ingot.{name}({values})"


CALL: Final = FunctionCalls("ingot.engines.postgres.functions")
