"""Jobs asked for on a database connection of the caller's own."""

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
    """A job that is there when the transaction it was asked for in has committed, and not otherwise.

    `created` says whether this call made it; otherwise one was there for its key.
    """

    def __init__(self, client: AsyncClient, type: str, made: EnqueueResult) -> None:
        self._client = client
        self.type = type
        self.id = made.id
        self.status = JobStatus(made.status)
        self.created = made.created

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.type} {self.id}>"

    async def job(self) -> AsyncJob:
        """The job, once the transaction has committed. Raises `JobNotFound` before that."""
        return await self._client.job(self.id)

    async def wait(self, timeout: Duration | None = None) -> AsyncJob:
        """Wait until the job is finished, once the transaction has committed. Raises as `AsyncJob.wait` does."""
        return await (await self.job()).wait(timeout)


async def enqueue_in_transaction(connection: Any, bodies: list[dict[str, Any]]) -> list[EnqueueResult]:
    """Ask for jobs inside the transaction of this connection."""
    return msgspec.json.decode(await _execute(connection, ENQUEUE_CALL, _json_text(bodies)), type=list[EnqueueResult])


async def publish_in_transaction(connection: Any, name: str, data: object, dedupe_key: str | None) -> str:
    """Append an event inside the transaction of this connection."""
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
        known = error_from_driver(error)
        if known is None:
            raise
        raise known from error


def _json_text(value: object) -> str:
    return msgspec.json.encode(value).decode()
