"""The reference of the Python library shows the methods, parameters and types that exist."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import ingot
from ingot.events import Events
from ingot.events.audit_service import Audit
from ingot.identity import Tenants
from ingot.identity.secret_values import Secrets
from ingot.jobs import Actions, Jobs, Workers

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "library.md"
OWNERS: Final[dict[str, Any]] = {
    "audit": Audit,
    "events": Events,
    "ingot": ingot,
    "jobs": Jobs,
    "secrets": Secrets,
    "steer": Actions,
    "tenants": Tenants,
    "workers": Workers,
}
SIGNATURE: Final = re.compile(r"^(\w+)\.(\w+)(\((?:[^()]|\(\))*\)) -> ([^#\n]+)", re.MULTILINE)
IMPORTS: Final = re.compile(r"^\| `(ingot[.\w]*)`(?:, errors)? \| (`.*) \|$", re.MULTILINE)


def documented_signatures() -> Iterator[tuple[str, str, str, str]]:
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        yield from SIGNATURE.findall(block)


@pytest.mark.parametrize(
    ("owner", "name", "parameters", "result"),
    [pytest.param(*found, id=f"{found[0]}.{found[1]}") for found in documented_signatures()],
)
def test_a_documented_method_has_these_parameters(owner: str, name: str, parameters: str, result: str) -> None:
    (function,) = ast.parse(f"def {name}{parameters}: ...").body
    assert isinstance(function, ast.FunctionDef)
    documented = [argument.arg for argument in function.args.args]
    documented_keywords = [argument.arg for argument in function.args.kwonlyargs]
    actual = inspect.signature(getattr(OWNERS[owner], name))
    plain = [p.name for p in actual.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "self"]
    keywords = {p.name for p in actual.parameters.values() if p.kind is p.KEYWORD_ONLY}
    has_options = any(p.kind is p.VAR_KEYWORD for p in actual.parameters.values())
    assert documented == plain
    assert has_options or keywords.issuperset(documented_keywords)
    assert result.strip() == actual.return_annotation.replace("[B]", "[Secret]")  # Secrets are records of this body.


def test_the_names_of_the_table_of_imports_exist() -> None:
    rows = IMPORTS.findall(PAGE.read_text())
    assert rows
    missing = [
        f"{module}.{name}"
        for module, names in rows
        for name in re.findall(r"`(\w+)`", names)
        if not hasattr(importlib.import_module(module), name)
    ]
    assert missing == []
