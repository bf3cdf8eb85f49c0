# Made of ingot.client.asynchronous by scripts/make_sync.py: change that, and run `make client`.
"""Jobs asked for on a database connection of the caller's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ingot.client.orders import Seconds
from ingot.client.synchronous.job import SyncJob
from ingot.client.transaction import (
    ENQUEUE,
    PUBLISH,
    Call,
    Made,
    Told,
    answer_of,
    plain_driver,
    refusal_of,
)
from ingot.jobs.model import JobStatus

if TYPE_CHECKING:
    from ingot.client.synchronous.client import Client


class SyncSubmission:
    """A job that is there when the transaction it was asked for in has committed, and not otherwise.

    `created` says whether this call made it; otherwise one was there for its key.
    """

    def __init__(self, client: Client, type: str, made: Made) -> None:
        self._client = client
        self.type = type
        self.id = made.id
        self.status = JobStatus(made.status)
        self.created = made.created

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.type} {self.id}>"

    def job(self) -> SyncJob:
        """The job, once the transaction has committed. Raises `JobNotFound` before that."""
        return self._client.job(self.id)

    def wait(self, timeout: Seconds | None = None) -> SyncJob:
        """Wait until the job is finished, once the transaction has committed. Raises as `SyncJob.wait` does."""
        return (self.job()).wait(timeout)


def enqueue(connection: Any, bodies: list[dict[str, Any]]) -> list[Made]:
    """Ask for jobs inside the transaction of this connection."""
    return msgspec.json.decode(_ask(connection, ENQUEUE, _text(bodies)), type=list[Made])


def publish(connection: Any, name: str, data: object, dedupe_key: str | None) -> str:
    """Append an event inside the transaction of this connection."""
    return msgspec.json.decode(_ask(connection, PUBLISH, name, _text(data), dedupe_key), type=Told).id


def _ask(connection: Any, call: Call, *values: str | None) -> str:
    is_asyncpg = plain_driver(connection)
    try:
        if is_asyncpg:
            return answer_of(connection.fetch(call.numbered, *values))
        cursor = connection.cursor()
        cursor.execute(call.marked, values)
        rows = cursor.fetchall()
        cursor.close()
        return answer_of(rows)
    except Exception as error:
        known = refusal_of(error)
        if known is None:
            raise
        raise known from error


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
