"""Descriptions of fields, read from the attribute docstrings in the source code of structs.

An attribute docstring is a string below a field. Python discards it, so it costs nothing until it is read here.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import msgspec


def field_descriptions(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return the description of each field of a struct, by its name in JSON.

    An inherited field has the docstring of its base class. Every field must have one.
    """
    docstrings: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            docstrings |= _attribute_docstrings(base.__module__).get(base.__name__, {})
    missing = [name for name in struct.__struct_fields__ if name not in docstrings]
    assert not missing, f"fields of {struct.__name__} without a docstring: {', '.join(missing)}"
    names = zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True)
    descriptions = {encoded: docstrings[name] for encoded, name in names}
    config = struct.__struct_config__
    if config.tag_field is not None:
        descriptions[config.tag_field] = f"Always `{config.tag}`."
    return descriptions


@cache
def _attribute_docstrings(module: str) -> dict[str, dict[str, str]]:
    """Return the attribute docstrings of the classes of a module, by class and attribute."""
    try:
        source = inspect.getsource(sys.modules[module])
    except OSError as error:
        raise AssertionError(f"the source code of {module} is needed to describe its fields") from error
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_docstrings_in(node)) for node in classes}


def _docstrings_in(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for statement, next_statement in pairwise(node.body):
        match statement, next_statement:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())
