"""Statements that call our SQL functions, generated from their signatures.

`CALL.worker_hello` is `SELECT "role"::text, "tenant"::text, "schema"::integer FROM ingot.worker_hello()`. A statement
states the parameters and columns that this program expects. If a database has another function, PostgreSQL rejects the
statement before it runs. So no call changes anything if its answer could not be used.
"""

from __future__ import annotations

import re
from importlib import resources
from typing import Final

import msgspec

_FUNCTION = re.compile(
    r"CREATE OR REPLACE FUNCTION ingot\.(\w+)\s*\((.*?)\)\s*RETURNS\s+"
    r"(?:TABLE\s*\(([^)]*)\)|([^\n]+?))\s*LANGUAGE\s+\w+\s+(\w+)",
    re.DOTALL,
)
_NESTED = re.compile(r"\([^()]*\)")
_DEFAULT = re.compile(r"\s+DEFAULT\s.*", re.DOTALL)


class FunctionCalls:
    """Statements that call the functions of the schema, as attributes."""

    def __init__(self, package: str) -> None:
        stable: set[str] = set()
        for file in resources.files(package).iterdir():
            if file.name.endswith(".sql"):
                for name, parameters, columns, result, volatility in _FUNCTION.findall(
                    file.read_text(encoding="utf-8")
                ):
                    setattr(self, name, _call_text(name, parameters, columns, result))
                    if volatility == "STABLE":
                        stable.add(getattr(self, name))
        self.of_stable_functions = frozenset(stable)

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"there is no function ingot.{name}")


def json_text(value: object) -> str | None:
    """Encode a parameter as JSON. `None` becomes NULL."""
    return None if value is None else msgspec.json.encode(value).decode()


def _call_text(name: str, parameters: str, columns: str, result: str) -> str:
    types = [_DEFAULT.sub("", declaration).split(None, 1)[-1] for declaration in _declarations(parameters)]
    values = ", ".join(f"${number}::{type}" for number, type in enumerate(types, start=1))
    call = f"ingot.{name}({values})"
    if columns:
        named = (declaration.split(None, 1) for declaration in _declarations(columns))
        selected = ", ".join(f'"{column}"::{type}' for column, type in named)
        return f"SELECT {selected} FROM {call}"
    type = result.removeprefix("SETOF ").strip()
    return f"SELECT {call}" if type == "void" else f"SELECT {call}::{type}"


def _declarations(text: str) -> list[str]:
    return [declaration for part in _NESTED.sub("", text).split(",") if (declaration := part.strip())]


CALL: Final = FunctionCalls("ingot.engines.postgres.functions")
# PostgreSQL rejects changes in a stable function.
READ_ONLY_CALLS: Final = CALL.of_stable_functions
