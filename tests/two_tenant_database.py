"""A PostgreSQL database with two tenants, and connections to it with different roles."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg

from ingot.engines.postgres import PostgresStore
from ingot.engines.postgres.connection import PlainConnection as Raw
from ingot.identity.authenticator import Authenticator
from ingot.identity.credential_service import Credentials
from ingot.identity.grants import Grant
from ingot.identity.ports import BeginLogin, LeaveTenant
from ingot.jobs import Definition, JobStatus
from ingot.kernel.clock import MICROS
from ingot.kernel.ids import new_id
from tests.conformance.blob_fixture import BlobFixture
from tests.conformance.people_fixture import PeopleFixture
from tests.factories import LEASE_SECONDS, Bench, open_bench
from tests.postgres import Database, clocked, database_for, with_database

REFUSED: Final = asyncpg.InsufficientPrivilegeError


class TenantPair:
    """Two tenants with rows in every table, and connections to their database."""

    def __init__(self, bench: Bench, database: Database, tenants: list[str]) -> None:
        self.bench = bench
        self.database = database
        self.tenants = tenants
        self._open = AsyncExitStack()
        self._roles: list[str] = []

    async def connect(self, user: str | None = None) -> Raw:
        """Open a plain connection as a role, or as the superuser."""
        owner = self.database.owner_url
        name = owner.partition("?")[0].rpartition("/")[2]
        connection = await asyncpg.connect(with_database(owner, name, user))
        self._open.push_async_callback(connection.close)
        return connection

    async def as_server(self) -> Raw:
        """Open a plain connection as the role of servers."""
        return await self.connect("ingot_server")

    async def make_role(self, options: str) -> str:
        """Create a role that can log in. Its name is unique, because roles belong to the whole cluster."""
        role = f"w_{new_id().replace('-', '')}"
        admin = await self.connect()
        await admin.execute(f"CREATE ROLE {role} LOGIN {options}")
        self._roles.append(role)
        return role

    async def as_worker(self, tenant: str) -> Raw:
        """Open a connection with a new worker role of one tenant."""
        role = await self.make_role("IN ROLE ingot_worker")
        admin = await self.connect()
        await admin.execute("INSERT INTO ingot.worker_roles VALUES ($1, $2)", role, tenant)
        return await self.connect(role)

    async def close(self) -> None:
        """Close every connection and drop every role."""
        await self._open.aclose()
        admin = await asyncpg.connect(self.database.owner_url)
        for role in self._roles:
            await admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
        await admin.close()


@asynccontextmanager
async def open_tenant_pair(folder: Path) -> AsyncIterator[TenantPair]:
    """Create two tenants with rows in every table."""
    async with open_bench("postgres", folder) as bench:
        tenants = [bench.tenant, (await bench.tenants.create("other")).id]
        database = await database_for(folder)
        for tenant in tenants:
            for status in (JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED):
                await bench.make_job_in(status, "ended", tenant=tenant, tags=["red", "blue"])
            await bench.make_job("noop", tenant=tenant, delay=60, idempotency_key="key", dedupe_key="key")
            claim = await bench.make_claim("held", tenant=tenant)
            await bench.jobs.append_log(claim.job.id, claim.fence, "at work")
            await bench.make_job("noop", tenant=tenant, after=[claim.job.id], batch="together")
            await bench.jobs.pause(tenant, "asleep")
            credentials = Credentials(bench.store, Authenticator(bench.store, bench.clock), bench.clock)
            await credentials.create_token(tenant, description="of a program", grants=[Grant(action="jobs.*")])
            await credentials.create_worker_credential(tenant, f"press-{tenant}")
            await bench.workers.register(tenant, f"press-{tenant}/1", ["noop"])
            await bench.tenants.change(tenant, groups={"townsfolk": "viewer"})
            people = PeopleFixture(bench)
            await people.sign_in(f"of {tenant}", groups=("townsfolk",))
            user = await people.sign_in(f"in {tenant}")
            await people.join(user, "member", tenant)
            leaver = await people.sign_in(f"from {tenant}", groups=("townsfolk",))
            await bench.store.run(LeaveTenant(tenant=tenant, user=leaver.id, act=people.act()))
            await people.members.put(tenant, role="member", email="new@example.com", act=people.act())
            expires_at = bench.clock.micros() + MICROS
            await bench.store.run(BeginLogin(digest=tenant.encode(), expires_at=expires_at))
            await bench.make_job_in(JobStatus.SUCCEEDED, "past", tenant=tenant)
            await bench.events.publish(tenant, "town.built", dedupe_key="key")
            blobs = BlobFixture(bench, tenant)
            blob = (await blobs.put("a/b", b"the same bytes in every tenant")).blob_id
            await blobs.enqueue(blobs.order("filed", inputs={"a": blob}))
            await blobs.begin(5, key="on its way", storage_key=f"place of {tenant}")
            await blobs.delete((await blobs.put("gone", tenant.encode())).key)
            await blobs.end((await blobs.begin(storage_key=f"no place of {tenant}")).upload.id)
        admin = await asyncpg.connect(database.owner_url)
        await admin.execute("INSERT INTO ingot.event_floors SELECT id, 0 FROM ingot.tenants")
        await admin.execute("INSERT INTO ingot.usage_owed SELECT id, 'role/shop', 0 FROM ingot.tenants")
        await admin.close()
        await bench.jobs.define(Definition(type="past", retention_seconds=0, keep_history=True))
        await bench.jobs.collect()
        await bench.store.database.call("SELECT ingot.fold_counts(1000)")  # type: ignore[union-attr]
        await bench.store.database.call("SELECT * FROM ingot.fold_batches(1000)")  # type: ignore[union-attr]
        for tenant in tenants:
            await bench.make_job("noop", tenant=tenant, batch="together")
        pair = TenantPair(bench, database, tenants)
        try:
            yield pair
        finally:
            await pair.close()


async def is_refused(connection: Raw, statement: str, *values: Any) -> bool:
    """Whether PostgreSQL refuses a statement because of missing privileges."""
    try:
        async with connection.transaction():
            await connection.fetch(statement, *values)
    except REFUSED:
        return True
    return False


async def tables_of(pair: TenantPair) -> list[str]:
    admin = await pair.connect()
    rows = await admin.fetch(
        "SELECT relname FROM pg_class WHERE relnamespace = 'ingot'::regnamespace AND relkind IN ('r', 'p', 'v', 'm')"
    )
    return sorted(row[0] for row in rows)


@asynccontextmanager
async def store_with_one_connection(pair: TenantPair) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(
        pair.database.server_url,
        clock=pair.bench.clock,
        lease_seconds=LEASE_SECONDS,
        connections=1,
        connection_class=clocked(pair.bench.clock),
    )
    try:
        yield store
    finally:
        await store.close()
