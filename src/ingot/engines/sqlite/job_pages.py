"""Pages of jobs: the way through the indexes that has the fewest rows, walked until a page is full.

A way is some lines, each of them numbers in falling order, which are merged. All is read in one snapshot.
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
from ingot.jobs.model import JobStatus, Source
from ingot.jobs.ports import JobFilter
from ingot.kernel.pages import InvalidCursor

PAGE_ROWS_MAX: Final = 5_000  # Rows that a page looks at.
ROWS_PER_QUERY_MAX: Final = 500
COUNTED_ROWS_MAX: Final = 1_000  # Rows of a tag or a source are counted so far.
ASSUMED_ROWS: Final = 10 * COUNTED_ROWS_MAX  # How many there are taken to be when there are more.
ABOVE_ALL_NUMBERS: Final = 2**62
FINISHED: Final = (JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED)

TypeCount = tuple[str, JobStatus, int]
NumberScan = Callable[[int], Iterable[int]]


class SQLiteIndexPath(msgspec.Struct, frozen=True):
    """Lines that together hold every job that fits, about how many rows they have, and whether all of them fit."""

    rows: int
    scans: list[NumberScan]
    exact: bool = False


class JobPageReader:
    """Reads pages of one tenant's jobs on a connection, inside a transaction of the caller's."""

    def __init__(self, reader: apsw.Connection, tenant: int, where: JobFilter) -> None:
        self._reader = reader
        self._tenant = tenant
        self._where = where

    def read(self, before: str | None, limit: int) -> tuple[list[int], str | None]:
        """The numbers of a page of jobs, and the position to go on from."""
        self._below = min(
            _parse_position(before), self._first_number_from(self._where.created_before, ABOVE_ALL_NUMBERS)
        )
        self._lowest = self._first_number_from(self._where.created_after, 0)
        way = self._choose_path()
        first_look = max(
            1, min(limit + 1 if way.exact else ROWS_PER_QUERY_MAX, PAGE_ROWS_MAX // max(1, len(way.scans)))
        )
        walk = merge(*[line(first_look) for line in way.scans], reverse=True)
        found: list[int] = []
        looked, position = 0, 0
        while len(found) < limit and looked < PAGE_ROWS_MAX:
            chunk = list(islice(walk, limit - len(found) if way.exact else ROWS_PER_QUERY_MAX))
            if not chunk:
                return found, None
            found += chunk if way.exact else self._filter(chunk)
            looked += len(chunk)
            position = chunk[-1]
        if len(found) > limit:
            return found[:limit], str(found[limit - 1])
        return found, None if next(walk, None) is None else str(position)

    def _choose_path(self) -> SQLiteIndexPath:
        """The way with the fewest rows."""
        where = self._where
        ways = [self._path_by_type()]
        if where.status is JobStatus.RUNNING:
            seen, numbers = self._read_json(tuple[int, list[int]], SQL.running_jobs, self._tenant, PAGE_ROWS_MAX + 1)
            if seen <= PAGE_ROWS_MAX:
                held = [number for number in numbers if self._lowest <= number < self._below]
                ways.append(SQLiteIndexPath(seen, [lambda _: held]))
        if where.tag is not None:
            rows = self._count_rows(SQL.count_jobs_of_tag, self._tenant, where.tag)
            exact = where == JobFilter(tenant=where.tenant, tag=where.tag)
            ways.append(SQLiteIndexPath(rows, [self._scan(SQL.job_numbers_of_tag, self._tenant, where.tag)], exact))
        if where.source not in (None, Source.MANUAL):
            rows = self._count_rows(SQL.count_jobs_of_source, where.source)
            if rows < COUNTED_ROWS_MAX:  # The line has the jobs of all tenants.
                ways.append(SQLiteIndexPath(rows, [self._scan(SQL.job_numbers_of_source, where.source)]))
        way = min(ways, key=lambda way: way.rows)
        if way is not ways[0]:  # What is newer than the newest of its type and status does not fit.
            newest = max((number for line in ways[0].scans for number in islice(line(1), 1)), default=0)
            self._below = min(self._below, newest + 1)
        return way

    def _path_by_type(self) -> SQLiteIndexPath:
        """By type, those that are not finished apart from those that are. What has no jobs is left out."""
        where = self._where
        counts = self._read_json(list[TypeCount], SQL.counts_by_type, self._tenant)
        fitting = [
            (type, status, jobs)
            for type, status, jobs in counts
            if where.type in (None, type) and where.status in (None, status)
        ]
        live = dict.fromkeys(type for type, status, _ in fitting if status not in FINISHED)
        lines = [self._scan(SQL.unfinished_job_numbers, self._tenant, type) for type in live]
        rows = sum(jobs for type, status, jobs in counts if type in live and status not in FINISHED)
        for type, status, jobs in fitting:
            if status in FINISHED:
                lines.append(self._scan(SQL.finished_job_numbers, self._tenant, type, status))
                rows += jobs
        of_kind = JobFilter(tenant=where.tenant, type=where.type, status=where.status)
        exact = where == of_kind and (where.status is None or where.status in FINISHED)
        return SQLiteIndexPath(rows, lines, exact)

    def _scan(self, statement: str, *key: object) -> NumberScan:
        """A line that is read as far as it is walked."""

        def numbers(at_once: int) -> Iterator[int]:
            below = self._below
            while chunk := self._read_json(list[int], statement, *key, below, self._lowest, at_once):
                yield from chunk
                if len(chunk) < at_once:
                    return
                below, at_once = chunk[-1], ROWS_PER_QUERY_MAX

        return numbers

    def _count_rows(self, statement: str, *key: object) -> int:
        rows: int = self._reader.execute(statement, (*key, COUNTED_ROWS_MAX)).get
        return rows if rows < COUNTED_ROWS_MAX else ASSUMED_ROWS

    def _filter(self, numbers: list[int]) -> list[int]:
        where = self._where
        asked = (where.status, where.type, where.tag, where.source, where.created_after, where.created_before)
        fitting: list[int] = self._read_json(list[int], SQL.matching_jobs, as_json(numbers), self._tenant, *asked)
        return fitting

    def _first_number_from(self, moment: int | None, otherwise: int) -> int:
        """The lowest number of a job made at a moment or later: times grow with numbers."""
        if moment is None:
            return otherwise
        low, high = 0, self._reader.execute(SQL.last_job_number).get + 1
        while low < high:
            middle = (low + high) // 2
            found = self._reader.execute(SQL.first_job_from_number, (middle,)).get
            if found is None or found[1] >= moment:
                high = middle
            else:
                low = found[0] + 1
        return int(low)

    def _read_json(self, type: Any, statement: str, *values: object) -> Any:
        return msgspec.json.decode(self._reader.execute(statement, values).get, type=type)


def _parse_position(text: str | None) -> int:
    if text is None:
        return ABOVE_ALL_NUMBERS
    if not (text.isascii() and text.isdecimal() and len(text) < len(str(ABOVE_ALL_NUMBERS))):
        raise InvalidCursor
    return int(text)
