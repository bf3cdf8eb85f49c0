"""Calls of SQL functions of PostgreSQL, generated from their signatures."""

from __future__ import annotations

import pytest

from ingot.engines.postgres.function_calls import CALL


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            CALL.worker_hello,
            'SELECT "role"::text, "tenant"::text, "schema"::integer FROM ingot.worker_hello()',
        ),
        (
            CALL.renew,
            'SELECT "place"::integer, "expires_at"::bigint, "cancel_requested"::boolean FROM ingot.renew($1::uuid[], '
            "$2::bigint[], $3::uuid[], $4::bigint[], $5::double precision[], $6::text[], $7::text[])",
        ),
        (CALL.clock, "SELECT ingot.clock()::bigint"),
        (CALL.notify_ready, "SELECT ingot.notify_ready($1::text)"),
        (CALL.canonical_json, "SELECT ingot.canonical_json($1::json, $2::integer)::text"),
        (CALL.queue_blocked, "SELECT ingot.queue_blocked($1::uuid[], $2::bigint)::text"),
    ],
)
def test_a_call_names_and_casts_all_parameters_and_columns(call: str, text: str) -> None:
    assert call == text


def test_a_function_that_does_not_exist_is_named() -> None:
    with pytest.raises(AttributeError, match=r"ingot\.no_such_function"):
        _ = CALL.no_such_function
