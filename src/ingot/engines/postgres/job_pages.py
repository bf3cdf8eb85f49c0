"""Pages of jobs: the way through the indexes that has the fewest rows, and looks along it until a page is full."""

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

PAGE_ROWS_MAX: Final = 2_000  # Rows that a page looks at.
TALLY_ROWS_MAX: Final = 10_000  # Rows that a count looks at.
ROWS_PER_QUERY_MAX: Final = 500
SCANS_MAX: Final = 20  # That are walked side by side.
COUNTED_ROWS_MAX: Final = 1_000  # Rows of a tag or a source are counted so far.
ASSUMED_ROWS: Final = 10 * COUNTED_ROWS_MAX  # How many there are taken to be when there are more.
UNORDERED_ROWS_MAX: Final = 2_000  # Rows of a line that is not in order.
ENDED_ROWS_MAX: Final = 1_000  # Attempts of all tenants that are looked at for the newest that has ended.
DRIFT_MILLIS_MAX: Final = (1_000, 60_000, 3_600_000, None)  # By class, as in `ingot.enqueue`.
FINISHED: Final = (JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED)

Counts = Mapping[str, Mapping[JobStatus, int]]


class IndexScan(msgspec.Struct, frozen=True):
    """Jobs in the order of their ids: of one kind, perhaps of one type, and of one class of drift."""

    kind: str
    type: str | None = None
    drift: int = 0


class PostgresIndexPath(msgspec.Struct, frozen=True):
    """Lines that together hold every job that fits, and about how many rows they have."""

    rows: int
    scans: list[IndexScan]


async def read_page(
    connection: PlainConnection, where: JobFilter, *, before: str | None, limit: int
) -> tuple[list[Job], str | None]:
    """The page, and the position to go on from."""
    ids, position = await _read_ids(connection, where, before=before, limit=limit, rows_max=PAGE_ROWS_MAX)
    rows = await connection.fetch(SQL.get_jobs, ids) if ids else []
    jobs = {job.id: job for job in map(job_of, rows)}
    return [jobs[id] for id in ids], position


async def read_tally(connection: PlainConnection, where: JobFilter) -> tuple[dict[JobStatus, int], bool]:
    """How many jobs fit, by status, and whether there may be more."""
    most = TALLY_ROWS_MAX
    ids, position = await _read_ids(connection, where, before=None, limit=most, rows_max=most)
    rows = await connection.fetch(SQL.tally_of_jobs, ids) if ids else []
    return {STATUSES[row["status"]]: row["jobs"] for row in rows}, position is not None


async def _read_ids(
    connection: PlainConnection, where: JobFilter, *, before: str | None, limit: int, rows_max: int
) -> tuple[list[str], str | None]:
    """The ids of jobs that fit, newest first, and the position to go on from."""
    start = ABOVE_ALL_IDS if before is None else _parse_position(before)
    lines = (await _choose_path(connection, where)).scans
    if not lines:
        return [], None
    if where.status is JobStatus.SUCCEEDED:  # Above the newest attempt that has ended there may be very many that wait.
        newest = await connection.fetchval(CALL.newest_ended, where.tenant, start, ENDED_ROWS_MAX)
        start = min(start, _next_id(newest))
    lines, floor = await _newest_scans(connection, where, lines, start, scans_max=max(SCANS_MAX, limit))
    at_once = limit
    at_once_max = max(1, min(ROWS_PER_QUERY_MAX, rows_max // len(lines)))
    position: str | None = start
    ids: list[str] = []
    looked = 0
    while position is not None and len(ids) < limit and looked < rows_max:
        look = await _query_scans(
            connection,
            where,
            lines,
            below=position,
            floor=floor,
            rows_per_scan=min(at_once, at_once_max),
            limit=limit - len(ids),
        )
        ids += look["fit"]
        looked += look["looked"]
        position = look["goes_on"] or floor
        if len(ids) == limit and (position is not None or ids[-1] != look["last"]):
            position = ids[-1]
        if look["goes_on"] is None:
            break
        at_once *= 4  # Those that fit are few.
    return ids, position


async def _query_scans(
    connection: PlainConnection,
    where: JobFilter,
    lines: list[IndexScan],
    *,
    below: str,
    floor: str | None,
    rows_per_scan: int,
    limit: int,
) -> Record:
    """Look at the first jobs of each line between two ids."""
    bounds = [_id_bounds(where, line) for line in lines]
    look = await connection.fetchrow(
        SQL.page_of_jobs,
        where.tenant,
        [line.kind for line in lines],
        [min(highest, below) for highest, _ in bounds],
        [max(lowest, floor or lowest) for _, lowest in bounds],
        [line.type for line in lines],
        [line.drift for line in lines],
        rows_per_scan,
        where.status,
        where.type,
        where.tag,
        where.source,
        where.created_after,
        where.created_before,
        limit,
    )
    assert look is not None
    return look


async def _newest_scans(
    connection: PlainConnection, where: JobFilter, lines: list[IndexScan], start: str, *, scans_max: int
) -> tuple[list[IndexScan], str | None]:
    """The lines with the newest jobs, when there are many, and the id from which on the others have nothing."""
    if len(lines) <= scans_max:
        return lines, None
    look = await _query_scans(connection, where, lines, below=start, floor=None, rows_per_scan=1, limit=0)
    kept = [lines[line - 1] for line in look["heads"][:scans_max]] or lines[:1]
    return kept, _next_id(look["ids_of_heads"][scans_max]) if len(look["heads"]) > scans_max else None


async def read_counts(connection: PlainConnection, tenant: str) -> dict[str, dict[JobStatus, int]]:
    """The tenant's jobs by type and status."""
    counts: dict[str, dict[JobStatus, int]] = {}
    for type, status, jobs in await connection.fetch(SQL.counts_of_tenant, tenant):
        counts.setdefault(type, {})[STATUSES[status]] = jobs
    return counts


async def _choose_path(connection: PlainConnection, where: JobFilter) -> PostgresIndexPath:
    """The way with the fewest rows. For a time, jobs whose id tells another one are lines of their own."""
    counts = await read_counts(connection, where.tenant)
    ways = [_path_by_type(where, counts), *_paths_by_status(where, counts)]
    if where.tag is not None:
        rows = await connection.fetchval(SQL.rows_of_tag, where.tenant, where.tag, COUNTED_ROWS_MAX)
        ways.append(PostgresIndexPath(rows if rows < COUNTED_ROWS_MAX else ASSUMED_ROWS, [IndexScan("tag")]))
    if where.source not in (None, Source.MANUAL):
        rows = await connection.fetchval(SQL.rows_of_source, where.tenant, where.source, COUNTED_ROWS_MAX)
        ways.append(PostgresIndexPath(rows if rows < COUNTED_ROWS_MAX else ASSUMED_ROWS, [IndexScan("source")]))
    way = min(ways, key=lambda way: way.rows)
    if way.scans and (where.created_after is not None or where.created_before is not None):
        return PostgresIndexPath(
            way.rows, way.scans + [IndexScan("drift", drift=drift) for drift in range(1, len(DRIFT_MILLIS_MAX))]
        )
    return way


def _paths_by_status(where: JobFilter, counts: Counts) -> Iterator[PostgresIndexPath]:
    """Those that wait for a worker and those that succeeded have no order by id: they are read if they are few."""
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


def _path_by_type(where: JobFilter, counts: Counts) -> PostgresIndexPath:
    types = [
        type
        for type, states in counts.items()
        if where.type in (None, type) and (where.status is None or where.status in states)
    ]
    return PostgresIndexPath(
        sum(sum(counts[type].values()) for type in types), [IndexScan("type", type) for type in types]
    )


def _id_bounds(where: JobFilter, line: IndexScan) -> tuple[str, str]:
    """The id below which jobs of a line are that were made between two times, and the least that they have."""
    below, lowest = ABOVE_ALL_IDS, NIL_ID
    drift = DRIFT_MILLIS_MAX[line.drift]
    if where.created_before is not None and drift is not None:
        below = _lowest_id_at(where.created_before // 1000 + drift + 1)
    if where.created_after is not None and drift is not None:
        lowest = _lowest_id_at(max(0, where.created_after // 1000 - drift))
    return below, lowest


def _lowest_id_at(millis: int) -> str:
    """The least id that tells this time, written as ids are, so that they compare."""
    return f"{millis >> 16:08x}-{millis & 0xFFFF:04x}-0000-0000-000000000000"


def _next_id(id: UUID) -> str:
    """The least id above one that is not the greatest."""
    return str(UUID(int=id.int + 1))


def _parse_position(text: str) -> str:
    if not is_id(text):
        raise InvalidCursor
    return text
