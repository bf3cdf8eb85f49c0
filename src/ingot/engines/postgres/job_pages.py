"""Pages of jobs, read along the index path with the fewest rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from uuid import UUID

import msgspec

from ingot.engines.postgres.connection import PlainConnection, Record
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.job_rows import STATUSES, job_of
from ingot.engines.postgres.lane_cache import ABOVE_ALL_IDS, NIL_ID
from ingot.engines.postgres.sql import SQL
from ingot.jobs.model import Job, JobStatus, Source
from ingot.jobs.ports import JobFilter
from ingot.kernel.ids import is_id
from ingot.kernel.pages import InvalidCursor

PAGE_ROWS_MAX: Final = 2_000  # Rows that are read for a page.
TALLY_ROWS_MAX: Final = 10_000  # Rows that are read for a count.
ROWS_PER_QUERY_MAX: Final = 500
SCANS_MAX: Final = 20  # Scans that are merged.
TYPES_MAX: Final = 100  # If a tenant has more types, its jobs are not read type by type.
COUNTS_MAX: Final = 6 * TYPES_MAX  # Counts that are read to choose a path.
COUNT_DELTAS_MAX: Final = 20_000  # Folding leaves fewer, unless jobs of very many types have just been created.
COUNTED_ROWS_MAX: Final = 1_000  # Rows of a tag or a source are counted up to this number.
ASSUMED_ROWS: Final = 10 * COUNTED_ROWS_MAX  # Assumed number of rows if there are more.
ALL_ROWS: Final = 10 * ASSUMED_ROWS  # Assumed number of jobs of a tenant with many types, or of one of them.
UNORDERED_ROWS_MAX: Final = 2_000  # Rows of a scan whose index is not in the order of IDs.
ENDED_ROWS_MAX: Final = 1_000  # Attempts of all tenants that are read to find the newest one that has ended.
DRIFT_MILLIS_MAX: Final = (1_000, 60_000, 3_600_000, None)  # By class of drift, as in `ingot.enqueue`.
FINISHED: Final = (JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED)

Counts = Mapping[str, Mapping[JobStatus, int]]


class IndexScan(msgspec.Struct, frozen=True):
    """A scan of an index in the order of job IDs, limited to a class of drift and possibly to a type."""

    kind: str
    type: str | None = None
    drift: int = 0


class PostgresIndexPath(msgspec.Struct, frozen=True):
    """Scans that together contain every matching job, and their approximate number of rows."""

    rows: int
    scans: list[IndexScan]


async def read_page(
    connection: PlainConnection, where: JobFilter, *, before: str | None, limit: int
) -> tuple[list[Job], str | None]:
    """Return a page of jobs, and the position from which the list continues."""
    ids, position = await _read_ids(connection, where, before=before, limit=limit, rows_max=PAGE_ROWS_MAX)
    rows = await connection.fetch(SQL.get_jobs, ids) if ids else []
    jobs = {job.id: job for job in map(job_of, rows)}
    return [jobs[id] for id in ids], position


async def read_tally(connection: PlainConnection, where: JobFilter) -> tuple[dict[JobStatus, int], bool]:
    """Count matching jobs by status. Also return whether there may be more."""
    ids, position = await _read_ids(connection, where, before=None, limit=TALLY_ROWS_MAX, rows_max=TALLY_ROWS_MAX)
    rows = await connection.fetch(SQL.count_jobs_by_status, ids) if ids else []
    return {STATUSES[row["status"]]: row["jobs"] for row in rows}, position is not None


async def _read_ids(
    connection: PlainConnection, where: JobFilter, *, before: str | None, limit: int, rows_max: int
) -> tuple[list[str], str | None]:
    """Return the IDs of matching jobs, newest first, and the position from which the list continues."""
    start = ABOVE_ALL_IDS if before is None else _parse_position(before)
    scans = (await _choose_path(connection, where)).scans
    if not scans:
        return [], None
    if where.status is JobStatus.SUCCEEDED:  # Very many newer jobs may be waiting. Start at the newest ended attempt.
        newest = await connection.fetchval(CALL.newest_ended_job, where.tenant, start, ENDED_ROWS_MAX)
        start = min(start, _next_id(newest))
    scans, floor = await _newest_scans(connection, where, scans, start, scans_max=max(SCANS_MAX, limit))
    rows_per_scan = limit + 1  # One more shows whether the list continues.
    rows_per_scan_max = max(1, min(ROWS_PER_QUERY_MAX, rows_max // len(scans)))
    position: str | None = start
    ids: list[str] = []
    rows_read = 0
    while position is not None and len(ids) < limit and rows_read < rows_max:
        result = await _query_scans(
            connection,
            where,
            scans,
            below=position,
            floor=floor,
            rows_per_scan=min(rows_per_scan, rows_per_scan_max),
            limit=limit - len(ids),
        )
        ids += result["matches"]
        rows_read += result["examined"]
        position = result["cut_off"] or floor
        if len(ids) == limit and (position is not None or ids[-1] != result["lowest_id"]):
            position = ids[-1]
        if result["cut_off"] is None:
            break
        rows_per_scan *= 4  # Few of the rows match.
    return ids, position


async def _query_scans(
    connection: PlainConnection,
    where: JobFilter,
    scans: list[IndexScan],
    *,
    below: str,
    floor: str | None,
    rows_per_scan: int,
    limit: int,
) -> Record:
    """Read the first jobs of each scan between two IDs."""
    bounds = [_id_bounds(where, scan) for scan in scans]
    result = await connection.fetchrow(
        SQL.page_of_jobs,
        where.tenant,
        [scan.kind for scan in scans],
        [min(highest, below) for highest, _ in bounds],
        [max(lowest, floor or lowest) for _, lowest in bounds],
        [scan.type for scan in scans],
        [scan.drift for scan in scans],
        rows_per_scan,
        where.status,
        where.type,
        where.tag,
        where.source,
        where.created_after,
        where.created_before,
        limit,
    )
    assert result is not None
    return result


async def _newest_scans(
    connection: PlainConnection, where: JobFilter, scans: list[IndexScan], start: str, *, scans_max: int
) -> tuple[list[IndexScan], str | None]:
    """Return at most `scans_max` scans, those with the newest jobs, and the ID from which on the others have none."""
    if len(scans) <= scans_max:
        return scans, None
    result = await _query_scans(connection, where, scans, below=start, floor=None, rows_per_scan=1, limit=0)
    newest = [scans[number - 1] for number in result["head_scans"][:scans_max]] or scans[:1]
    return newest, _next_id(result["head_ids"][scans_max]) if len(result["head_scans"]) > scans_max else None


async def read_counts(connection: PlainConnection, tenant: str) -> dict[str, dict[JobStatus, int]]:
    """Return the number of the tenant's jobs by type and status."""
    counts: dict[str, dict[JobStatus, int]] = {}
    for type, status, jobs in await connection.fetch(SQL.counts_of_tenant, tenant):
        counts.setdefault(type, {})[STATUSES[status]] = jobs
    return counts


async def _read_few_counts(connection: PlainConnection, where: JobFilter) -> Counts | None:
    """Return the number of jobs by type and status, of one type or of all, or `None` if there are too many types."""
    rows = await connection.fetch(SQL.some_counts_of_tenant, where.tenant, where.type, COUNTS_MAX, COUNT_DELTAS_MAX)
    if rows and rows[0]["is_partial"]:
        return None
    counts: dict[str, dict[JobStatus, int]] = {}
    for row in rows:
        if row["jobs"] > 0:
            counts.setdefault(row["type"], {})[STATUSES[row["status"]]] = row["jobs"]
    return counts if len(counts) <= TYPES_MAX else None


async def _choose_path(connection: PlainConnection, where: JobFilter) -> PostgresIndexPath:
    """Return the path with the fewest rows.

    With a time range, it also has scans of the jobs whose ID has another time than their creation.
    """
    counts = await _read_few_counts(connection, where)
    if counts is None:
        paths = [PostgresIndexPath(ALL_ROWS, [_scan_of_all(where)]), *_paths_without_counts(where)]
    else:
        paths = [_path_by_type(where, counts), *_paths_by_status(where, counts)]
    if where.tag is not None:
        rows = await connection.fetchval(SQL.count_jobs_of_tag, where.tenant, where.tag, COUNTED_ROWS_MAX)
        paths.append(PostgresIndexPath(rows if rows < COUNTED_ROWS_MAX else ASSUMED_ROWS, [IndexScan("tag")]))
    if where.source not in (None, Source.MANUAL):
        rows = await connection.fetchval(SQL.count_jobs_of_source, where.tenant, where.source, COUNTED_ROWS_MAX)
        paths.append(PostgresIndexPath(rows if rows < COUNTED_ROWS_MAX else ASSUMED_ROWS, [IndexScan("source")]))
    path = min(paths, key=lambda path: path.rows)
    if path.scans and (where.created_after is not None or where.created_before is not None):
        return PostgresIndexPath(
            path.rows, path.scans + [IndexScan("drift", drift=drift) for drift in range(1, len(DRIFT_MILLIS_MAX))]
        )
    return path


def _paths_by_status(where: JobFilter, counts: Counts) -> Iterator[PostgresIndexPath]:
    """Return paths by status. Ready and succeeded jobs are read only if few, as no index has them in order of IDs."""
    types = {type: states for type, states in counts.items() if where.type in (None, type) and where.status in states}
    rows = sum(states.get(where.status, 0) for states in types.values()) if where.status else 0
    match where.status:
        case JobStatus.BLOCKED:
            yield PostgresIndexPath(rows, [IndexScan("blocked", type) for type in types])
        case JobStatus.QUEUED if rows <= UNORDERED_ROWS_MAX:
            yield PostgresIndexPath(rows, [IndexScan(kind, type) for kind in ("ready", "later") for type in types])
        case JobStatus.RUNNING:
            yield PostgresIndexPath(rows, [IndexScan("leases")])
        case JobStatus.SUCCEEDED:
            finished = sum(states.get(status, 0) for states in types.values() for status in FINISHED)
            if finished <= UNORDERED_ROWS_MAX:
                yield PostgresIndexPath(finished, [IndexScan("endings", type) for type in types])
        case JobStatus.DEAD:
            yield PostgresIndexPath(rows, [IndexScan("ended")])
        case JobStatus.CANCELED:
            yield PostgresIndexPath(rows, [IndexScan("ended"), *(IndexScan("canceled", type) for type in types)])


def _scan_of_all(where: JobFilter) -> IndexScan:
    """Return the scan of all jobs of the tenant, or of the type."""
    return IndexScan("tenant") if where.type is None else IndexScan("type", where.type)


def _paths_without_counts(where: JobFilter) -> Iterator[PostgresIndexPath]:
    """Return paths by status for a tenant whose jobs are not counted. None of them reads one type after the other."""
    match where.status:
        case JobStatus.RUNNING:
            yield PostgresIndexPath(COUNTED_ROWS_MAX, [IndexScan("leases")])
        case JobStatus.DEAD:
            yield PostgresIndexPath(COUNTED_ROWS_MAX, [IndexScan("ended")])
        case JobStatus.BLOCKED if where.type is not None:
            yield PostgresIndexPath(COUNTED_ROWS_MAX, [IndexScan("blocked", where.type)])
        case JobStatus.CANCELED if where.type is not None:
            yield PostgresIndexPath(COUNTED_ROWS_MAX, [IndexScan("ended"), IndexScan("canceled", where.type)])


def _path_by_type(where: JobFilter, counts: Counts) -> PostgresIndexPath:
    types = [
        type
        for type, states in counts.items()
        if where.type in (None, type) and (where.status is None or where.status in states)
    ]
    rows = sum(sum(counts[type].values()) for type in types)
    if len(types) == len(counts) > 1 and where.type is None:
        return PostgresIndexPath(rows, [IndexScan("tenant")])
    return PostgresIndexPath(rows, [IndexScan("type", type) for type in types])


def _id_bounds(where: JobFilter, scan: IndexScan) -> tuple[str, str]:
    """Return the bounds of IDs for the time range of the filter: an exclusive upper one and an inclusive lower one."""
    below, lowest = ABOVE_ALL_IDS, NIL_ID
    drift = DRIFT_MILLIS_MAX[scan.drift]
    if where.created_before is not None and drift is not None:
        below = _lowest_id_at(where.created_before // 1000 + drift + 1)
    if where.created_after is not None and drift is not None:
        lowest = _lowest_id_at(max(0, where.created_after // 1000 - drift))
    return below, lowest


def _lowest_id_at(millis: int) -> str:
    """Return the lowest ID with this time, as text that compares with IDs."""
    return f"{millis >> 16:08x}-{millis & 0xFFFF:04x}-0000-0000-000000000000"


def _next_id(id: UUID) -> str:
    """Return the next higher ID."""
    return str(UUID(int=id.int + 1))


def _parse_position(text: str) -> str:
    if not is_id(text):
        raise InvalidCursor
    return text
