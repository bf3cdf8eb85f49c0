"""Queue depths, load and size of the store for metrics, and the protocol of listeners that observe jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from ingot.jobs.model import AttemptOutcome, Claim, Enqueued, JobStatus, Settled
from ingot.kernel.errors import IngotError

TENANTS_MAX: Final = 1000
LANES_MAX: Final = 10_000


class Depth(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The jobs of one tenant by status. `tenant` is `None` for the sum of all tenants that are not listed separately.

    `oldest_ready_seconds` is how long the oldest ready job has waited, or `None` if no job is ready.
    """

    tenant: str | None
    counts: dict[JobStatus, int]
    oldest_ready_seconds: float | None = None


class Load(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The current load of the store. A field that does not apply to the engine is `None`.

    `waiting_commands` is the number of commands that have not been started, and `commit_seconds` how long the current
    commit has taken so far. `horizon_seconds` is how long the oldest transaction in the database has prevented later
    events from being read.
    """

    waiting_commands: int
    """Number of commands that wait to be executed."""
    commit_seconds: float | None = None
    """Duration of the current commit so far, in seconds. SQLite only."""
    horizon_seconds: float | None = None
    """Seconds for which an open transaction has kept newer events from being read. PostgreSQL only."""
    connections: int | None = None
    """Number of database connections of this process. PostgreSQL only."""
    connections_used: int | None = None
    """Number of these connections that are in use. PostgreSQL only."""
    connections_max: int | None = None
    """Maximum number of these connections. PostgreSQL only."""


class StoreDescription(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The database of a store.

    `database_version` names the database system, `schema_version` is the number of the newest migration, and
    `wal_bytes` is the size of the write-ahead log, or `None` on PostgreSQL.
    """

    database_version: str
    schema_version: int
    database_bytes: int
    wal_bytes: int | None = None


class Listener(Protocol):
    """Observes what this process does to jobs.

    The methods are called on the event loop after the change is durable. They must return quickly.
    """

    def enqueued(self, results: Sequence[Enqueued]) -> None:
        """Handle enqueued jobs. Some of them may have existed before."""

    def claimed(self, claims: Sequence[Claim]) -> None:
        """Handle claimed jobs."""

    def settled(self, results: Sequence[Settled | IngotError]) -> None:
        """Handle the results of settling attempts. Some attempts may have been settled before."""

    def ended(self, type: str, outcome: AttemptOutcome, status: JobStatus, durations_micros: Sequence[int]) -> None:
        """Handle attempts of one type that ended with the same outcome and job status, each reported only once."""

    def canceled(self, type: str, jobs: int) -> None:
        """Handle the cancellation of waiting jobs of one type."""

    def committed(self, engine: str, kind: str, commands: int) -> None:
        """Handle a commit of this number of commands."""
