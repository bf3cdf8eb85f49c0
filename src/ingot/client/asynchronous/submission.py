"""Jobs asked for on a database connection of the caller's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ingot.client.asynchronous.job import AsyncJob
from ingot.client.orders import Seconds
from ingot.client.transaction import (
    ENQUEUE,
    PUBLISH,
    Call,
    Made,
    Told,
    answer_of,
    awaited_driver,
    refusal_of,
)
from ingot.jobs.model import JobStatus

if TYPE_CHECKING:
    from ingot.client.asynchronous.client import AsyncClient


class AsyncSubmission:
    """A job that is there when the transaction it was asked for in has committed, and not otherwise.

    `created` says whether this call made it; otherwise one was there for its key.
    """

    def __init__(self, client: AsyncClient, type: str, made: Made) -> None:
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

    async def wait(self, timeout: Seconds | None = None) -> AsyncJob:
        """Wait until the job is finished, once the transaction has committed. Raises as `AsyncJob.wait` does."""
        return await (await self.job()).wait(timeout)


async def enqueue(connection: Any, bodies: list[dict[str, Any]]) -> list[Made]:
    """Ask for jobs inside the transaction of this connection."""
    return msgspec.json.decode(await _ask(connection, ENQUEUE, _text(bodies)), type=list[Made])


async def publish(connection: Any, name: str, data: object, dedupe_key: str | None) -> str:
    """Append an event inside the transaction of this connection."""
    return msgspec.json.decode(await _ask(connection, PUBLISH, name, _text(data), dedupe_key), type=Told).id


async def _ask(connection: Any, call: Call, *values: str | None) -> str:
    is_asyncpg = awaited_driver(connection)
    try:
        if is_asyncpg:
            return answer_of(await connection.fetch(call.numbered, *values))
        cursor = connection.cursor()
        await cursor.execute(call.marked, values)
        rows = await cursor.fetchall()
        await cursor.close()
        return answer_of(rows)
    except Exception as error:
        known = refusal_of(error)
        if known is None:
            raise
        raise known from error


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
