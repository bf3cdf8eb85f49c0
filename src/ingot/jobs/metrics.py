"""Figures: what those who watch over a server want to know of its jobs, and who is told while they move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from ingot.jobs.model import AttemptOutcome, Claim, Enqueued, JobStatus, Settled
from ingot.kernel.errors import IngotError

TENANTS_MAX: Final = 1000
LANES_MAX: Final = 10_000


class Depth(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The jobs of one tenant by status; with no tenant, those of all that were not named by themselves.

    `oldest_ready_seconds` is how long the work that has been ready longest has waited; `None` when none is ready.
    """

    tenant: str | None
    counts: dict[JobStatus, int]
    oldest_ready_seconds: float | None = None


class Load(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How much the store has to do at this moment. What an engine does not have is `None`.

    `waiting_commands` wait to be begun. `commit_seconds` is how long the commit that is under way has taken so far.
    `horizon_seconds` is how long a transaction of the database has kept the events behind it from being read.
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


class Listener(Protocol):
    """Is told what happens to jobs through this process, on the event loop, after it is durable. Must be quick."""

    def enqueued(self, made: Sequence[Enqueued]) -> None:
        """Jobs were asked for; some may have been there before."""

    def claimed(self, claims: Sequence[Claim]) -> None:
        """Jobs were handed out."""

    def settled(self, answers: Sequence[Settled | IngotError]) -> None:
        """Attempts were settled; some may have been before."""

    def ended(self, type: str, outcome: AttemptOutcome, status: JobStatus, micros: Sequence[int]) -> None:
        """Attempts of this type ended alike; each ran for so long. What was told before is not told again."""

    def canceled(self, type: str, jobs: int) -> None:
        """Jobs of this type were canceled while they waited."""

    def committed(self, engine: str, kind: str, commands: int) -> None:
        """So many commands were committed together."""
