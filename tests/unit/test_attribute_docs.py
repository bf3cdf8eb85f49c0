"""Descriptions of fields come from the docstrings below them."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Generic, TypeVar

import msgspec
import pytest

from ingot.http.attribute_docs import field_descriptions

T = TypeVar("T")


class Book(msgspec.Struct, Generic[T]):
    """A book."""

    title: str
    """Title of the book."""
    start: int = msgspec.field(name="from")
    """First page,
    starting at 1."""
    genre: T
    """Genre of the book."""


class Novel(Book[str], tag_field="kind", tag="novel"):
    """A novel."""

    genre: str
    """Genre of the novel."""


class Draft(Book[str]):
    """A book with two fields that have no description."""

    author: str
    words: int


def test_fields_are_described_by_their_names_in_json() -> None:
    assert field_descriptions(Book) == {
        "title": "Title of the book.",
        "from": "First page, starting at 1.",
        "genre": "Genre of the book.",
    }


def test_a_derived_struct_has_the_descriptions_of_its_base() -> None:
    assert field_descriptions(Novel) == {
        "title": "Title of the book.",
        "from": "First page, starting at 1.",
        "genre": "Genre of the novel.",
        "kind": "Always `novel`.",
    }


def test_a_field_without_a_docstring_is_an_error() -> None:
    with pytest.raises(AssertionError, match="fields of Draft without a docstring: author, words"):
        field_descriptions(Draft)


def test_a_struct_without_source_code_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("compiled_only")
    module.__file__ = "/nowhere/compiled_only.pyc"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    struct = msgspec.defstruct("Compiled", [("id", str)], module=module.__name__)
    with pytest.raises(AssertionError, match="compiled_only"):
        field_descriptions(struct)
