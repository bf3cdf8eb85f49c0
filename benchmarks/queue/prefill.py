"""Writes finished and queued jobs with SQL into the file of a closed store, to create a long history in seconds.

The rows are the same that the store itself would have written, including attempts, outcomes, keys, counts and events.
Finished jobs are the oldest, then queued ones, and all are older than the current time of the store.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

import apsw

from ingot.engines.sqlite.folder_lock import FolderLock
from ingot.engines.sqlite.store_folder import FILE_NAME
from ingot.engines.sqlite.writer_state import FENCES_PER_EPOCH
from ingot.identity import TenantNotFound
from ingot.jobs.checks import json_digest
from ingot.jobs.model import MAX_ATTEMPTS_DEFAULT, PRIORITY_DEFAULT

PAYLOAD: Final = b'{"prefilled": true, "pad": "%s"}' % (b"p" * 170)
WORKER: Final = "prefill"
EVERY: Final = 10  # Every tenth job has an idempotency key, and while it is queued a dedupe key.
JOBS_PER_EVENT_ROW: Final = 100
FINISHED_STEP: Final = 100_000  # Microseconds from one finished job to the next.
QUEUED_STEP: Final = 1_000
STARTED_AFTER: Final = 200
FINISHED_AFTER: Final = 700

_JOBS: Final = """
WITH RECURSIVE n (n) AS (SELECT 1 WHERE :jobs > 0 UNION ALL SELECT n + 1 FROM n WHERE n < :jobs)
INSERT INTO jobs (number, payload, created_at, source, idempotency_key, depth)
SELECT :base + n, :payload, :start + (n - 1) * :step, 'manual',
    iif(n % :every = 0, 'prefilled-' || (:base + n), NULL), 0
FROM n
"""

# The text of a UUIDv7: the time in milliseconds, the version, random digits.
_ID: Final = """printf('%08x-%04x-7%03x-%04x-%012x',
    created_at / 1000 >> 16, created_at / 1000 & 0xffff, random() & 0xfff, 0x8000 | (random() & 0x3fff),
    random() & 0xffffffffffff)"""

_STATES: Final = f"""
INSERT INTO states (
    number, id, tenant, type, limit_key, dedupe_key, status, due, priority, run_at, attempts, failures, crashes,
    max_attempts, fence, worker_id, started_at, lease_expires_at, cancel_requested, percent, stage, told_at,
    finished_at)
SELECT number, {_ID}, :tenant, :type, '', iif(NOT :done AND number % :every = 0, 'prefilled-' || number, NULL),
    iif(:done, 'succeeded', 'queued'), 1, :priority, created_at, :done, 0, 0, :max_attempts,
    iif(:done, :fence + number - :base, 0), NULL, iif(:done, created_at + :started_after, NULL), NULL, 0, NULL, NULL, 0,
    iif(:done, created_at + :finished_after, NULL)
FROM jobs WHERE number > :base
"""

_KEYS: Final = """
INSERT INTO idempotency_keys (tenant, type, key, job, digest)
SELECT :tenant, :type, idempotency_key, number, :digest
FROM jobs WHERE number > :base AND idempotency_key IS NOT NULL
"""

_ATTEMPTS: Final = """
INSERT INTO attempts (job, fence, number, worker_id, started_at)
SELECT number, fence, 1, :worker, started_at FROM states WHERE number > :base
"""

_OUTCOMES: Final = """
INSERT INTO outcomes (job, fence, outcome, retry, status_after, attempts, finished_at)
SELECT number, fence, 'succeeded', 1, 'succeeded', 1, finished_at FROM states WHERE number > :base
"""

_ENDINGS: Final = """
INSERT INTO endings (tenant, type, finished_at, size, jobs)
SELECT :tenant, :type, finished_at, 1, json_array(number) FROM states WHERE number > :base
"""

_COUNTS: Final = """
INSERT INTO counts (tenant, type, status, jobs)
SELECT :tenant, value, iif(:done, 'succeeded', 'queued'), :jobs FROM json_each(json_array(:type, '')) WHERE true
ON CONFLICT (tenant, type, status) DO UPDATE SET jobs = jobs + excluded.jobs
"""

_ABOUT: Final = """'{"id":"' || id || '","type":"' || type || '","status":'"""
_CREATED: Final = f"""'["job.created",' || {_ABOUT} || '"queued","run_at":"'
    || strftime('%Y-%m-%dT%H:%M:%S', run_at / 1000000, 'unixepoch') || printf('.%06dZ"}}]', run_at % 1000000)"""
_ENDED: Final = f"""',["job.started",' || {_ABOUT} || '"running","attempts":1,"fence":' || fence
    || ',"worker_id":"' || :worker || '"}}],["job.completed",' || {_ABOUT} || '"succeeded","attempts":1,"fence":'
    || fence || '}}]'"""
_EVENTS: Final = f"""
WITH RECURSIVE row (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM row WHERE (n + 1) * :per_row < :jobs)
INSERT INTO events (tenant, batch, at, entries)
SELECT :tenant, :batch + 1 + n,
    :start + (min((n + 1) * :per_row, :jobs) - 1) * :step + iif(:done, :finished_after, 0),
    (SELECT CAST('[' || group_concat({_CREATED} || iif(:done, {_ENDED}, '')) || ']' AS BLOB) FROM states
    WHERE number BETWEEN :base + n * :per_row + 1 AND :base + (n + 1) * :per_row)
FROM row
"""


def prefill(folder: Path, *, finished: int, queued: int, tenant: str, type: str) -> None:
    """Add finished and queued jobs of one type to a tenant, by ID or slug, of the closed store in a folder.

    The store should have no jobs yet, because the times of the new ones are just before its current time.
    """
    lock = FolderLock(folder)
    try:
        connection = apsw.Connection(str(folder / FILE_NAME), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.pragma("journal_mode", "delete")
            connection.pragma("synchronous", 0)
            connection.pragma("cache_size", -262_144)
            with connection:
                _fill(connection, finished=finished, queued=queued, tenant=tenant, type=type)
            connection.pragma("journal_mode", "wal")
        finally:
            connection.close()
        _sync(folder / FILE_NAME)
    finally:
        lock.release()


def _fill(connection: apsw.Connection, *, finished: int, queued: int, tenant: str, type: str) -> None:
    number = connection.execute("SELECT number FROM tenants WHERE ?1 IN (id, slug)", (tenant,)).get
    if number is None:
        raise TenantNotFound(f"the tenant {tenant!r} does not exist")
    epoch, clock = connection.execute("UPDATE store SET epoch = epoch + 1 RETURNING epoch, clock").get
    # The clock of a test can be behind the wall clock, which new IDs use. Both must be later than our times.
    end = min(clock, time.time_ns() // 1000) - FINISHED_AFTER
    middle = end - queued * QUEUED_STEP
    values = {"tenant": number, "type": type, "fence": epoch * FENCES_PER_EPOCH}
    _add(connection, done=1, jobs=finished, start=middle - finished * FINISHED_STEP, step=FINISHED_STEP, **values)
    _add(connection, done=0, jobs=queued, start=middle, step=QUEUED_STEP, **values)


def _add(connection: apsw.Connection, *, done: int, jobs: int, **values: Any) -> None:
    if not jobs:
        return
    values |= {
        "done": done,
        "jobs": jobs,
        "base": connection.execute("SELECT coalesce(max(number), 0) FROM jobs").get,
        "batch": connection.execute("SELECT coalesce(max(batch), 0) FROM events").get,
        "payload": PAYLOAD,
        "digest": json_digest(PAYLOAD),
        "every": EVERY,
        "priority": PRIORITY_DEFAULT,
        "max_attempts": MAX_ATTEMPTS_DEFAULT,
        "started_after": STARTED_AFTER,
        "finished_after": FINISHED_AFTER,
        "worker": WORKER,
        "per_row": JOBS_PER_EVENT_ROW,
    }
    history = [_ATTEMPTS, _OUTCOMES, _ENDINGS] if done else []
    for statement in [_JOBS, _STATES, _KEYS, *history, _COUNTS, _EVENTS]:
        connection.execute(statement, values)


def _sync(path: Path) -> None:
    """Flush pending writes, which would slow the next measurement."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
