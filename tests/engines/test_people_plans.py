"""Statements about people use an index: thousands of other people do not slow them down."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

import apsw
import asyncpg
import msgspec
import pytest

from ingot.engines.sqlite.store_folder import FILE_NAME
from ingot.identity.people import Person, User
from ingot.identity.ports import ChooseTenant, EndSession, LeaveTenant, ListSessions, ListUserTokens
from ingot.kernel.clock import ManualClock
from ingot.kernel.ids import new_id
from tests.conformance.people_fixture import PeopleFixture
from tests.engines.sqlite.plans.meter import metered
from tests.factories import Bench, open_bench
from tests.postgres import database_for

SMALL: Final = 500
BIG: Final = 20_000
MORE_STEPS_MAX: Final = 1.1
MORE_PAGES_MAX: Final = 100  # Deeper indexes: one more page for each lookup.
PAGE: Final = 50
TOP: Final = "ffffffff-ffff-ffff-ffff-ffffffffffff"
BOTTOM: Final = "00000000-0000-0000-0000-000000000000"
GROUPS: Final = {"everybody": "viewer", "nobody": "admin"}
# Each other person is in two groups, a member and signed in. Some are invited by email, up to the limit of a tenant.
FILL_SQLITE: Final = """
    BEGIN;
    CREATE TEMP TABLE others AS WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {people})
        SELECT n, printf('f0000000-0000-7000-8000-%012d', n) AS id, printf('f1000000-0000-7000-8000-%012d', n) AS other
        FROM n;
    INSERT INTO users SELECT id, 'i', n, n || '@x.de', n || '@x.de', 1, NULL, NULL, 1, 0, 0, 0, 1 FROM others;
    INSERT INTO user_groups SELECT id, 'everybody' FROM others UNION ALL SELECT id, 'g' || n FROM others;
    INSERT INTO members SELECT 1, id, 'viewer', 0, 'process' FROM others;
    INSERT INTO invitations SELECT other, 1, other || '@x.de', NULL, 'viewer', 0, 'process', {never} FROM others
        WHERE n <= {invitations};
    INSERT INTO sessions SELECT id, CAST(id AS BLOB), id, 0, {never}, 0, NULL, NULL, 1 FROM others;
    INSERT INTO logins SELECT CAST(id AS BLOB), '/', 0, {never} FROM others;
    INSERT INTO tokens SELECT id, 1, x'00', 'd', '[]', '{{}}', 'abcd', 0, NULL, NULL, NULL, NULL, id FROM others;
    COMMIT;
"""
FILL_POSTGRES: Final = """
    CREATE TEMP TABLE others AS SELECT n, ('f0000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid AS id,
        ('f1000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid AS other FROM generate_series(1, {people}) AS n;
    INSERT INTO ingot.users SELECT id, 'i', n, n || '@x.de', n || '@x.de', true, NULL, NULL, true, 0, 0, false,
        '{tenant}' FROM others;
    INSERT INTO ingot.user_groups SELECT id, 'everybody' FROM others UNION ALL SELECT id, 'g' || n FROM others;
    INSERT INTO ingot.members SELECT '{tenant}', id, 'viewer', 0, 'process' FROM others;
    INSERT INTO ingot.invitations SELECT other, '{tenant}', other || '@x.de', 'viewer', 0, 'process', NULL, {never}
        FROM others WHERE n <= {invitations};
    INSERT INTO ingot.sessions SELECT id, id::text::bytea, id, 0, {never}, 0, NULL, NULL, '{tenant}' FROM others;
    INSERT INTO ingot.logins SELECT id::text::bytea, '/', false, {never} FROM others;
    INSERT INTO ingot.tokens SELECT id, '{tenant}', '\\x00', 'd', '[]', '{{}}', 'abcd', 0, NULL, NULL, NULL, NULL, id
        FROM others;
"""
NEVER: Final = 2**60
TABLES: Final = (
    "ingot.users, ingot.user_groups, ingot.members, ingot.invitations, ingot.sessions, ingot.logins, ingot.tokens, "
    "ingot.departures"
)


async def make_ann(bench: Bench) -> User:
    """Make a person with rows in every table, in a tenant with groups."""
    people = PeopleFixture(bench)
    await bench.tenants.change(bench.tenant, groups=GROUPS)  # type: ignore[arg-type]
    ann = await people.sign_in("ann", b"ann", groups=("everybody",))
    await people.join(ann, "member")
    await people.token(ann)
    return ann


async def measure_steps(folder: Path, count: int) -> dict[str, int]:
    """The maximum number of steps of each statement about one person among this many."""
    clock = ManualClock()
    async with open_bench("sqlite", folder, clock) as bench:
        ann = await make_ann(bench)
    connection = apsw.Connection(str(folder / FILE_NAME))
    connection.execute(FILL_SQLITE.format(people=count, never=NEVER, invitations=SMALL))
    connection.close()
    with metered() as meter:
        async with open_bench("sqlite", folder, clock) as bench:
            meter.steps.clear()
            await run_statements_about_people(bench, ann)
    shutil.rmtree(folder)
    assert meter.automatic_indexes == set()
    return {name: max(steps) for name, steps in meter.steps.items()}


async def run_statements_about_people(bench: Bench, ann: User) -> None:
    """Run every statement about people."""
    people, tenant, store = PeopleFixture(bench), bench.tenant, bench.store
    page = await people.members.list(tenant, limit=PAGE)
    assert len((await people.members.list(tenant, limit=PAGE, cursor=page.next_cursor)).items) == PAGE
    assert len((await people.users.list(limit=PAGE)).items) == PAGE
    assert len((await people.users.list(email="7@x.de")).items) == 1
    session = (await people.session(b"ann")).session
    assert await people.store.run(ListSessions(user=ann.id)) == [session]
    (token,) = await store.run(ListUserTokens(user=ann.id, before=None, limit=PAGE))
    assert await people.holds(token.id)
    invited = await people.members.put(tenant, role="viewer", email="new@x.de", act=people.act())
    await people.members.change(tenant, invited.id, role="member", act=people.act())
    await people.members.remove(tenant, invited.id, act=people.act())
    await people.members.remove(tenant, ann.id, act=people.act())
    await people.members.put(tenant, role="viewer", email="ann@example.com", act=people.act())
    (pending,) = await people.members.invitations(ann.id)
    await people.members.decline(pending.id, user=ann.id, act=people.act())
    await people.join(ann, "viewer")
    await store.run(ChooseTenant(session=session.id, user=ann.id, tenant=tenant))
    await store.run(LeaveTenant(tenant=tenant, user=ann.id, act=people.act()))
    await store.run(people.signing_in(person_of(ann), replaced_digest=b"ann"))
    (session,) = await people.store.run(ListSessions(user=ann.id))
    await store.run(EndSession(id=session.id, user=ann.id, act=people.act()))
    await people.users.enable(ann.id, enabled=False, act=people.act())


def person_of(user: User) -> Person:
    """A user as a provider describes them."""
    return msgspec.convert(msgspec.to_builtins(user), Person)


async def test_statements_of_sqlite_take_no_more_steps_with_many_people(tmp_path: Path) -> None:
    small, big = await measure_steps(tmp_path / "small", SMALL), await measure_steps(tmp_path / "big", BIG)
    assert {name: (small[name], steps) for name, steps in big.items() if steps > small[name] * MORE_STEPS_MAX} == {}
    assert {"session_by_digest", "page_of_members", "members_by_id", "invitations_of_user"} <= big.keys()


async def measure_pages(folder: Path, count: int) -> dict[str, int]:
    """The number of pages that each call about one person among this many touches."""
    async with open_bench("postgres", folder) as bench:
        ann = await make_ann(bench)
        token = (await bench.store.run(ListUserTokens(user=ann.id, before=None, limit=1)))[0]
        database = await database_for(folder)
        owner = await asyncpg.connect(database.owner_url)
        await owner.execute(FILL_POSTGRES.format(people=count, tenant=bench.tenant, never=NEVER, invitations=SMALL))
        await owner.execute(
            f"ANALYZE {TABLES}"
        )  # Otherwise the server analyzes at any time, and plans change during the test.
        await owner.close()
        act, tenant = msgspec.json.encode(PeopleFixture(bench).act()).decode(), bench.tenant
        who = msgspec.json.encode(person_of(ann)).decode()
        calls: dict[str, tuple[Any, ...]] = {
            "SELECT ingot.find_session($1)": (b"ann",),
            "SELECT ingot.list_sessions($1, $2)": (ann.id, PAGE),
            "SELECT ingot.find_user($1)": (ann.id,),
            "SELECT ingot.find_token($1)": (token.id,),
            "SELECT ingot.list_users(NULL, $1, $2)": (TOP, PAGE),
            "SELECT ingot.list_users($1, $2, $3)": ("7@x.de", TOP, PAGE),
            "SELECT ingot.find_member($1, $2)": (tenant, ann.id),
            "SELECT ingot.list_members($1, $2, $3)": (tenant, BOTTOM, PAGE),
            "SELECT ingot.list_user_tokens($1, $2, $3)": (ann.id, TOP, PAGE),
            "SELECT ingot.put_member($1, 'viewer', $2, NULL, NULL, $3)": (tenant, ann.id, act),
            "SELECT ingot.put_member($1, 'viewer', NULL, 'new@x.de', $2, $3)": (tenant, new_id(), act),
            "SELECT ingot.list_invitations($1, $2)": (ann.id, PAGE),
            "SELECT ingot.leave_tenant($1, $2, $3)": (tenant, ann.id, act),
            "SELECT ingot.choose_tenant($1, $1, $2)": (ann.id, tenant),
            "SELECT ingot.remove_member($1, $2, $3)": (tenant, ann.id, act),
            "SELECT ingot.begin_login($1, '/', false, $2, 100, NULL)": (b"new", NEVER),
            "SELECT ingot.consume_login($1, false)": (b"ann",),
            "SELECT ingot.sign_in($1, 'ann@example.com', $2, $2, 'new', $3, NULL, NULL, 'ann', 100, $4)": (
                who,
                new_id(),
                NEVER,
                act,
            ),
            "SELECT ingot.enable_user($1, false, $2)": (ann.id, act),
        }
        server = await asyncpg.connect(database.server_url)
        await server.execute(f"SET ingot.now = '{bench.clock.micros()}'")
        try:
            return {call: await _pages(server, call, values) for call, values in calls.items()}
        finally:
            await server.close()


async def _pages(server: Any, call: str, values: tuple[Any, ...]) -> int:
    """The minimum number of pages of several rolled-back runs; concurrent catalog changes add to single runs."""
    touched = []
    for _ in range(5):
        await server.execute("BEGIN")
        text = await server.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {call}", *values)
        await server.execute("ROLLBACK")
        (found,) = msgspec.json.decode(text)
        touched.append(int(found["Plan"]["Shared Hit Blocks"] + found["Plan"]["Shared Read Blocks"]))
    return min(touched[1:])


@pytest.mark.long
@pytest.mark.postgres
async def test_calls_of_postgres_touch_no_more_pages_with_many_people(tmp_path: Path) -> None:
    small, big = await measure_pages(tmp_path / "small", SMALL), await measure_pages(tmp_path / "big", BIG)
    assert {call: (small[call], pages) for call, pages in big.items() if pages > small[call] + MORE_PAGES_MAX} == {}
