"""Finished jobs: removing those that have been kept long enough, and the history of them."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Final

import msgspec

from ingot.engines.history_positions import page_of, parse_position
from ingot.engines.sqlite.job_files import drop_job_files
from ingot.engines.sqlite.readers import Reader
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.jobs.model import HistoryEntry, JobCollectionResult, JobStatus, RetentionPreview
from ingot.jobs.ports import CollectJobs, ListHistory, PreviewRetention
from ingot.kernel.clock import MICROS, to_datetime

RETENTION_SECONDS_MAX: Final = (
    10**10
)  # More than three hundred years, and still an instant that can be counted back to.
ERROR_CHARS_KEPT: Final = 200
PREVIEW_JOBS_MAX: Final = 10_000
ABOVE_ALL_INSTANTS: Final = 2**62
REMOVALS: Final = (
    SQL.remove_idempotency_keys,
    SQL.remove_reuse_keys,
    SQL.remove_jobs,
    SQL.remove_states,
    SQL.remove_attempts,
    SQL.remove_outcomes,
    SQL.remove_tags,
    SQL.remove_waits,
    SQL.remove_logs,
)


class RetentionRule(msgspec.Struct, array_like=True, gc=False):
    """A tenant's type whose finished jobs are not kept for ever."""

    tenant: str
    number: int
    type: str
    seconds: float
    keeps_history: bool

    def cutoff(self, now: int) -> int:
        """What finished up to then has been kept long enough."""
        return now - round(min(self.seconds, RETENTION_SECONDS_MAX) * MICROS)


def collect_jobs(tx: Transaction, command: CollectJobs) -> JobCollectionResult:
    """Remove jobs of one kind after the other, until as many as the limit says have been looked at."""
    looked = removed = kept = 0
    for kind in tx.read(list[RetentionRule], SQL.retention_rules, None):
        cutoff = kind.cutoff(tx.now)
        numbers, more = _take_endings(tx, kind, cutoff, command.limit - looked)
        looked += len(numbers)
        statuses = _finished_jobs(tx, kind, numbers, cutoff)
        removed += len(statuses)
        kept += len(statuses) if kind.keeps_history else 0
        _remove_finished(tx, kind, statuses)
        if more:
            return JobCollectionResult(removed=removed, kept=kept, more=True)
    return JobCollectionResult(removed=removed, kept=kept)


def _take_endings(tx: Transaction, kind: RetentionRule, cutoff: int, limit: int) -> tuple[list[int], bool]:
    """Up to `limit` of the jobs that finished first, which are named no more, and whether there are others."""
    endings = tx.read(list[tuple[int, int]], SQL.endings_before, kind.number, kind.type, cutoff, limit + 1)
    batches = first_batches(endings, limit)
    if not batches:
        return [], bool(endings)
    named = tx.read(dict[int, list[int]], SQL.jobs_of_endings, as_json(batches))
    numbers = list(chain.from_iterable(named[batch] for batch in batches))
    more = len(numbers) > limit or len(batches) < len(endings)
    if left := numbers[limit:]:
        tx.execute(SQL.shorten_ending, as_json(left), len(left), batches.pop())
    tx.execute(SQL.remove_endings, as_json(batches))
    return numbers[:limit], more


def first_batches(endings: list[tuple[int, int]], limit: int) -> list[int]:
    """As many of the batches, each with its size, as it takes to hold so many jobs."""
    batches: list[int] = []
    jobs = 0
    for batch, size in endings:
        if jobs >= limit:
            break
        batches.append(batch)
        jobs += size
    return batches


def _finished_jobs(tx: Transaction, kind: RetentionRule, numbers: list[int], cutoff: int) -> dict[int, JobStatus]:
    """Those of the jobs that are finished, and were so by then: one that was retried is named again when it ends."""
    if not numbers:
        return {}
    rows = tx.read(
        list[tuple[int, JobStatus, int]],
        SQL.jobs_finished_before,
        as_json(numbers),
        kind.number,
        kind.type,
        cutoff,
    )
    if awaited := [number for number, _, _ in rows if number in tx.writer_state.parents]:
        tx.effects.endings[kind.tenant, kind.type] += awaited  # Those who wait for it go on first.
    return {number: status for number, status, _ in rows if number not in tx.writer_state.parents}


def _remove_finished(tx: Transaction, kind: RetentionRule, statuses: dict[int, JobStatus]) -> None:
    if not statuses:
        return
    if kind.keeps_history:
        tx.execute(SQL.insert_history, ERROR_CHARS_KEPT, as_json(list(statuses)))
    remove_jobs(tx, list(statuses))
    for status, jobs in Counter(statuses.values()).items():
        tx.effects.counts[kind.tenant, kind.type, status] -= jobs


def remove_jobs(tx: Transaction, jobs: list[int]) -> None:
    """Take jobs away, with all that belongs to them."""
    drop_job_files(tx, jobs)
    numbers = as_json(jobs)
    for statement in REMOVALS:
        tx.execute(statement, numbers)


def preview_retention(reader: Reader, command: PreviewRetention) -> list[RetentionPreview]:
    """Count what would be removed of a tenant's jobs now, by type."""
    tenant, now = reader.writer_state.number_of(command.tenant), reader.clock.micros()
    found: list[RetentionPreview] = []
    with reader.snapshot():  # One for all looks.
        for kind in reader.read(list[RetentionRule], SQL.retention_rules, tenant):
            which = (kind.number, kind.type, kind.cutoff(now))
            endings = reader.read(list[tuple[int, int]], SQL.endings_before, *which, PREVIEW_JOBS_MAX + 1)
            batches = first_batches(endings, PREVIEW_JOBS_MAX + 1)
            named = reader.read(dict[int, list[int]], SQL.jobs_of_endings, as_json(batches))
            numbers = [number for batch in batches for number in named[batch]]
            looked = as_json(numbers[:PREVIEW_JOBS_MAX])
            rows = reader.read(list[tuple[int, JobStatus, int]], SQL.jobs_finished_before, looked, *which)
            if rows:
                oldest = to_datetime(min(finished_at for _, _, finished_at in rows))
                more = len(numbers) > PREVIEW_JOBS_MAX
                found.append(RetentionPreview(type=kind.type, jobs=len(rows), oldest_finished_at=oldest, more=more))
    return found


def list_history(reader: Reader, command: ListHistory) -> tuple[list[HistoryEntry], str | None]:
    """Read a page of the history, last finished first, and the position to go on from."""
    number, limit = reader.writer_state.number_of(command.tenant), command.limit
    position = (ABOVE_ALL_INSTANTS, "") if command.before is None else parse_position(command.before)
    values = (number, *position, limit + 1)
    if command.type is None:
        entries = reader.read(list[HistoryEntry], SQL.page_of_history, *values)
    else:
        entries = reader.read(list[HistoryEntry], SQL.page_of_history_by_type, *values, command.type)
    return page_of(entries, limit)
