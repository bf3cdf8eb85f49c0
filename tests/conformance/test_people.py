"""People: who signs in is known by issuer and subject, and is out at once when they are not let in any more."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from ingot.identity.credential_service import Credentials
from ingot.identity.credentials import Unauthorized
from ingot.identity.people import SessionNotFound, SignInRefused, UserNotFound
from ingot.identity.ports import (
    BeginLogin,
    ConsumeLogin,
    DenySignIn,
    EndSession,
    FindMember,
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
from tests.conformance.folk import ACT, HOUR, Folk, built, person, seen
from tests.factories import Bench


@pytest.fixture
def folk(bench: Bench) -> Folk:
    return Folk(bench)


# -- signing in ---------------------------------------------------------------------------------------------


async def test_who_signs_in_is_found_with_their_session(folk: Folk) -> None:
    command = folk.signing_in(person(name="Ann", picture="https://example.com/ann.png", groups=("b", "a", "b")))
    user = await folk.store.run(command)
    assert (user.id, user.email, user.email_verified, user.enabled) == (command.user_id, "ann@example.com", True, True)
    assert (user.name, user.picture, user.groups) == ("Ann", "https://example.com/ann.png", ("a", "b"))
    assert to_micros(user.created_at) == to_micros(user.signed_in_at) == folk.bench.clock.micros()
    found = await folk.session(command.digest)
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
    assert (await folk.users.get(user.id)).user == user
    assert await folk.store.run(ListSessions(user=user.id)) == [session]


async def test_who_comes_back_is_who_they_were_as_their_provider_sees_them_now(folk: Folk) -> None:
    first = await folk.sign_in(name="Ann", groups=("a", "b"))
    folk.bench.clock.advance(seconds=60)
    again = await folk.sign_in(email="Ann.New@example.com", name=None, email_verified=False, groups=("c",))
    assert (again.id, again.created_at) == (first.id, first.created_at)
    assert again.signed_in_at > first.signed_in_at
    assert (again.email, again.email_verified, again.name, again.groups) == ("Ann.New@example.com", False, None, ("c",))
    assert (await folk.users.list()).items == [again]


async def test_issuer_and_subject_tell_people_apart_and_an_email_does_not(folk: Folk) -> None:
    people = [
        await folk.sign_in("ann", email="same@example.com"),
        await folk.sign_in("other", email="same@example.com"),
        await folk.sign_in("ann", email="same@example.com", issuer="https://elsewhere.example.com"),
    ]
    assert len({user.id for user in people}) == 3
    assert (await folk.users.list()).items == people[::-1]


async def test_a_sign_in_is_on_record_without_its_secret(folk: Folk) -> None:
    command = folk.signing_in(person())
    user = await folk.store.run(command)
    (entry,) = await folk.acts()
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


async def test_who_is_not_enabled_is_refused_and_nothing_changes(folk: Folk) -> None:
    user = await folk.sign_in(groups=("a",))
    disabled = await folk.users.enable(user.id, enabled=False, act=folk.act())
    await folk.sign_in("bob", b"of bob")
    acts = await folk.acts()
    with pytest.raises(SignInRefused):
        await folk.store.run(
            folk.signing_in(person(name="Another", email="new@example.com"), b"refused", replaced_digest=b"of bob")
        )
    assert (await folk.users.get(user.id)).user == disabled
    assert await folk.store.run(FindSession(digest=b"refused")) is None
    await folk.session(b"of bob")
    assert await folk.acts() == acts


async def test_the_session_that_a_browser_had_ends_with_the_new_one(folk: Folk) -> None:
    await folk.sign_in("ann", b"old")
    await folk.sign_in("bob", b"of bob")
    await folk.store.run(folk.signing_in(person("ann"), b"new", replaced_digest=b"old"))
    assert await folk.store.run(FindSession(digest=b"old")) is None
    await folk.session(b"new")
    await folk.session(b"of bob")


async def test_an_invitation_becomes_theirs_when_they_sign_in_with_its_email(folk: Folk) -> None:
    tenant = folk.bench.tenant
    invited = await folk.members.put(tenant, role="member", email="Ann@Example.com", act=folk.act())
    stays = await folk.members.put(tenant, role="viewer", email="bob@example.com", act=folk.act())
    ann = await folk.sign_in(email="ANN@example.COM")
    assert await folk.roles(ann) == {"default": "member"}
    assert [(m.id, m.user) for m in (await folk.members.list(tenant)).items] == [
        (stays.id, None),
        (ann.id, ann.id),
    ]
    assert await folk.store.run(FindMember(tenant=tenant, member_id=invited.id)) is None
    await folk.sign_in(email="elsewhere@example.com")
    assert await folk.roles(ann) == {"default": "member"}


async def test_an_email_that_only_looks_alike_gives_nothing(folk: Folk) -> None:
    """The sign of Kelvin is a K to the eye, and a k in lower case."""
    invited = await folk.members.put(folk.bench.tenant, role="admin", email="kim@example.com", act=folk.act())
    alike = await folk.sign_in("mallory", email="\u212aim@example.com")
    assert await folk.roles(alike) == {}
    assert await folk.members.get(folk.bench.tenant, invited.id) == invited
    assert (await folk.users.list(email="\u212aim@example.com")).items == [alike]
    assert (await folk.users.list(email="Kim@example.com")).items == []


async def test_an_email_that_is_not_verified_gives_nothing(folk: Folk) -> None:
    invited = await folk.members.put(folk.bench.tenant, role="admin", email="ann@example.com", act=folk.act())
    ann = await folk.sign_in(email="ann@example.com", email_verified=False)
    assert await folk.roles(ann) == {}
    assert await folk.members.get(folk.bench.tenant, invited.id) == invited
    assert await folk.roles(await folk.sign_in("nobody", email=None)) == {}


async def test_an_invitation_never_lowers_a_role(folk: Folk) -> None:
    tenant = folk.bench.tenant
    ann, bob = await folk.sign_in("ann"), await folk.sign_in("bob")
    for user, own, invited in ((ann, "admin", "viewer"), (bob, "viewer", "admin")):
        await folk.members.put(tenant, role=own, user=user.id, act=folk.act())  # type: ignore[arg-type]
        await folk.members.put(tenant, role=invited, email=user.email, act=folk.act())  # type: ignore[arg-type]
        assert await folk.roles(user) == {"default": "admin"}
        await folk.sign_in(user.subject)
        assert await folk.roles(user) == {"default": "admin"}
    assert len((await folk.members.list(tenant)).items) == 2


# -- sessions -----------------------------------------------------------------------------------------------


async def test_a_session_ends_when_it_expires(folk: Folk) -> None:
    ann = await folk.sign_in("ann", b"digest")
    folk.bench.clock.advance(seconds=HOUR / MICROS - 1)
    await folk.session(b"digest")
    folk.bench.clock.advance(seconds=1)
    assert await folk.store.run(FindSession(digest=b"digest")) is None
    assert await folk.store.run(ListSessions(user=ann.id)) == []


async def test_a_digest_that_nobody_has_finds_nothing(folk: Folk) -> None:
    await folk.sign_in("ann", b"digest")
    for digest in (b"", b"diges", b"digest2", b"DIGEST"):
        assert await folk.store.run(FindSession(digest=digest)) is None


async def test_a_session_is_ended_by_whose_it_is_or_by_who_manages_people(folk: Folk) -> None:
    ann, bob = await folk.sign_in("ann", b"of ann"), await folk.sign_in("bob", b"of bob")
    one, other = (await folk.session(b"of ann")).session, (await folk.session(b"of bob")).session
    acts = await folk.acts()
    for session_id, user in ((one.id, bob.id), (new_id(), None), (new_id(), ann.id)):
        with pytest.raises(SessionNotFound):
            await folk.store.run(EndSession(id=session_id, user=user, act=folk.act()))
    assert await folk.acts() == acts
    await folk.store.run(EndSession(id=one.id, user=ann.id, act=folk.act()))
    assert await folk.store.run(FindSession(digest=b"of ann")) is None
    entry = await folk.last_act()
    assert (entry.action, entry.target, entry.who) == ("session.ended", f"session/{one.id}", ACT["who"])
    assert (seen(entry.before), seen(entry.after)) == ({"user": ann.id, "email": ann.email}, None)
    await folk.session(b"of bob")
    await folk.store.run(EndSession(id=other.id, user=None, act=folk.act()))
    assert await folk.store.run(FindSession(digest=b"of bob")) is None


async def test_who_may_not_come_in_any_more_is_in_the_groups_that_are_told(folk: Folk) -> None:
    await folk.bench.tenants.change(folk.bench.tenant, groups={"staff": "admin", "leavers": "viewer"})
    ann, bob = await folk.sign_in("ann", b"of ann", groups=("staff",)), await folk.sign_in("bob", b"of bob")
    acts = await folk.acts()
    await folk.store.run(DenySignIn(person=person("nobody", groups=("leavers",)), act=folk.act()))
    assert ((await folk.users.list()).items, await folk.acts()) == ([bob, ann], acts)
    command = DenySignIn(person=person("ann", groups=("leavers",)), act=folk.act())
    await folk.store.run(command)
    assert await folk.store.run(FindSession(digest=b"of ann")) is None
    await folk.session(b"of bob")
    known = (await folk.users.get(ann.id)).user
    assert (known.groups, known.signed_in_at, await folk.roles(ann)) == (
        ("leavers",),
        ann.signed_in_at,
        {"default": "viewer"},
    )
    entry = await folk.last_act()
    assert (entry.action, entry.target, entry.who) == ("user.turned_away", f"user/{ann.id}", f"user:{ann.id}")
    assert (entry.name, seen(entry.before), seen(entry.after)) == ("ann@example.com", built(ann), built(known))
    acts = await folk.acts()
    await folk.store.run(msgspec.structs.replace(command, act=folk.act()))
    assert await folk.acts() == acts, "what changes nothing is not on record"


async def test_sessions_are_listed_newest_first(folk: Folk) -> None:
    ann, *_ = [await folk.sign_in("ann", digest) for digest in (b"1", b"2", b"3")]
    await folk.sign_in("bob", b"4")
    listed = await folk.store.run(ListSessions(user=ann.id))
    assert listed == [(await folk.session(digest)).session for digest in (b"3", b"2", b"1")]


async def test_the_latest_use_of_a_session_is_remembered(folk: Folk) -> None:
    await folk.sign_in("ann", b"digest")
    session = (await folk.session(b"digest")).session
    now = folk.bench.clock.micros()
    for used, known in ((now + MICROS, now + MICROS), (now, now + MICROS), (now + 2 * MICROS, now + 2 * MICROS)):
        await folk.store.run(RecordLastUsed(tokens={}, workers={}, sessions={session.id: used, new_id(): used}))
        assert to_micros((await folk.session(b"digest")).session.last_used_at) == known


async def test_expired_sessions_and_logins_are_forgotten(folk: Folk) -> None:
    first = folk.signing_in(person("ann"), b"same")
    await folk.store.run(first)
    await folk.store.run(BeginLogin(digest=b"same", expires_at=first.expires_at, next_page="/first"))
    folk.bench.clock.advance(seconds=HOUR // MICROS)
    second = folk.signing_in(person("bob"), b"same", session_id=first.session_id)
    bob = await folk.store.run(second)
    await folk.store.run(BeginLogin(digest=b"same", expires_at=second.expires_at, next_page="/second"))
    assert (await folk.session(b"same")).owner.user == bob
    assert await folk.store.run(ConsumeLogin(digest=b"same")) == "/second"


# -- setting out --------------------------------------------------------------------------------------------


async def test_who_set_out_comes_back_once_and_in_time(folk: Folk) -> None:
    soon = folk.bench.clock.micros() + MICROS
    for digest in (b"one", b"two"):
        await folk.store.run(BeginLogin(digest=digest, expires_at=soon, next_page="/jobs"))
    assert await folk.store.run(ConsumeLogin(digest=b"three")) is None
    assert await folk.store.run(ConsumeLogin(digest=b"one")) == "/jobs"
    assert await folk.store.run(ConsumeLogin(digest=b"one")) is None
    folk.bench.clock.advance(seconds=1)
    assert await folk.store.run(ConsumeLogin(digest=b"two")) is None
    assert await folk.acts() == []


async def test_a_link_is_no_other_sign_in_and_its_making_is_on_record(folk: Folk) -> None:
    soon = folk.bench.clock.micros() + MICROS
    await folk.store.run(BeginLogin(digest=b"link", expires_at=soon, is_link=True, act=folk.act()))
    await folk.store.run(BeginLogin(digest=b"plain", expires_at=soon))
    assert await folk.store.run(ConsumeLogin(digest=b"link")) is None
    assert await folk.store.run(ConsumeLogin(digest=b"plain", is_link=True)) is None
    assert await folk.store.run(ConsumeLogin(digest=b"link", is_link=True)) == "/"
    assert await folk.store.run(ConsumeLogin(digest=b"plain")) == "/"
    (entry,) = await folk.acts()
    assert (entry.action, entry.target, entry.tenant) == ("link.created", "link", None)
    assert (seen(entry.before), seen(entry.after)) == (None, None)


# -- letting in and out -------------------------------------------------------------------------------------


async def test_who_is_let_out_loses_sessions_and_tokens_in_one_act(folk: Folk) -> None:
    tenant, other = folk.bench.tenant, (await folk.bench.tenants.create("other")).id
    ann, bob = await folk.sign_in("ann", b"of ann"), await folk.sign_in("bob", b"of bob")
    await folk.sign_in("ann", b"of ann too")
    tokens = [await folk.token(ann), await folk.token(ann, other)]
    of_bob = await folk.token(bob)
    before = (await folk.users.get(ann.id)).user
    after = await folk.users.enable(ann.id, enabled=False, act=folk.act())
    assert after == msgspec.structs.replace(before, enabled=False)
    assert (await folk.users.get(ann.id)).user == after
    for digest in (b"of ann", b"of ann too"):
        assert await folk.store.run(FindSession(digest=digest)) is None
    assert [await folk.holds(token) for token in (*tokens, of_bob)] == [False, False, True]
    await folk.session(b"of bob")
    entry = await folk.last_act()
    assert (entry.action, entry.target, entry.tenant) == ("user.disabled", f"user/{ann.id}", None)
    assert (seen(entry.before), seen(entry.after)) == (built(before), built(after))
    assert await folk.acts(tenant) == []


async def test_who_is_let_in_again_signs_in_and_their_tokens_stay_ended(folk: Folk) -> None:
    ann = await folk.sign_in("ann", b"old")
    token = await folk.token(ann)
    await folk.users.enable(ann.id, enabled=False, act=folk.act())
    enabled = await folk.users.enable(ann.id, enabled=True, act=folk.act())
    assert enabled.enabled
    assert (await folk.last_act()).action == "user.enabled"
    assert await folk.store.run(FindSession(digest=b"old")) is None
    assert not await folk.holds(token)
    await folk.sign_in("ann", b"new")
    assert (await folk.session(b"new")).owner.user.id == ann.id


@pytest.mark.parametrize("how", ["let out", "removed"])
async def test_their_tokens_are_refused_here_at_once(folk: Folk, how: str) -> None:
    ann = await folk.sign_in()
    await folk.members.put(folk.bench.tenant, role="member", user=ann.id, act=folk.act())
    text = await folk.text_of_token(ann)
    await folk.access.authenticate_token(text)
    if how == "removed":
        await folk.members.remove(folk.bench.tenant, ann.id, act=folk.act())
    else:
        await folk.users.enable(ann.id, enabled=False, act=folk.act())
    with pytest.raises(Unauthorized):
        await folk.access.authenticate_token(text)


async def test_who_is_not_there_or_not_let_in_gets_no_token(folk: Folk) -> None:
    ann = await folk.sign_in()
    nobody = msgspec.structs.replace(ann, id=new_id())
    await folk.users.enable(ann.id, enabled=False, act=folk.act())
    for user in (ann, nobody):
        with pytest.raises(UserNotFound):
            await folk.token(user)
    assert await folk.store.run(ListTokens(tenant=folk.bench.tenant, before=None, limit=10)) == []


async def test_nobody_is_not_let_in_or_out(folk: Folk) -> None:
    for user_id in (new_id(), "ann", ""):
        with pytest.raises(UserNotFound):
            await folk.users.enable(user_id, enabled=False, act=folk.act())
        with pytest.raises(UserNotFound):
            await folk.users.get(user_id)
    with pytest.raises(InvalidInput):
        await folk.users.enable(new_id(), enabled=1, act=folk.act())  # type: ignore[arg-type]
    assert await folk.acts() == []


# -- lists --------------------------------------------------------------------------------------------------


async def test_people_are_listed_page_by_page_and_found_by_email(folk: Folk) -> None:
    people = [await folk.sign_in(f"p{number}", groups=("a",)) for number in range(5)]
    page = await folk.users.list(limit=2)
    found = list(page.items)
    while page.next_cursor is not None:
        page = await folk.users.list(limit=2, cursor=page.next_cursor)
        found += page.items
    assert found == people[::-1]
    first = (await folk.users.list(limit=2)).next_cursor
    with pytest.raises(InvalidCursor):
        await folk.users.list(email="p1@example.com", cursor=first)
    twin = await folk.sign_in("twin", email="P1@EXAMPLE.com")
    assert (await folk.users.list(email="p1@Example.com")).items == [twin, people[1]]
    assert (await folk.users.list(email="nobody@example.com")).items == []


async def test_a_token_tells_who_it_belongs_to_with_their_roles_now(folk: Folk) -> None:
    tenant = folk.bench.tenant
    ann = await folk.sign_in("ann")
    token = await folk.token(ann)
    found = await folk.store.run(FindToken(token_id=token))
    assert found is not None
    assert (found.token.user, found.owner) == (ann.id, await folk.users.get(ann.id))
    await folk.members.put(tenant, role="member", user=ann.id, act=folk.act())
    found = await folk.store.run(FindToken(token_id=token))
    assert found is not None
    assert found.owner is not None
    assert [role.role for role in found.owner.roles] == ["member"]
    assert [one.user for one in await folk.store.run(ListTokens(tenant=tenant, before=None, limit=10))] == [ann.id]


async def test_the_tokens_of_a_person_are_listed_newest_first_in_all_tenants(folk: Folk) -> None:
    other = (await folk.bench.tenants.create("other")).id
    ann, bob = await folk.sign_in("ann"), await folk.sign_in("bob")
    ids = [await folk.token(ann, tenant) for tenant in (None, other, None)]
    await folk.token(bob)
    listed = await folk.store.run(ListUserTokens(user=ann.id, before=None, limit=10))
    assert [(token.id, token.user) for token in listed] == [(id, ann.id) for id in ids[::-1]]
    assert {token.tenant for token in listed} == {folk.bench.tenant, other}
    assert await folk.store.run(ListUserTokens(user=ann.id, before=ids[1], limit=1)) == [listed[-1]]


async def test_what_people_do_is_not_among_the_acts_of_a_tenant(folk: Folk) -> None:
    await folk.sign_in()
    assert await folk.acts(folk.bench.tenant) == []


@pytest.mark.parametrize("place", ["", "\x00", "/", "a" * 1000])
async def test_a_cursor_that_nobody_was_given_is_refused(folk: Folk, place: str) -> None:
    tenant, user = folk.bench.tenant, (await folk.sign_in()).id
    credentials = Credentials(folk.store, folk.access, folk.bench.clock)
    for bound_to, reading in (
        (("members", tenant), partial(folk.members.list, tenant)),
        (("users", None), folk.users.list),
        (("tokens", tenant), partial(credentials.list_tokens, tenant)),
        (("tokens of", user), partial(credentials.list_user_tokens, user)),
        (("worker credentials", tenant), partial(credentials.list_worker_credentials, tenant)),
    ):
        with pytest.raises(InvalidCursor):
            await reading(cursor=encode_cursor(place, bound_to=bound_to))
