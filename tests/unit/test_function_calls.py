"""Calls of SQL functions of PostgreSQL, generated from their signatures."""

from __future__ import annotations

import pytest

from ingot.engines.postgres.function_calls import CALL


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (CALL.poll, "SELECT * FROM ingot.poll()"),
        (CALL.open_key, "SELECT * FROM ingot.open_key($1, $2)"),
        (CALL.list_verifying, "SELECT ingot.list_verifying($1)"),
    ],
)
def test_a_call_has_a_placeholder_for_each_parameter_and_selects_from_tables(call: str, text: str) -> None:
    assert call == text


def test_a_function_that_does_not_exist_is_named() -> None:
    with pytest.raises(AttributeError, match=r"ingot\.no_such_function"):
        _ = CALL.no_such_function
