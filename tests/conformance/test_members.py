"""Members: the highest role counts, whatever its source, and roles can be revoked."""

from __future__ import annotations

from typing import Any

import pytest

from ingot.identity.model import TenantNotFound
from ingot.identity.people import (
    INVITATION_MICROS,
    InvitationNotFound,
    Member,
    MemberByGroup,
    MemberNotFound,
    RoleSource,
    UserNotFound,
)
from ingot.identity.tenants import GROUP_CHARS_MAX, GROUPS_MAX
from ingot.kernel.clock import to_datetime
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from ingot.kernel.pages import InvalidCursor
from tests.conformance.people_fixture import ACT, PeopleFixture, built, seen
from tests.factories import Bench


@pytest.fixture
def people(bench: Bench) -> PeopleFixture:
    return PeopleFixture(bench)


async def list_members(people: PeopleFixture, tenant: str | None = None, limit: int = 50) -> list[Member]:
    """All members, page by page."""
    found: list[Member] = []
    cursor = None
    while True:
        page = await people.members.list(tenant or people.bench.tenant, cursor=cursor, limit=limit)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return found


# -- roles --------------------------------------------------------------------------------------------------


async def test_a_person_has_the_highest_of_their_roles_in_each_tenant(people: PeopleFixture) -> None:
    for slug, groups in (("a", {"g": "admin", "h": "viewer"}), ("b", {"g": "viewer"}), ("c", {"other": "admin"})):
        await people.bench.tenants.create(slug, groups=groups)  # type: ignore[arg-type]
    ann = await people.sign_in(groups=("g", "h"))
    a, b, default = [(await people.bench.tenants.get(slug)).id for slug in ("a", "b", "default")]
    await people.join(ann, "viewer", a)
    await people.accept(ann, await people.members.put(b, role="member", email="ann@example.com", act=people.act()))
    await people.join(ann, "member", default)
    assert await people.roles(ann) == {"a": "admin", "b": "member", "default": "member"}
    roles = (await people.users.get(ann.id)).roles
    assert [(role.tenant, role.slug) for role in roles] == [(a, "a"), (b, "b"), (default, "default")]


async def test_a_role_by_group_ends_when_the_group_ends(people: PeopleFixture) -> None:
    tenant = people.bench.tenant
    await people.bench.tenants.change(tenant, groups={"g": "member"})
    ann = await people.sign_in("ann", b"digest", groups=("g",))
    assert [role.role for role in (await people.session(b"digest")).owner.roles] == ["member"]
    await people.bench.tenants.change(tenant, groups={"h": "member"})
    assert (await people.session(b"digest")).owner.roles == ()
    await people.bench.tenants.change(tenant, groups={"g": "viewer"})
    assert await people.roles(ann) == {"default": "viewer"}
    await people.sign_in("ann", groups=("h",))
    assert await people.roles(ann) == {}


async def test_a_member_change_without_effect_is_not_recorded(people: PeopleFixture) -> None:
    tenant, ann = people.bench.tenant, await people.sign_in()
    await people.join(ann, "viewer")
    await people.members.put(tenant, role="viewer", email="bob@example.com", act=people.act())
    await people.users.enable(ann.id, enabled=False, act=people.act())
    acts = await people.acts()
    await people.members.put(tenant, role="viewer", user=ann.id, act=people.act())
    await people.members.change(tenant, ann.id, role="viewer", act=people.act())
    await people.members.put(tenant, role="viewer", email="Bob@example.com", act=people.act())
    await people.users.enable(ann.id, enabled=False, act=people.act())
    assert await people.acts() == acts
    await people.users.enable(ann.id, enabled=True, act=people.act())
    acts = await people.acts()
    await people.users.enable(ann.id, enabled=True, act=people.act())
    assert await people.acts() == acts


# -- granting roles -----------------------------------------------------------------------------------------


async def test_a_granted_and_a_changed_role_are_both_recorded(people: PeopleFixture) -> None:
    tenant = people.bench.tenant
    ann = await people.sign_in(name="Ann", picture="https://example.com/a.png")
    first = await people.join(ann, "viewer")
    assert first == Member(
        id=ann.id,
        role="viewer",
        sources=(RoleSource(role="viewer"),),
        user=ann.id,
        email="ann@example.com",
        name="Ann",
        picture="https://example.com/a.png",
    )
    second = await people.members.change(tenant, ann.id, role="admin", act=people.act())
    assert (second.role, second.sources) == ("admin", (RoleSource(role="admin"),))
    assert await people.members.get(tenant, ann.id) == second
    after, before, invited = await people.acts(tenant)
    assert (invited.action, seen(invited.after)["user"], seen(invited.after)["email"]) == ("member.put", ann.id, None)
    for entry, action in ((after, "member.put"), (before, "invitation.accepted")):
        assert (entry.action, entry.target, entry.tenant) == (action, f"member/{ann.id}", tenant)
        assert {name: getattr(entry, name) for name in ACT} == ACT
    assert (seen(before.before), seen(before.after)) == (None, built(first))
    assert (seen(after.before), seen(after.after)) == (built(first), built(second))


async def test_repeated_invitations_of_an_email_update_one_member(people: PeopleFixture) -> None:
    tenant = people.bench.tenant
    first = await people.members.put(tenant, role="viewer", email="New@Example.com", act=people.act())
    assert first == Member(
        id=first.id,
        role="viewer",
        sources=(RoleSource(role="viewer"),),
        email="new@example.com",
        invited=True,
        expires_at=to_datetime(people.bench.clock.micros() + INVITATION_MICROS),
    )
    second = await people.members.put(tenant, role="member", email="new@example.com", act=people.act())
    third = await people.members.change(tenant, first.id, role="admin", act=people.act())
    assert [(one.id, one.role) for one in (second, third)] == [(first.id, "member"), (first.id, "admin")]
    assert await list_members(people) == [third]
    entry = await people.last_act(tenant)
    assert (entry.target, seen(entry.before), seen(entry.after)) == (f"member/{first.id}", built(second), built(third))


async def test_a_person_with_a_role_by_group_can_have_a_personal_role_too(people: PeopleFixture) -> None:
    tenant = people.bench.tenant
    await people.bench.tenants.change(tenant, groups={"g": "member", "f": "viewer"})
    ann = await people.sign_in(groups=("g", "f", "x"))
    by_group = (RoleSource(role="viewer", group="f"), RoleSource(role="member", group="g"))
    assert (await people.members.get(tenant, ann.id)).sources == by_group
    with pytest.raises(MemberByGroup):
        await people.members.change(tenant, ann.id, role="admin", act=people.act())
    both = await people.join(ann, "admin")
    assert (both.role, both.sources) == ("admin", (RoleSource(role="admin"), *by_group))
    assert seen((await people.last_act(tenant)).after) == built(both)


async def test_invalid_members_are_refused_and_change_nothing(people: PeopleFixture) -> None:
    tenant = people.bench.tenant
    ann = await people.sign_in()
    emails = ("", "@", "a@", "@b", "a@b@c", "a b@c", "a\n@b", "a\x00@b", "\ud800@b", "x" * 250 + "@b.de", 5)
    wrong: list[dict[str, Any]] = [
        {},
        {"user": ann.id, "email": "ann@example.com"},
        {"user": ann.id, "role": "owner"},
        {"user": ann.id, "role": None},
        {"user": ann.id, "role": ["admin"]},
        *({"email": email} for email in emails),
    ]
    for values in wrong:
        with pytest.raises(InvalidInput):
            await people.members.put(tenant, act=people.act(), **{"role": "viewer", **values})
    with pytest.raises(UserNotFound):
        await people.members.put(tenant, role="viewer", user="ann", act=people.act())
    with pytest.raises(MemberNotFound):
        await people.members.change(tenant, ann.id, role="viewer", act=people.act())
    assert await list_members(people) == []
    assert await people.acts(tenant) == []


@pytest.mark.parametrize("missing_tenant", ["00000000-0000-7000-8000-000000000000", "no id"])
async def test_member_calls_for_a_missing_tenant_are_refused(people: PeopleFixture, missing_tenant: str) -> None:
    ann = await people.sign_in()
    with pytest.raises(TenantNotFound):
        await people.members.put(missing_tenant, role="viewer", user=ann.id, act=people.act())
    with pytest.raises(TenantNotFound):
        await people.members.put(missing_tenant, role="viewer", email="new@example.com", act=people.act())
    with pytest.raises(TenantNotFound):
        await people.members.remove(missing_tenant, ann.id, act=people.act())
    with pytest.raises(TenantNotFound):
        await people.members.list(missing_tenant)
    with pytest.raises(TenantNotFound):
        await people.members.get(missing_tenant, ann.id)


# -- revoking roles -----------------------------------------------------------------------------------------


async def test_a_removed_member_loses_role_and_tokens_only_in_that_tenant(people: PeopleFixture) -> None:
    tenant, other = people.bench.tenant, (await people.bench.tenants.create("other")).id
    ann, bob = await people.sign_in("ann", b"digest"), await people.sign_in("bob")
    for target, user in ((tenant, ann), (other, ann), (tenant, bob)):
        await people.join(user, "member", target)
    await people.members.put(tenant, role="viewer", email="ann@example.com", act=people.act())
    own_token, other_token, bobs_token = (
        await people.token(ann),
        await people.token(ann, other),
        await people.token(bob),
    )
    removed = await people.members.remove(tenant, ann.id, act=people.act())
    assert (removed.id, removed.role) == (ann.id, "member")
    assert await people.roles(ann) == {"other": "member"}
    assert [await people.holds(token) for token in (own_token, other_token, bobs_token)] == [False, True, True]
    assert [one.id for one in await list_members(people)] == [bob.id]
    entry = await people.last_act(tenant)
    assert (entry.action, entry.target, entry.tenant) == ("member.removed", f"member/{ann.id}", tenant)
    assert (seen(entry.before), seen(entry.after)) == (built(removed), None)
    await people.session(b"digest")
    await people.sign_in("ann")
    assert await people.roles(ann) == {"other": "member"}


async def test_a_revoked_invitation_cannot_be_accepted(people: PeopleFixture) -> None:
    tenant = people.bench.tenant
    ann = await people.sign_in("ann")
    invited = await people.members.put(tenant, role="member", email="ann@example.com", act=people.act())
    assert await people.members.remove(tenant, invited.id, act=people.act()) == invited
    entry = await people.last_act(tenant)
    assert (entry.target, seen(entry.before), seen(entry.after)) == (f"member/{invited.id}", built(invited), None)
    with pytest.raises(InvitationNotFound):
        await people.accept(ann, invited)
    assert await people.roles(ann) == {}


async def test_a_role_by_group_cannot_be_revoked_from_one_person(people: PeopleFixture) -> None:
    tenant = people.bench.tenant
    await people.bench.tenants.change(tenant, groups={"g": "viewer"})
    ann = await people.sign_in(groups=("g",))
    token = await people.token(ann)
    acts = await people.acts()
    with pytest.raises(MemberByGroup):
        await people.members.remove(tenant, ann.id, act=people.act())
    assert (await people.acts(), await people.holds(token)) == (acts, True)
    await people.join(ann, "admin")
    await people.members.remove(tenant, ann.id, act=people.act())
    assert await people.roles(ann) == {"default": "viewer"}
    left = await people.members.get(tenant, ann.id)
    assert seen((await people.last_act(tenant)).after) == built(left)


async def test_removing_an_unknown_member_is_refused(people: PeopleFixture) -> None:
    other = (await people.bench.tenants.create("other")).id
    ann = await people.sign_in()
    await people.join(ann, "member", other)
    other_invitation = await people.members.put(other, role="member", email="new@example.com", act=people.act())
    for member_id in (ann.id, other_invitation.id, new_id(), "ann"):
        with pytest.raises(MemberNotFound):
            await people.members.remove(people.bench.tenant, member_id, act=people.act())
        with pytest.raises(MemberNotFound):
            await people.members.get(people.bench.tenant, member_id)
    assert await people.acts(people.bench.tenant) == []
    assert len(await list_members(people, other)) == 2


# -- lists --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 3, 50])
async def test_every_member_is_listed_once_with_any_page_size(people: PeopleFixture, limit: int) -> None:
    tenant, other = people.bench.tenant, (await people.bench.tenants.create("other", groups={"b": "admin"})).id
    await people.bench.tenants.change(tenant, groups={"a": "viewer", "b": "member"})
    ids = []
    for number, groups in enumerate([("a",), ("a", "b"), (), ("b",), ("a", "b"), (), ("a",)]):
        user = await people.sign_in(f"p{number}", groups=groups)
        if number % 2:
            await people.join(user, "viewer")
        if groups or number % 2:
            ids.append(user.id)
        invited = await people.members.put(tenant, role="viewer", email=f"new{number}@example.com", act=people.act())
        ids.append(invited.id)
    await people.members.put(other, role="viewer", email="new@example.com", act=people.act())
    members = await list_members(people, limit=limit)
    assert [one.id for one in members] == sorted(ids)
    assert members == [await people.members.get(tenant, one.id) for one in members]


async def test_a_cursor_of_one_tenant_is_invalid_for_another(people: PeopleFixture) -> None:
    other = (await people.bench.tenants.create("other")).id
    for number in range(2):
        await people.members.put(people.bench.tenant, role="viewer", email=f"n{number}@example.com", act=people.act())
    page = await people.members.list(people.bench.tenant, limit=1)
    with pytest.raises(InvalidCursor):
        await people.members.list(other, cursor=page.next_cursor)


# -- groups of tenants --------------------------------------------------------------------------------------


async def test_a_tenant_keeps_its_groups_until_they_are_replaced(people: PeopleFixture) -> None:
    tenants = people.bench.tenants
    created = await tenants.create("made", groups={"a": "admin", 'b "quoted" ☃': "viewer"})
    assert created.groups == {"a": "admin", 'b "quoted" ☃': "viewer"}
    assert await tenants.get("made") == created
    changed = await tenants.change("made", weight=3)
    assert (changed.weight, changed.groups) == (3, created.groups)
    changed = await tenants.change("made", groups={"c": "member"})
    assert (changed.weight, changed.groups) == (3, {"c": "member"})
    assert [tenant.groups for tenant in await tenants.list()] == [{}, {"c": "member"}]
    assert (await tenants.change("made", groups={})).groups == {}
    assert (await tenants.get("made")).groups == {}


async def test_invalid_groups_are_refused(people: PeopleFixture) -> None:
    tenants = people.bench.tenants
    most = {f"g{number}": "viewer" for number in range(GROUPS_MAX)}
    wrong: list[Any] = [
        {"a": "owner"},
        {"a": None},
        {"": "viewer"},
        {"x" * (GROUP_CHARS_MAX + 1): "viewer"},
        {"a\x00": "viewer"},
        {"\ud800": "viewer"},
        {5: "viewer"},
        {**most, "more": "viewer"},
        ["a"],
        "a",
    ]
    for groups in wrong:
        with pytest.raises(InvalidInput):
            await tenants.create("made", groups=groups)
        with pytest.raises(InvalidInput):
            await tenants.change("default", groups=groups)
    assert [tenant.groups for tenant in await tenants.list()] == [{}]
    longest = {**most, "g0": "admin"}
    del longest["g1"]
    longest["x" * GROUP_CHARS_MAX] = "viewer"
    assert (await tenants.create("made", groups=longest)).groups == longest  # type: ignore[arg-type]
