"""Members: the highest role counts, wherever it comes from, and what was given can be taken."""

from __future__ import annotations

from typing import Any

import pytest

from ingot.identity.model import TenantNotFound
from ingot.identity.people import Member, MemberByGroup, MemberNotFound, RoleSource, UserNotFound
from ingot.identity.tenants import GROUP_CHARS_MAX, GROUPS_MAX
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from ingot.kernel.pages import InvalidCursor
from tests.conformance.people_fixture import ACT, PeopleFixture, built, seen
from tests.factories import Bench


@pytest.fixture
def people(bench: Bench) -> PeopleFixture:
    return PeopleFixture(bench)


async def listed(people: PeopleFixture, tenant: str | None = None, limit: int = 50) -> list[Member]:
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


async def test_the_highest_role_in_each_tenant_counts(people: PeopleFixture) -> None:
    for slug, groups in (("a", {"g": "admin", "h": "viewer"}), ("b", {"g": "viewer"}), ("c", {"other": "admin"})):
        await people.bench.tenants.create(slug, groups=groups)  # type: ignore[arg-type]
    ann = await people.sign_in(groups=("g", "h"))
    a, b, default = [(await people.bench.tenants.get(slug)).id for slug in ("a", "b", "default")]
    await people.members.put(a, role="viewer", user=ann.id, act=people.act())
    await people.members.put(b, role="member", email="ann@example.com", act=people.act())
    await people.members.put(default, role="member", user=ann.id, act=people.act())
    assert await people.roles(ann) == {"a": "admin", "b": "member", "default": "member"}
    roles = (await people.users.get(ann.id)).roles
    assert [(role.tenant, role.slug) for role in roles] == [(a, "a"), (b, "b"), (default, "default")]


async def test_a_role_by_a_group_goes_with_the_group(people: PeopleFixture) -> None:
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


async def test_an_invitation_works_at_once_for_who_has_signed_in_before(people: PeopleFixture) -> None:
    ann = await people.sign_in("ann", email="Ann@Example.com")
    bob = await people.sign_in("bob", email="bob@example.com", email_verified=False)
    for email in ("aNN@example.com", "bob@example.com"):
        await people.members.put(people.bench.tenant, role="member", email=email, act=people.act())
    assert (await people.roles(ann), await people.roles(bob)) == ({"default": "member"}, {})


async def test_what_changes_nothing_is_not_on_record(people: PeopleFixture) -> None:
    tenant, ann = people.bench.tenant, await people.sign_in()
    await people.members.put(tenant, role="viewer", user=ann.id, act=people.act())
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


# -- giving -------------------------------------------------------------------------------------------------


async def test_a_person_gets_a_role_and_another_and_both_are_on_record(people: PeopleFixture) -> None:
    tenant = people.bench.tenant
    ann = await people.sign_in(name="Ann", picture="https://example.com/a.png")
    first = await people.members.put(tenant, role="viewer", user=ann.id, act=people.act())
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
    after, before = await people.acts(tenant)
    for entry in (after, before):
        assert (entry.action, entry.target, entry.tenant) == ("member.put", f"member/{ann.id}", tenant)
        assert {name: getattr(entry, name) for name in ACT} == ACT
    assert (seen(before.before), seen(before.after)) == (None, built(first))
    assert (seen(after.before), seen(after.after)) == (built(first), built(second))


async def test_an_invitation_has_one_row_for_an_email(people: PeopleFixture) -> None:
    tenant = people.bench.tenant
    first = await people.members.put(tenant, role="viewer", email="New@Example.com", act=people.act())
    assert first == Member(
        id=first.id, role="viewer", sources=(RoleSource(role="viewer"),), email="new@example.com", invited=True
    )
    second = await people.members.put(tenant, role="member", email="new@example.com", act=people.act())
    third = await people.members.change(tenant, first.id, role="admin", act=people.act())
    assert [(one.id, one.role) for one in (second, third)] == [(first.id, "member"), (first.id, "admin")]
    assert await listed(people) == [third]
    entry = await people.last_act(tenant)
    assert (entry.target, seen(entry.before), seen(entry.after)) == (f"member/{first.id}", built(second), built(third))


async def test_a_role_given_to_a_person_is_instead_of_their_invitation(people: PeopleFixture) -> None:
    tenant = people.bench.tenant
    ann = await people.sign_in()
    await people.members.put(tenant, role="admin", email="ann@example.com", act=people.act())
    await people.members.put(tenant, role="viewer", user=ann.id, act=people.act())
    assert await people.roles(ann) == {"default": "viewer"}
    assert [one.id for one in await listed(people)] == [ann.id]


async def test_who_has_a_role_by_a_group_can_have_one_of_their_own_too(people: PeopleFixture) -> None:
    tenant = people.bench.tenant
    await people.bench.tenants.change(tenant, groups={"g": "member", "f": "viewer"})
    ann = await people.sign_in(groups=("g", "f", "x"))
    by_group = (RoleSource(role="viewer", group="f"), RoleSource(role="member", group="g"))
    assert (await people.members.get(tenant, ann.id)).sources == by_group
    both = await people.members.put(tenant, role="admin", user=ann.id, act=people.act())
    assert (both.role, both.sources) == ("admin", (RoleSource(role="admin"), *by_group))
    assert seen((await people.last_act(tenant)).after) == built(both)


async def test_what_cannot_be_given_is_refused_and_changes_nothing(people: PeopleFixture) -> None:
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
    for given in wrong:
        with pytest.raises(InvalidInput):
            await people.members.put(tenant, act=people.act(), **{"role": "viewer", **given})
    for user in (new_id(), "ann"):
        with pytest.raises(UserNotFound):
            await people.members.put(tenant, role="viewer", user=user, act=people.act())
    with pytest.raises(MemberNotFound):
        await people.members.change(tenant, ann.id, role="viewer", act=people.act())
    assert await listed(people) == []
    assert await people.acts(tenant) == []


@pytest.mark.parametrize("nowhere", ["00000000-0000-7000-8000-000000000000", "no id"])
async def test_a_tenant_that_is_not_there_has_no_members(people: PeopleFixture, nowhere: str) -> None:
    ann = await people.sign_in()
    with pytest.raises(TenantNotFound):
        await people.members.put(nowhere, role="viewer", user=ann.id, act=people.act())
    with pytest.raises(TenantNotFound):
        await people.members.put(nowhere, role="viewer", email="new@example.com", act=people.act())
    with pytest.raises(TenantNotFound):
        await people.members.remove(nowhere, ann.id, act=people.act())
    with pytest.raises(TenantNotFound):
        await people.members.list(nowhere)
    with pytest.raises(TenantNotFound):
        await people.members.get(nowhere, ann.id)


# -- taking -------------------------------------------------------------------------------------------------


async def test_who_is_removed_has_no_role_and_no_token_there_and_keeps_those_elsewhere(people: PeopleFixture) -> None:
    tenant, other = people.bench.tenant, (await people.bench.tenants.create("other")).id
    ann, bob = await people.sign_in("ann", b"digest"), await people.sign_in("bob")
    for where, user in ((tenant, ann), (other, ann), (tenant, bob)):
        await people.members.put(where, role="member", user=user.id, act=people.act())
    await people.members.put(tenant, role="viewer", email="ann@example.com", act=people.act())
    here, there, of_bob = await people.token(ann), await people.token(ann, other), await people.token(bob)
    removed = await people.members.remove(tenant, ann.id, act=people.act())
    assert (removed.id, removed.role) == (ann.id, "member")
    assert await people.roles(ann) == {"other": "member"}
    assert [await people.holds(token) for token in (here, there, of_bob)] == [False, True, True]
    assert [one.id for one in await listed(people)] == [bob.id]
    entry = await people.last_act(tenant)
    assert (entry.action, entry.target, entry.tenant) == ("member.removed", f"member/{ann.id}", tenant)
    assert (seen(entry.before), seen(entry.after)) == (built(removed), None)
    await people.session(b"digest")
    await people.sign_in("ann")
    assert await people.roles(ann) == {"other": "member"}


async def test_an_invitation_is_taken_back_with_the_tokens_it_allowed(people: PeopleFixture) -> None:
    tenant = people.bench.tenant
    ann, twin = await people.sign_in("ann"), await people.sign_in("twin", email="ann@example.com")
    await people.members.put(tenant, role="member", user=twin.id, act=people.act())
    invited = await people.members.put(tenant, role="member", email="ann@example.com", act=people.act())
    of_ann, of_twin = await people.token(ann), await people.token(twin)
    assert await people.members.remove(tenant, invited.id, act=people.act()) == invited
    assert (await people.roles(ann), await people.roles(twin)) == ({}, {"default": "member"})
    assert (await people.holds(of_ann), await people.holds(of_twin)) == (False, True)
    entry = await people.last_act(tenant)
    assert (entry.target, seen(entry.before), seen(entry.after)) == (f"member/{invited.id}", built(invited), None)
    await people.sign_in("ann")
    assert await people.roles(ann) == {}


async def test_a_role_by_a_group_cannot_be_taken_from_one_person(people: PeopleFixture) -> None:
    tenant = people.bench.tenant
    await people.bench.tenants.change(tenant, groups={"g": "viewer"})
    ann = await people.sign_in(groups=("g",))
    token = await people.token(ann)
    acts = await people.acts()
    with pytest.raises(MemberByGroup):
        await people.members.remove(tenant, ann.id, act=people.act())
    assert (await people.acts(), await people.holds(token)) == (acts, True)
    await people.members.put(tenant, role="admin", user=ann.id, act=people.act())
    await people.members.remove(tenant, ann.id, act=people.act())
    assert await people.roles(ann) == {"default": "viewer"}
    left = await people.members.get(tenant, ann.id)
    assert seen((await people.last_act(tenant)).after) == built(left)


async def test_nobody_cannot_be_removed(people: PeopleFixture) -> None:
    other = (await people.bench.tenants.create("other")).id
    ann = await people.sign_in()
    await people.members.put(other, role="member", user=ann.id, act=people.act())
    elsewhere = await people.members.put(other, role="member", email="new@example.com", act=people.act())
    for member_id in (ann.id, elsewhere.id, new_id(), "ann"):
        with pytest.raises(MemberNotFound):
            await people.members.remove(people.bench.tenant, member_id, act=people.act())
        with pytest.raises(MemberNotFound):
            await people.members.get(people.bench.tenant, member_id)
    assert await people.acts(people.bench.tenant) == []
    assert len(await listed(people, other)) == 2


# -- lists --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 3, 50])
async def test_everybody_is_listed_once_whatever_the_page(people: PeopleFixture, limit: int) -> None:
    tenant, other = people.bench.tenant, (await people.bench.tenants.create("other", groups={"b": "admin"})).id
    await people.bench.tenants.change(tenant, groups={"a": "viewer", "b": "member"})
    ids = []
    for number, groups in enumerate([("a",), ("a", "b"), (), ("b",), ("a", "b"), (), ("a",)]):
        user = await people.sign_in(f"p{number}", groups=groups)
        if number % 2:
            await people.members.put(tenant, role="viewer", user=user.id, act=people.act())
        if groups or number % 2:
            ids.append(user.id)
        invited = await people.members.put(tenant, role="viewer", email=f"new{number}@example.com", act=people.act())
        ids.append(invited.id)
    await people.members.put(other, role="viewer", email="new@example.com", act=people.act())
    members = await listed(people, limit=limit)
    assert [one.id for one in members] == sorted(ids)
    assert members == [await people.members.get(tenant, one.id) for one in members]


async def test_a_cursor_of_one_tenant_does_not_fit_another(people: PeopleFixture) -> None:
    other = (await people.bench.tenants.create("other")).id
    for number in range(2):
        await people.members.put(people.bench.tenant, role="viewer", email=f"n{number}@example.com", act=people.act())
    page = await people.members.list(people.bench.tenant, limit=1)
    with pytest.raises(InvalidCursor):
        await people.members.list(other, cursor=page.next_cursor)


# -- groups of tenants --------------------------------------------------------------------------------------


async def test_a_tenant_keeps_its_groups_until_others_are_given(people: PeopleFixture) -> None:
    tenants = people.bench.tenants
    made = await tenants.create("made", groups={"a": "admin", 'b "quoted" ☃': "viewer"})
    assert made.groups == {"a": "admin", 'b "quoted" ☃': "viewer"}
    assert await tenants.get("made") == made
    changed = await tenants.change("made", weight=3)
    assert (changed.weight, changed.groups) == (3, made.groups)
    changed = await tenants.change("made", groups={"c": "member"})
    assert (changed.weight, changed.groups) == (3, {"c": "member"})
    assert [tenant.groups for tenant in await tenants.list()] == [{}, {"c": "member"}]
    assert (await tenants.change("made", groups={})).groups == {}
    assert (await tenants.get("made")).groups == {}


async def test_groups_that_cannot_be_kept_are_refused(people: PeopleFixture) -> None:
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
