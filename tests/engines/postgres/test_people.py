"""Commands about people are sent again after a lost answer, and meet each other half way: people stay whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from ingot.engines.postgres import PostgresStore, credentials, people
from ingot.engines.postgres.connection import Record
from ingot.engines.postgres.context import Context
from ingot.events.audit import Act
from ingot.identity.people import MemberNotFound, SignInRefused, UserNotFound
from ingot.identity.ports import (
    BeginLogin,
    ConsumeLogin,
    CreateToken,
    EndSession,
    FindMember,
    FindSession,
    ListSessions,
    ListUserTokens,
    PutMember,
    RemoveMember,
    SetUserEnabled,
)
from ingot.kernel.clock import MICROS
from ingot.kernel.ids import new_id
from tests.conformance.folk import Folk, built, person, seen, token_of
from tests.factories import open_bench
from tests.waiting import eventually

WAITING: Final = """
    SELECT count(*) = $1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


@pytest.fixture
async def folk(tmp_path: Path) -> AsyncIterator[Folk]:
    async with open_bench("postgres", tmp_path / "data") as bench:
        yield Folk(bench)


async def test_a_sign_in_sent_twice_makes_one_person_and_one_session(folk: Folk) -> None:
    invited = await folk.members.put(folk.bench.tenant, role="member", email="ann@example.com", act=folk.act())
    command = folk.signing_in(person(groups=("a",)))
    user = await folk.store.run(command)
    assert await folk.store.run(command) == user
    assert len(await folk.store.run(ListSessions(user=user.id))) == 1
    assert [entry.action for entry in await folk.acts()] == ["session.created", "member.put"]
    assert await folk.roles(user) == {"default": "member"}
    assert await folk.store.run(FindMember(tenant=folk.bench.tenant, member_id=invited.id)) is None


async def test_a_session_ended_twice_by_one_command_is_ended(folk: Folk) -> None:
    ann = await folk.sign_in("ann", b"digest")
    session = (await folk.session(b"digest")).session
    command = EndSession(id=session.id, user=ann.id, act=folk.act())
    for _ in range(2):
        await folk.store.run(command)
    assert [entry.action for entry in await folk.acts()] == ["session.ended", "session.created"]


async def test_a_person_let_out_twice_by_one_command_was_let_in_before(folk: Folk) -> None:
    ann = await folk.sign_in()
    command = SetUserEnabled(id=ann.id, enabled=False, act=folk.act())
    after = await folk.store.run(command)
    assert await folk.store.run(command) == after
    entry = await folk.last_act()
    assert (seen(entry.before), seen(entry.after)) == (built(ann), built(after))
    assert len(await folk.acts()) == 2


async def test_a_role_given_or_taken_twice_by_one_command_is_on_record_once(folk: Folk) -> None:
    tenant = folk.bench.tenant
    ann = await folk.sign_in()
    given = PutMember(tenant=tenant, role="member", user=ann.id, invitation_id=new_id(), act=folk.act())
    invited = PutMember(tenant=tenant, role="member", email="new@example.com", invitation_id=new_id(), act=folk.act())
    members = [await folk.store.run(command) for command in (given, invited, given, invited)]
    assert members[:2] == members[2:]
    for member in members[:2]:
        taken = RemoveMember(tenant=tenant, id=member.id, act=folk.act())
        for _ in range(2):
            assert await folk.store.run(taken) == member
        with pytest.raises(MemberNotFound):
            await folk.members.remove(tenant, member.id, act=folk.act())
    acts = await folk.acts(tenant)
    assert [entry.action for entry in acts] == ["member.removed"] * 2 + ["member.put"] * 2
    assert [seen(entry.before) for entry in acts] == [built(members[1]), built(members[0]), None, None]


async def test_a_link_made_twice_by_one_command_is_one(folk: Folk) -> None:
    soon = folk.bench.clock.micros() + MICROS
    command = BeginLogin(digest=b"link", expires_at=soon, next_page="/jobs", is_link=True, act=folk.act())
    for _ in range(2):
        await folk.store.run(command)
    assert len(await folk.acts()) == 1
    assert await folk.store.run(ConsumeLogin(digest=b"link", is_link=True)) == "/jobs"
    assert await folk.store.run(ConsumeLogin(digest=b"link", is_link=True)) is None


async def test_a_tenant_made_or_changed_twice_keeps_its_groups(folk: Folk) -> None:
    made = await folk.bench.tenants.create("made", groups={"a": "viewer"})
    for _ in range(2):
        assert (await folk.bench.tenants.change(made.id, groups={"b": "admin"})).groups == {"b": "admin"}


# -- two at once --------------------------------------------------------------------------------------------


class Half:
    """One party at a person: its call is made, and whether it holds is not said before the end of the block."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def call(self, statement: str, *values: Any) -> list[Record]:
        """As `Database.call`, in the transaction that is open."""
        rows: list[Record] = await self._connection.fetch(statement, *values)
        return rows


@asynccontextmanager
async def half_way(folk: Folk) -> AsyncIterator[Context]:
    assert isinstance(folk.store, PostgresStore)
    async with folk.store.database.pool.acquire() as connection:
        await connection.fetch("SELECT 1")  # So that it has the time of the test.
        async with connection.transaction():
            yield Context(Half(connection), folk.store.lane_cache)  # type: ignore[arg-type]


async def waiting(folk: Folk, calls: int) -> None:
    """Until so many calls wait for the one that is half way."""
    assert isinstance(folk.store, PostgresStore)
    database = folk.store.database

    async def all_wait() -> bool:
        return bool((await database.call(WAITING, calls))[0][0])

    await eventually(all_wait)


async def test_who_is_let_out_at_this_moment_gets_no_session_and_no_token(folk: Folk) -> None:
    ann = await folk.sign_in()
    async with half_way(folk) as first:
        await people.set_user_enabled(first, SetUserEnabled(id=ann.id, enabled=False, act=folk.act()))
        later = [
            asyncio.create_task(folk.sign_in("ann", b"late")),
            asyncio.create_task(folk.text_of_token(ann)),
        ]
        await waiting(folk, 2)
    refused = await asyncio.gather(*later, return_exceptions=True)
    assert [type(error) for error in refused] == [SignInRefused, UserNotFound]
    assert await folk.store.run(FindSession(digest=b"late")) is None
    assert await folk.store.run(ListUserTokens(user=ann.id, before=None, limit=10)) == []


async def test_a_session_and_a_token_that_are_made_at_this_moment_end_with_who_is_let_out(folk: Folk) -> None:
    ann = await folk.sign_in()
    token = token_of(ann, folk.bench.tenant)
    async with half_way(folk) as first:
        await credentials.create_token(first, CreateToken(token=token, digest=b"digest", act=Act()))
        await people.sign_in(first, folk.signing_in(person(), b"early"))
        later = asyncio.create_task(folk.users.enable(ann.id, enabled=False, act=folk.act()))
        await waiting(folk, 1)
    assert not (await later).enabled
    await folk.users.enable(ann.id, enabled=True, act=folk.act())
    assert await folk.store.run(FindSession(digest=b"early")) is None
    assert not await folk.holds(token.id)


async def test_an_invitation_made_while_its_email_signs_in_is_not_lost(folk: Folk) -> None:
    tenant = folk.bench.tenant
    async with half_way(folk) as first:
        ann = await people.sign_in(first, folk.signing_in(person()))
        await folk.members.put(tenant, role="member", email="ann@example.com", act=folk.act())
    assert await folk.roles(ann) == {"default": "member"}
    await folk.sign_in()
    assert await folk.roles(ann) == {"default": "member"}
