"""The rows of a store file, read by plain SQL without the tested code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import msgspec

from ingot.jobs.model import JobEventData


class JobRow(msgspec.Struct, frozen=True):
    """A job, from its rows in `jobs` and `states`."""

    id: str
    tenant: str
    type: str
    status: str
    priority: int
    run_at: int
    attempts: int
    failures: int
    crashes: int
    max_attempts: int
    fence: int
    cancel_requested: bool
    stage: str | None
    mark: str
    payload: str
    dedupe_key: str | None
    idempotency_key: str | None


class AttemptRow(msgspec.Struct, frozen=True):
    """An attempt and, once it has ended, its outcome."""

    job_id: str
    fence: int
    number: int
    worker_id: str
    outcome: str | None
    retry: bool
    status_after: str | None
    run_at: int | None
    attempts: int | None
    finished_at: int | None
    error: str | None
    result: str | None
    stage: str | None


class EventRow(msgspec.Struct, frozen=True):
    """An event of a job. `batch` is its transaction."""

    tenant: str
    batch: int
    at: int
    name: str
    data: JobEventData


class Tables(msgspec.Struct, frozen=True):
    """The rows of a store."""

    tenants: dict[str, str]
    jobs: dict[str, JobRow]
    attempts: dict[tuple[str, int], AttemptRow]
    events: list[EventRow]
    tags: set[tuple[str, str]]
    waits: dict[str, list[tuple[str, bool]]] = {}  # The dependencies of a job, and whether any end of them is enough.


EMPTY = Tables({}, {}, {}, [], set())

_JOBS = """
SELECT s.id, t.id, s.type, s.status, s.priority, s.run_at, s.attempts, s.failures, s.crashes, s.max_attempts, s.fence,
    s.cancel_requested, s.stage, j.correlation_id, CAST(j.payload AS TEXT), s.dedupe_key, j.idempotency_key
FROM states AS s JOIN tenants AS t ON t.number = s.tenant JOIN jobs AS j ON j.number = s.number
"""
_ATTEMPTS = """
SELECT s.id, a.fence, a.number, a.worker_id, o.outcome, coalesce(o.retry, 1), o.status_after, o.run_at, o.attempts,
    o.finished_at, o.error, CAST(o.result AS TEXT), o.stage
FROM attempts AS a JOIN states AS s ON s.number = a.job
LEFT JOIN outcomes AS o ON o.job = a.job AND o.fence = a.fence
"""
_EVENTS = """
SELECT t.id, e.batch, e.at, e.entries FROM events AS e JOIN tenants AS t ON t.number = e.tenant ORDER BY e.batch
"""
_TAGS = "SELECT s.id, g.tag FROM tags AS g JOIN states AS s ON s.number = g.job"

_WAITS = """
SELECT s.id, p.id, w.runs_anyway FROM waits AS w
JOIN states AS s ON s.number = w.job JOIN states AS p ON p.number = w.parent
"""

_entries = msgspec.json.Decoder(list[tuple[str, msgspec.Raw]])
_event_data = msgspec.json.Decoder(JobEventData)


def open_file(path: Path) -> apsw.Connection:
    """Open a connection to a store file that no process uses."""
    return apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)


def is_migrated(connection: apsw.Connection) -> bool:
    """Whether the first migration was applied."""
    return bool(connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'states'").get)


def read_tables(connection: apsw.Connection) -> Tables:
    """Read all rows in one snapshot."""
    connection.execute("BEGIN")
    jobs = [_row(JobRow, values) for values in connection.execute(_JOBS)]
    attempts = [_row(AttemptRow, values) for values in connection.execute(_ATTEMPTS)]
    events = [
        EventRow(tenant, batch, at, name, _event_data.decode(data))
        for tenant, batch, at, entries in connection.execute(_EVENTS)
        for name, data in _entries.decode(entries)
        if name != "batch.completed"
    ]
    tables = Tables(
        tenants=dict(connection.execute("SELECT slug, id FROM tenants")),
        jobs={job.id: job for job in jobs},
        attempts={(attempt.job_id, attempt.fence): attempt for attempt in attempts},
        events=events,
        tags=set(connection.execute(_TAGS)),
        waits=_waits(connection),
    )
    connection.execute("COMMIT")
    return tables


def _waits(connection: apsw.Connection) -> dict[str, list[tuple[str, bool]]]:
    waits: dict[str, list[tuple[str, bool]]] = {}
    for job, parent, runs_anyway in connection.execute(_WAITS):
        waits.setdefault(job, []).append((parent, bool(runs_anyway)))
    return waits


def dump(connection: apsw.Connection) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row of every table except the clock, to detect any change."""
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    columns = dict.fromkeys(names, "*") | {"store": "epoch"}
    return {name: sorted(connection.execute(f"SELECT {columns[name]} FROM {name}"), key=repr) for name in names}


def _row(type: Any, values: tuple[Any, ...]) -> Any:
    return type(*values)
