"""Jobs and events that are part of a transaction of the application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ingot.client.asynchronous.job import AsyncJob
from ingot.client.job_request import Duration
from ingot.client.transaction import (
    ENQUEUE_CALL,
    PUBLISH_CALL,
    EnqueueResult,
    PublishResult,
    SqlCall,
    async_uses_asyncpg,
    error_from_driver,
    result_text,
)
from ingot.jobs.model import JobStatus

if TYPE_CHECKING:
    from ingot.client.asynchronous.client import AsyncClient


class AsyncSubmission:
    """A job submitted in a transaction. It exists only once the transaction has committed.

    `created` is false if an existing job with its key was found instead.
    """

    def __init__(self, client: AsyncClient, type: str, result: EnqueueResult) -> None:
        self._client = client
        self.type = type
        self.id = result.id
        self.status = JobStatus(result.status)
        self.created = result.created

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.type} {self.id}>"

    async def job(self) -> AsyncJob:
        """Return the job. Raises `JobNotFound` before the transaction has committed."""
        return await self._client.job(self.id)

    async def wait(self, timeout: Duration | None = None) -> AsyncJob:
        """Wait until the job is finished, as `AsyncJob.wait` does. Raises `JobNotFound` before the commit."""
        return await (await self.job()).wait(timeout)


async def enqueue_in_transaction(connection: Any, bodies: list[dict[str, Any]]) -> list[EnqueueResult]:
    """Enqueue jobs in the current transaction of a connection."""
    return msgspec.json.decode(await _execute(connection, ENQUEUE_CALL, _json_text(bodies)), type=list[EnqueueResult])


async def publish_in_transaction(connection: Any, name: str, data: object, dedupe_key: str | None) -> str:
    """Publish an event in the current transaction of a connection, and return its ID."""
    return msgspec.json.decode(
        await _execute(connection, PUBLISH_CALL, name, _json_text(data), dedupe_key), type=PublishResult
    ).id


async def _execute(connection: Any, call: SqlCall, *values: str | None) -> str:
    is_asyncpg = async_uses_asyncpg(connection)
    try:
        if is_asyncpg:
            return result_text(await connection.fetch(call.asyncpg_text, *values))
        cursor = connection.cursor()
        await cursor.execute(call.psycopg_text, values)
        rows = await cursor.fetchall()
        await cursor.close()
        return result_text(rows)
    except Exception as error:
        ingot_error = error_from_driver(error)
        if ingot_error is None:
            raise
        raise ingot_error from error


def _json_text(value: object) -> str:
    return msgspec.json.encode(value).decode()
