"""Factories for tests: stores of every engine, tenants, jobs and claims."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ingot.engines.postgres import PostgresStore
from ingot.engines.sqlite import SQLiteStore
from ingot.events import Event, Events
from ingot.events.audit_service import Audit
from ingot.events.ports import GetNewestEventId
from ingot.identity import Tenant, Tenants
from ingot.jobs import Claim, Job, Jobs, JobStatus
from ingot.jobs.workers import Workers
from ingot.kernel.clock import Clock, ManualClock
from tests.postgres import open_postgres
from tests.sqlite_files import copy_migrated_file
from tests.waiting import eventually

ENGINES = ["sqlite", "postgres"]
Store = SQLiteStore | PostgresStore
LEASE_SECONDS = 180.0
EVENTS_MAX = 1000


class Bench:
    """An open store with its services and one tenant. No loop runs in the background."""

    def __init__(self, store: Store, clock: ManualClock, tenant: Tenant) -> None:
        self.store = store
        self.clock = clock
        self.tenant = tenant.id
        self.jobs = Jobs(store, lease_seconds=LEASE_SECONDS)
        self.workers = Workers(store, self.jobs, lease_seconds=LEASE_SECONDS)
        self.tenants = Tenants(store)
        self.events = Events(store)
        self.audit = Audit(store)

    @property
    def sqlite(self) -> SQLiteStore:
        """The store, for tests that use parts of the SQLite engine."""
        assert isinstance(self.store, SQLiteStore)
        return self.store

    async def make_job(self, type: str = "noop", payload: object = None, **options: Any) -> Job:
        """Enqueue one job in the tenant."""
        return (await self.jobs.enqueue(options.pop("tenant", self.tenant), type, payload, **options)).job

    async def make_claim(self, type: str = "noop", *, worker: str = "worker", **options: Any) -> Claim:
        """Enqueue one job and claim it."""
        job = await self.make_job(type, **options)
        (claim,) = await self.jobs.claim(worker, [type], limit=1)
        assert claim.job.id == job.id
        return claim

    async def make_job_in(self, status: JobStatus, type: str = "noop", **options: Any) -> Job:
        """Enqueue one job and bring it into a status."""
        job = await self.make_job(type, **options)
        if status is JobStatus.CANCELED:
            return await self.jobs.cancel(job.tenant, job.id)
        if status is not JobStatus.QUEUED:
            (claim,) = await self.jobs.claim("worker", [type])
            if status is JobStatus.SUCCEEDED:
                await self.jobs.complete(claim, "done")
            elif status is JobStatus.DEAD:
                await self.jobs.fail(claim, "broken", retry=False)
        changed_job = await self.reload(job)
        assert changed_job.status is status
        return changed_job

    async def reload(self, job: Job | Claim) -> Job:
        """Return the current state of a job."""
        current = job.job if isinstance(job, Claim) else job
        return await self.jobs.get(current.tenant, current.id)

    async def event_names(self, tenant: str | None = None) -> list[str]:
        """Return the names of all events so far, in order."""
        return [event.name for event in await self.all_events(tenant)]

    async def all_events(self, tenant: str | None = None) -> list[Event]:
        """Return all events so far. On PostgreSQL, wait for running transactions, which hide the newest events."""
        newest = await self.store.run(GetNewestEventId(tenant=tenant or self.tenant, stable=False))
        if newest is None:
            return []

        async def complete() -> list[Event]:
            events = await self.events.read(tenant or self.tenant, limit=EVENTS_MAX)
            return events if events and (len(events) == EVENTS_MAX or events[-1].id >= newest) else []

        return await eventually(complete)


async def open_store(engine: str, folder: Path, clock: Clock) -> Store:
    """Open a store of the named engine. On PostgreSQL, each folder has its own database."""
    if engine == "sqlite":
        copy_migrated_file(folder)
        return await SQLiteStore.open(folder, clock=clock, lease_seconds=LEASE_SECONDS)
    assert engine == "postgres", f"unknown engine: {engine}"
    return await open_postgres(folder, clock, lease_seconds=LEASE_SECONDS)


@asynccontextmanager
async def open_bench(engine: str, folder: Path, clock: ManualClock | None = None) -> AsyncIterator[Bench]:
    """Open a bench on a store of the named engine, and advance the clock until the store may sweep."""
    clock = clock or ManualClock()
    store = await open_store(engine, folder, clock)
    try:
        clock.advance(seconds=LEASE_SECONDS)
        yield Bench(store, clock, await Tenants(store).ensure_default())
    finally:
        await store.close()
