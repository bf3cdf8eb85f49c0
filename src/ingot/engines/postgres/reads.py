"""Reading as a tenant: the database shows its rows and no others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Final

import msgspec

from ingot.engines.events import PLACES, read_event_id, write_event_id
from ingot.engines.history import read_position, write_position
from ingot.engines.postgres import audit, collect, credentials, definitions, explain, identity, workers
from ingot.engines.postgres.connection import Database
from ingot.engines.postgres.figures import list_depths
from ingot.engines.postgres.memory import NIL, Memory
from ingot.engines.postgres.pages import read_counts, read_page, read_tally
from ingot.engines.postgres.rows import STATUSES, NewsRow, attempt_of, job_of, pause_of
from ingot.engines.postgres.sql import SQL
from ingot.events.audit import AuditFilter, Entry
from ingot.events.errors import Gap
from ingot.events.model import Event
from ingot.identity.credentials import Token, WorkerCredential
from ingot.identity.model import Tenant
from ingot.identity.ports import FoundToken, FoundWorkerCredential
from ingot.jobs.crew import Held, Worker, WorkerKey
from ingot.jobs.figures import Depth
from ingot.jobs.logs import read_chunks
from ingot.jobs.model import (
    Attempt,
    Batch,
    Definition,
    Doomed,
    HistoryEntry,
    Job,
    JobLog,
    JobStatus,
    Pause,
    Summary,
    Waiting,
)
from ingot.jobs.ports import JobFilter
from ingot.kernel.clock import MICROS, to_datetime
from ingot.kernel.ids import is_id

ABOVE_ALL_IDS: Final = "ffffffff-ffff-ffff-ffff-ffffffffffff"
ABOVE_ALL_INSTANTS: Final = 2**62
LEASES: Final = "SELECT * FROM ingot.leases_of_worker($1, $2, $3)"
HORIZON_SECONDS_MAX: Final = 0.25
HORIZON_PAUSE_SECONDS: Final = 0.002


class Reads:
    """The reading half of the store."""

    database: Database
    memory: Memory

    def _can_be(self, tenant: str, job_id: str) -> bool:
        """Whether there can be such a job: none is there of a tenant that was removed."""
        return is_id(tenant) and is_id(job_id) and tenant not in self.memory.removed

    # -- jobs -----------------------------------------------------------------------------------------------

    async def get_job(self, tenant: str, job_id: str) -> Job | None:
        """See `JobStore`."""
        if not self._can_be(tenant, job_id):
            return None
        rows = await self.database.read(tenant, SQL.get_job, job_id)
        return job_of(rows[0]) if rows else None

    async def list_jobs(self, where: JobFilter, *, before: str | None, limit: int) -> tuple[list[Job], str | None]:
        """See `JobStore`."""
        await identity.check_tenant(self.database, self.memory, where.tenant)
        return await self.database.look(where.tenant, lambda reads: read_page(reads, where, before=before, limit=limit))

    async def list_attempts(self, tenant: str, job_id: str) -> list[Attempt]:
        """See `JobStore`."""
        if not self._can_be(tenant, job_id):
            return []
        return [attempt_of(row) for row in await self.database.read(tenant, SQL.attempts_of_job, job_id)]

    async def read_log(self, tenant: str, job_id: str, attempt: int | None, *, after: int) -> JobLog | None:
        """See `JobStore`."""
        if not self._can_be(tenant, job_id):
            return None
        rows = await self.database.read(tenant, SQL.log_of_attempt, job_id, attempt, after)
        if not rows:
            return None
        (row,) = rows
        start, text = read_chunks(list(zip(row["starts"] or (), row["texts"] or (), strict=True)), after=after)
        return JobLog(
            job_id=row["job_id"],
            attempt=row["number"],
            fence=row["fence"],
            start=start,
            to=start + len(text),
            text=text,
            live=row["live"],
            attempts=row["attempts"],
            status=STATUSES[row["status"]],
        )

    async def summarize(self, tenant: str, type: str | None = None) -> Summary:
        """See `JobStore`."""
        await identity.check_tenant(self.database, self.memory, tenant)
        ((counts_text, oldest, now),) = await self.database.read(tenant, SQL.summary_of_tenant, tenant, type)
        counted = msgspec.json.decode(counts_text or "{}", type=dict[JobStatus, int])
        age = None if oldest is None else max(0.0, (now - oldest) / MICROS)
        counts = {status: counted.get(status, 0) for status in JobStatus}
        return Summary(counts=counts, running=counts[JobStatus.RUNNING], oldest_queued_seconds=age)

    async def tally(self, where: JobFilter) -> tuple[dict[JobStatus, int], bool]:
        """See `JobStore`."""
        await identity.check_tenant(self.database, self.memory, where.tenant)
        return await self.database.look(where.tenant, lambda reads: read_tally(reads, where))

    async def count_jobs(self, tenant: str) -> dict[str, dict[JobStatus, int]]:
        """See `JobStore`."""
        await identity.check_tenant(self.database, self.memory, tenant)
        return await self.database.look(tenant, lambda reads: read_counts(reads, tenant))

    async def get_definition(self, tenant: str | None, type: str) -> Definition:
        """See `JobStore`."""
        if tenant is not None:
            await identity.check_tenant(self.database, self.memory, tenant)
        return await definitions.get_definition(self.database, tenant, type)

    async def list_definitions(self, tenant: str | None) -> list[Definition]:
        """See `JobStore`."""
        if tenant is not None:
            await identity.check_tenant(self.database, self.memory, tenant)
        return await definitions.list_definitions(self.database, tenant)

    async def find_waiting(self, tenant: str, job_id: str) -> Waiting | None:
        """See `JobStore`."""
        if not self._can_be(tenant, job_id):
            return None
        return await explain.find_waiting(self.database, self.memory, tenant, job_id)

    async def list_depths(self, *, tenants_max: int, lanes_max: int) -> list[Depth]:
        """See `JobStore`."""
        return await list_depths(self.database, tenants_max=tenants_max, lanes_max=lanes_max)

    async def get_batch(self, tenant: str, batch: str) -> Batch | None:
        """See `JobStore`."""
        await identity.check_tenant(self.database, self.memory, tenant)
        ((total, succeeded, dead, canceled),) = await self.database.read(tenant, SQL.get_batch, tenant, batch)
        unfinished = total - succeeded - dead - canceled
        if total == 0:
            return None
        return Batch(batch=batch, total=total, unfinished=unfinished, succeeded=succeeded, dead=dead, canceled=canceled)

    async def list_leases(self, worker: str, tenant: str | None, *, limit: int) -> list[tuple[str, int]]:
        """See `JobStore`."""
        of_tenant = tenant if tenant is None or is_id(tenant) else NIL
        return [(row["id"], row["fence"]) for row in await self.database.call(LEASES, worker, of_tenant, limit)]

    async def list_pauses(self, tenant: str) -> list[Pause]:
        """See `JobStore`."""
        await identity.check_tenant(self.database, self.memory, tenant)
        rows = await self.database.read(tenant, SQL.pauses_of_tenant, tenant)
        return [pause_of(row) for row in rows]

    async def preview_retention(self, tenant: str) -> list[Doomed]:
        """See `JobStore`."""
        await identity.check_tenant(self.database, self.memory, tenant)
        return await collect.preview(self.database, tenant)

    async def list_history(
        self, tenant: str, type: str | None, *, before: str | None, limit: int
    ) -> tuple[list[HistoryEntry], str | None]:
        """See `JobStore`."""
        await identity.check_tenant(self.database, self.memory, tenant)
        position = (ABOVE_ALL_INSTANTS, ABOVE_ALL_IDS) if before is None else read_position(before)
        values = (tenant, *position, limit + 1)
        if type is None:
            rows = await self.database.read(tenant, SQL.page_of_history, *values)
        else:
            rows = await self.database.read(tenant, SQL.page_of_history_by_type, *values, type)
        entries = [collect.entry_of(row, tenant) for row in rows[:limit]]
        last = rows[limit - 1] if len(rows) > limit else None
        return entries, None if last is None else write_position(last["finished_at"], last["id"])

    # -- credentials ----------------------------------------------------------------------------------------

    def find_token(self, token_id: str) -> Awaitable[FoundToken | None]:
        """See `CredentialStore`."""
        return credentials.find_token(self.database, token_id)

    def list_acts(self, which: AuditFilter, *, before: str | None, limit: int) -> Awaitable[list[Entry]]:
        """See `AuditLog`."""
        return audit.list_acts(self.database, which, before=before, limit=limit)

    def list_tokens(self, tenant: str | None, *, before: str | None, limit: int) -> Awaitable[list[Token]]:
        """See `CredentialStore`."""
        return credentials.list_tokens(self.database, tenant, before=before, limit=limit)

    def find_worker_credential(self, credential_id: str) -> Awaitable[FoundWorkerCredential | None]:
        """See `CredentialStore`."""
        return credentials.find_worker_credential(self.database, credential_id)

    def is_worker_name(self, name: str) -> Awaitable[bool]:
        """See `CredentialStore`."""
        return credentials.is_worker_name(self.database, name)

    def list_worker_credentials(
        self, tenant: str | None, *, after: str | None, limit: int
    ) -> Awaitable[list[WorkerCredential]]:
        """See `CredentialStore`."""
        return credentials.list_worker_credentials(self.database, tenant, after=after, limit=limit)

    # -- workers --------------------------------------------------------------------------------------------

    def get_worker(self, tenant: str | None, worker_id: str) -> Awaitable[Worker | None]:
        """See `WorkerStore`."""
        return workers.get_worker(self.database, tenant, worker_id)

    async def list_workers(self, tenant: str | None, *, after: str | None, limit: int) -> list[Worker]:
        """See `WorkerStore`."""
        if tenant is not None:
            await identity.check_tenant(self.database, self.memory, tenant)
        return await workers.list_workers(self.database, tenant, after=after, limit=limit)

    def list_draining(self) -> Awaitable[list[WorkerKey]]:
        """See `WorkerStore`."""
        return workers.list_draining(self.database)

    def check_leases(self, leases: Sequence[Held]) -> Awaitable[list[Held]]:
        """See `WorkerStore`."""
        return workers.check_leases(self.database, leases)

    # -- tenants --------------------------------------------------------------------------------------------

    async def get_tenant(self, id_or_slug: str) -> Tenant | None:
        """See `TenantStore`."""
        return await identity.get_tenant(self.database, id_or_slug)

    async def list_tenants(self, *, after: str = "", limit: int | None = None) -> list[Tenant]:
        """See `TenantStore`."""
        return await identity.list_tenants(self.database, after=after, limit=limit)

    # -- events ---------------------------------------------------------------------------------------------

    async def read_events(self, tenant: str, *, after: str | None, limit: int) -> list[Event]:
        """See `EventLog`. What is committed but above a transaction that still runs is waited for, shortly."""
        await identity.check_tenant(self.database, self.memory, tenant)
        start = (0, -1) if after is None else read_event_id(after)
        deadline, pause = time.monotonic() + HORIZON_SECONDS_MAX, HORIZON_PAUSE_SECONDS
        while True:
            rows = await self.database.read(tenant, SQL.read_events, tenant, start[0], limit + 1)
            if after is not None and rows and start < divmod(rows[0]["floor"] or 0, PLACES):
                raise Gap(write_event_id(*divmod(rows[0]["floor"], PLACES)))
            hidden = next((place for place, row in enumerate(rows) if not row["settled"]), None)
            events: list[Event] = []
            for row in rows[:hidden]:
                if len(events) >= limit:
                    break
                entries = msgspec.json.decode(row["entries"], type=list[NewsRow])
                told = ((entry.name, news) for entry in entries for news in entry.news())
                for place, (name, news) in enumerate(told):
                    if (row["position"], place) > start and len(events) < limit:
                        event_id = write_event_id(row["position"], place)
                        data = msgspec.Raw(msgspec.json.encode(news))
                        at = to_datetime(row["at"])
                        events.append(Event(id=event_id, tenant=tenant, name=name, at=at, data=data))
            if hidden is None or len(events) >= limit or time.monotonic() > deadline:
                return events
            await asyncio.sleep(pause)
            pause *= 2

    async def newest_event(self, tenant: str, *, settled: bool = True) -> str | None:
        """See `EventLog`."""
        await identity.check_tenant(self.database, self.memory, tenant)
        rows = await self.database.read(tenant, SQL.newest_events, tenant, settled)
        if not rows:
            return None
        entries = msgspec.json.decode(rows[0]["entries"], type=list[NewsRow])
        return write_event_id(rows[0]["position"], sum(len(entry.news()) for entry in entries) - 1)
