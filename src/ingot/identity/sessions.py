"""Signing in and out: from setting out, by way of a provider or with a link, to a session that a browser keeps."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Final

import msgspec

from ingot.events.audit import Act, new_act
from ingot.identity import credential_secrets
from ingot.identity.authenticator import Authenticator
from ingot.identity.people import LOCAL_ISSUER, LOCAL_SUBJECT, Person, Session, SessionNotFound, SignInRefused, User
from ingot.identity.ports import BeginLogin, ConsumeLogin, DenySignIn, EndSession, FindSession, ListSessions, SignIn
from ingot.kernel.clock import MICROS, Clock, to_datetime, to_micros
from ingot.kernel.commands import Store
from ingot.kernel.ids import is_id, new_id
from ingot.kernel.redaction import NoRepr, contains_secret

LOGIN_SECONDS: Final = 600.0  # How long somebody may be away at the provider.
LINK_SECONDS: Final = 900.0
NEW_LINK_HINT: Final = "Make another one with POST /api/v1/admin/links and the operator's token."
NEXT_PAGE_CHARS_MAX: Final = 1000
USER_AGENT_CHARS_MAX: Final = 200
DEFAULT_PAGE: Final = "/me"
OPERATOR: Final = Person(issuer=LOCAL_ISSUER, subject=LOCAL_SUBJECT, name="Operator")


class Login(NoRepr, frozen=True):
    """Somebody has set out to sign in. All that goes by way of the provider comes from what their browser keeps."""

    secret: str

    @property
    def state(self) -> str:
        """What the provider sends back with them."""
        return credential_secrets.derive_secret(self.secret, "state")

    @property
    def nonce(self) -> str:
        """What the provider writes into what it says of them."""
        return credential_secrets.derive_secret(self.secret, "nonce")

    @property
    def verifier(self) -> str:
        """What proves to the provider that the code is asked for by who they set out from."""
        return credential_secrets.derive_secret(self.secret, "verifier")


class SignInLink(NoRepr, frozen=True, kw_only=True):
    """A secret that signs the operator in, once."""

    secret: str
    expires_at: datetime


class NewSession(NoRepr, frozen=True, kw_only=True):
    """A session that was made, with its secret."""

    user: User
    secret: str


class Sessions:
    """Who is signed in, and how they came to be."""

    def __init__(self, store: Store, access: Authenticator, clock: Clock) -> None:
        self._store = store
        self._authenticator = access
        self._clock = clock

    async def begin_login(self, page: str) -> Login:
        """Somebody sets out to sign in, and wants to go to a page of ours then."""
        login = Login(credential_secrets.new_secret(credential_secrets.LOGIN_PREFIX))
        expires_at = self._clock.micros() + round(LOGIN_SECONDS * MICROS)
        await self._store.run(
            BeginLogin(
                digest=credential_secrets.digest(login.secret),
                expires_at=expires_at,
                next_page=safe_redirect_path(page),
            )
        )
        return login

    async def create_link(self, act: Act | None = None) -> SignInLink:
        """Make a link for the operator, for one use."""
        secret = credential_secrets.new_secret(credential_secrets.LOGIN_PREFIX)
        expires_at = self._clock.micros() + round(LINK_SECONDS * MICROS)
        await self._store.run(
            BeginLogin(
                digest=credential_secrets.digest(secret),
                expires_at=expires_at,
                next_page=DEFAULT_PAGE,
                is_link=True,
                act=new_act(act),
            )
        )
        return SignInLink(secret=secret, expires_at=to_datetime(expires_at))

    async def resume_login(self, secret: str | None, state: str | None) -> tuple[Login, str]:
        """Somebody has come back from the provider, once: how they set out, and where they want to go.

        Raises `SignInRefused` unless they set out from this browser, lately, and have not come back before.
        """
        if secret is None or not credential_secrets.is_well_formed(secret, credential_secrets.LOGIN_PREFIX):
            raise SignInRefused(
                "the sign-in was not begun in this browser, or too long ago", hint="Begin again at /auth/login."
            )
        login = Login(secret)
        if state is None or not credential_secrets.constant_time_equal(state, login.state):
            raise SignInRefused("the answer belongs to another sign-in", hint="Begin again at /auth/login.")
        return login, await self._consume_login(secret, is_link=False)

    async def use_link(self, secret: str) -> None:
        """Somebody comes with a link, once. Raises `SignInRefused` for one that was used, is old, or is none."""
        if not credential_secrets.is_well_formed(secret, credential_secrets.LOGIN_PREFIX):
            raise SignInRefused("this is no link of the operator", hint=NEW_LINK_HINT)
        await self._consume_login(secret, is_link=True)

    async def sign_in(self, person: Person, *, user_agent: str | None, old_secret: str | None, act: Act) -> NewSession:
        """Make a session for a person, in the place of the one that their browser had. Raises `SignInRefused`."""
        secret = credential_secrets.new_secret(credential_secrets.SESSION_PREFIX)
        if old_secret is not None and not credential_secrets.is_well_formed(
            old_secret, credential_secrets.SESSION_PREFIX
        ):
            old_secret = None
        user = await self._authenticator.change(
            SignIn(
                person=person,
                user_id=new_id(),
                session_id=new_id(),
                digest=credential_secrets.digest(secret),
                expires_at=self._clock.micros() + round(self._authenticator.rules.session_seconds * MICROS),
                address=act.address,
                agent=None if user_agent is None else user_agent[:USER_AGENT_CHARS_MAX],
                replaced_digest=None if old_secret is None else credential_secrets.digest(old_secret),
                act=new_act(act),
            )
        )
        return NewSession(user=user, secret=secret)

    async def deny_sign_in(self, person: Person, *, act: Act) -> None:
        """A person may not come in any more: what they did by their groups, with tokens of theirs too, has an end."""
        await self._authenticator.change(DenySignIn(person=person, act=new_act(act)))

    async def end(self, session_id: str, *, user: str | None, act: Act) -> None:
        """End a session of a person, or of anybody. Raises `SessionNotFound`."""
        if not is_id(session_id):
            raise SessionNotFound(f"there is no session {session_id[:64]!r}")
        await self._authenticator.change(EndSession(id=session_id, user=user, act=new_act(act)))

    async def sign_out(self, secret: str | None, *, act: Act) -> None:
        """Somebody signs out: their session ends, if that is one, also when it is too old for anything else."""
        if secret is None or not credential_secrets.is_well_formed(secret, credential_secrets.SESSION_PREFIX):
            return
        found = await self._store.run(FindSession(digest=credential_secrets.digest(secret)))
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
        oldest = self._clock.micros() - round(self._authenticator.rules.idle_seconds * MICROS)
        return [one for one in await self._store.run(ListSessions(user=user)) if to_micros(one.last_used_at) > oldest]

    async def _consume_login(self, secret: str, *, is_link: bool) -> str:
        page = await self._store.run(ConsumeLogin(digest=credential_secrets.digest(secret), is_link=is_link))
        if page is None:
            if is_link:
                raise SignInRefused("the link was used before, or is too old", hint=NEW_LINK_HINT)
            raise SignInRefused("the sign-in was used before, or is too old")
        return page


def safe_redirect_path(page: str) -> str:
    """Where to go after the sign-in: a page of ours, or else the first. Browsers take `//` and `/\\` for elsewhere.

    It is kept meanwhile, so one with a secret in it is none.
    """
    plain = page.isprintable() and page.isascii() and len(page) <= NEXT_PAGE_CHARS_MAX and "\\" not in page
    return (
        page
        if plain and not contains_secret(page) and page.startswith("/") and not page.startswith("//")
        else DEFAULT_PAGE
    )
