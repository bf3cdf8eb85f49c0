"""Invitations: nobody becomes a member without accepting, and no session acts in another tenant than before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ingot.identity.credential_service import Credentials
from ingot.identity.credentials import PERSON_TOKENS_MAX, TooManyTokens
from ingot.identity.people import (
    INVITATION_MICROS,
    INVITATIONS_MAX,
    InvitationNotFound,
    Member,
    MemberNotFound,
    TooManyInvitations,
    User,
)
from ingot.identity.ports import ChooseTenant, LeaveTenant
from ingot.kernel.clock import MICROS
from ingot.kernel.ids import new_id
from tests.conformance.people_fixture import PeopleFixture, built, person, seen
from tests.factories import Bench


@pytest.fixture
def people(bench: Bench) -> PeopleFixture:
    return PeopleFixture(bench)


async def invite(people: PeopleFixture, tenant: str | None = None, **target: Any) -> Member:
    return await people.members.put(tenant or people.bench.tenant, act=people.act(), **{"role": "member", **target})


async def tenant_of(people: PeopleFixture, digest: bytes) -> str | None:
    """The tenant in which a session acts."""
    return (await people.session(digest)).session.tenant


# -- accepting ----------------------------------------------------------------------------------------------


async def test_an_invitation_grants_nothing_before_it_is_accepted(people: PeopleFixture) -> None:
    ann = await people.sign_in("ann", b"before")
    by_email, by_id = await invite(people, email="Ann@Example.com"), await invite(people, user=ann.id, role="admin")
    assert await people.roles(ann) == {}
    await people.sign_in("ann", b"after")
    assert await people.roles(ann) == {}
    listed = await people.members.invitations(ann.id)
    assert [(one.id, one.tenant, one.slug, one.role) for one in listed] == [
        (by_email.id, people.bench.tenant, "default", "member"),
        (by_id.id, people.bench.tenant, "default", "admin"),
    ]
    member = await people.accept(ann, by_email)
    assert (member.id, member.role, member.invited) == (ann.id, "member", False)
    assert await people.roles(ann) == {"default": "member"}
    entry = await people.last_act(people.bench.tenant)
    assert (entry.action, entry.target) == ("invitation.accepted", f"member/{ann.id}")
    assert (seen(entry.before), seen(entry.after)) == (None, built(member))
    with pytest.raises(InvitationNotFound):
        await people.accept(ann, by_email)
    assert [one.id for one in await people.members.invitations(ann.id)] == [by_id.id]


async def test_an_invitation_by_id_shows_nothing_about_the_person(people: PeopleFixture) -> None:
    ann = await people.sign_in("ann", name="Ann", picture="https://example.com/a.png")
    known, unknown = await invite(people, user=ann.id), await invite(people, user=new_id())
    for invited in (known, unknown, await people.members.get(people.bench.tenant, known.id)):
        assert (invited.email, invited.name, invited.picture, invited.invited) == (None, None, None, True)
    entries = await people.acts(people.bench.tenant)
    assert "ann@example.com" not in repr(entries)


async def test_only_the_invited_person_can_answer_an_invitation(people: PeopleFixture) -> None:
    ann, eve = await people.sign_in("ann"), await people.sign_in("eve")
    liar = await people.sign_in("liar", email="ann@example.com", email_verified=False)
    invitations = [await invite(people, email="ann@example.com"), await invite(people, user=ann.id)]
    acts = await people.acts()
    for invited in invitations:
        for somebody in (eve, liar):
            assert await people.members.invitations(somebody.id) == []
            with pytest.raises(InvitationNotFound):
                await people.accept(somebody, invited)
            with pytest.raises(InvitationNotFound):
                await people.members.decline(invited.id, user=somebody.id, act=people.act())
    for unknown in (new_id(), "nothing", ann.id):
        with pytest.raises(InvitationNotFound):
            await people.members.accept(unknown, user=ann.id, act=people.act())
    assert await people.acts() == acts


async def test_an_invitation_expires_and_is_renewed_by_another(people: PeopleFixture) -> None:
    ann = await people.sign_in("ann")
    first = await invite(people, email="ann@example.com")
    people.bench.clock.advance(seconds=INVITATION_MICROS / MICROS - 10)
    renewed = await invite(people, email="ann@example.com", role="viewer")
    assert (renewed.id, renewed.role) == (first.id, "viewer")
    people.bench.clock.advance(seconds=INVITATION_MICROS / MICROS - 1)
    assert len(await people.members.invitations(ann.id)) == 1
    people.bench.clock.advance(seconds=1)
    assert await people.members.invitations(ann.id) == []
    assert (await people.members.list(people.bench.tenant)).items == []
    with pytest.raises(InvitationNotFound):
        await people.accept(ann, renewed)
    with pytest.raises(MemberNotFound):
        await people.members.change(people.bench.tenant, renewed.id, role="admin", act=people.act())


async def test_a_declined_invitation_is_removed_and_names_nobody(people: PeopleFixture) -> None:
    ann = await people.sign_in("ann")
    invited = await invite(people, email="ann@example.com")
    await people.members.decline(invited.id, user=ann.id, act=people.act())
    assert await people.members.invitations(ann.id) == []
    entry = await people.last_act(people.bench.tenant)
    assert (entry.action, entry.who, entry.name, entry.address) == (
        "invitation.declined",
        f"invitation:{invited.id}",
        None,
        None,
    )
    assert ann.id not in repr(entry)
    assert (seen(entry.before), seen(entry.after)) == (built(invited), None)
    with pytest.raises(InvitationNotFound):
        await people.accept(ann, invited)


async def test_an_invitation_is_accepted_or_revoked_and_never_both(people: PeopleFixture) -> None:
    for number in range(5):
        user = await people.sign_in(f"p{number}")
        invited = await invite(people, user=user.id)
        outcomes = await asyncio.gather(
            people.accept(user, invited),
            people.members.remove(people.bench.tenant, invited.id, act=people.act()),
            return_exceptions=True,
        )
        assert sum(isinstance(outcome, Member) for outcome in outcomes) == 1, outcomes
        assert (await people.roles(user) == {"default": "member"}) == isinstance(outcomes[0], Member)


async def test_a_refused_or_disabled_person_accepts_nothing(people: PeopleFixture) -> None:
    ann = await people.sign_in("ann")
    invited = await invite(people, email="ann@example.com")
    await people.users.enable(ann.id, enabled=False, act=people.act())
    with pytest.raises(InvitationNotFound):
        await people.accept(ann, invited)
    assert await people.roles(ann) == {}


async def test_the_invitations_of_a_tenant_are_limited(people: PeopleFixture) -> None:
    outcomes = await asyncio.gather(
        *(invite(people, email=f"p{number}@example.com") for number in range(INVITATIONS_MAX + 5)),
        return_exceptions=True,
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert [type(outcome) for outcome in refused] == [TooManyInvitations] * 5
    assert len((await people.members.list(people.bench.tenant, limit=200)).items) == 200
    pending = next(outcome for outcome in outcomes if isinstance(outcome, Member))
    renewed = await invite(people, email=pending.email, role="viewer")
    assert renewed.id == pending.id, "a renewed invitation is not a further one"
    other = (await people.bench.tenants.create("other")).id
    await invite(people, other, email="last@example.com")
    people.bench.clock.advance(seconds=INVITATION_MICROS / MICROS)
    await invite(people, email="last@example.com")


# -- leaving ------------------------------------------------------------------------------------------------


async def leave(people: PeopleFixture, user: User, tenant: str | None = None) -> Member:
    command = LeaveTenant(tenant=tenant or people.bench.tenant, user=user.id, act=people.act())
    return await people.store.run(command)


async def test_a_person_leaves_a_tenant_with_their_tokens(people: PeopleFixture) -> None:
    other = (await people.bench.tenants.create("other")).id
    ann = await people.sign_in("ann")
    await people.join(ann, "member")
    await people.join(ann, "admin", other)
    own, elsewhere = await people.token(ann), await people.token(ann, other)
    left = await leave(people, ann)
    assert (left.id, left.role, await people.roles(ann)) == (ann.id, "member", {"other": "admin"})
    assert (await people.holds(own), await people.holds(elsewhere)) == (False, True)
    entry = await people.last_act(people.bench.tenant)
    assert (entry.action, entry.target, seen(entry.before)) == ("member.left", f"member/{ann.id}", built(left))
    with pytest.raises(MemberNotFound):
        await leave(people, ann)


async def test_a_role_by_group_ends_when_the_person_leaves_and_returns_with_an_invitation(
    people: PeopleFixture,
) -> None:
    tenant = people.bench.tenant
    await people.bench.tenants.change(tenant, groups={"staff": "member"})
    ann, bob = await people.sign_in("ann", groups=("staff",)), await people.sign_in("bob", groups=("staff",))
    token = await people.token(ann)
    await leave(people, ann)
    await people.sign_in("ann", groups=("staff",))
    await people.bench.tenants.change(tenant, groups={"staff": "admin"})
    assert (await people.roles(ann), await people.roles(bob)) == ({}, {"default": "admin"})
    assert not await people.holds(token)
    assert [one.id for one in (await people.members.list(tenant)).items] == [bob.id]
    with pytest.raises(MemberNotFound):
        await people.members.get(tenant, ann.id)
    await people.accept(ann, await invite(people, user=ann.id, role="viewer"))
    assert await people.roles(ann) == {"default": "admin"}


# -- the tenant of a session --------------------------------------------------------------------------------


async def test_a_new_role_does_not_change_the_tenant_of_a_session(people: PeopleFixture) -> None:
    tenant, other = people.bench.tenant, (await people.bench.tenants.create("other")).id
    ann = await people.sign_in("ann")
    await people.join(ann, "member")
    await people.sign_in("ann", b"one")
    assert await tenant_of(people, b"one") == tenant
    await people.join(ann, "admin", other)
    assert await tenant_of(people, b"one") == tenant
    await people.store.run(people.signing_in(person("ann"), b"renewed", replaced_digest=b"one"))
    await people.sign_in("ann", b"two")
    assert [await tenant_of(people, digest) for digest in (b"renewed", b"two")] == [tenant, tenant]
    await people.members.remove(tenant, ann.id, act=people.act())
    await people.sign_in("ann", b"three")
    assert [await tenant_of(people, digest) for digest in (b"renewed", b"two", b"three")] == [tenant] * 3
    assert await people.roles(ann) == {"other": "admin"}


async def test_the_first_sign_in_with_one_tenant_chooses_it_and_with_several_none(people: PeopleFixture) -> None:
    other = (await people.bench.tenants.create("other", groups={"both": "viewer", "one": "viewer"})).id
    await people.bench.tenants.change(people.bench.tenant, groups={"both": "viewer"})
    await people.sign_in("one", b"one", groups=("one",))
    await people.sign_in("both", b"both", groups=("both",))
    await people.sign_in("none", b"none")
    assert [await tenant_of(people, digest) for digest in (b"one", b"both", b"none")] == [other, None, None]


async def test_a_renewed_session_without_a_tenant_chooses_none(people: PeopleFixture) -> None:
    """Otherwise another tenant could map a group of the person, and wait for the renewal."""
    await people.sign_in("ann", b"old", groups=("staff",))
    await people.bench.tenants.change(people.bench.tenant, groups={"staff": "viewer"})
    await people.store.run(people.signing_in(person("ann", groups=("staff",)), b"new", replaced_digest=b"old"))
    assert await tenant_of(people, b"new") is None
    await people.store.run(people.signing_in(person("bob", groups=("staff",)), b"of bob", replaced_digest=b"new"))
    assert await tenant_of(people, b"of bob") == people.bench.tenant, "the session of another person is not continued"


async def test_a_choice_applies_to_its_session_and_to_later_ones(people: PeopleFixture) -> None:
    other = (await people.bench.tenants.create("other")).id
    ann, bob = await people.sign_in("ann"), await people.sign_in("bob", b"of bob")
    await people.join(ann, "member")
    await people.join(ann, "member", other)
    await people.sign_in("ann", b"one")
    await people.sign_in("ann", b"two")
    assert await tenant_of(people, b"one") is None
    one, of_bob = (await people.session(b"one")).session, (await people.session(b"of bob")).session
    await people.store.run(ChooseTenant(session=one.id, user=ann.id, tenant=other))
    await people.store.run(ChooseTenant(session=of_bob.id, user=ann.id, tenant=other))
    await people.sign_in("ann", b"three")
    tenants = [await tenant_of(people, digest) for digest in (b"one", b"two", b"three", b"of bob")]
    assert tenants == [other, None, other, None], bob.id


# -- tokens -------------------------------------------------------------------------------------------------


async def test_the_valid_tokens_of_a_person_are_limited(people: PeopleFixture) -> None:
    other = (await people.bench.tenants.create("other")).id
    ann, bob = await people.sign_in("ann"), await people.sign_in("bob")
    tokens = [await people.token(ann, other if number % 2 else None) for number in range(PERSON_TOKENS_MAX)]
    for tenant in (None, other):
        with pytest.raises(TooManyTokens):
            await people.token(ann, tenant)
    await people.token(bob)
    service = Credentials(people.store, people.access, people.bench.clock)
    await service.revoke_token(None, tokens[-1])
    await people.token(ann)
    with pytest.raises(TooManyTokens):
        await people.token(ann)
