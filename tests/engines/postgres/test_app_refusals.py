"""Calls that applications cannot make in their transactions, and invalid jobs and events."""

from __future__ import annotations

from typing import Any

import asyncpg
import msgspec
import pytest

from ingot.engines.postgres import grant_app_role, revoke_app_role
from ingot.identity import TenantNotFound
from ingot.jobs import JobStatus
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from tests.app_database import ROLE, AppDatabase, enqueue, publish, rolled_back
from tests.engines.postgres.app_errors import error_of

# -- permissions --------------------------------------------------------------------------------------------


async def test_a_role_works_only_in_its_own_tenant(app_db: AppDatabase) -> None:
    other = await app_db.tenants.create("other")
    app = await app_db.connect(await app_db.make_role(other.id))
    existing = (await app_db.jobs.enqueue(app_db.tenant, "mail", dedupe_key="k", idempotency_key="k")).job
    (created,) = await enqueue(app, {"type": "mail", "dedupe_key": "k", "idempotency_key": "k"})
    assert (await app_db.jobs.get(other.id, str(created["id"]))).tenant == other.id
    assert (await error_of(app, {"type": "mail", "after": [existing.id]}))[1]["code"] == "parent_not_found"
    assert (await error_of(app, {"type": "mail", "tenant": app_db.tenant}))[1]["code"] == "invalid_input"


async def test_the_tenant_is_that_of_the_role_set_in_the_session(app_db: AppDatabase) -> None:
    other = await app_db.tenants.create("other")
    role = await app_db.make_role(other.id)
    admin = await app_db.connect("postgres")
    assert (await error_of(admin, {"type": "mail"})) == ("42501", {"code": "forbidden"})
    await admin.execute(f"SET ROLE {role}")
    (created,) = await enqueue(admin, {"type": "mail"})
    assert (await app_db.jobs.get(other.id, str(created["id"]))).created_by == f"role/{role}"
    app = await app_db.connect()
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await app.execute(f"SET ROLE {role}")
    await app.execute("SELECT set_config('role', 'none', false)")
    (mine,) = await enqueue(app, {"type": "mail"})
    assert (await app_db.jobs.get(app_db.tenant, str(mine["id"]))).tenant == app_db.tenant


async def test_an_application_can_read_no_table_and_call_no_other_function(app_db: AppDatabase) -> None:
    app = await app_db.connect()
    for statement in (
        "SELECT * FROM ingot.jobs",
        "SELECT * FROM ingot.app_roles",
        "SELECT * FROM ingot.job_rows",
        f"SELECT * FROM ingot.find_tenants('{app_db.tenant}', NULL)",
        f"SELECT ingot.cancel('{app_db.tenant}', '{new_id()}')",
        "SELECT ingot.app_tenant()",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await app.fetch(statement)


async def test_a_role_can_be_granted_one_tenant_and_revoked(app_db: AppDatabase) -> None:
    other = await app_db.tenants.create("other")
    with pytest.raises(InvalidInput, match="another tenant"):
        await grant_app_role(app_db.owner_url, ROLE, other.id)
    await revoke_app_role(app_db.owner_url, ROLE)
    app = await app_db.connect()
    with pytest.raises(
        asyncpg.InsufficientPrivilegeError, match="no access to a tenant"
    ):  # Roles in other databases keep their tenants.
        await enqueue(app, {"type": "mail"})
    await grant_app_role(app_db.owner_url, ROLE, other.id)
    (created,) = await enqueue(app, {"type": "mail"})
    assert (await app_db.jobs.get(other.id, str(created["id"]))).tenant == other.id
    for role in ("nobody", "ingot_server", "pg_monitor", 'x"; DROP ROLE shop; --'):
        with pytest.raises(InvalidInput):
            await grant_app_role(app_db.owner_url, role, app_db.tenant)
    for tenant in ("nobody", new_id()):
        with pytest.raises(TenantNotFound):
            await grant_app_role(app_db.owner_url, ROLE, tenant)


async def test_a_role_without_inheritance_is_refused(app_db: AppDatabase) -> None:
    with pytest.raises(InvalidInput, match="does not inherit"):
        await app_db.make_role(app_db.tenant, "NOINHERIT")


# -- bad input ----------------------------------------------------------------------------------------------


BAD: list[tuple[Any, str]] = [
    (1, "invalid_input"),
    ({}, "invalid_input"),
    ({"type": None}, "invalid_input"),
    ({"type": "a b"}, "invalid_input"),
    ({"type": "x" * 129}, "invalid_input"),
    ({"type": "x", "colour": "red"}, "invalid_input"),
    ({"type": "x", "colour": None}, "invalid_input"),
    ({"type": "x", "priority": 0}, "invalid_input"),
    ({"type": "x", "run_at": "2026-02-20T24:00:00Z"}, "invalid_input"),
    ({"type": "x", "run_at": "2026-02-20T23:59:60Z"}, "invalid_input"),
    ({"type": "x", "run_at": "2026-02-20T00:00:00+16:00"}, "invalid_input"),
    ({"type": "x", "payload": msgspec.Raw(b"9" * 4301)}, "invalid_input"),
    ({"type": "x", "priority": 1.5}, "invalid_input"),
    ({"type": "x", "priority": True}, "invalid_input"),
    ({"type": "x", "max_attempts": 10_001}, "invalid_input"),
    ({"type": "x", "run_at": "2030-01-01T00:00:00"}, "invalid_input"),
    ({"type": "x", "run_at": "2030-02-30T00:00:00Z"}, "invalid_input"),
    ({"type": "x", "run_at": "9999-02-01T00:00:00Z"}, "invalid_input"),
    ({"type": "x", "run_at": 5}, "invalid_input"),
    ({"type": "x", "delay_seconds": -1}, "invalid_input"),
    ({"type": "x", "delay_seconds": "1"}, "invalid_input"),
    ({"type": "x", "delay_seconds": 1, "run_at": "2030-01-01T00:00:00Z"}, "invalid_input"),
    ({"type": "x", "idempotency_key": ""}, "invalid_input"),
    ({"type": "x", "dedupe_key": "x" * 513}, "invalid_input"),
    ({"type": "x", "tags": "one"}, "invalid_input"),
    ({"type": "x", "tags": [str(n) for n in range(33)]}, "invalid_input"),
    ({"type": "x", "tags": [1]}, "invalid_input"),
    ({"type": "x", "inputs": ["a"]}, "invalid_input"),
    ({"type": "x", "inputs": {"": "0" * 64}}, "invalid_input"),
    ({"type": "x", "inputs": {"..": "0" * 64}}, "invalid_input"),
    ({"type": "x", "inputs": {"a/b": "0" * 64}}, "invalid_input"),
    ({"type": "x", "inputs": {"a\\b": "0" * 64}}, "invalid_input"),
    ({"type": "x", "inputs": {"a\nb": "0" * 64}}, "invalid_input"),
    ({"type": "x", "inputs": {"a\x85b": "0" * 64}}, "invalid_input"),
    ({"type": "x", "inputs": {"x" * 256: "0" * 64}}, "invalid_input"),
    ({"type": "x", "inputs": {"a": "0" * 63}}, "invalid_input"),
    ({"type": "x", "inputs": {"a": "A" * 64}}, "invalid_input"),
    ({"type": "x", "inputs": {"a": 5}}, "invalid_input"),
    ({"type": "x", "inputs": {str(n): "0" * 64 for n in range(101)}}, "invalid_input"),
    ({"type": "x", "inputs": {"a": "0" * 64}}, "blob_not_found"),
    ({"type": "x", "uploads": [{"name": "a"}]}, "invalid_input"),
    ({"type": "x", "payload_blob": "0" * 64}, "invalid_input"),
    ({"type": "x", "batch": "x" * 129}, "invalid_input"),
    ({"type": "x", "force": 1}, "invalid_input"),
    ({"type": "x", "on_dead": "die"}, "invalid_input"),
    ({"type": "x", "after": ["nothing"]}, "parent_not_found"),
    ({"type": "x", "after": ["01a1df68-1ad1-734b-b395-698c43183af2"]}, "parent_not_found"),
    ({"type": "x", "payload": "x" * 65_535}, "payload_too_large"),
    ({"type": "x", "metadata": "x" * 16_383}, "payload_too_large"),
    ({"type": "x", "payload": "\x00"}, "invalid_input"),
    ({"type": "x", "payload": msgspec.Raw(b'"\\ud800"')}, "invalid_input"),
    ({"type": "x", "payload": msgspec.Raw(b"[1e999]")}, "invalid_input"),
    ({"type": "x", "payload": msgspec.Raw(b"[" * 201 + b"]" * 201)}, "invalid_input"),
]
BAD_EVENTS: list[tuple[str, Any, str | None]] = [
    ("Order", 1, None),
    ("job.created", 1, None),
    ("gap", 1, None),
    ("a", "x" * 65_535, None),
    ("a", 1, ""),
    ("a", "\x00", None),
]


async def test_invalid_input_changes_nothing_and_keeps_the_transaction_usable(app_db: AppDatabase) -> None:
    before = await app_db.rows()
    app = await app_db.begin()
    codes = [(await error_of(app, {"type": "x", "dedupe_key": "k"}, bad))[1]["code"] for bad, _ in BAD]
    assert codes == [code for _, code in BAD]
    for name, data, key in BAD_EVENTS:
        with pytest.raises(asyncpg.PostgresError) as caught:
            async with rolled_back(app):
                await publish(app, name, data, key)
        assert isinstance(caught.value, asyncpg.PostgresError)
        assert caught.value.sqlstate in ("IN040", "IN045")
    for jobs in ("{}", "null", "1"):
        with pytest.raises(asyncpg.PostgresError, match="array of jobs"):
            async with rolled_back(app):
                await app.fetch("SELECT * FROM ingot.enqueue_jobs($1::text::jsonb)", jobs)
    assert await enqueue(app) == []
    await app.execute("COMMIT")
    assert await app_db.rows() == before
    assert await app.fetchval("SELECT count(*) FROM orders") == 1


async def test_checks_do_not_depend_on_standard_conforming_strings(app_db: AppDatabase) -> None:
    app = await app_db.connect()
    await app.execute("SET standard_conforming_strings = off")
    for name in ("order\nevent:job.completed", "order paid"):
        async with rolled_back(app):
            with pytest.raises(asyncpg.PostgresError, match="not valid"):
                await publish(app, name)
    await publish(app, "order.paid")
    (created,) = await enqueue(app, {"type": "mail", "priority": 2, "run_at": "2026-01-01T00:00:00.5Z"})
    assert created["status"] == JobStatus.QUEUED


async def test_more_than_65536_events_in_one_transaction_are_refused(app_db: AppDatabase) -> None:
    admin = await app_db.connect("postgres")
    async with admin.transaction():
        await admin.execute("SELECT ingot.expect_event_capacity($1, 65536)", app_db.tenant)
    with pytest.raises(asyncpg.PostgresError, match="65536"):
        await admin.execute("SELECT ingot.expect_event_capacity($1, 65537)", app_db.tenant)
