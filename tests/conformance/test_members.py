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
from tests.conformance.folk import ACT, Folk, built, seen
from tests.factories import Bench


@pytest.fixture
def folk(bench: Bench) -> Folk:
    return Folk(bench)


async def listed(folk: Folk, tenant: str | None = None, limit: int = 50) -> list[Member]:
    """All members, page by page."""
    found: list[Member] = []
    cursor = None
    while True:
        page = await folk.members.list(tenant or folk.bench.tenant, cursor=cursor, limit=limit)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return found


# -- roles --------------------------------------------------------------------------------------------------


async def test_the_highest_role_in_each_tenant_counts(folk: Folk) -> None:
    for slug, groups in (("a", {"g": "admin", "h": "viewer"}), ("b", {"g": "viewer"}), ("c", {"other": "admin"})):
        await folk.bench.tenants.create(slug, groups=groups)  # type: ignore[arg-type]
    ann = await folk.sign_in(groups=("g", "h"))
    a, b, default = [(await folk.bench.tenants.get(slug)).id for slug in ("a", "b", "default")]
    await folk.members.put(a, role="viewer", user=ann.id, act=folk.act())
    await folk.members.put(b, role="member", email="ann@example.com", act=folk.act())
    await folk.members.put(default, role="member", user=ann.id, act=folk.act())
    assert await folk.roles(ann) == {"a": "admin", "b": "member", "default": "member"}
    roles = (await folk.users.get(ann.id)).roles
    assert [(role.tenant, role.slug) for role in roles] == [(a, "a"), (b, "b"), (default, "default")]


async def test_a_role_by_a_group_goes_with_the_group(folk: Folk) -> None:
    tenant = folk.bench.tenant
    await folk.bench.tenants.change(tenant, groups={"g": "member"})
    ann = await folk.sign_in("ann", b"digest", groups=("g",))
    assert [role.role for role in (await folk.session(b"digest")).owner.roles] == ["member"]
    await folk.bench.tenants.change(tenant, groups={"h": "member"})
    assert (await folk.session(b"digest")).owner.roles == ()
    await folk.bench.tenants.change(tenant, groups={"g": "viewer"})
    assert await folk.roles(ann) == {"default": "viewer"}
    await folk.sign_in("ann", groups=("h",))
    assert await folk.roles(ann) == {}


async def test_an_invitation_works_at_once_for_who_has_signed_in_before(folk: Folk) -> None:
    ann = await folk.sign_in("ann", email="Ann@Example.com")
    bob = await folk.sign_in("bob", email="bob@example.com", email_verified=False)
    for email in ("aNN@example.com", "bob@example.com"):
        await folk.members.put(folk.bench.tenant, role="member", email=email, act=folk.act())
    assert (await folk.roles(ann), await folk.roles(bob)) == ({"default": "member"}, {})


async def test_what_changes_nothing_is_not_on_record(folk: Folk) -> None:
    tenant, ann = folk.bench.tenant, await folk.sign_in()
    await folk.members.put(tenant, role="viewer", user=ann.id, act=folk.act())
    await folk.members.put(tenant, role="viewer", email="bob@example.com", act=folk.act())
    await folk.users.enable(ann.id, enabled=False, act=folk.act())
    acts = await folk.acts()
    await folk.members.put(tenant, role="viewer", user=ann.id, act=folk.act())
    await folk.members.change(tenant, ann.id, role="viewer", act=folk.act())
    await folk.members.put(tenant, role="viewer", email="Bob@example.com", act=folk.act())
    await folk.users.enable(ann.id, enabled=False, act=folk.act())
    assert await folk.acts() == acts
    await folk.users.enable(ann.id, enabled=True, act=folk.act())
    acts = await folk.acts()
    await folk.users.enable(ann.id, enabled=True, act=folk.act())
    assert await folk.acts() == acts


# -- giving -------------------------------------------------------------------------------------------------


async def test_a_person_gets_a_role_and_another_and_both_are_on_record(folk: Folk) -> None:
    tenant = folk.bench.tenant
    ann = await folk.sign_in(name="Ann", picture="https://example.com/a.png")
    first = await folk.members.put(tenant, role="viewer", user=ann.id, act=folk.act())
    assert first == Member(
        id=ann.id,
        role="viewer",
        sources=(RoleSource(role="viewer"),),
        user=ann.id,
        email="ann@example.com",
        name="Ann",
        picture="https://example.com/a.png",
    )
    second = await folk.members.change(tenant, ann.id, role="admin", act=folk.act())
    assert (second.role, second.sources) == ("admin", (RoleSource(role="admin"),))
    assert await folk.members.get(tenant, ann.id) == second
    after, before = await folk.acts(tenant)
    for entry in (after, before):
        assert (entry.action, entry.target, entry.tenant) == ("member.put", f"member/{ann.id}", tenant)
        assert {name: getattr(entry, name) for name in ACT} == ACT
    assert (seen(before.before), seen(before.after)) == (None, built(first))
    assert (seen(after.before), seen(after.after)) == (built(first), built(second))


async def test_an_invitation_has_one_row_for_an_email(folk: Folk) -> None:
    tenant = folk.bench.tenant
    first = await folk.members.put(tenant, role="viewer", email="New@Example.com", act=folk.act())
    assert first == Member(
        id=first.id, role="viewer", sources=(RoleSource(role="viewer"),), email="new@example.com", invited=True
    )
    second = await folk.members.put(tenant, role="member", email="new@example.com", act=folk.act())
    third = await folk.members.change(tenant, first.id, role="admin", act=folk.act())
    assert [(one.id, one.role) for one in (second, third)] == [(first.id, "member"), (first.id, "admin")]
    assert await listed(folk) == [third]
    entry = await folk.last_act(tenant)
    assert (entry.target, seen(entry.before), seen(entry.after)) == (f"member/{first.id}", built(second), built(third))


async def test_a_role_given_to_a_person_is_instead_of_their_invitation(folk: Folk) -> None:
    tenant = folk.bench.tenant
    ann = await folk.sign_in()
    await folk.members.put(tenant, role="admin", email="ann@example.com", act=folk.act())
    await folk.members.put(tenant, role="viewer", user=ann.id, act=folk.act())
    assert await folk.roles(ann) == {"default": "viewer"}
    assert [one.id for one in await listed(folk)] == [ann.id]


async def test_who_has_a_role_by_a_group_can_have_one_of_their_own_too(folk: Folk) -> None:
    tenant = folk.bench.tenant
    await folk.bench.tenants.change(tenant, groups={"g": "member", "f": "viewer"})
    ann = await folk.sign_in(groups=("g", "f", "x"))
    by_group = (RoleSource(role="viewer", group="f"), RoleSource(role="member", group="g"))
    assert (await folk.members.get(tenant, ann.id)).sources == by_group
    both = await folk.members.put(tenant, role="admin", user=ann.id, act=folk.act())
    assert (both.role, both.sources) == ("admin", (RoleSource(role="admin"), *by_group))
    assert seen((await folk.last_act(tenant)).after) == built(both)


async def test_what_cannot_be_given_is_refused_and_changes_nothing(folk: Folk) -> None:
    tenant = folk.bench.tenant
    ann = await folk.sign_in()
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
            await folk.members.put(tenant, act=folk.act(), **{"role": "viewer", **given})
    for user in (new_id(), "ann"):
        with pytest.raises(UserNotFound):
            await folk.members.put(tenant, role="viewer", user=user, act=folk.act())
    with pytest.raises(MemberNotFound):
        await folk.members.change(tenant, ann.id, role="viewer", act=folk.act())
    assert await listed(folk) == []
    assert await folk.acts(tenant) == []


@pytest.mark.parametrize("nowhere", ["00000000-0000-7000-8000-000000000000", "no id"])
async def test_a_tenant_that_is_not_there_has_no_members(folk: Folk, nowhere: str) -> None:
    ann = await folk.sign_in()
    with pytest.raises(TenantNotFound):
        await folk.members.put(nowhere, role="viewer", user=ann.id, act=folk.act())
    with pytest.raises(TenantNotFound):
        await folk.members.put(nowhere, role="viewer", email="new@example.com", act=folk.act())
    with pytest.raises(TenantNotFound):
        await folk.members.remove(nowhere, ann.id, act=folk.act())
    with pytest.raises(TenantNotFound):
        await folk.members.list(nowhere)
    with pytest.raises(TenantNotFound):
        await folk.members.get(nowhere, ann.id)


# -- taking -------------------------------------------------------------------------------------------------


async def test_who_is_removed_has_no_role_and_no_token_there_and_keeps_those_elsewhere(folk: Folk) -> None:
    tenant, other = folk.bench.tenant, (await folk.bench.tenants.create("other")).id
    ann, bob = await folk.sign_in("ann", b"digest"), await folk.sign_in("bob")
    for where, user in ((tenant, ann), (other, ann), (tenant, bob)):
        await folk.members.put(where, role="member", user=user.id, act=folk.act())
    await folk.members.put(tenant, role="viewer", email="ann@example.com", act=folk.act())
    here, there, of_bob = await folk.token(ann), await folk.token(ann, other), await folk.token(bob)
    removed = await folk.members.remove(tenant, ann.id, act=folk.act())
    assert (removed.id, removed.role) == (ann.id, "member")
    assert await folk.roles(ann) == {"other": "member"}
    assert [await folk.holds(token) for token in (here, there, of_bob)] == [False, True, True]
    assert [one.id for one in await listed(folk)] == [bob.id]
    entry = await folk.last_act(tenant)
    assert (entry.action, entry.target, entry.tenant) == ("member.removed", f"member/{ann.id}", tenant)
    assert (seen(entry.before), seen(entry.after)) == (built(removed), None)
    await folk.session(b"digest")
    await folk.sign_in("ann")
    assert await folk.roles(ann) == {"other": "member"}


async def test_an_invitation_is_taken_back_with_the_tokens_it_allowed(folk: Folk) -> None:
    tenant = folk.bench.tenant
    ann, twin = await folk.sign_in("ann"), await folk.sign_in("twin", email="ann@example.com")
    await folk.members.put(tenant, role="member", user=twin.id, act=folk.act())
    invited = await folk.members.put(tenant, role="member", email="ann@example.com", act=folk.act())
    of_ann, of_twin = await folk.token(ann), await folk.token(twin)
    assert await folk.members.remove(tenant, invited.id, act=folk.act()) == invited
    assert (await folk.roles(ann), await folk.roles(twin)) == ({}, {"default": "member"})
    assert (await folk.holds(of_ann), await folk.holds(of_twin)) == (False, True)
    entry = await folk.last_act(tenant)
    assert (entry.target, seen(entry.before), seen(entry.after)) == (f"member/{invited.id}", built(invited), None)
    await folk.sign_in("ann")
    assert await folk.roles(ann) == {}


async def test_a_role_by_a_group_cannot_be_taken_from_one_person(folk: Folk) -> None:
    tenant = folk.bench.tenant
    await folk.bench.tenants.change(tenant, groups={"g": "viewer"})
    ann = await folk.sign_in(groups=("g",))
    token = await folk.token(ann)
    acts = await folk.acts()
    with pytest.raises(MemberByGroup):
        await folk.members.remove(tenant, ann.id, act=folk.act())
    assert (await folk.acts(), await folk.holds(token)) == (acts, True)
    await folk.members.put(tenant, role="admin", user=ann.id, act=folk.act())
    await folk.members.remove(tenant, ann.id, act=folk.act())
    assert await folk.roles(ann) == {"default": "viewer"}
    left = await folk.members.get(tenant, ann.id)
    assert seen((await folk.last_act(tenant)).after) == built(left)


async def test_nobody_cannot_be_removed(folk: Folk) -> None:
    other = (await folk.bench.tenants.create("other")).id
    ann = await folk.sign_in()
    await folk.members.put(other, role="member", user=ann.id, act=folk.act())
    elsewhere = await folk.members.put(other, role="member", email="new@example.com", act=folk.act())
    for member_id in (ann.id, elsewhere.id, new_id(), "ann"):
        with pytest.raises(MemberNotFound):
            await folk.members.remove(folk.bench.tenant, member_id, act=folk.act())
        with pytest.raises(MemberNotFound):
            await folk.members.get(folk.bench.tenant, member_id)
    assert await folk.acts(folk.bench.tenant) == []
    assert len(await listed(folk, other)) == 2


# -- lists --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 3, 50])
async def test_everybody_is_listed_once_whatever_the_page(folk: Folk, limit: int) -> None:
    tenant, other = folk.bench.tenant, (await folk.bench.tenants.create("other", groups={"b": "admin"})).id
    await folk.bench.tenants.change(tenant, groups={"a": "viewer", "b": "member"})
    ids = []
    for number, groups in enumerate([("a",), ("a", "b"), (), ("b",), ("a", "b"), (), ("a",)]):
        user = await folk.sign_in(f"p{number}", groups=groups)
        if number % 2:
            await folk.members.put(tenant, role="viewer", user=user.id, act=folk.act())
        if groups or number % 2:
            ids.append(user.id)
        invited = await folk.members.put(tenant, role="viewer", email=f"new{number}@example.com", act=folk.act())
        ids.append(invited.id)
    await folk.members.put(other, role="viewer", email="new@example.com", act=folk.act())
    members = await listed(folk, limit=limit)
    assert [one.id for one in members] == sorted(ids)
    assert members == [await folk.members.get(tenant, one.id) for one in members]


async def test_a_cursor_of_one_tenant_does_not_fit_another(folk: Folk) -> None:
    other = (await folk.bench.tenants.create("other")).id
    for number in range(2):
        await folk.members.put(folk.bench.tenant, role="viewer", email=f"n{number}@example.com", act=folk.act())
    page = await folk.members.list(folk.bench.tenant, limit=1)
    with pytest.raises(InvalidCursor):
        await folk.members.list(other, cursor=page.next_cursor)


# -- groups of tenants --------------------------------------------------------------------------------------


async def test_a_tenant_keeps_its_groups_until_others_are_given(folk: Folk) -> None:
    tenants = folk.bench.tenants
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


async def test_groups_that_cannot_be_kept_are_refused(folk: Folk) -> None:
    tenants = folk.bench.tenants
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
