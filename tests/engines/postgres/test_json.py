"""JSON in SQL equals JSON in Python: digests and limit keys are the same for applications and the API."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingot.engines.postgres.connection import PlainConnection as Raw
from ingot.jobs import checks
from ingot.jobs.limits import render_limit_key
from tests.postgres import database_for

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)
NUMBERS = (
    st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([10.0**n for n in range(-30, 30)] + [0.1 + 0.2, -0.0, 1e16, 123456789012345680.0, 9.999e15])
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS | st.sampled_from("abn"), inner, max_size=4),
    max_leaves=12,
)
JSON_TEXTS = [
    '{"b":1,"a":{"z":1,"y":[1.50,2e3,-0,-0.0,1E400]}}'.replace("1E400", "1E30"),
    ' [ 1 , "\\u00e9\\n\\/\\"\\ud83d\\ude00" , true , null ] ',
    '{"a":1,"a":2}',
    '{"\\u0061":1, "a":{"x":[]}}',
    "123456789012345678901234567890",
    "1.7976931348623157e308",
    "5e-324",
]
TEMPLATES = ["{a}", "x{a.b}y{n.0}", "{a}:{b}", "{n.1.a}"]


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Raw]:
    connection = await asyncpg.connect((await database_for(tmp_path / "data")).owner_url)
    yield connection
    await connection.close()


async def digest(owner: Raw, text: str) -> bytes:
    result: bytes = await owner.fetchval("SELECT ingot.json_digest($1::text::json)", text)
    return result


@pytest.mark.parametrize("text", JSON_TEXTS)
async def test_equal_values_written_differently_have_the_same_digest(owner: Raw, text: str) -> None:
    assert await digest(owner, text) == checks.json_digest(text.encode())


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(value=VALUES)
async def test_digest_and_limit_key_of_every_value_equal_those_of_python(owner: Raw, value: Any) -> None:
    text = msgspec.json.encode(value)
    row = await owner.fetchrow(
        "SELECT ingot.canonical_json($1::text::json) AS plain, ingot.json_digest($1::text::json) AS digest",
        text.decode(),
    )
    assert row is not None
    assert row["plain"].encode() == msgspec.json.encode(msgspec.json.decode(text), order="sorted")
    assert row["digest"] == hashlib.sha256(row["plain"].encode()).digest()
    for template in TEMPLATES:
        key = await owner.fetchval("SELECT ingot.limit_key_of($1, $2::text::json)", template, text.decode())
        assert (key or "") == render_limit_key(template, text)
