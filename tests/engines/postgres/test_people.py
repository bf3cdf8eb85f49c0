"""Commands about people: repeated after lost responses, and overlapping with each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from ingot.engines.postgres import PostgresStore, credentials
from ingot.engines.postgres import people as people_rows
from ingot.engines.postgres.connection import Record
from ingot.engines.postgres.context import Context
from ingot.events.audit import Act
from ingot.identity.people import MemberNotFound, SignInRefused, UserNotFound
from ingot.identity.ports import (
    AcceptInvitation,
    BeginLogin,
    ChangeMember,
    ConsumeLogin,
    CreateToken,
    DeclineInvitation,
    EndSession,
    FindSession,
    LeaveTenant,
    ListSessions,
    ListUserTokens,
    PutMember,
    RemoveMember,
    SetUserEnabled,
)
from ingot.kernel.clock import MICROS
from ingot.kernel.ids import new_id
from tests.conformance.people_fixture import PeopleFixture, built, person, seen, token_of
from tests.factories import open_bench
from tests.waiting import eventually

ARE_BLOCKED: Final = """
    SELECT count(*) = $1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


@pytest.fixture
async def people(tmp_path: Path) -> AsyncIterator[PeopleFixture]:
    async with open_bench("postgres", tmp_path / "data") as bench:
        yield PeopleFixture(bench)


async def test_a_repeated_sign_in_creates_one_user_and_one_session(people: PeopleFixture) -> None:
    command = people.signing_in(person(groups=("a",)))
    user = await people.store.run(command)
    assert await people.store.run(command) == user
    assert len(await people.store.run(ListSessions(user=user.id))) == 1
    assert [entry.action for entry in await people.acts()] == ["session.created"]


async def test_a_repeated_answer_to_an_invitation_succeeds(people: PeopleFixture) -> None:
    tenant, ann = people.bench.tenant, await people.sign_in()
    invited = await people.members.put(tenant, role="member", user=ann.id, act=people.act())
    accept = AcceptInvitation(id=invited.id, user=ann.id, act=people.act())
    leave = LeaveTenant(tenant=tenant, user=ann.id, act=people.act())
    for command in (accept, leave):
        assert await people.store.run(command) == await people.store.run(command)
    invited = await people.members.put(tenant, role="member", user=ann.id, act=people.act())
    decline = DeclineInvitation(id=invited.id, user=ann.id, act=people.act())
    for _ in range(2):
        await people.store.run(decline)
    actions = [entry.action for entry in await people.acts(tenant)]
    assert actions == ["invitation.declined", "member.put", "member.left", "invitation.accepted", "member.put"]


async def test_a_repeated_end_of_a_session_succeeds(people: PeopleFixture) -> None:
    ann = await people.sign_in("ann", b"digest")
    session = (await people.session(b"digest")).session
    command = EndSession(id=session.id, user=ann.id, act=people.act())
    for _ in range(2):
        await people.store.run(command)
    assert [entry.action for entry in await people.acts()] == ["session.ended", "session.created"]


async def test_a_repeated_disable_is_recorded_once_with_the_first_state(people: PeopleFixture) -> None:
    ann = await people.sign_in()
    command = SetUserEnabled(id=ann.id, enabled=False, act=people.act())
    after = await people.store.run(command)
    assert await people.store.run(command) == after
    entry = await people.last_act()
    assert (seen(entry.before), seen(entry.after)) == (built(ann), built(after))
    assert len(await people.acts()) == 2


async def test_repeated_changes_of_a_role_are_recorded_once(people: PeopleFixture) -> None:
    tenant = people.bench.tenant
    ann = await people.sign_in()
    put = PutMember(tenant=tenant, role="member", user=ann.id, invitation_id=new_id(), act=people.act())
    invited = PutMember(tenant=tenant, role="member", email="new@example.com", invitation_id=new_id(), act=people.act())
    members = [await people.store.run(command) for command in (put, invited, put, invited)]
    assert members[:2] == members[2:]
    for member in members[:2]:
        remove = RemoveMember(tenant=tenant, id=member.id, act=people.act())
        for _ in range(2):
            assert await people.store.run(remove) == member
        with pytest.raises(MemberNotFound):
            await people.members.remove(tenant, member.id, act=people.act())
    acts = await people.acts(tenant)
    assert [entry.action for entry in acts] == ["member.removed"] * 2 + ["member.put"] * 2
    assert [seen(entry.before) for entry in acts] == [built(members[1]), built(members[0]), None, None]


async def test_a_repeated_creation_of_a_link_creates_one(people: PeopleFixture) -> None:
    soon = people.bench.clock.micros() + MICROS
    command = BeginLogin(digest=b"link", expires_at=soon, next_page="/jobs", is_link=True, act=people.act())
    for _ in range(2):
        await people.store.run(command)
    assert len(await people.acts()) == 1
    assert await people.store.run(ConsumeLogin(digest=b"link", is_link=True)) == "/jobs"
    assert await people.store.run(ConsumeLogin(digest=b"link", is_link=True)) is None


async def test_a_repeated_change_of_groups_keeps_them(people: PeopleFixture) -> None:
    made = await people.bench.tenants.create("made", groups={"a": "viewer"})
    for _ in range(2):
        assert (await people.bench.tenants.change(made.id, groups={"b": "admin"})).groups == {"b": "admin"}


# -- overlapping calls --------------------------------------------------------------------------------------


class OpenTransaction:
    """A connection whose transaction is committed at the end of the block."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def call(self, statement: str, *values: Any) -> list[Record]:
        """Like `Database.call`, in the open transaction."""
        rows: list[Record] = await self._connection.fetch(statement, *values)
        return rows


@asynccontextmanager
async def open_transaction(people: PeopleFixture) -> AsyncIterator[Context]:
    assert isinstance(people.store, PostgresStore)
    async with people.store.database.pool.acquire() as connection:
        await connection.fetch("SELECT 1")  # The first statement sets the clock of the test.
        async with connection.transaction():
            yield Context(OpenTransaction(connection), people.store.lane_cache)  # type: ignore[arg-type]


async def wait_for_blocked_calls(people: PeopleFixture, calls: int) -> None:
    """Wait until this many calls wait for a lock."""
    assert isinstance(people.store, PostgresStore)
    database = people.store.database

    async def all_wait() -> bool:
        return bool((await database.call(ARE_BLOCKED, calls))[0][0])

    await eventually(all_wait)


async def test_a_user_being_disabled_gets_no_session_and_no_token(people: PeopleFixture) -> None:
    ann = await people.sign_in()
    async with open_transaction(people) as first:
        await people_rows.set_user_enabled(first, SetUserEnabled(id=ann.id, enabled=False, act=people.act()))
        later = [
            asyncio.create_task(people.sign_in("ann", b"late")),
            asyncio.create_task(people.text_of_token(ann)),
        ]
        await wait_for_blocked_calls(people, 2)
    refused = await asyncio.gather(*later, return_exceptions=True)
    assert [type(error) for error in refused] == [SignInRefused, UserNotFound]
    assert await people.store.run(FindSession(digest=b"late")) is None
    assert await people.store.run(ListUserTokens(user=ann.id, before=None, limit=10)) == []


async def test_a_disable_ends_uncommitted_sessions_and_tokens(
    people: PeopleFixture,
) -> None:
    ann = await people.sign_in()
    token = token_of(ann, people.bench.tenant)
    async with open_transaction(people) as first:
        await credentials.create_token(first, CreateToken(token=token, digest=b"digest", act=Act()))
        await people_rows.sign_in(first, people.signing_in(person(), b"early"))
        later = asyncio.create_task(people.users.enable(ann.id, enabled=False, act=people.act()))
        await wait_for_blocked_calls(people, 1)
    assert not (await later).enabled
    await people.users.enable(ann.id, enabled=True, act=people.act())
    assert await people.store.run(FindSession(digest=b"early")) is None
    assert not await people.holds(token.id)


async def test_a_role_changed_while_its_invitation_is_accepted_is_that_of_the_member(people: PeopleFixture) -> None:
    tenant, ann = people.bench.tenant, await people.sign_in()
    invited = await people.members.put(tenant, role="member", user=ann.id, act=people.act())
    async with open_transaction(people) as first:
        await people_rows.accept_invitation(first, AcceptInvitation(id=invited.id, user=ann.id, act=people.act()))
        later = asyncio.create_task(people.members.put(tenant, role="viewer", user=ann.id, act=people.act()))
        await wait_for_blocked_calls(people, 1)
    member = await later
    assert (member.id, member.role, member.invited) == (ann.id, "viewer", False)


@pytest.mark.parametrize("call", ["change", "remove", "leave"])
async def test_a_member_who_leaves_at_the_same_time_is_not_found(people: PeopleFixture, call: str) -> None:
    tenant, ann = people.bench.tenant, await people.sign_in()
    invited = await people.members.put(tenant, role="member", user=ann.id, act=people.act())
    await people.members.accept(invited.id, user=ann.id, act=people.act())
    calls = {
        "change": ChangeMember(tenant=tenant, id=ann.id, role="viewer", act=people.act()),
        "remove": RemoveMember(tenant=tenant, id=ann.id, act=people.act()),
        "leave": LeaveTenant(tenant=tenant, user=ann.id, act=people.act()),
    }
    async with open_transaction(people) as first:
        await people_rows.leave_tenant(first, LeaveTenant(tenant=tenant, user=ann.id, act=people.act()))
        later = asyncio.ensure_future(people.store.run(calls[call]))
        await wait_for_blocked_calls(people, 1)
    with pytest.raises(MemberNotFound):
        await later
    assert [entry.action for entry in await people.acts(tenant)].count("member.left") == 1
