"""Retention: removing finished jobs, and the history that remains."""

from __future__ import annotations

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

# More than three hundred years; subtracting it from the time does not overflow.
RETENTION_SECONDS_MAX: Final = 10**10
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
    """The retention of finished jobs of a tenant and type."""

    tenant: str
    number: int
    type: str
    seconds: float
    keeps_history: bool

    def cutoff(self, now: int) -> int:
        """Return the latest time at which a job finished that can be removed."""
        return now - round(min(self.seconds, RETENTION_SECONDS_MAX) * MICROS)


def collect_jobs(tx: Transaction, command: CollectJobs) -> JobCollectionResult:
    """Remove jobs, one rule after the other, until the limit of examined jobs is reached."""
    examined = removed = kept = 0
    for rule in tx.read(list[RetentionRule], SQL.retention_rules, None):
        cutoff = rule.cutoff(tx.now)
        numbers, more = _take_endings(tx, rule, cutoff, command.limit - examined)
        examined += len(numbers)
        statuses = _finished_jobs(tx, rule, numbers, cutoff)
        removed += len(statuses)
        kept += len(statuses) if rule.keeps_history else 0
        _remove_finished(tx, rule, statuses)
        if more:
            return JobCollectionResult(removed=removed, kept=kept, more=True)
    return JobCollectionResult(removed=removed, kept=kept)


def _take_endings(tx: Transaction, rule: RetentionRule, cutoff: int, limit: int) -> tuple[list[int], bool]:
    """Remove up to `limit` jobs from the oldest endings. Return their numbers, and whether endings are left."""
    endings = tx.read(list[tuple[int, int]], SQL.endings_before, rule.number, rule.type, cutoff, limit + 1)
    batches = _first_endings(endings, limit)
    if not batches:
        return [], bool(endings)
    jobs_by_batch = tx.read(dict[int, list[int]], SQL.jobs_of_endings, as_json(batches))
    numbers = list(chain.from_iterable(jobs_by_batch[batch] for batch in batches))
    more = len(numbers) > limit or len(batches) < len(endings)
    if remaining := numbers[limit:]:
        tx.execute(SQL.shorten_ending, as_json(remaining), len(remaining), batches.pop())
    tx.execute(SQL.remove_endings, as_json(batches))
    return numbers[:limit], more


def _first_endings(endings: list[tuple[int, int]], limit: int) -> list[int]:
    """Return the first endings that together list at least `limit` jobs. Each comes with its size."""
    batches: list[int] = []
    jobs = 0
    for batch, size in endings:
        if jobs >= limit:
            break
        batches.append(batch)
        jobs += size
    return batches


def _finished_jobs(tx: Transaction, rule: RetentionRule, numbers: list[int], cutoff: int) -> dict[int, JobStatus]:
    """Return those jobs that finished by the cutoff. A job that was retried is listed again when it ends."""
    if not numbers:
        return {}
    rows = tx.read(
        list[tuple[int, JobStatus, int]],
        SQL.jobs_finished_before,
        as_json(numbers),
        rule.number,
        rule.type,
        cutoff,
    )
    if parents := [number for number, _, _ in rows if number in tx.writer_state.parents]:
        tx.effects.endings[rule.tenant, rule.type] += parents  # Their dependents must be released first.
    return {number: status for number, status, _ in rows if number not in tx.writer_state.parents}


def _remove_finished(tx: Transaction, rule: RetentionRule, statuses: dict[int, JobStatus]) -> None:
    if not statuses:
        return
    if rule.keeps_history:
        tx.execute(SQL.insert_history, ERROR_CHARS_KEPT, as_json(list(statuses)))
    remove_jobs(tx, list(statuses))
    tx.record_removals(rule.tenant, rule.type, statuses.values())


def remove_jobs(tx: Transaction, jobs: list[int]) -> None:
    """Remove jobs with everything that belongs to them."""
    drop_job_files(tx, jobs)
    numbers = as_json(jobs)
    for statement in REMOVALS:
        tx.execute(statement, numbers)


def preview_retention(reader: Reader, command: PreviewRetention) -> list[RetentionPreview]:
    """Count the jobs of a tenant that would be removed now, by type."""
    tenant, now = reader.writer_state.number_of(command.tenant), reader.clock.micros()
    previews: list[RetentionPreview] = []
    with reader.snapshot():
        for rule in reader.read(list[RetentionRule], SQL.retention_rules, tenant):
            key = (rule.number, rule.type, rule.cutoff(now))
            endings = reader.read(list[tuple[int, int]], SQL.endings_before, *key, PREVIEW_JOBS_MAX + 1)
            batches = _first_endings(endings, PREVIEW_JOBS_MAX + 1)
            jobs_by_batch = reader.read(dict[int, list[int]], SQL.jobs_of_endings, as_json(batches))
            numbers = [number for batch in batches for number in jobs_by_batch[batch]]
            examined = as_json(numbers[:PREVIEW_JOBS_MAX])
            rows = reader.read(list[tuple[int, JobStatus, int]], SQL.jobs_finished_before, examined, *key)
            if rows:
                oldest = to_datetime(min(finished_at for _, _, finished_at in rows))
                more = len(numbers) > PREVIEW_JOBS_MAX
                previews.append(RetentionPreview(type=rule.type, jobs=len(rows), oldest_finished_at=oldest, more=more))
    return previews


def list_history(reader: Reader, command: ListHistory) -> tuple[list[HistoryEntry], str | None]:
    """Read a page of the history, last finished first, and the position to continue from."""
    number, limit = reader.writer_state.number_of(command.tenant), command.limit
    position = (ABOVE_ALL_INSTANTS, "") if command.before is None else parse_position(command.before)
    values = (number, *position, limit + 1)
    if command.type is None:
        entries = reader.read(list[HistoryEntry], SQL.page_of_history, *values)
    else:
        entries = reader.read(list[HistoryEntry], SQL.page_of_history_by_type, *values, command.type)
    return page_of(entries, limit)
