"""The audit log: every administrative change is recorded completely, together with the change, and permanently."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import msgspec
import pytest

from ingot.engines.sqlite.store_folder import FILE_NAME
from ingot.events.audit import PROCESS, Act, Entry
from ingot.identity import TenantExists, TenantNotFound, credential_secrets
from ingot.identity.credentials import CredentialExists, CredentialNotFound, Token, TokenNotFound, WorkerCredential
from ingot.identity.grants import Grant
from ingot.identity.ports import ChangeWorkerCredential, CreateToken, CreateWorkerCredential
from ingot.jobs import Definition, WorkerNotFound
from ingot.kernel.errors import IngotError, InvalidInput
from ingot.kernel.ids import new_id
from ingot.kernel.pages import PAGE_ROWS_MAX, InvalidCursor, encode_cursor
from tests.conformance.audit_cases import ACT, STEPS, TYPE, Step, credentials_of
from tests.conformance.snapshots import refuses_each
from tests.factories import Bench, open_bench
from tests.postgres import database_for

READ = [Grant(action="jobs.read")]
TABLES = ("tenants", "tokens", "worker_credentials", "definitions", "pauses", "workers", "audit")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "audit.md"
ENGINE = Path(__file__).parents[2] / "src" / "ingot" / "engines" / "sqlite"


async def entries(bench: Bench, tenant: str | None = None, **which: Any) -> list[Entry]:
    return (await bench.audit.list(tenant, limit=PAGE_ROWS_MAX, **which)).items


def as_json(value: object) -> Any:
    """An object as its JSON, decoded."""
    return msgspec.json.decode(msgspec.json.encode(value))


def case_name(step: tuple[str, Step]) -> str:
    return step[1].__name__


@pytest.fixture(params=STEPS, ids=case_name)
def step(request: pytest.FixtureRequest) -> tuple[str, Step]:
    """One kind of recorded change."""
    case: tuple[str, Step] = request.param
    return case


# -- recorded changes ---------------------------------------------------------------------------------------


async def test_a_change_is_recorded_with_the_states_before_and_after(bench: Bench, step: tuple[str, Step]) -> None:
    action, prepare = step
    do = await prepare(bench)
    known = {entry.id for entry in await entries(bench)}
    bench.clock.advance(seconds=1)
    done = await do()
    (entry,) = [entry for entry in await entries(bench) if entry.id not in known]
    assert (entry.action, entry.target, entry.tenant) == (action, done.target, done.tenant)
    assert (entry.who, entry.name, entry.address, entry.request_id) == (
        ACT.who,
        ACT.name,
        ACT.address,
        ACT.request_id,
    )
    assert entry.at == bench.clock.now()
    assert (as_json(entry.before), as_json(entry.after)) == (as_json(done.before), as_json(done.after))
    if done.tenant is not None:
        assert entry in await entries(bench, done.tenant)


async def test_a_change_without_an_act_is_recorded_as_made_by_the_process(bench: Bench) -> None:
    (first,) = await entries(bench, bench.tenant)
    assert (first.action, first.target, first.who) == ("tenant.created", "tenant/default", PROCESS)
    await bench.jobs.pause(bench.tenant, TYPE)
    paused, _ = await entries(bench, bench.tenant)
    assert (paused.who, paused.name, paused.address, paused.request_id) == (PROCESS, None, None, None)


async def test_one_act_passed_to_two_changes_creates_two_entries(bench: Bench) -> None:
    for slug in ("one", "two"):
        await bench.tenants.create(slug, act=ACT)
    assert [entry.target for entry in await entries(bench, who=ACT.who)] == ["tenant/two", "tenant/one"]


async def test_a_rename_is_recorded_under_the_old_name(bench: Bench) -> None:
    acme = await bench.tenants.create("acme")
    await bench.tenants.change("acme", slug="globex")
    (changed,) = await entries(bench, acme.id, action="tenant.changed")
    assert changed.target == "tenant/acme"
    assert (as_json(changed.before)["slug"], as_json(changed.after)["slug"]) == ("acme", "globex")


async def test_no_credential_or_digest_is_recorded(bench: Bench) -> None:
    credentials_admin = credentials_of(bench)
    token = await credentials_admin.create_token(bench.tenant, description="x", grants=READ)
    worker = await credentials_admin.create_worker_credential(None, "press")
    again = await credentials_admin.regenerate_worker_credential(None, "press")
    await credentials_admin.revoke_token(None, token.token.id)
    whole = msgspec.json.encode(await entries(bench)).decode()
    assert all(name in whole for name in ("token.revoked", "worker_credential.regenerated"))
    for text in (token.text, worker.secret, again.secret):
        digest = credential_secrets.digest(text)
        for secret in (text, text[6:40], digest.hex(), msgspec.json.encode(digest).decode().strip('"')):
            assert secret not in whole


# -- calls that are not recorded ----------------------------------------------------------------------------


async def test_a_call_that_changes_nothing_is_not_recorded(bench: Bench) -> None:
    credentials_admin = credentials_of(bench)
    token = (await credentials_admin.create_token(bench.tenant, description="x", grants=READ)).token
    await credentials_admin.create_worker_credential(bench.tenant, "press")
    await bench.workers.register(bench.tenant, "press/1", ["pdf"])
    definition = Definition(type=TYPE, tenant=bench.tenant, timeout_seconds=7)
    again: list[Callable[[], Awaitable[object]]] = [
        lambda: bench.tenants.change("default", weight=2, time_zone="Asia/Tokyo"),
        lambda: credentials_admin.revoke_token(bench.tenant, token.id),
        lambda: credentials_admin.enable_worker_credential(bench.tenant, "press", enabled=False),
        lambda: bench.jobs.define(definition),
        lambda: bench.jobs.pause(bench.tenant, TYPE),
        lambda: bench.workers.drain(bench.tenant, "press/1"),
    ]
    for call in again:
        await call()
    known = await entries(bench)
    bench.clock.advance(seconds=1)
    for call in again:
        await call()
    assert await entries(bench) == known
    await bench.jobs.resume(bench.tenant, TYPE)
    await bench.jobs.resume(bench.tenant, TYPE)
    assert len(await entries(bench)) == len(known) + 1


async def test_actions_of_a_worker_on_itself_are_not_recorded(bench: Bench) -> None:
    known = await entries(bench)
    await bench.workers.register(bench.tenant, "press/1", ["pdf"])
    await bench.workers.drain(bench.tenant, "press/1", itself=True)
    await bench.workers.remove(bench.tenant, "press/1", itself=True)
    assert await entries(bench) == known


async def test_the_removal_of_a_worker_with_many_jobs_is_recorded_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingot.jobs.workers.REMOVE_JOBS_MAX", 2)
    await bench.workers.register(bench.tenant, "press/1", [TYPE])
    for _ in range(5):
        await bench.make_claim(TYPE, worker="press/1")
    await bench.workers.remove(bench.tenant, "press/1")
    (removed,) = await entries(bench, bench.tenant, action="worker.removed")
    assert as_json(removed.before)["status"] == "online"


async def test_a_refused_call_is_not_recorded(bench: Bench) -> None:
    credentials_admin, missing_tenant = credentials_of(bench), new_id()
    other = await bench.tenants.create("other")
    token = (await credentials_admin.create_token(bench.tenant, description="x", grants=READ)).token
    await credentials_admin.create_worker_credential(bench.tenant, "press")
    known = await entries(bench)
    refused: list[tuple[type[IngotError], Callable[[], Awaitable[object]]]] = [
        (TenantExists, lambda: bench.tenants.create("other")),
        (TenantExists, lambda: bench.tenants.change("other", slug="default")),
        (TenantNotFound, lambda: bench.tenants.change(missing_tenant, weight=2)),
        (TenantNotFound, lambda: credentials_admin.create_token(missing_tenant, description="x", grants=READ)),
        (TokenNotFound, lambda: credentials_admin.revoke_token(other.id, token.id)),
        (CredentialExists, lambda: credentials_admin.create_worker_credential(other.id, "press")),
        (CredentialNotFound, lambda: credentials_admin.regenerate_worker_credential(other.id, "press")),
        (CredentialNotFound, lambda: credentials_admin.enable_worker_credential(other.id, "press", enabled=False)),
        (TenantNotFound, lambda: bench.jobs.define(Definition(type=TYPE, tenant=missing_tenant))),
        (TenantNotFound, lambda: bench.jobs.pause(missing_tenant, TYPE)),
        (TenantNotFound, lambda: bench.jobs.resume(missing_tenant, TYPE)),
        (WorkerNotFound, lambda: bench.workers.drain(bench.tenant, "nobody")),
        (WorkerNotFound, lambda: bench.workers.remove(bench.tenant, "nobody")),
    ]
    for error, call in refused:
        with pytest.raises(error):
            await call()
    assert await entries(bench) == known


async def test_a_change_with_an_invalid_act_is_refused(bench: Bench) -> None:
    acts: list[dict[str, Any]] = [
        {"who": None},
        {"who": 7},
        {"who": "a\x00"},
        {"name": "\ud800"},
        {"address": b"x"},
        {"request_id": "\x00"},
    ]
    calls = {str(bad): partial(bench.tenants.create, "acme", act=Act(**bad)) for bad in acts}
    define: Any = bench.jobs.define
    await refuses_each(bench, InvalidInput, {**calls, "a text": partial(define, Definition(type=TYPE), act="Ada")})
    with pytest.raises(TenantNotFound):
        await bench.tenants.get("acme")


# -- together with the change -------------------------------------------------------------------------------


@asynccontextmanager
async def tables(engine: str, folder: Path) -> AsyncIterator[Callable[[str], Awaitable[list[Any]]]]:
    """A function that queries the tables directly, past the store."""
    if engine == "sqlite":
        file = apsw.Connection(str(folder / FILE_NAME))
        try:
            yield lambda statement: _of_sqlite(file, statement)
        finally:
            file.close()
        return
    admin = await asyncpg.connect((await database_for(folder)).owner_url)
    try:
        yield lambda statement: admin.fetch(statement.replace("FROM ", "FROM ingot."))
    finally:
        await admin.close()


async def _of_sqlite(file: apsw.Connection, statement: str) -> list[Any]:
    return list(file.execute(statement))


FULL = {
    "sqlite": (
        "CREATE TRIGGER audit_full BEFORE INSERT ON audit BEGIN SELECT raise(ABORT, 'full'); END",
        "DROP TRIGGER audit_full",
    ),
    "postgres": (
        "ALTER TABLE ingot.audit ADD CONSTRAINT audit_full CHECK (false) NOT VALID",
        "ALTER TABLE ingot.audit DROP CONSTRAINT audit_full",
    ),
}


async def test_a_change_that_cannot_be_recorded_is_rolled_back(
    engine: str, tmp_path: Path, step: tuple[str, Step]
) -> None:
    folder = tmp_path / "data"
    full, free = FULL[engine]
    async with open_bench(engine, folder) as bench, tables(engine, folder) as ask:
        do = await step[1](bench)
        await ask(full)
        try:
            before = [await ask(f"SELECT * FROM {table}") for table in TABLES]
            with pytest.raises((IngotError, apsw.Error)):
                await do()
            assert [await ask(f"SELECT * FROM {table}") for table in TABLES] == before
        finally:
            await ask(free)
        await do()
        assert (await entries(bench, action=step[0]))[0].who == ACT.who


async def test_a_resent_command_is_recorded_once(bench: Bench) -> None:
    await credentials_of(bench).create_worker_credential(bench.tenant, "press")
    command = ChangeWorkerCredential(id="press", tenant=None, digest=bytes(32), ending="wxyz", act=ACT)
    for _ in range(2):
        await bench.store.run(command)
    assert [entry.id for entry in await entries(bench, action="worker_credential.regenerated")] == [ACT.id]


async def test_a_creation_repeated_after_a_lost_response_is_recorded_once(engine: str, bench: Bench) -> None:
    if engine == "sqlite":
        pytest.skip("in one process no answer is lost")
    now = bench.clock.now()
    token = Token(id=new_id(), tenant=None, description="x", grants=(Grant(action="*"),), ending="wxyz", created_at=now)
    worker = WorkerCredential(id="press", tenant=None, ending="wxyz", created_at=now)
    for _ in range(2):
        await bench.store.run(CreateToken(token=token, digest=bytes(32), act=ACT))
    other = Act()
    for _ in range(2):
        await bench.store.run(CreateWorkerCredential(credential=worker, digest=bytes(32), act=other))
    made = [entry.id for entry in await entries(bench) if entry.action.endswith(".created") and not entry.tenant]
    assert sorted(made) == sorted([ACT.id, other.id])


@pytest.mark.parametrize("kind", ["definition", "tenant"])
async def test_concurrent_changes_are_recorded_as_an_unbroken_sequence(bench: Bench, kind: str) -> None:
    numbers = range(2, 22)
    if kind == "definition":
        calls: list[Awaitable[object]] = [bench.jobs.define(Definition(type=TYPE, version=n)) for n in numbers]
        field, action, first = "version", "definition.put", None
    else:
        calls = [bench.tenants.change("default", weight=n) for n in numbers]
        field, action, first = "weight", "tenant.changed", 1
    await asyncio.gather(*calls)
    found = [(as_json(entry.before), as_json(entry.after)) for entry in await entries(bench, action=action)]
    followed = {before and before[field]: after[field] for before, after in found}
    chain, at = [], first
    while at in followed:
        at = followed.pop(at)
        chain.append(at)
    assert (sorted(chain), followed) == (list(numbers), {})


# -- permanence ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("statement", ["DELETE FROM audit", "UPDATE audit SET who = 'nobody'"])
async def test_recorded_entries_cannot_be_changed_or_deleted(engine: str, tmp_path: Path, statement: str) -> None:
    folder = tmp_path / "data"
    async with open_bench(engine, folder) as bench:
        known = await entries(bench)
        assert known
        if engine == "sqlite":
            async with tables(engine, folder) as ask:
                with pytest.raises(apsw.ConstraintError, match="the audit log is kept"):
                    await ask(statement)
        else:
            await _refused_by_postgres(folder, statement.replace("audit", "ingot.audit"))
        assert await entries(bench) == known


async def _refused_by_postgres(folder: Path, statement: str) -> None:
    """The server role has no privilege, and row security hides all rows from the owner of the table."""
    admin = await asyncpg.connect((await database_for(folder)).owner_url)
    try:
        await admin.execute("SET ROLE ingot_server")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await admin.execute(statement)
        await admin.execute("SET ROLE ingot_owner")
        assert (await admin.execute(statement)).endswith(" 0")
    finally:
        await admin.close()


# -- reading ------------------------------------------------------------------------------------------------


async def test_pages_of_the_log_join_without_gaps(bench: Bench) -> None:
    for number in range(7):
        await bench.jobs.pause(bench.tenant, f"t{number}", act=ACT)
    whole = await entries(bench, bench.tenant, action="type.paused")
    assert [entry.target for entry in whole] == [f"type/t{number}" for number in range(6, -1, -1)]
    found: list[Entry] = []
    cursor: str | None = None
    for size in (3, 3, 1):
        page = await bench.audit.list(bench.tenant, action="type.paused", cursor=cursor, limit=3)
        assert len(page.items) == size
        found += page.items
        cursor = page.next_cursor
    assert (found, cursor) == (whole, None)


async def test_a_tenant_lists_its_own_entries_and_an_operator_lists_all(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    credentials_admin = credentials_of(bench)
    await credentials_admin.create_worker_credential(None, "shared")
    await bench.jobs.pause(other.id, TYPE, act=ACT)
    assert [entry.action for entry in await entries(bench, other.id)] == ["type.paused", "tenant.created"]
    assert {entry.tenant for entry in await entries(bench, bench.tenant)} == {bench.tenant}
    assert {entry.tenant for entry in await entries(bench)} == {None, bench.tenant, other.id}
    with pytest.raises(TenantNotFound):
        await bench.audit.list("nobody")


@pytest.mark.parametrize(
    ("which", "found"),
    [
        ({}, ["type.resumed", "type.paused", "type.paused", "tenant.created"]),
        ({"action": "type.paused"}, ["type.paused", "type.paused"]),
        ({"who": ACT.who}, ["type.resumed", "type.paused"]),
        ({"target": "type/b"}, ["type.paused"]),
        ({"who": ACT.who, "action": "type.paused"}, ["type.paused"]),
        ({"target": "type"}, []),
        ({"action": "type"}, []),
        ({"who": "token"}, []),
    ],
)
async def test_a_filter_matches_whole_values_only(bench: Bench, which: dict[str, str], found: list[str]) -> None:
    await bench.jobs.pause(bench.tenant, "a", act=ACT)
    await bench.jobs.pause(bench.tenant, "b")
    await bench.jobs.resume(bench.tenant, "a", act=ACT)
    for tenant in (bench.tenant, None):
        assert [entry.action for entry in await entries(bench, tenant, **which)] == found


async def test_a_cursor_is_valid_only_for_the_filter_that_created_it(bench: Bench) -> None:
    for name in ("a", "b"):
        await bench.jobs.pause(bench.tenant, name)
    cursor = (await bench.audit.list(bench.tenant, limit=1)).next_cursor
    for call in (
        bench.audit.list(None, cursor=cursor),
        bench.audit.list(bench.tenant, action="type.paused", cursor=cursor),
        bench.audit.list(bench.tenant, cursor="x"),
        bench.audit.list(None, cursor=encode_cursor("x", bound_to=("audit", None, None, None, None))),
    ):
        with pytest.raises(InvalidCursor):
            await call
    for bad in ({"limit": 0}, {"limit": 1001}, {"action": 7}, {"who": "\x00"}, {"target": "\ud800"}):
        with pytest.raises(InvalidInput):
            await bench.audit.list(bench.tenant, **bad)


def test_the_reference_lists_every_audit_action() -> None:
    page = PAGE.read_text(encoding="utf-8")
    written = "".join(file.read_text(encoding="utf-8") for file in ENGINE.glob("*.py"))
    acts = {action for action, _ in STEPS} | set(re.findall(r'\.audit\(\s*[\w.]+, "([a-z_.]+)"', written))
    assert len(acts) > len(STEPS)
    assert sorted(action for action in acts if f"| `{action}` |" not in page) == []
