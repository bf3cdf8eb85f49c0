"""Sign-in with a provider or a link, the sessions of browsers, and sign-out."""

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

LOGIN_SECONDS: Final = 600.0  # How long a person may take at the provider.
LINK_SECONDS: Final = 900.0
NEW_LINK_HINT: Final = "Create another link with POST /api/v1/admin/links and the operator's token."
NEXT_PAGE_CHARS_MAX: Final = 1000
USER_AGENT_CHARS_MAX: Final = 200
DEFAULT_PAGE: Final = "/me"
OPERATOR: Final = Person(issuer=LOCAL_ISSUER, subject=LOCAL_SUBJECT, name="Operator")


class Login(NoRepr, frozen=True):
    """A sign-in that has begun. The values for the provider are derived from the secret in the browser's cookie."""

    secret: str

    @property
    def state(self) -> str:
        """The state that the provider has to send back."""
        return credential_secrets.derive_secret(self.secret, "state")

    @property
    def nonce(self) -> str:
        """The nonce that the ID token has to contain."""
        return credential_secrets.derive_secret(self.secret, "nonce")

    @property
    def verifier(self) -> str:
        """The PKCE verifier, which proves that the code is redeemed by the client that requested it."""
        return credential_secrets.derive_secret(self.secret, "verifier")


class SignInLink(NoRepr, frozen=True, kw_only=True):
    """A secret that signs the operator in once."""

    secret: str
    expires_at: datetime


class NewSession(NoRepr, frozen=True, kw_only=True):
    """A new session with its secret."""

    user: User
    secret: str


class Sessions:
    """The service for signing in and out."""

    def __init__(self, store: Store, authenticator: Authenticator, clock: Clock) -> None:
        self._store = store
        self._authenticator = authenticator
        self._clock = clock

    async def begin_login(self, page: str) -> Login:
        """Begin a login with the provider. `page` is the page of this server to show afterwards."""
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
        """Create a sign-in link for the operator, valid for one use within `LINK_SECONDS`."""
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

    def verify_login(self, secret: str | None, state: str | None) -> Login:
        """Return the login with which a browser returns from the provider, without querying the store.

        Raises `SignInRefused` unless this browser has the secret from which the state was derived.
        """
        if secret is None or not credential_secrets.is_well_formed(secret, credential_secrets.LOGIN_PREFIX):
            raise SignInRefused(
                "the sign-in was started in another browser, or too long ago", hint="Start again at /auth/login."
            )
        login = Login(secret)
        if state is None or not credential_secrets.constant_time_equal(state, login.state):
            raise SignInRefused("the response belongs to another sign-in (state)", hint="Start again at /auth/login.")
        return login

    async def resume_login(self, login: Login) -> str:
        """Use up a login, and return the page to show after the sign-in.

        Raises `SignInRefused` unless the login was begun within `LOGIN_SECONDS` and is used for the first time.
        """
        return await self._consume_login(login.secret, is_link=False)

    async def use_link(self, secret: str) -> None:
        """Use up a sign-in link. Raises `SignInRefused` if it is not valid, was used before or has expired."""
        if not credential_secrets.is_well_formed(secret, credential_secrets.LOGIN_PREFIX):
            raise SignInRefused("the sign-in link is not valid", hint=NEW_LINK_HINT)
        await self._consume_login(secret, is_link=True)

    async def sign_in(self, person: Person, *, user_agent: str | None, old_secret: str | None, act: Act) -> NewSession:
        """Create a session for a person. It replaces the session with `old_secret`. Raises `SignInRefused`."""
        secret = credential_secrets.new_secret(credential_secrets.SESSION_PREFIX)
        if old_secret is not None and not credential_secrets.is_well_formed(
            old_secret, credential_secrets.SESSION_PREFIX
        ):
            old_secret = None
        user = await self._authenticator.run_and_invalidate(
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
        """Record that the sign-in of a person was refused because of what the provider reported about them.

        Their sessions end, and their tokens permit nothing until a sign-in succeeds.
        """
        await self._authenticator.run_and_invalidate(DenySignIn(person=person, act=new_act(act)))

    async def end(self, session_id: str, *, user: str | None, act: Act) -> None:
        """End a session; with `user`, only a session of that person. Raises `SessionNotFound`."""
        if not is_id(session_id):
            raise SessionNotFound(f"there is no session {session_id[:64]!r}")
        await self._authenticator.run_and_invalidate(EndSession(id=session_id, user=user, act=new_act(act)))

    async def sign_out(self, secret: str | None, *, act: Act) -> None:
        """End the session with this secret, if there is one. This includes sessions that have to be renewed."""
        if secret is None or not credential_secrets.is_well_formed(secret, credential_secrets.SESSION_PREFIX):
            return
        stored = await self._store.run(FindSession(digest=credential_secrets.digest(secret)))
        if stored is not None:
            user = stored.owner.user
            with suppress(SessionNotFound):  # Another request has ended the session at the same time.
                await self.end(
                    stored.session.id,
                    user=user.id,
                    act=msgspec.structs.replace(act, who=f"user:{user.id}", name=user.label),
                )

    async def list(self, user: str) -> list[Session]:
        """Return the valid sessions of a person, newest first."""
        used_since = self._clock.micros() - round(self._authenticator.rules.idle_seconds * MICROS)
        sessions = await self._store.run(ListSessions(user=user))
        return [session for session in sessions if to_micros(session.last_used_at) > used_since]

    async def _consume_login(self, secret: str, *, is_link: bool) -> str:
        page = await self._store.run(ConsumeLogin(digest=credential_secrets.digest(secret), is_link=is_link))
        if page is None:
            if is_link:
                raise SignInRefused("the sign-in link was used before or has expired", hint=NEW_LINK_HINT)
            raise SignInRefused("the sign-in was completed before or has expired")
        return page


def safe_redirect_path(page: str) -> str:
    """Return `page` if it is a path of this server, and otherwise the default page.

    Browsers treat `//` and `/\\` as the beginning of a host. Paths are stored during the sign-in, so they must not
    contain secrets.
    """
    is_plain = page.isprintable() and page.isascii() and len(page) <= NEXT_PAGE_CHARS_MAX and "\\" not in page
    return (
        page
        if is_plain and not contains_secret(page) and page.startswith("/") and not page.startswith("//")
        else DEFAULT_PAGE
    )
