"""A command about people that is sent again, after its answer was lost, finds what it did."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ingot.identity.people import MemberNotFound
from ingot.identity.ports import BeginLogin, EnableUser, EndSession, PutMember, RemoveMember, TakeLogin
from ingot.kernel.clock import MICROS
from ingot.kernel.ids import new_id
from tests.conformance.folk import Folk, built, person, seen
from tests.factories import open_bench


@pytest.fixture
async def folk(tmp_path: Path) -> AsyncIterator[Folk]:
    async with open_bench("postgres", tmp_path / "data") as bench:
        yield Folk(bench)


async def test_a_sign_in_sent_twice_makes_one_person_and_one_session(folk: Folk) -> None:
    invited = await folk.members.put(folk.bench.tenant, role="member", email="ann@example.com", act=folk.act())
    command = folk.signing_in(person(groups=("a",)))
    user = await folk.store.sign_in(command)
    assert await folk.store.sign_in(command) == user
    assert len(await folk.users.sessions(user.id)) == 1
    assert [entry.action for entry in await folk.acts()] == ["session.created", "member.put"]
    assert await folk.roles(user) == {"default": "member"}
    assert await folk.store.find_member(folk.bench.tenant, invited.id) is None


async def test_a_session_ended_twice_by_one_command_is_ended(folk: Folk) -> None:
    ann = await folk.sign_in("ann", b"digest")
    session = (await folk.session(b"digest")).session
    command = EndSession(id=session.id, user=ann.id, act=folk.act())
    for _ in range(2):
        await folk.store.end_session(command)
    assert [entry.action for entry in await folk.acts()] == ["session.ended", "session.created"]


async def test_a_person_let_out_twice_by_one_command_was_let_in_before(folk: Folk) -> None:
    ann = await folk.sign_in()
    command = EnableUser(id=ann.id, enabled=False, act=folk.act())
    after = await folk.store.enable_user(command)
    assert await folk.store.enable_user(command) == after
    entry = await folk.last_act()
    assert (seen(entry.before), seen(entry.after)) == (built(ann), built(after))
    assert len(await folk.acts()) == 2


async def test_a_role_given_or_taken_twice_by_one_command_is_on_record_once(folk: Folk) -> None:
    tenant = folk.bench.tenant
    ann = await folk.sign_in()
    given = PutMember(tenant=tenant, role="member", user=ann.id, invitation=new_id(), act=folk.act())
    invited = PutMember(tenant=tenant, role="member", email="new@example.com", invitation=new_id(), act=folk.act())
    members = [await folk.store.put_member(command) for command in (given, invited, given, invited)]
    assert members[:2] == members[2:]
    for member in members[:2]:
        taken = RemoveMember(tenant=tenant, id=member.id, act=folk.act())
        for _ in range(2):
            assert await folk.store.remove_member(taken) == member
        with pytest.raises(MemberNotFound):
            await folk.members.remove(tenant, member.id, act=folk.act())
    acts = await folk.acts(tenant)
    assert [entry.action for entry in acts] == ["member.removed"] * 2 + ["member.put"] * 2
    assert [seen(entry.before) for entry in acts] == [built(members[1]), built(members[0]), None, None]


async def test_a_link_made_twice_by_one_command_is_one(folk: Folk) -> None:
    soon = folk.bench.clock.micros() + MICROS
    command = BeginLogin(digest=b"link", expires_at=soon, next="/jobs", link=True, act=folk.act())
    for _ in range(2):
        await folk.store.begin_login(command)
    assert len(await folk.acts()) == 1
    assert await folk.store.take_login(TakeLogin(digest=b"link", link=True)) == "/jobs"
    assert await folk.store.take_login(TakeLogin(digest=b"link", link=True)) is None


async def test_a_tenant_made_or_changed_twice_keeps_its_groups(folk: Folk) -> None:
    made = await folk.bench.tenants.create("made", groups={"a": "viewer"})
    for _ in range(2):
        assert (await folk.bench.tenants.change(made.id, groups={"b": "admin"})).groups == {"b": "admin"}
