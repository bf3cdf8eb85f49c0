"""Signing in and out: from setting out, by way of a provider or with a link, to a session that a browser keeps."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Final

import msgspec

from ingot.events.audit import Act, acting
from ingot.identity import secrets
from ingot.identity.access import Access
from ingot.identity.people import LOCAL_ISSUER, LOCAL_SUBJECT, Person, Session, SessionNotFound, SignInRefused, User
from ingot.identity.ports import BeginLogin, EndSession, FindSession, ListSessions, SignIn, TakeLogin, TurnAway
from ingot.kernel.clock import MICROS, Clock, to_datetime, to_micros
from ingot.kernel.commands import Store
from ingot.kernel.hidden import Unshown, is_secret
from ingot.kernel.ids import is_id, new_id

LOGIN_SECONDS: Final = 600.0  # How long somebody may be away at the provider.
LINK_SECONDS: Final = 900.0
ANOTHER_LINK: Final = "Make another one with POST /api/v1/admin/links and the operator's token."
NEXT_CHARS_MAX: Final = 1000
AGENT_CHARS_MAX: Final = 200
HOME: Final = "/me"
OPERATOR: Final = Person(issuer=LOCAL_ISSUER, subject=LOCAL_SUBJECT, name="Operator")


class Login(Unshown, frozen=True):
    """Somebody has set out to sign in. All that goes by way of the provider comes from what their browser keeps."""

    secret: str

    @property
    def state(self) -> str:
        """What the provider sends back with them."""
        return secrets.derived(self.secret, "state")

    @property
    def nonce(self) -> str:
        """What the provider writes into what it says of them."""
        return secrets.derived(self.secret, "nonce")

    @property
    def verifier(self) -> str:
        """What proves to the provider that the code is asked for by who they set out from."""
        return secrets.derived(self.secret, "verifier")


class Link(Unshown, frozen=True, kw_only=True):
    """A secret that signs the operator in, once."""

    secret: str
    expires_at: datetime


class SignedIn(Unshown, frozen=True, kw_only=True):
    """A session that was made, with its secret."""

    user: User
    secret: str


class Sessions:
    """Who is signed in, and how they came to be."""

    def __init__(self, store: Store, access: Access, clock: Clock) -> None:
        self._store = store
        self._access = access
        self._clock = clock

    async def begin(self, page: str) -> Login:
        """Somebody sets out to sign in, and wants to go to a page of ours then."""
        login = Login(secrets.new_secret(secrets.LOGIN_PREFIX))
        expires_at = self._clock.micros() + round(LOGIN_SECONDS * MICROS)
        await self._store.run(
            BeginLogin(digest=secrets.digest(login.secret), expires_at=expires_at, next=own_page(page))
        )
        return login

    async def link(self, act: Act | None = None) -> Link:
        """Make a link for the operator, for one use."""
        secret = secrets.new_secret(secrets.LOGIN_PREFIX)
        expires_at = self._clock.micros() + round(LINK_SECONDS * MICROS)
        await self._store.run(
            BeginLogin(digest=secrets.digest(secret), expires_at=expires_at, next=HOME, link=True, act=acting(act))
        )
        return Link(secret=secret, expires_at=to_datetime(expires_at))

    async def come_back(self, secret: str | None, state: str | None) -> tuple[Login, str]:
        """Somebody has come back from the provider, once: how they set out, and where they want to go.

        Raises `SignInRefused` unless they set out from this browser, lately, and have not come back before.
        """
        if secret is None or not secrets.is_well_formed(secret, secrets.LOGIN_PREFIX):
            raise SignInRefused(
                "the sign-in was not begun in this browser, or too long ago", hint="Begin again at /auth/login."
            )
        login = Login(secret)
        if state is None or not secrets.same(state, login.state):
            raise SignInRefused("the answer belongs to another sign-in", hint="Begin again at /auth/login.")
        return login, await self._take(secret, link=False)

    async def use_link(self, secret: str) -> None:
        """Somebody comes with a link, once. Raises `SignInRefused` for one that was used, is old, or is none."""
        if not secrets.is_well_formed(secret, secrets.LOGIN_PREFIX):
            raise SignInRefused("this is no link of the operator", hint=ANOTHER_LINK)
        await self._take(secret, link=True)

    async def sign_in(self, person: Person, *, agent: str | None, old: str | None, act: Act) -> SignedIn:
        """Make a session for a person, in the place of the one that their browser had. Raises `SignInRefused`."""
        secret = secrets.new_secret(secrets.SESSION_PREFIX)
        if old is not None and not secrets.is_well_formed(old, secrets.SESSION_PREFIX):
            old = None
        user = await self._access.change(
            SignIn(
                person=person,
                user_id=new_id(),
                session_id=new_id(),
                digest=secrets.digest(secret),
                expires_at=self._clock.micros() + round(self._access.rules.session_seconds * MICROS),
                address=act.address,
                agent=None if agent is None else agent[:AGENT_CHARS_MAX],
                replaces=None if old is None else secrets.digest(old),
                act=acting(act),
            )
        )
        return SignedIn(user=user, secret=secret)

    async def turn_away(self, person: Person, *, act: Act) -> None:
        """A person may not come in any more: what they did by their groups, with tokens of theirs too, has an end."""
        await self._access.change(TurnAway(person=person, act=acting(act)))

    async def end(self, session_id: str, *, user: str | None, act: Act) -> None:
        """End a session of a person, or of anybody. Raises `SessionNotFound`."""
        if not is_id(session_id):
            raise SessionNotFound(f"there is no session {session_id[:64]!r}")
        await self._access.change(EndSession(id=session_id, user=user, act=acting(act)))

    async def leave(self, secret: str | None, *, act: Act) -> None:
        """Somebody signs out: their session ends, if that is one, also when it is too old for anything else."""
        if secret is None or not secrets.is_well_formed(secret, secrets.SESSION_PREFIX):
            return
        found = await self._store.run(FindSession(digest=secrets.digest(secret)))
        if found is not None:
            user = found.owner.user
            with suppress(SessionNotFound):  # It ended at the same moment.
                await self.end(
                    found.session.id,
                    user=user.id,
                    act=msgspec.structs.replace(act, who=f"user:{user.id}", name=user.label),
                )

    async def list(self, user: str) -> list[Session]:
        """The sessions of a person that hold, newest first."""
        oldest = self._clock.micros() - round(self._access.rules.idle_seconds * MICROS)
        return [one for one in await self._store.run(ListSessions(user=user)) if to_micros(one.last_used_at) > oldest]

    async def _take(self, secret: str, *, link: bool) -> str:
        page = await self._store.run(TakeLogin(digest=secrets.digest(secret), link=link))
        if page is None:
            if link:
                raise SignInRefused("the link was used before, or is too old", hint=ANOTHER_LINK)
            raise SignInRefused("the sign-in was used before, or is too old")
        return page


def own_page(page: str) -> str:
    """Where to go after the sign-in: a page of ours, or else the first. Browsers take `//` and `/\\` for elsewhere.

    It is kept meanwhile, so one with a secret in it is none.
    """
    plain = page.isprintable() and page.isascii() and len(page) <= NEXT_CHARS_MAX and "\\" not in page
    return page if plain and not is_secret(page) and page.startswith("/") and not page.startswith("//") else HOME
