"""Statements: loading SQL from files, and repeating rows in a few sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.engines.sqlite.sql import SQL
from ingot.engines.statements import CHUNK_ROWS_MAX, chunk_sizes, repeat_row


def test_a_named_statement_of_a_file_is_an_attribute() -> None:
    assert SQL.delete_tags.startswith("DELETE FROM tags")


def test_a_missing_statement_is_named() -> None:
    with pytest.raises(AttributeError, match=r"no_such_statement"):
        _ = SQL.no_such_statement


def test_names_are_sorted_and_complete() -> None:
    assert SQL.names() == sorted(SQL.names())
    assert "lease_jobs" in SQL.names()
    assert all(getattr(SQL, name).strip() for name in SQL.names())


@given(st.integers(0, 20_000))
def test_chunk_sizes_add_up_and_are_few(rows: int) -> None:
    sizes = chunk_sizes(rows)
    assert sum(sizes) == rows
    assert all(size & (size - 1) == 0 and 1 <= size <= CHUNK_ROWS_MAX for size in sizes)
    assert list(sizes) == sorted(sizes, reverse=True)
    assert len(sizes) <= rows // CHUNK_ROWS_MAX + CHUNK_ROWS_MAX.bit_length()


@given(st.integers(1, 100))
def test_repeating_a_row_changes_nothing_else(rows: int) -> None:
    statement = "-- why\nINSERT INTO t (a, b) VALUES (?, ?)\nON CONFLICT (a) DO UPDATE SET b = excluded.b"
    repeated = repeat_row(statement, rows)
    assert repeated.count("(?, ?)") == repeated.count("?") // 2 == rows
    assert repeated.replace(", (?, ?)", "") == statement


def test_one_row_is_the_statement_itself() -> None:
    assert repeat_row("INSERT INTO t VALUES (?)", 1) == "INSERT INTO t VALUES (?)"


def test_a_statement_without_a_row_cannot_be_repeated() -> None:
    with pytest.raises(AssertionError):
        repeat_row("SELECT 1", 2)
