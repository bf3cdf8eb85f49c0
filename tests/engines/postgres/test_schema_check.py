"""Programs whose database another build has migrated: some still fit, and the others stop without losing work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg
import msgspec
import pytest
from structlog.testing import capture_logs

from ingot.engines.postgres import PostgresStore, migrate
from ingot.engines.postgres.revision import DIGEST, REVISION, AppliedRevision, schema_digest
from ingot.engines.postgres.schema_check import SchemaWatch, check_schema
from ingot.engines.postgres.worker_database import WORKER_GROUP, WorkerDatabase
from ingot.identity import Tenants
from ingot.jobs import Jobs
from ingot.jobs.model import AttemptOutcome
from ingot.kernel.clock import MICROS, SystemClock
from ingot.kernel.errors import SchemaMismatch, StoreError, StoreMisconfigured, StoreTooNew
from ingot.settings import Settings
from ingot.wiring.stores import open_store
from tests.postgres import Database, borrowed_database
from tests.waiting import eventually
from tests.worker_roles import worker_role

LEASE_SECONDS: Final = 60.0
WAIT_SECONDS: Final = 60.0
THIS: Final = AppliedRevision.of_program()
LATER: Final = AppliedRevision(revision=REVISION + 1, oldest=REVISION, version="9.9.9", digest="0" * 64)
WRAPPER: Final = """
ALTER FUNCTION ingot.{name} RENAME TO {name}_renamed;
CREATE FUNCTION ingot.{name}({arguments}) RETURNS {result} LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$ SELECT {columns} FROM ingot.{name}_renamed({values}) AS c $$;
GRANT EXECUTE ON FUNCTION ingot.{name} TO ingot_server, ingot_worker;
"""
UNWRAP: Final = "DROP FUNCTION ingot.{name}; ALTER FUNCTION ingot.{name}_renamed RENAME TO {name};"
SIGNATURE: Final = """
SELECT pg_get_function_arguments(oid) AS arguments, pg_get_function_result(oid) AS result, pronargs AS parameters
FROM pg_proc WHERE oid = $1::regproc
"""


def columns_with(replaced: str, value: str, result: str) -> str:
    """List the columns of a result, with another value for one of them."""
    columns = (part.split()[0] for part in result.removeprefix("TABLE(").split(", "))
    return ", ".join(value if column == replaced else f"c.{column}" for column in columns)


Change = Callable[[str, str], tuple[str, str, str]]  # From arguments and result to arguments, result and columns.
ADDITIVE_CHANGES: Final[dict[str, Change]] = {
    "another column": lambda arguments, result: (arguments, f"{result[:-1]}, added integer)", "c.*, 1"),
    "another optional parameter": lambda arguments, result: (f"{arguments}, added integer DEFAULT 1", result, "c.*"),
}
OTHER_CHANGES: Final[dict[str, Change]] = {
    "a renamed column": lambda arguments, result: (arguments, result.replace("inputs text", "files text"), "c.*"),
    "a column of another type": lambda arguments, result: (
        arguments,
        result.replace("fence bigint", "fence uuid"),
        columns_with("fence", "gen_random_uuid()", result),
    ),
}


def unreadable_inputs(arguments: str, result: str) -> tuple[str, str, str]:
    """The same signature, with values that this program cannot read."""
    return arguments, result, columns_with("inputs", "'{'::text", result)


class OpenStore:
    """An open store whose listener runs, with jobs, and a connection of the owner."""

    def __init__(self, database: Database, store: PostgresStore, tenant: str, owner: Any) -> None:
        self.database, self.store, self.tenant, self._owner = database, store, tenant, owner
        self.jobs = Jobs(store, lease_seconds=LEASE_SECONDS)

    async def execute(self, statement: str) -> None:
        """Run a statement as the owner of the schema."""
        await self._owner.execute(f"SET ROLE ingot_owner; {statement}; RESET ROLE")

    async def change_function(self, name: str, change: Change) -> None:
        """Replace a function by one with another signature."""
        row = await self._owner.fetchrow(SIGNATURE, f"ingot.{name}")
        arguments, result, columns = change(row["arguments"], row["result"])
        values = ", ".join(f"${number}" for number in range(1, row["parameters"] + 1))
        await self.execute(
            WRAPPER.format(name=name, arguments=arguments, result=result, columns=columns, values=values)
        )

    async def restore_function(self, name: str) -> None:
        """Undo `change_function`."""
        await self.execute(UNWRAP.format(name=name))

    async def record_revision(self, applied: AppliedRevision) -> None:
        """Let another build be the last one that migrated the database."""
        await self.execute(f"COMMENT ON SCHEMA ingot IS '{applied.comment()}'")

    async def count_leases(self) -> int:
        """Return the number of jobs that are running in the database."""
        return int(await self._owner.fetchval("SELECT count(*) FROM ingot.leases"))


@pytest.fixture
async def database() -> AsyncIterator[Database]:
    async with borrowed_database() as database:
        database.is_altered = True
        yield database


@pytest.fixture
async def opened(database: Database) -> AsyncIterator[OpenStore]:
    async with open_with_listener(database) as opened:
        yield opened


@asynccontextmanager
async def open_with_listener(database: Database) -> AsyncIterator[OpenStore]:
    owner = await asyncpg.connect(database.owner_url)
    store = await open_plain(database)
    try:
        yield OpenStore(database, store, (await Tenants(store).ensure_default()).id, owner)
    finally:
        await store.close()
        await owner.close()


async def open_plain(database: Database) -> PostgresStore:
    return await PostgresStore.open(database.server_url, clock=SystemClock(), lease_seconds=LEASE_SECONDS)


def test_every_change_of_the_schema_raises_its_revision() -> None:
    assert schema_digest() == DIGEST, (
        f"The SQL of the schema was changed. Raise REVISION in engines/postgres/revision.py to {REVISION + 1}, and set "
        f'DIGEST to "{schema_digest()}". If an earlier release cannot use the schema, raise OLDEST_REVISION as well.'
    )


def test_the_comment_of_a_schema_can_be_parsed() -> None:
    assert AppliedRevision.parse(THIS.comment()) == THIS
    for comment in (None, "", "of another program", "0" * 64):
        assert AppliedRevision.parse(comment).revision == 0


@pytest.mark.parametrize("role", ["ingot_server", WORKER_GROUP])
async def test_every_function_that_a_role_can_call_has_the_signature_of_its_call(opened: OpenStore, role: str) -> None:
    async with opened.store.database.pool.acquire() as connection:
        await check_schema(connection, role, thorough=True)


@pytest.mark.parametrize("change", ADDITIVE_CHANGES)
async def test_a_store_goes_on_after_an_additive_change_of_a_function(opened: OpenStore, change: str) -> None:
    await opened.jobs.enqueue(opened.tenant, "noop")
    await opened.change_function("claim", ADDITIVE_CHANGES[change])
    await opened.record_revision(LATER)
    await opened.store.listener.run_once()
    (claimed,) = await opened.jobs.claim("w", ["noop"])
    await opened.jobs.complete(claimed)
    await (await open_plain(opened.database)).close()


@pytest.mark.parametrize("change", OTHER_CHANGES)
async def test_a_claim_whose_answer_could_not_be_used_leases_nothing(opened: OpenStore, change: str) -> None:
    for _ in range(3):
        await opened.jobs.enqueue(opened.tenant, "noop")
    await opened.change_function("claim", OTHER_CHANGES[change])
    claims = [opened.jobs.claim(f"w{number}", ["noop"]) for number in range(3)]  # They run in one batch.
    results = await asyncio.wait_for(asyncio.gather(*claims, return_exceptions=True), WAIT_SECONDS)
    assert [type(result) for result in results] == [SchemaMismatch] * 3
    assert await opened.count_leases() == 0
    await opened.restore_function("claim")
    assert len(await opened.jobs.claim("w", ["noop"], limit=3)) == 3


@pytest.mark.parametrize("waits", [False, True])
async def test_jobs_of_a_claim_that_cannot_be_read_are_released(opened: OpenStore, waits: bool) -> None:
    await opened.change_function("claim", unreadable_inputs)
    waiting = asyncio.create_task(opened.jobs.claim("w", ["noop"], wait_seconds=60)) if waits else None
    await eventually(lambda: opened.jobs.waiting_claims == waits)
    job = (await opened.jobs.enqueue(opened.tenant, "noop")).job
    with pytest.raises(StoreError, match="were released"):
        await (waiting or opened.jobs.claim("w", ["noop"]))
    assert await opened.count_leases() == 0
    outcomes = {attempt.outcome for attempt in await opened.jobs.attempts(opened.tenant, job.id)}
    assert outcomes == {AttemptOutcome.RELEASED}
    await opened.restore_function("claim")
    assert len(await opened.jobs.claim("w", ["noop"])) == 1


async def test_a_store_that_no_longer_fits_reports_it_once_and_ends_waits(opened: OpenStore) -> None:
    await opened.jobs.enqueue(opened.tenant, "noop")
    waiting = asyncio.create_task(opened.jobs.claim("w", ["other"], wait_seconds=WAIT_SECONDS))
    await eventually(lambda: opened.jobs.waiting_claims)
    with capture_logs() as logs:
        opened.store.listener.start()
        await opened.record_revision(msgspec.structs.replace(LATER, oldest=REVISION + 1))
        with pytest.raises(SchemaMismatch, match=r"from ingot 9\.9\.9, for programs from revision"):
            await asyncio.wait_for(waiting, WAIT_SECONDS / 2)
        for call in (
            opened.jobs.claim("w", ["noop"]),
            opened.jobs.enqueue(opened.tenant, "noop"),
            opened.jobs.summary(opened.tenant),
        ):
            with pytest.raises(SchemaMismatch):
                await call
        with pytest.raises(SchemaMismatch):
            opened.store.expect_fitting_schema()
        await opened.record_revision(THIS)
        await eventually(lambda: opened.store.database.mismatch is None)
    assert len(await opened.jobs.claim("w", ["noop"])) == 1
    assert [entry["event"] for entry in logs] == ["schema_mismatch", "schema_fits"]


async def test_a_missing_function_is_found_by_the_call_that_needs_it(opened: OpenStore) -> None:
    """The revision in the database is unchanged, as after a manual change."""
    await opened.execute("ALTER FUNCTION ingot.enqueue RENAME TO enqueue_renamed")
    opened.store.listener.start()
    with pytest.raises(SchemaMismatch):
        await opened.jobs.enqueue(opened.tenant, "noop")
    await eventually(lambda: opened.store.database.mismatch is not None)
    with pytest.raises(SchemaMismatch):
        await opened.jobs.summary(opened.tenant)
    await opened.execute("ALTER FUNCTION ingot.enqueue_renamed RENAME TO enqueue")
    await eventually(lambda: opened.store.database.mismatch is None)
    await opened.jobs.enqueue(opened.tenant, "noop")


@pytest.mark.parametrize(
    ("applied", "error", "message"),
    [
        (
            AppliedRevision(),
            StoreMisconfigured,
            f"has revision 0, from an earlier version; this program needs revision {REVISION}",
        ),
        (
            msgspec.structs.replace(LATER, oldest=REVISION + 1),
            StoreTooNew,
            rf"from ingot 9\.9\.9, for programs from revision {REVISION + 1} on; this program has revision {REVISION}",
        ),
    ],
    ids=["earlier", "later"],
)
async def test_a_program_that_does_not_fit_does_not_start(
    opened: OpenStore, applied: AppliedRevision, error: type[StoreError], message: str
) -> None:
    await opened.record_revision(applied)
    async with worker_role(opened.database, opened.tenant) as url:
        for call in (open_plain(opened.database), open_worker(url)):
            with pytest.raises(error, match=message):
                await call


async def test_a_program_without_a_function_that_it_calls_does_not_start(opened: OpenStore) -> None:
    async with worker_role(opened.database, opened.tenant) as url:
        for name, call in (("settle", lambda: open_plain(opened.database)), ("worker_claim", lambda: open_worker(url))):
            await opened.execute(f"ALTER FUNCTION ingot.{name} RENAME TO {name}_renamed")
            await opened.record_revision(LATER)
            with pytest.raises(
                StoreTooNew,
                match=rf"has revision {REVISION}, and what it calls has changed: function ingot\.{name}\(…\)",
            ):
                await call()
            await opened.execute(f"ALTER FUNCTION ingot.{name}_renamed RENAME TO {name}")


async def test_an_earlier_build_keeps_the_functions_of_a_later_one(opened: OpenStore) -> None:
    later_function = "CREATE FUNCTION ingot.of_the_later_build() RETURNS integer LANGUAGE sql AS 'SELECT 1'"
    await opened.execute(later_function)
    await opened.record_revision(LATER)
    with pytest.raises(StoreTooNew, match=rf"has revision {REVISION + 1}, from ingot 9\.9\.9"):
        await migrate(opened.database.owner_url)
    settings = Settings(
        database_url=opened.database.server_url,
        database_owner_url=opened.database.owner_url,
        lease_seconds=LEASE_SECONDS,
    )
    with capture_logs() as logs:
        store = await open_store(settings, SystemClock())
    await store.close()
    assert [entry["event"] for entry in logs] == ["migration_skipped"]
    with pytest.raises(asyncpg.DuplicateFunctionError):
        await opened.execute(later_function)


async def test_a_worker_that_no_longer_fits_claims_nothing(opened: OpenStore) -> None:
    await opened.jobs.enqueue(opened.tenant, "noop")
    async with worker_role(opened.database, opened.tenant) as url:
        worker = await open_worker(url)
        try:
            await worker.register(["noop"])
            await opened.change_function("worker_claim", OTHER_CHANGES["a renamed column"])
            with pytest.raises(SchemaMismatch):
                await worker.claim("noop", 1)
            assert await opened.count_leases() == 0
            await opened.restore_function("worker_claim")
            await opened.change_function("worker_claim", unreadable_inputs)
            with pytest.raises(StoreError, match="were released"):
                await worker.claim("noop", 1)
            assert await opened.count_leases() == 0
            await opened.restore_function("worker_claim")
            await opened.record_revision(msgspec.structs.replace(LATER, oldest=REVISION + 1))
            await worker.check_schema()
            with pytest.raises(SchemaMismatch, match=r"from ingot 9\.9\.9"):
                await worker.claim("noop", 1)
            await opened.record_revision(THIS)
            await worker.check_schema()
            assert len(await worker.claim("noop", 1)) == 1
            await worker.unregister()
        finally:
            await worker.close()


async def open_worker(url: str) -> WorkerDatabase:
    return await WorkerDatabase.open(url, instance="a", lease=round(LEASE_SECONDS * MICROS), connections=1)


async def test_a_schema_that_cannot_be_read_changes_nothing() -> None:
    class CanceledReads:
        mismatch = rejected = None

        async def inspect_once(self, *_: Any) -> str:
            raise asyncpg.QueryCanceledError("canceling statement due to statement timeout")

    database: Any = CanceledReads()
    with capture_logs() as logs:
        await SchemaWatch(database, WORKER_GROUP).run_once()
    assert [entry["event"] for entry in logs] == ["schema_not_checked"]
    assert database.mismatch is None
