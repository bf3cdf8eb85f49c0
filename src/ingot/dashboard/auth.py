"""Signing in and out in a browser, by way of a provider, or with a link of the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

import msgspec
import structlog

from ingot.dashboard.pages import SIGN_IN, STYLE, go_to, page
from ingot.http.call import Answer, Call
from ingot.http.cookies import LOGIN, SESSION, cookie, drop_cookie, set_cookie
from ingot.http.origin import expect_own_page, is_loopback
from ingot.http.table import PAGE, Open, Route, routes_of
from ingot.identity.people import Person, SignInRefused
from ingot.identity.sessions import HOME, LOGIN_SECONDS, OPERATOR, Sessions, own_page
from ingot.wire.jobs import Request

if TYPE_CHECKING:
    from ingot.outbound.provider import Provider

STATE_CHARS: Final = 8  # Of the state, in the name of its cookie.
STATIC: Final = "/static/ingot.css"
log = structlog.get_logger("ingot.auth")
ASKED: Final = frozenset({"login_required", "interaction_required", "consent_required", "account_selection_required"})


class SignInQuery(Request, frozen=True, kw_only=True):
    """Where to go after the sign-in. With `silent` the provider asks nothing, and says no when it would have to.

    With `other` it asks who they are, also those whom it knows: somebody wants to come as somebody else.
    """

    next: str = HOME
    silent: bool = False
    other: bool = False


class CallbackQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What the provider sends back: a code or an error, and what tells to which sign-in it belongs."""

    code: str | None = None
    state: str | None = None
    iss: str | None = None
    error: str | None = None


class LinkQuery(Request, frozen=True, kw_only=True):
    """The secret in a link of the operator."""

    code: str


class AuthPages:
    """The pages on which people sign in and out. Without a provider only links let somebody in."""

    def __init__(self, sessions: Sessions, provider: Provider | None, *, public_url: str | None) -> None:
        self._sessions = sessions
        self._provider = provider
        self._public_url = public_url

    def routes(self) -> list[Route]:
        """The routes of this room."""
        route = routes_of("sign-in", "", Open(), media=PAGE, other_statuses=(303,), by_address=True)
        return [
            route("GET", SIGN_IN, self.sign_in),
            route("GET", "/auth/start", self.start),
            route("GET", "/auth/callback", self.callback),
            route("GET", "/auth/link", self.link),
            route("POST", "/auth/link", self.use_link),
            route("POST", "/auth/logout", self.sign_out),
            route("GET", STATIC, self.style, media="text/css", by_address=False),
        ]

    async def sign_in(self, call: Call, query: SignInQuery) -> Answer[bytes]:
        """The page on which one signs in."""
        return page(
            "sign_in",
            provider=None if self._provider is None else urlsplit(self._provider.issuer).hostname,
            here=self._public_url or call.here,
            start=f"/auth/start?next={quote(own_page(query.next), safe='/')}",
            unsafe=not self._is_safe(call),
        )

    async def start(self, call: Call, query: SignInQuery) -> Answer[bytes]:
        """Leads to the provider."""
        self._expect_safe(call)
        if self._provider is None:
            return go_to(SIGN_IN)
        login = await self._sessions.begin(query.next)
        url = await self._provider.begin(
            state=login.state,
            nonce=login.nonce,
            verifier=login.verifier,
            prompt="none" if query.silent else "login" if query.other else None,
        )
        return go_to(url, cookies=(set_cookie(_login(login.state), login.secret, LOGIN_SECONDS),))

    async def callback(self, call: Call, query: CallbackQuery) -> Answer[bytes]:
        """Where the provider sends people back to: it makes a session of what the provider says of them."""
        self._expect_safe(call)
        login, following = await self._sessions.come_back(cookie(call.headers, _login(query.state)), query.state)
        if self._provider is None:
            raise SignInRefused("there is no provider here")
        if query.error is not None:
            if query.error in ASKED:  # It was to ask nothing, and would have to.
                return go_to(
                    f"{SIGN_IN}?next={quote(following, safe='/')}", cookies=(drop_cookie(_login(query.state)),)
                )
            raise SignInRefused("the provider did not sign you in")
        if query.code is None:
            raise SignInRefused("the provider sent no code")
        try:
            person = await self._provider.person(
                code=query.code, nonce=login.nonce, verifier=login.verifier, iss=query.iss
            )
        except SignInRefused as refusal:
            if refusal.person is not None:
                await self._sessions.turn_away(refusal.person, act=call.act())
            raise
        return await self._let_in(call, person, following, drop_cookie(_login(query.state)))

    async def link(self, call: Call, query: LinkQuery) -> Answer[bytes]:
        """The page that a link of the operator leads to. It asks, so that nobody uses the link up by looking at it."""
        return page("link", code=query.code, unsafe=not self._is_safe(call))

    async def use_link(self, call: Call, query: LinkQuery) -> Answer[bytes]:
        """Signs the operator in, once for each link."""
        expect_own_page(call.headers)
        self._expect_safe(call)
        await self._sessions.use_link(query.code)
        return await self._let_in(call, OPERATOR, HOME)

    async def sign_out(self, call: Call) -> Answer[bytes]:
        """Ends the session, also one for which the provider must be asked anew: who leaves is not led through it."""
        expect_own_page(call.headers)
        await self._sessions.leave(cookie(call.headers, SESSION), act=call.act())
        return go_to(f"{SIGN_IN}?next={HOME}", cookies=(drop_cookie(SESSION),))

    async def style(self, call: Call) -> Answer[bytes]:  # noqa: ARG002 - every handler gets its call
        """How the pages look."""
        headers = {"content-type": "text/css; charset=utf-8", "cache-control": "max-age=3600"}
        return Answer(STYLE, headers=headers)

    async def _let_in(self, call: Call, person: Person, following: str, *cookies: str) -> Answer[bytes]:
        made = await self._sessions.sign_in(
            person, agent=call.headers.get("user-agent"), old=cookie(call.headers, SESSION), act=call.act()
        )
        log.info("signed_in", user_id=made.user.id)
        return go_to(following, cookies=(set_cookie(SESSION, made.secret), *cookies))

    def _is_safe(self, call: Call) -> bool:
        """Whether a browser keeps our cookies: over https, or on the machine itself."""
        if self._public_url is not None and self._public_url.startswith("https://"):
            return True
        return is_loopback(call.headers.get("host"))

    def _expect_safe(self, call: Call) -> None:
        if not self._is_safe(call):
            raise SignInRefused(
                "without https one can sign in only on the machine that the server runs on",
                hint="Put a proxy with https before the server, and set INGOT_PUBLIC_URL to its address.",
            )


def _login(state: str | None) -> str:
    """The cookie of one sign-in: with several under way, each in a tab of its own, each finds its own."""
    return f"{LOGIN}_{(state or '')[:STATE_CHARS]}"
