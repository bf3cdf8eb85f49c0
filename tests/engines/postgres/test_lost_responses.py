"""Errors after a lost response: a call that may have changed something never claims that it did not."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from ingot.engines.postgres import connection
from ingot.engines.postgres.connection import Database
from ingot.kernel.errors import OutcomeUnknown, SchemaMismatch, StorageFull, StoreBusy, StoreError

LOST = asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
ERRORS = [
    (asyncpg.DeadlockDetectedError("deadlock detected"), StoreBusy),
    (asyncpg.DiskFullError("no space left"), StorageFull),
    (asyncpg.UndefinedFunctionError("function does not exist"), SchemaMismatch),
]


class OneConnection:
    """A pool whose only connection raises these errors, and then the last one again."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)

    def get_max_size(self) -> int:
        return 1

    async def acquire(self) -> OneConnection:
        return self

    async def release(self, *_: Any, **__: Any) -> None:
        pass

    async def fetch(self, *_: Any) -> list[Any]:
        raise self._errors.pop(0) if len(self._errors) > 1 else self._errors[0]


async def error_of(*errors: Exception, **options: Any) -> StoreError:
    database: Any = Database(OneConnection(*errors), pooled=False)  # type: ignore[arg-type]
    with pytest.raises(StoreError) as raised:
        await database.call("SELECT 1", **options)
    return raised.value


@pytest.fixture(autouse=True)
def few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONFLICTS_MAX", 1)


@pytest.mark.parametrize(("error", "expected"), ERRORS)
async def test_an_error_is_definite_only_if_no_response_was_lost_before(
    error: Exception, expected: type[StoreError]
) -> None:
    assert type(await error_of(error)) is expected
    assert type(await error_of(LOST, error)) is OutcomeUnknown
    assert type(await error_of(LOST, error, read_only=True)) is expected
