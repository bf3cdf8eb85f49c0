"""Reading: on connections and threads of their own, beside the writer, never in its way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

import apsw
import msgspec

from ingot.engines.audit import AuditRow
from ingot.engines.credentials import TokenRow, WorkerCredentialRow
from ingot.engines.crew import WorkerRow
from ingot.engines.events import read_event_id, write_event_id
from ingot.engines.figures import depth_of
from ingot.engines.history import read_position, write_position
from ingot.engines.sqlite.collect import Entry, Kind, first_batches
from ingot.engines.sqlite.connection import explain, open_reader
from ingot.engines.sqlite.memory import Memory
from ingot.engines.sqlite.pages import LOOKS_MAX, Count, Pages
from ingot.engines.sqlite.rows import AttemptRow, JobRow, LoggedAttempt, State, job_of
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import as_json
from ingot.events.audit import AuditFilter
from ingot.events.audit import Entry as AuditEntry
from ingot.events.errors import Gap
from ingot.events.model import Event
from ingot.identity.credentials import Token, WorkerCredential
from ingot.identity.model import Tenant, TenantNotFound
from ingot.identity.ports import FoundToken, FoundWorkerCredential
from ingot.jobs.crew import Held, Worker, WorkerKey
from ingot.jobs.figures import Depth
from ingot.jobs.logs import Chunk, read_chunks
from ingot.jobs.model import (
    AHEAD_MAX,
    Attempt,
    Batch,
    Definition,
    Doomed,
    HeldLimit,
    HistoryEntry,
    Job,
    JobLog,
    JobStatus,
    Pause,
    Summary,
    Waiting,
)
from ingot.jobs.ports import JobFilter
from ingot.kernel.clock import MICROS, Clock, to_datetime, to_datetime_or_none
from ingot.kernel.errors import StoreError

READERS = 2
PREVIEW_JOBS_MAX = 10_000
TALLY_PAGES = 10_000 // LOOKS_MAX
ABOVE_ALL_INSTANTS = 2**62
ALL_ROWS = -1  # For a LIMIT.
ABOVE_ALL_TEXTS = "\U0010ffff"

T = TypeVar("T")


class Reads:
    """The reading half of the store."""

    _clock: Clock
    memory: Memory

    def __init__(self, path: Path, *, vfs: str | None) -> None:
        self._path = path
        self._vfs = vfs
        self._local = threading.local()
        self._readers: list[apsw.Connection] = []
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="ingot-reader")

    def close_readers(self) -> None:
        """End the threads and close their connections. Blocks."""
        self._threads.shutdown()
        for connection in self._readers:
            connection.close()

    def _reader(self) -> apsw.Connection:
        if not hasattr(self._local, "connection"):
            self._local.connection = open_reader(self._path, vfs=self._vfs)
            self._readers.append(self._local.connection)
        return self._local.connection  # type: ignore[no-any-return]

    def _read(self, type: type[T], statement: str, *values: Any) -> T | None:
        """Run a statement that answers one JSON text, and decode it; `None` when it answers nothing."""
        text = self._reader().execute(statement, values).get
        return None if text is None else msgspec.json.decode(text, type=type)

    def _run(self, read: Any, *args: Any) -> Awaitable[Any]:
        try:
            return asyncio.get_running_loop().run_in_executor(self._threads, _explained, read, *args)
        except RuntimeError:  # The threads have been ended.
            raise StoreError("The store is closed.") from None

    def _check_tenant(self, tenant: str | None) -> None:
        if tenant is not None and tenant not in self.memory.tenants:
            raise TenantNotFound(f"there is no tenant {tenant[:64]!r}")

    def _number_of(self, tenant: str) -> int:
        """Its number; it may have been removed since somebody looked. Raises `TenantNotFound`."""
        try:
            return self.memory.tenants[tenant]
        except KeyError:
            raise TenantNotFound(f"there is no tenant {tenant[:64]!r}") from None

    # -- jobs -----------------------------------------------------------------------------------------------

    def get_job(self, tenant: str, job_id: str) -> Awaitable[Job | None]:
        """See `JobStore`."""
        return self._run(self._get_job, tenant, job_id)

    def _get_job(self, tenant: str, job_id: str) -> Job | None:
        with self._reader() as reader:  # One snapshot for the number and its job.
            number = reader.execute(SQL.number_of_job, (job_id, tenant)).get
            jobs = [] if number is None else self._whole_jobs([number])
        return jobs[0] if jobs else None

    def _whole_jobs(self, numbers: list[int]) -> list[Job]:
        rows = {row.state.number: row for row in self._read(list[JobRow], SQL.whole_jobs, as_json(numbers)) or ()}
        return [job_of(rows[number].state, rows[number].body) for number in numbers]

    def list_jobs(self, where: JobFilter, *, before: str | None, limit: int) -> Awaitable[tuple[list[Job], str | None]]:
        """See `JobStore`."""
        self._check_tenant(where.tenant)
        return self._run(self._list_jobs, where, before, limit)

    def _list_jobs(self, where: JobFilter, before: str | None, limit: int) -> tuple[list[Job], str | None]:
        with self._reader() as reader:  # One snapshot for all looks.
            numbers, position = Pages(reader, self._number_of(where.tenant), where).read(before, limit)
            jobs = self._whole_jobs(numbers)
        return jobs, position

    def list_attempts(self, tenant: str, job_id: str) -> Awaitable[list[Attempt]]:
        """See `JobStore`."""
        return self._run(self._list_attempts, tenant, job_id)

    def _list_attempts(self, tenant: str, job_id: str) -> list[Attempt]:
        rows = self._read(list[AttemptRow], SQL.attempts_of_job, job_id, tenant) or ()
        return [row.attempt() for row in rows]

    def read_log(self, tenant: str, job_id: str, attempt: int | None, *, after: int) -> Awaitable[JobLog | None]:
        """See `JobStore`."""
        return self._run(self._read_log, tenant, job_id, attempt, after)

    def _read_log(self, tenant: str, job_id: str, attempt: int | None, after: int) -> JobLog | None:
        with self._reader():  # One snapshot: what was written before the job ended is there when it has ended.
            found = self._read(LoggedAttempt, SQL.logged_attempt, job_id, tenant, attempt)
            chunks = found and self._read(list[Chunk], SQL.chunks_of_log, found.job, found.fence, after)
        if found is None:
            return None
        start, text = read_chunks(chunks or [], after=after)
        return JobLog(
            job_id=found.job_id,
            attempt=found.number,
            fence=found.fence,
            start=start,
            to=start + len(text),
            text=text,
            live=found.live,
            attempts=found.attempts,
            status=found.status,
        )

    def summarize(self, tenant: str, type: str | None = None) -> Awaitable[Summary]:
        """See `JobStore`."""
        self._check_tenant(tenant)
        return self._run(self._summarize, tenant, type)

    def _summarize(self, tenant: str, type: str | None) -> Summary:
        with self._reader():
            counted = self._read(dict[JobStatus, int], SQL.counts_of_tenant, tenant, type) or {}
            oldest = self._reader().execute(SQL.oldest_ready, (tenant, type)).get
        age = None if oldest is None else max(0.0, (self._clock.micros() - oldest) / MICROS)
        counts = {status: counted.get(status, 0) for status in JobStatus}
        return Summary(counts=counts, running=counts[JobStatus.RUNNING], oldest_queued_seconds=age)

    def tally(self, where: JobFilter) -> Awaitable[tuple[dict[JobStatus, int], bool]]:
        """See `JobStore`."""
        self._check_tenant(where.tenant)
        return self._run(self._tally, where)

    def _tally(self, where: JobFilter) -> tuple[dict[JobStatus, int], bool]:
        found: list[int] = []
        position: str | None = None
        with self._reader() as reader:  # One snapshot for all looks.
            pages = Pages(reader, self._number_of(where.tenant), where)
            for _ in range(TALLY_PAGES):
                numbers, position = pages.read(position, LOOKS_MAX)
                found += numbers
                if position is None:
                    break
            counts = self._read(dict[JobStatus, int], SQL.tally_of_jobs, as_json(found)) or {}
        return counts, position is not None

    def list_depths(self, *, tenants_max: int, lanes_max: int) -> Awaitable[list[Depth]]:
        """See `JobStore`."""
        return self._run(self._list_depths, tenants_max, lanes_max)

    def _list_depths(self, tenants_max: int, lanes_max: int) -> list[Depth]:
        with self._reader():  # One snapshot for both.
            counts = self._read(list[tuple[str | None, dict[JobStatus, int]]], SQL.depths, tenants_max) or []
            rows = self._read(list[tuple[str | None, int]], SQL.oldest_ready_of_all, tenants_max, lanes_max)
        oldest, now = dict(rows or ()), self._clock.micros()
        return [depth_of(tenant, counted, oldest.get(tenant), now) for tenant, counted in counts]

    def get_batch(self, tenant: str, batch: str) -> Awaitable[Batch | None]:
        """See `JobStore`."""
        self._check_tenant(tenant)
        return self._run(self._read, Batch, SQL.batch_of_tenant, tenant, batch)

    def count_jobs(self, tenant: str) -> Awaitable[dict[str, dict[JobStatus, int]]]:
        """See `JobStore`."""
        self._check_tenant(tenant)
        return self._run(self._count_jobs, tenant)

    def _count_jobs(self, tenant: str) -> dict[str, dict[JobStatus, int]]:
        counts: dict[str, dict[JobStatus, int]] = {}
        for type, status, jobs in self._read(list[Count], SQL.counts_by_type, self._number_of(tenant)) or ():
            counts.setdefault(type, {})[status] = jobs
        return counts

    def get_definition(self, tenant: str | None, type: str) -> Awaitable[Definition]:
        """See `JobStore`."""
        self._check_tenant(tenant)
        return self._run(self._get_definition, tenant, type)

    def _get_definition(self, tenant: str | None, type: str) -> Definition:
        return self._read(Definition, SQL.definitions_of_type, type, tenant or "") or Definition(type=type)

    def list_definitions(self, tenant: str | None) -> Awaitable[list[Definition]]:
        """See `JobStore`."""
        self._check_tenant(tenant)
        return self._run(self._read, list[Definition], SQL.definitions_of_tenant, tenant or "")

    def find_waiting(self, tenant: str, job_id: str) -> Awaitable[Waiting | None]:
        """See `JobStore`."""
        return self._run(self._find_waiting, tenant, job_id)

    def _find_waiting(self, tenant: str, job_id: str) -> Waiting | None:
        waiting = None
        with self._reader() as reader:  # One snapshot for all of it.
            number = reader.execute(SQL.number_of_job, (job_id, tenant)).get
            for row in [] if number is None else self._read(list[JobRow], SQL.whole_jobs, as_json([number])) or ():
                waiting = self._waiting(row)
        return waiting

    def _waiting(self, row: JobRow) -> Waiting:
        state = row.state
        times = (self.memory.asked.get((state.type, asker)) for asker in (state.tenant, None))
        asked_at = max((at for at in times if at is not None), default=None)
        now = to_datetime(self._clock.micros())
        job, asked = job_of(state, row.body), to_datetime_or_none(asked_at)
        waiting = Waiting(job=job, now=now, limit_key=state.limit_key, asked_at=asked)
        if state.status is JobStatus.BLOCKED:
            parents = self._read(list[tuple[str, JobStatus]], SQL.open_parents, state.number) or []
            uploads = self._read(list[str], SQL.names_of_open_inputs, state.id) or []
            return msgspec.structs.replace(waiting, parents=parents, uploads=uploads)
        if state.status is not JobStatus.QUEUED:
            return waiting
        lane = (state.type, self._number_of(state.tenant), state.limit_key)
        position = (state.priority, state.run_at, state.id)
        ahead = self._reader().execute(SQL.ready_ahead, (*lane, *position, AHEAD_MAX)).get
        pause = self.memory.pauses.get((state.tenant, state.type))
        return msgspec.structs.replace(waiting, ahead=ahead, pause=pause, limits=self._limits(state))

    def _limits(self, state: State) -> list[HeldLimit]:
        """The limits there are, from the widest to the narrowest, and who runs under each."""
        bounds = self.memory.bounds(state.tenant, state.type)
        scopes: list[tuple[Literal["tenant", "type", "key"], int | None, str | None, str | None]] = [
            ("tenant", bounds.tenant, None, None),
            ("type", bounds.type, state.type, None),
            ("key", bounds.key if state.limit_key else None, state.type, state.limit_key),
        ]
        limits: list[HeldLimit] = []
        for scope, most, type, key in scopes:
            if most is not None:
                number = self._number_of(state.tenant)
                found = self._read(tuple[int, list[str]], SQL.running_under, number, type, key)
                assert found is not None
                limits.append(HeldLimit(scope=scope, most=most, running=found[0], holders=found[1]))
        return limits

    def list_leases(self, worker: str, tenant: str | None, *, limit: int) -> Awaitable[list[tuple[str, int]]]:
        """See `JobStore`."""
        number = 0 if tenant is None else self.memory.tenants.get(tenant, -1)
        return self._run(self._read, list[tuple[str, int]], SQL.leases_of_worker, worker, number, limit)

    def list_pauses(self, tenant: str) -> Awaitable[list[Pause]]:
        """See `JobStore`."""
        self._check_tenant(tenant)
        return self._run(self._list_pauses, tenant)

    def _list_pauses(self, tenant: str) -> list[Pause]:
        rows = self._read(list[tuple[str, int, str | None]], SQL.pauses_of_tenant, tenant) or ()
        return [Pause(type=type, since=to_datetime(since), by=by) for type, since, by in rows]

    def preview_retention(self, tenant: str) -> Awaitable[list[Doomed]]:
        """See `JobStore`."""
        self._check_tenant(tenant)
        return self._run(self._preview_retention, self._number_of(tenant))

    def _preview_retention(self, tenant: int) -> list[Doomed]:
        found: list[Doomed] = []
        now = self._clock.micros()
        with self._reader():  # One snapshot for all looks.
            for kind in self._read(list[Kind], SQL.kinds_to_collect, tenant) or ():
                which = (kind.number, kind.type, kind.cutoff(now))
                endings = self._read(list[tuple[int, int]], SQL.endings_before, *which, PREVIEW_JOBS_MAX + 1) or []
                batches = first_batches(endings, PREVIEW_JOBS_MAX + 1)
                named = self._read(dict[int, list[int]], SQL.jobs_of_endings, as_json(batches)) or {}
                numbers = [number for batch in batches for number in named[batch]]
                looked = as_json(numbers[:PREVIEW_JOBS_MAX])
                rows = self._read(list[tuple[int, JobStatus, int]], SQL.jobs_finished_before, looked, *which)
                if rows:
                    oldest = to_datetime(min(finished_at for _, _, finished_at in rows))
                    more = len(numbers) > PREVIEW_JOBS_MAX
                    found.append(Doomed(type=kind.type, jobs=len(rows), oldest_finished_at=oldest, more=more))
        return found

    def list_history(
        self, tenant: str, type: str | None, *, before: str | None, limit: int
    ) -> Awaitable[tuple[list[HistoryEntry], str | None]]:
        """See `JobStore`."""
        self._check_tenant(tenant)
        return self._run(self._list_history, tenant, type, before, limit)

    def _list_history(
        self, tenant: str, type: str | None, before: str | None, limit: int
    ) -> tuple[list[HistoryEntry], str | None]:
        position = (ABOVE_ALL_INSTANTS, "") if before is None else read_position(before)
        values = (self._number_of(tenant), *position, limit + 1)
        if type is None:
            rows = self._read(list[Entry], SQL.page_of_history, *values) or []
        else:
            rows = self._read(list[Entry], SQL.page_of_history_by_type, *values, type) or []
        entries = [row.entry(tenant) for row in rows[:limit]]
        last = rows[limit - 1] if len(rows) > limit else None
        return entries, None if last is None else write_position(last.finished_at, last.id)

    # -- tenants --------------------------------------------------------------------------------------------

    def get_tenant(self, id_or_slug: str) -> Awaitable[Tenant | None]:
        """See `TenantStore`."""
        return self._run(self._read, Tenant, SQL.tenant_by_name, id_or_slug)

    def list_tenants(self, *, after: str = "", limit: int | None = None) -> Awaitable[list[Tenant]]:
        """See `TenantStore`."""
        return self._run(self._read, list[Tenant], SQL.page_of_tenants, after, ALL_ROWS if limit is None else limit)

    # -- credentials ----------------------------------------------------------------------------------------

    def find_token(self, token_id: str) -> Awaitable[FoundToken | None]:
        """See `CredentialStore`."""
        return self._run(self._find, TokenRow, SQL.token_by_id, token_id)

    def list_acts(self, which: AuditFilter, *, before: str | None, limit: int) -> Awaitable[list[AuditEntry]]:
        """See `AuditLog`."""
        self._check_tenant(which.tenant)
        return self._run(self._list_acts, which, before or ABOVE_ALL_TEXTS, limit)

    def _list_acts(self, which: AuditFilter, before: str, limit: int) -> list[AuditEntry]:
        wanted = (before, which.action, which.who, which.target, limit)
        if which.tenant is None:
            rows = self._read(list[AuditRow], SQL.acts_of_all, *wanted)
        else:
            rows = self._read(list[AuditRow], SQL.acts_of_tenant, which.tenant, *wanted)
        return [row.entry() for row in rows or ()]

    def list_tokens(self, tenant: str | None, *, before: str | None, limit: int) -> Awaitable[list[Token]]:
        """See `CredentialStore`."""
        self._check_tenant(tenant)
        return self._run(self._list_tokens, tenant, before or ABOVE_ALL_TEXTS, limit)

    def _list_tokens(self, *values: Any) -> list[Token]:
        rows = self._read(list[TokenRow], SQL.tokens_of_tenant, *values)
        return [row.token() for row in rows or ()]

    def find_worker_credential(self, credential_id: str) -> Awaitable[FoundWorkerCredential | None]:
        """See `CredentialStore`."""
        return self._run(self._find, WorkerCredentialRow, SQL.worker_credential_by_id, credential_id)

    async def is_worker_name(self, name: str) -> bool:
        """See `CredentialStore`."""
        return await self.find_worker_credential(name) is not None

    def list_worker_credentials(
        self, tenant: str | None, *, after: str | None, limit: int
    ) -> Awaitable[list[WorkerCredential]]:
        """See `CredentialStore`."""
        self._check_tenant(tenant)
        return self._run(self._list_worker_credentials, tenant, after or "", limit)

    def _list_worker_credentials(self, *values: Any) -> list[WorkerCredential]:
        rows = self._read(list[WorkerCredentialRow], SQL.worker_credentials_of_tenant, *values)
        return [row.credential() for row in rows or ()]

    def _find(self, type: type[TokenRow | WorkerCredentialRow], statement: str, id: str) -> Any:
        row = self._read(type, statement, id)
        return None if row is None else row.found()

    # -- workers --------------------------------------------------------------------------------------------

    def get_worker(self, tenant: str | None, worker_id: str) -> Awaitable[Worker | None]:
        """See `WorkerStore`."""
        return self._run(self._get_worker, self._number(tenant), worker_id)

    def _get_worker(self, *key: Any) -> Worker | None:
        row = self._read(WorkerRow, SQL.worker_by_id, *key)
        return None if row is None else row.worker()

    def list_workers(self, tenant: str | None, *, after: str | None, limit: int) -> Awaitable[list[Worker]]:
        """See `WorkerStore`."""
        self._check_tenant(tenant)
        return self._run(self._list_workers, self._number(tenant), after or "", limit)

    def _list_workers(self, *values: Any) -> list[Worker]:
        return [row.worker() for row in self._read(list[WorkerRow], SQL.workers_of_tenant, *values) or ()]

    def _number(self, tenant: str | None) -> int:
        return 0 if tenant is None else self.memory.tenants.get(tenant, -1)

    def list_draining(self) -> Awaitable[list[WorkerKey]]:
        """See `WorkerStore`."""
        return self._run(self._read, list[WorkerKey], SQL.draining_workers)

    def check_leases(self, leases: Sequence[Held]) -> Awaitable[list[Held]]:
        """See `WorkerStore`."""
        return self._run(self._check_leases, leases)

    def _check_leases(self, leases: Sequence[Held]) -> list[Held]:
        asked = as_json([(held.job_id, held.fence) for held in leases])
        rows = self._read(list[tuple[str, int, int, bool]], SQL.leases_held, asked) or ()
        found = {(job_id, fence): (to_datetime(expires_at), cancel) for job_id, fence, expires_at, cancel in rows}
        answers = []
        for held in leases:
            expires_at, cancel = found.get((held.job_id, held.fence), (None, False))
            answers.append(
                Held(job_id=held.job_id, fence=held.fence, lease_expires_at=expires_at, cancel_requested=cancel)
            )
        return answers

    # -- events ---------------------------------------------------------------------------------------------

    def read_events(self, tenant: str, *, after: str | None, limit: int) -> Awaitable[list[Event]]:
        """See `EventLog`."""
        self._check_tenant(tenant)
        return self._run(self._read_events, tenant, after, limit)

    def _read_events(self, tenant: str, after: str | None, limit: int) -> list[Event]:
        start = (0, -1) if after is None else read_event_id(after)
        events: list[Event] = []
        with self._reader() as reader:  # One snapshot for the events and what is missing of them.
            floor = None if after is None else reader.execute(SQL.event_floor, (tenant,)).fetchone()
            if floor is not None and start < floor:
                raise Gap(write_event_id(*floor))
            rows = reader.execute(SQL.read_events, (tenant, start[0], limit + 1))
            for batch, at, entries in rows:
                for place, (name, data) in enumerate(msgspec.json.decode(entries, type=list[tuple[str, msgspec.Raw]])):
                    if (batch, place) > start:
                        event_id, moment = write_event_id(batch, place), to_datetime(at)
                        events.append(Event(id=event_id, tenant=tenant, name=name, at=moment, data=data.copy()))
                if len(events) >= limit:
                    rows.close(True)
                    break
        return events[:limit]

    def newest_event(self, tenant: str, *, settled: bool = True) -> Awaitable[str | None]:  # noqa: ARG002 - all are
        """See `EventLog`."""
        self._check_tenant(tenant)
        return self._run(self._newest_event, tenant)

    def _newest_event(self, tenant: str) -> str | None:
        row = self._reader().execute(SQL.newest_events, (tenant,)).fetchone()
        if row is None:
            return None
        batch, entries = row
        return write_event_id(batch, len(msgspec.json.decode(entries, type=list[msgspec.Raw])) - 1)


def _explained(read: Any, *args: Any) -> Any:
    try:
        return read(*args)
    except apsw.Error as error:
        raise explain(error, doing="read") from error
