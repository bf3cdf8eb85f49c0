"""People: identified by issuer and subject, and signed out at once when their access is revoked."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from ingot.identity.credential_service import Credentials
from ingot.identity.credentials import Unauthorized
from ingot.identity.people import Role, SessionNotFound, SignInRefused, User, UserNotFound
from ingot.identity.ports import (
    BeginLogin,
    ConsumeLogin,
    DenySignIn,
    EndSession,
    FindSession,
    FindToken,
    ListSessions,
    ListTokens,
    ListUserTokens,
    RecordLastUsed,
)
from ingot.kernel.clock import MICROS, to_micros
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from ingot.kernel.pages import InvalidCursor, encode_cursor
from tests.conformance.people_fixture import ACT, HOUR, PeopleFixture, built, person, seen
from tests.factories import Bench


@pytest.fixture
def people(bench: Bench) -> PeopleFixture:
    return PeopleFixture(bench)


# -- signing in ---------------------------------------------------------------------------------------------


async def test_a_sign_in_creates_a_user_and_a_session(people: PeopleFixture) -> None:
    command = people.signing_in(person(name="Ann", picture="https://example.com/ann.png", groups=("b", "a", "b")))
    user = await people.store.run(command)
    assert (user.id, user.email, user.email_verified, user.enabled) == (command.user_id, "ann@example.com", True, True)
    assert (user.name, user.picture, user.groups) == ("Ann", "https://example.com/ann.png", ("a", "b"))
    assert to_micros(user.created_at) == to_micros(user.signed_in_at) == people.bench.clock.micros()
    found = await people.session(command.digest)
    assert found.owner.user == user
    assert found.owner.roles == ()
    session = found.session
    assert (session.id, session.user, session.address, session.agent) == (
        command.session_id,
        user.id,
        "192.0.2.1",
        "a browser",
    )
    assert to_micros(session.expires_at) == command.expires_at
    assert session.created_at == session.last_used_at == user.created_at
    assert (await people.users.get(user.id)).user == user
    assert await people.store.run(ListSessions(user=user.id)) == [session]


async def test_a_later_sign_in_updates_the_same_user(people: PeopleFixture) -> None:
    first = await people.sign_in(name="Ann", groups=("a", "b"))
    people.bench.clock.advance(seconds=60)
    again = await people.sign_in(email="Ann.New@example.com", name=None, email_verified=False, groups=("c",))
    assert (again.id, again.created_at) == (first.id, first.created_at)
    assert again.signed_in_at > first.signed_in_at
    assert (again.email, again.email_verified, again.name, again.groups) == ("Ann.New@example.com", False, None, ("c",))
    assert (await people.users.list()).items == [again]


async def test_people_are_distinguished_by_issuer_and_subject_and_not_by_email(people: PeopleFixture) -> None:
    users = [
        await people.sign_in("ann", email="same@example.com"),
        await people.sign_in("other", email="same@example.com"),
        await people.sign_in("ann", email="same@example.com", issuer="https://elsewhere.example.com"),
    ]
    assert len({user.id for user in users}) == 3
    assert (await people.users.list()).items == users[::-1]


async def test_a_sign_in_is_recorded_without_its_secret(people: PeopleFixture) -> None:
    command = people.signing_in(person())
    user = await people.store.run(command)
    (entry,) = await people.acts()
    assert (entry.id, entry.action, entry.target) == (
        command.act.id,
        "session.created",
        f"session/{command.session_id}",
    )
    assert entry.tenant is None
    own = {**ACT, "who": f"user:{user.id}", "name": "ann@example.com"}
    assert {name: getattr(entry, name) for name in ACT} == own
    assert (seen(entry.before), seen(entry.after)) == (None, {"user": user.id, "email": "ann@example.com"})
    assert command.digest.hex() not in repr(entry)


async def test_a_sign_in_of_a_disabled_user_is_refused_and_changes_nothing(people: PeopleFixture) -> None:
    user = await people.sign_in(groups=("a",))
    disabled = await people.users.enable(user.id, enabled=False, act=people.act())
    await people.sign_in("bob", b"of bob")
    acts = await people.acts()
    with pytest.raises(SignInRefused):
        await people.store.run(
            people.signing_in(person(name="Another", email="new@example.com"), b"refused", replaced_digest=b"of bob")
        )
    assert (await people.users.get(user.id)).user == disabled
    assert await people.store.run(FindSession(digest=b"refused")) is None
    await people.session(b"of bob")
    assert await people.acts() == acts


async def test_a_new_session_ends_the_one_it_replaces(people: PeopleFixture) -> None:
    await people.sign_in("ann", b"old")
    await people.sign_in("bob", b"of bob")
    await people.store.run(people.signing_in(person("ann"), b"new", replaced_digest=b"old"))
    assert await people.store.run(FindSession(digest=b"old")) is None
    await people.session(b"new")
    await people.session(b"of bob")


async def test_a_similar_looking_email_does_not_match_an_invitation(people: PeopleFixture) -> None:
    """The Kelvin sign looks like a K, and its lower case is k."""
    invited = await people.members.put(people.bench.tenant, role="admin", email="kim@example.com", act=people.act())
    similar = await people.sign_in("mallory", email="\u212aim@example.com")
    assert await people.roles(similar) == {}
    assert await people.members.get(people.bench.tenant, invited.id) == invited
    assert (await people.users.list(email="\u212aim@example.com")).items == [similar]
    assert (await people.users.list(email="Kim@example.com")).items == []


async def test_an_unverified_email_does_not_match_an_invitation(people: PeopleFixture) -> None:
    invited = await people.members.put(people.bench.tenant, role="admin", email="ann@example.com", act=people.act())
    ann = await people.sign_in(email="ann@example.com", email_verified=False)
    assert await people.roles(ann) == {}
    assert await people.members.get(people.bench.tenant, invited.id) == invited
    assert await people.roles(await people.sign_in("nobody", email=None)) == {}


async def test_an_invitation_never_lowers_a_role(people: PeopleFixture) -> None:
    tenant = people.bench.tenant
    ann, bob = await people.sign_in("ann"), await people.sign_in("bob")
    roles: tuple[tuple[User, Role, Role], ...] = ((ann, "admin", "viewer"), (bob, "viewer", "admin"))
    for user, own, invited_to in roles:
        await people.join(user, own)
        invited = await people.members.put(tenant, role=invited_to, email=user.email, act=people.act())
        assert await people.roles(user) == {"default": own}, "an invitation grants nothing"
        await people.accept(user, invited)
        assert await people.roles(user) == {"default": "admin"}
    assert len((await people.members.list(tenant)).items) == 2


# -- sessions -----------------------------------------------------------------------------------------------


async def test_a_session_is_not_found_after_it_expires(people: PeopleFixture) -> None:
    ann = await people.sign_in("ann", b"digest")
    people.bench.clock.advance(seconds=HOUR / MICROS - 1)
    await people.session(b"digest")
    people.bench.clock.advance(seconds=1)
    assert await people.store.run(FindSession(digest=b"digest")) is None
    assert await people.store.run(ListSessions(user=ann.id)) == []


async def test_an_unknown_digest_finds_no_session(people: PeopleFixture) -> None:
    await people.sign_in("ann", b"digest")
    for digest in (b"", b"diges", b"digest2", b"DIGEST"):
        assert await people.store.run(FindSession(digest=digest)) is None


async def test_a_session_can_be_ended_by_its_user_or_an_administrator(people: PeopleFixture) -> None:
    ann, bob = await people.sign_in("ann", b"of ann"), await people.sign_in("bob", b"of bob")
    one, other = (await people.session(b"of ann")).session, (await people.session(b"of bob")).session
    acts = await people.acts()
    for session_id, user in ((one.id, bob.id), (new_id(), None), (new_id(), ann.id)):
        with pytest.raises(SessionNotFound):
            await people.store.run(EndSession(id=session_id, user=user, act=people.act()))
    assert await people.acts() == acts
    await people.store.run(EndSession(id=one.id, user=ann.id, act=people.act()))
    assert await people.store.run(FindSession(digest=b"of ann")) is None
    entry = await people.last_act()
    assert (entry.action, entry.target, entry.who) == ("session.ended", f"session/{one.id}", ACT["who"])
    assert (seen(entry.before), seen(entry.after)) == ({"user": ann.id, "email": ann.email}, None)
    await people.session(b"of bob")
    await people.store.run(EndSession(id=other.id, user=None, act=people.act()))
    assert await people.store.run(FindSession(digest=b"of bob")) is None


async def test_a_denied_sign_in_updates_the_groups_and_ends_the_sessions(people: PeopleFixture) -> None:
    await people.bench.tenants.change(people.bench.tenant, groups={"staff": "admin", "leavers": "viewer"})
    ann, bob = await people.sign_in("ann", b"of ann", groups=("staff",)), await people.sign_in("bob", b"of bob")
    acts = await people.acts()
    await people.store.run(DenySignIn(person=person("nobody", groups=("leavers",)), act=people.act()))
    assert ((await people.users.list()).items, await people.acts()) == ([bob, ann], acts)
    command = DenySignIn(person=person("ann", groups=("leavers",)), act=people.act())
    await people.store.run(command)
    assert await people.store.run(FindSession(digest=b"of ann")) is None
    await people.session(b"of bob")
    known = (await people.users.get(ann.id)).user
    assert (known.groups, known.refused, known.signed_in_at, await people.roles(ann)) == (
        ("leavers",),
        True,
        ann.signed_in_at,
        {"default": "viewer"},
    )
    entry = await people.last_act()
    assert (entry.action, entry.target, entry.who) == ("user.turned_away", f"user/{ann.id}", f"user:{ann.id}")
    assert (entry.name, seen(entry.before), seen(entry.after)) == ("ann@example.com", built(ann), built(known))
    acts = await people.acts()
    await people.store.run(msgspec.structs.replace(command, act=people.act()))
    assert await people.acts() == acts, "a denial that changes nothing is not recorded"


async def test_sessions_are_listed_newest_first(people: PeopleFixture) -> None:
    ann, *_ = [await people.sign_in("ann", digest) for digest in (b"1", b"2", b"3")]
    await people.sign_in("bob", b"4")
    listed = await people.store.run(ListSessions(user=ann.id))
    assert listed == [(await people.session(digest)).session for digest in (b"3", b"2", b"1")]


async def test_the_latest_use_of_a_session_is_recorded(people: PeopleFixture) -> None:
    await people.sign_in("ann", b"digest")
    session = (await people.session(b"digest")).session
    now = people.bench.clock.micros()
    for used, known in ((now + MICROS, now + MICROS), (now, now + MICROS), (now + 2 * MICROS, now + 2 * MICROS)):
        await people.store.run(RecordLastUsed(tokens={}, workers={}, sessions={session.id: used, new_id(): used}))
        assert to_micros((await people.session(b"digest")).session.last_used_at) == known


async def test_digests_and_ids_of_expired_sessions_and_logins_can_be_reused(people: PeopleFixture) -> None:
    first = people.signing_in(person("ann"), b"same")
    await people.store.run(first)
    await people.store.run(BeginLogin(digest=b"same", expires_at=first.expires_at, next_page="/first"))
    people.bench.clock.advance(seconds=HOUR // MICROS)
    second = people.signing_in(person("bob"), b"same", session_id=first.session_id)
    bob = await people.store.run(second)
    await people.store.run(BeginLogin(digest=b"same", expires_at=second.expires_at, next_page="/second"))
    assert (await people.session(b"same")).owner.user == bob
    assert await people.store.run(ConsumeLogin(digest=b"same")) == "/second"


# -- logins and links ---------------------------------------------------------------------------------------


async def test_a_login_can_be_consumed_once_before_it_expires(people: PeopleFixture) -> None:
    soon = people.bench.clock.micros() + MICROS
    for digest in (b"one", b"two"):
        await people.store.run(BeginLogin(digest=digest, expires_at=soon, next_page="/jobs"))
    assert await people.store.run(ConsumeLogin(digest=b"three")) is None
    assert await people.store.run(ConsumeLogin(digest=b"one")) == "/jobs"
    assert await people.store.run(ConsumeLogin(digest=b"one")) is None
    people.bench.clock.advance(seconds=1)
    assert await people.store.run(ConsumeLogin(digest=b"two")) is None
    assert await people.acts() == []


async def test_a_sign_in_link_is_distinct_from_a_login_and_its_creation_is_recorded(people: PeopleFixture) -> None:
    soon = people.bench.clock.micros() + MICROS
    await people.store.run(BeginLogin(digest=b"link", expires_at=soon, is_link=True, act=people.act()))
    await people.store.run(BeginLogin(digest=b"plain", expires_at=soon))
    assert await people.store.run(ConsumeLogin(digest=b"link")) is None
    assert await people.store.run(ConsumeLogin(digest=b"plain", is_link=True)) is None
    assert await people.store.run(ConsumeLogin(digest=b"link", is_link=True)) == "/"
    assert await people.store.run(ConsumeLogin(digest=b"plain")) == "/"
    (entry,) = await people.acts()
    assert (entry.action, entry.target, entry.tenant) == ("link.created", "link", None)
    assert (seen(entry.before), seen(entry.after)) == (None, None)


# -- disabling and enabling ---------------------------------------------------------------------------------


async def test_disabling_a_user_ends_sessions_and_tokens_with_one_audit_entry(people: PeopleFixture) -> None:
    tenant, other = people.bench.tenant, (await people.bench.tenants.create("other")).id
    ann, bob = await people.sign_in("ann", b"of ann"), await people.sign_in("bob", b"of bob")
    await people.sign_in("ann", b"of ann too")
    tokens = [await people.token(ann), await people.token(ann, other)]
    bobs_token = await people.token(bob)
    before = (await people.users.get(ann.id)).user
    after = await people.users.enable(ann.id, enabled=False, act=people.act())
    assert after == msgspec.structs.replace(before, enabled=False)
    assert (await people.users.get(ann.id)).user == after
    for digest in (b"of ann", b"of ann too"):
        assert await people.store.run(FindSession(digest=digest)) is None
    assert [await people.holds(token) for token in (*tokens, bobs_token)] == [False, False, True]
    await people.session(b"of bob")
    entry = await people.last_act()
    assert (entry.action, entry.target, entry.tenant) == ("user.disabled", f"user/{ann.id}", None)
    assert (seen(entry.before), seen(entry.after)) == (built(before), built(after))
    assert await people.acts(tenant) == []


async def test_a_user_enabled_again_can_sign_in_but_old_tokens_stay_revoked(people: PeopleFixture) -> None:
    ann = await people.sign_in("ann", b"old")
    token = await people.token(ann)
    await people.users.enable(ann.id, enabled=False, act=people.act())
    enabled = await people.users.enable(ann.id, enabled=True, act=people.act())
    assert enabled.enabled
    assert (await people.last_act()).action == "user.enabled"
    assert await people.store.run(FindSession(digest=b"old")) is None
    assert not await people.holds(token)
    await people.sign_in("ann", b"new")
    assert (await people.session(b"new")).owner.user.id == ann.id


@pytest.mark.parametrize("how", ["disabled", "removed"])
async def test_tokens_of_a_disabled_or_removed_user_are_refused_at_once(people: PeopleFixture, how: str) -> None:
    ann = await people.sign_in()
    await people.join(ann, "member")
    text = await people.text_of_token(ann)
    await people.access.authenticate_token(text)
    if how == "removed":
        await people.members.remove(people.bench.tenant, ann.id, act=people.act())
    else:
        await people.users.enable(ann.id, enabled=False, act=people.act())
    with pytest.raises(Unauthorized):
        await people.access.authenticate_token(text)


async def test_a_token_for_an_unknown_or_disabled_user_is_refused(people: PeopleFixture) -> None:
    ann = await people.sign_in()
    nobody = msgspec.structs.replace(ann, id=new_id())
    await people.users.enable(ann.id, enabled=False, act=people.act())
    for user in (ann, nobody):
        with pytest.raises(UserNotFound):
            await people.token(user)
    assert await people.store.run(ListTokens(tenant=people.bench.tenant, before=None, limit=10)) == []


async def test_an_unknown_user_cannot_be_enabled_or_disabled(people: PeopleFixture) -> None:
    for user_id in (new_id(), "ann", ""):
        with pytest.raises(UserNotFound):
            await people.users.enable(user_id, enabled=False, act=people.act())
        with pytest.raises(UserNotFound):
            await people.users.get(user_id)
    with pytest.raises(InvalidInput):
        await people.users.enable(new_id(), enabled=1, act=people.act())  # type: ignore[arg-type]
    assert await people.acts() == []


# -- lists --------------------------------------------------------------------------------------------------


async def test_users_are_listed_in_pages_and_found_by_email(people: PeopleFixture) -> None:
    users = [await people.sign_in(f"p{number}", groups=("a",)) for number in range(5)]
    page = await people.users.list(limit=2)
    found = list(page.items)
    while page.next_cursor is not None:
        page = await people.users.list(limit=2, cursor=page.next_cursor)
        found += page.items
    assert found == users[::-1]
    first = (await people.users.list(limit=2)).next_cursor
    with pytest.raises(InvalidCursor):
        await people.users.list(email="p1@example.com", cursor=first)
    twin = await people.sign_in("twin", email="P1@EXAMPLE.com")
    assert (await people.users.list(email="p1@Example.com")).items == [twin, users[1]]
    assert (await people.users.list(email="nobody@example.com")).items == []


async def test_a_token_is_found_with_its_owner_and_their_current_roles(people: PeopleFixture) -> None:
    tenant = people.bench.tenant
    ann = await people.sign_in("ann")
    token = await people.token(ann)
    found = await people.store.run(FindToken(token_id=token))
    assert found is not None
    assert (found.token.user, found.owner) == (ann.id, await people.users.get(ann.id))
    await people.join(ann, "member")
    found = await people.store.run(FindToken(token_id=token))
    assert found is not None
    assert found.owner is not None
    assert [role.role for role in found.owner.roles] == ["member"]
    assert [one.user for one in await people.store.run(ListTokens(tenant=tenant, before=None, limit=10))] == [ann.id]


async def test_tokens_of_a_user_in_all_tenants_are_listed_newest_first(people: PeopleFixture) -> None:
    other = (await people.bench.tenants.create("other")).id
    ann, bob = await people.sign_in("ann"), await people.sign_in("bob")
    ids = [await people.token(ann, tenant) for tenant in (None, other, None)]
    await people.token(bob)
    listed = await people.store.run(ListUserTokens(user=ann.id, before=None, limit=10))
    assert [(token.id, token.user) for token in listed] == [(id, ann.id) for id in ids[::-1]]
    assert {token.tenant for token in listed} == {people.bench.tenant, other}
    assert await people.store.run(ListUserTokens(user=ann.id, before=ids[1], limit=1)) == [listed[-1]]


async def test_a_sign_in_is_not_in_the_audit_log_of_a_tenant(people: PeopleFixture) -> None:
    await people.sign_in()
    assert await people.acts(people.bench.tenant) == []


@pytest.mark.parametrize("position", ["", "\x00", "/", "a" * 1000])
async def test_a_cursor_with_an_invalid_position_is_refused(people: PeopleFixture, position: str) -> None:
    tenant, user = people.bench.tenant, (await people.sign_in()).id
    credentials = Credentials(people.store, people.access, people.bench.clock)
    for bound_to, list_page in (
        (("members", tenant), partial(people.members.list, tenant)),
        (("users", None), people.users.list),
        (("tokens", tenant), partial(credentials.list_tokens, tenant)),
        (("tokens of", user), partial(credentials.list_user_tokens, user)),
        (("worker credentials", tenant), partial(credentials.list_worker_credentials, tenant)),
    ):
        with pytest.raises(InvalidCursor):
            await list_page(cursor=encode_cursor(position, bound_to=bound_to))
