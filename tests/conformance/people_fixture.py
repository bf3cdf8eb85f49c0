"""People for tests: how they sign in, and what is on record of them."""

from __future__ import annotations

from typing import Any

import msgspec

from ingot.events.audit import Act, AuditFilter, Entry, ListAuditEntries
from ingot.identity import credential_secrets
from ingot.identity.authenticator import Authenticator
from ingot.identity.credentials import Token
from ingot.identity.grants import Grant
from ingot.identity.members import Members
from ingot.identity.people import Member, PeopleRules, Person, Role, User
from ingot.identity.ports import CreateToken, FindSession, FindToken, SignIn, StoredSession
from ingot.identity.users import Users
from ingot.kernel.clock import MICROS
from ingot.kernel.ids import new_id
from tests.factories import Bench

ISSUER = "https://id.example.com"
HOUR = 3600 * MICROS
ACT = {"who": "token:boss", "name": "boss@example.com", "address": "192.0.2.7", "request_id": "req-1"}


def person(subject: str = "ann", **about: Any) -> Person:
    """Somebody with a verified email."""
    email = about.pop("email", f"{subject}@example.com")
    return Person(
        **{"issuer": ISSUER, "subject": subject, "email": email, "email_verified": email is not None, **about}
    )


def token_of(user: User, tenant: str) -> Token:
    """A token that somebody made in a tenant."""
    return Token(
        id=new_id(),
        tenant=tenant,
        description="of a person",
        grants=(Grant(action="jobs.read"),),
        ending="abcd",
        created_at=user.created_at,
        user=user.id,
    )


class PeopleFixture:
    """The people of a store, and those who manage them."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.store = bench.store
        self.access = Authenticator(bench.store, bench.clock, PeopleRules(issuer=ISSUER))
        self.members = Members(bench.store, self.access)
        self.users = Users(bench.store, self.access)

    def act(self) -> Act:
        """What somebody does who manages people."""
        return Act(**ACT)

    def signing_in(self, who: Person, digest: bytes | None = None, **more: Any) -> SignIn:
        """The command that signs somebody in, for an hour."""
        given: dict[str, Any] = {
            "user_id": new_id(),
            "session_id": new_id(),
            "digest": digest or new_id().encode(),
            "expires_at": self.bench.clock.micros() + HOUR,
            "address": "192.0.2.1",
            "agent": "a browser",
            "act": self.act(),
        }
        return SignIn(person=who, **{**given, **more})

    async def sign_in(self, subject: str = "ann", digest: bytes | None = None, **about: Any) -> User:
        """Somebody who has signed in."""
        return await self.store.run(self.signing_in(person(subject, **about), digest))

    async def join(self, user: User, role: Role, tenant: str | None = None) -> Member:
        """Give somebody a role of their own: invite them by ID, and accept for them."""
        tenant = tenant or self.bench.tenant
        invited = await self.members.put(tenant, role=role, user=user.id, act=self.act())
        return await self.accept(user, invited) if invited.invited else invited

    async def accept(self, user: User, invited: Member) -> Member:
        """Accept an invitation in the name of somebody."""
        return await self.members.accept(invited.id, user=user.id, act=self.act())

    async def session(self, digest: bytes) -> StoredSession:
        """A session that holds."""
        found = await self.store.run(FindSession(digest=digest))
        assert found is not None
        return found

    async def roles(self, user: User) -> dict[str, Role]:
        """The roles somebody has now, by slug."""
        return {role.slug: role.role for role in (await self.users.get(user.id)).roles}

    async def token(self, user: User, tenant: str | None = None) -> str:
        """A token that somebody has in a tenant."""
        token = token_of(user, tenant or self.bench.tenant)
        return (await self.store.run(CreateToken(token=token, digest=b"digest", act=Act()))).id

    async def text_of_token(self, user: User) -> str:
        """The text of a token that somebody has in the tenant."""
        token = token_of(user, self.bench.tenant)
        text = credential_secrets.new_token(token.id)
        await self.store.run(CreateToken(token=token, digest=credential_secrets.digest(text), act=Act()))
        return text

    async def holds(self, token: str) -> bool:
        """Whether a token has not been revoked."""
        found = await self.store.run(FindToken(token_id=token))
        assert found is not None
        return found.token.revoked_at is None

    async def acts(self, tenant: str | None = None) -> list[Entry]:
        """What is on record of people, newest first."""
        found = await self.store.run(ListAuditEntries(filter=AuditFilter(tenant=tenant), before=None, limit=100))
        return [one for one in found if not one.action.startswith(("tenant.", "token."))]

    async def last_act(self, tenant: str | None = None) -> Entry:
        """What was put on record last."""
        return (await self.acts(tenant))[0]


def seen(raw: msgspec.Raw) -> Any:
    """What is on record of a thing."""
    return msgspec.json.decode(raw)


def built(thing: object) -> Any:
    """A thing as it is on record."""
    return msgspec.json.decode(msgspec.json.encode(thing))
