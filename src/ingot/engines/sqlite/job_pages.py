"""Pages of jobs: the index path with the fewest rows is read until a page is full.

A path consists of scans, each of them job numbers in descending order, which are merged.
A page is read in one snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import Any, Final

import apsw
import msgspec

from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import as_json
from ingot.engines.sqlite.writer_state import ALL_TYPES
from ingot.jobs.model import JobStatus, Source
from ingot.jobs.ports import JobFilter
from ingot.kernel.pages import InvalidCursor

PAGE_ROWS_MAX: Final = 5_000  # Rows that are read for one page.
ROWS_PER_QUERY_MAX: Final = 500
COUNTED_ROWS_MAX: Final = 1_000  # Jobs of a tag or a source are counted up to this number.
ASSUMED_ROWS: Final = 10 * COUNTED_ROWS_MAX  # The assumed number if there are more.
ABOVE_ALL_NUMBERS: Final = 2**62
FINISHED: Final = (JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED)  # In the order of their scans.

NumberScan = Callable[[int], Iterable[int]]


class SQLiteIndexPath(msgspec.Struct, frozen=True):
    """Scans that together contain every matching job. `rows` is approximate; if `exact`, all of them match."""

    rows: int
    scans: list[NumberScan]
    exact: bool = False


class JobPageReader:
    """Reads pages of one tenant's jobs on a connection. The caller has opened a transaction."""

    def __init__(self, reader: apsw.Connection, tenant: int, where: JobFilter) -> None:
        self._reader = reader
        self._tenant = tenant
        self._where = where

    def read(self, before: str | None, limit: int) -> tuple[list[int], str | None]:
        """Return the numbers of a page of jobs, and the position to continue from."""
        self._below = min(
            _parse_position(before), self._first_number_from(self._where.created_before, ABOVE_ALL_NUMBERS)
        )
        self._lowest = self._first_number_from(self._where.created_after, 0)
        path = self._choose_path()
        first_rows = max(
            1, min(limit + 1 if path.exact else ROWS_PER_QUERY_MAX, PAGE_ROWS_MAX // max(1, len(path.scans)))
        )
        numbers = merge(*[scan(first_rows) for scan in path.scans], reverse=True)
        matching: list[int] = []
        rows_read, position = 0, 0
        while len(matching) < limit and rows_read < PAGE_ROWS_MAX:
            chunk = list(islice(numbers, limit - len(matching) if path.exact else ROWS_PER_QUERY_MAX))
            if not chunk:
                return matching, None
            matching += chunk if path.exact else self._filter(chunk)
            rows_read += len(chunk)
            position = chunk[-1]
        if len(matching) > limit:
            return matching[:limit], str(matching[limit - 1])
        return matching, None if next(numbers, None) is None else str(position)

    def _choose_path(self) -> SQLiteIndexPath:
        """Return the path with the fewest rows."""
        where = self._where
        paths = [self._path_by_type()]
        if where.status is JobStatus.RUNNING:
            running, numbers = self._read_json(tuple[int, list[int]], SQL.running_jobs, self._tenant, PAGE_ROWS_MAX + 1)
            if running <= PAGE_ROWS_MAX:
                selected = [number for number in numbers if self._lowest <= number < self._below]
                paths.append(SQLiteIndexPath(running, [lambda _: selected]))
        if where.tag is not None:
            rows = self._count_rows(SQL.count_jobs_of_tag, self._tenant, where.tag)
            exact = where == JobFilter(tenant=where.tenant, tag=where.tag)
            paths.append(SQLiteIndexPath(rows, [self._scan(SQL.job_numbers_of_tag, self._tenant, where.tag)], exact))
        if where.source not in (None, Source.MANUAL):
            rows = self._count_rows(SQL.count_jobs_of_source, where.source)
            if rows < COUNTED_ROWS_MAX:  # This scan contains the jobs of all tenants.
                paths.append(SQLiteIndexPath(rows, [self._scan(SQL.job_numbers_of_source, where.source)]))
        path = min(paths, key=lambda path: path.rows)
        if path is not paths[0]:  # No newer job has a matching type and status.
            newest = max((number for scan in paths[0].scans for number in islice(scan(1), 1)), default=0)
            self._below = min(self._below, newest + 1)
        return path

    def _path_by_type(self) -> SQLiteIndexPath:
        """Return the path by type, or by tenant for all types: a scan for unfinished jobs, and one for each status of
        finished jobs, where there are any.
        """
        where = self._where
        jobs = self._read_json(dict[JobStatus, int], SQL.counts_by_status, self._tenant, where.type or ALL_TYPES)
        unfinished = [status for status in jobs if status not in FINISHED]
        finished = [status for status in FINISHED if status in jobs and where.status in (None, status)]
        scans: list[NumberScan] = []
        rows = sum(jobs[status] for status in finished)
        if unfinished and where.status not in FINISHED:
            scans.append(
                self._scan(SQL.unfinished_job_numbers_of_tenant, self._tenant)
                if where.type is None
                else self._scan(SQL.unfinished_job_numbers, self._tenant, where.type)
            )
            rows += sum(jobs[status] for status in unfinished)
        for status in finished:
            scans.append(
                self._scan(SQL.finished_job_numbers_of_tenant, self._tenant, status)
                if where.type is None
                else self._scan(SQL.finished_job_numbers, self._tenant, status, where.type)
            )
        filter_by_type = JobFilter(tenant=where.tenant, type=where.type, status=where.status)
        exact = where == filter_by_type and (where.status is None or where.status in FINISHED)
        return SQLiteIndexPath(rows, scans, exact)

    def _scan(self, statement: str, *key: object) -> NumberScan:
        """Return a scan that reads more rows as they are consumed."""

        def numbers(chunk_rows: int) -> Iterator[int]:
            below = self._below
            while chunk := self._read_json(list[int], statement, *key, below, self._lowest, chunk_rows):
                yield from chunk
                if len(chunk) < chunk_rows:
                    return
                below, chunk_rows = chunk[-1], ROWS_PER_QUERY_MAX

        return numbers

    def _count_rows(self, statement: str, *key: object) -> int:
        rows: int = self._reader.execute(statement, (*key, COUNTED_ROWS_MAX)).get
        return rows if rows < COUNTED_ROWS_MAX else ASSUMED_ROWS

    def _filter(self, numbers: list[int]) -> list[int]:
        where = self._where
        conditions = (where.status, where.type, where.tag, where.source, where.created_after, where.created_before)
        matching: list[int] = self._read_json(list[int], SQL.matching_jobs, as_json(numbers), self._tenant, *conditions)
        return matching

    def _first_number_from(self, time: int | None, default: int) -> int:
        """Return the lowest number of a job created at a time or later. Creation times grow with numbers."""
        if time is None:
            return default
        low, high = 0, self._reader.execute(SQL.last_job_number).get + 1
        while low < high:
            middle = (low + high) // 2
            row = self._reader.execute(SQL.first_job_from_number, (middle,)).get
            if row is None or row[1] >= time:
                high = middle
            else:
                low = row[0] + 1
        return int(low)

    def _read_json(self, type: Any, statement: str, *values: object) -> Any:
        return msgspec.json.decode(self._reader.execute(statement, values).get, type=type)


def _parse_position(text: str | None) -> int:
    if text is None:
        return ABOVE_ALL_NUMBERS
    if not (text.isascii() and text.isdecimal() and len(text) < len(str(ABOVE_ALL_NUMBERS))):
        raise InvalidCursor
    return int(text)
