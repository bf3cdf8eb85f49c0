"""Signing in and out in a browser, by way of a provider, or with a link of the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

import msgspec
import structlog

from ingot.dashboard.pages import SIGN_IN_PATH, STYLE, redirect, render_page
from ingot.http.cookies import LOGIN_COOKIE, SESSION_COOKIE, delete_cookie, read_cookie, set_cookie
from ingot.http.csrf import is_loopback_host, require_same_origin
from ingot.http.request import Request, Response
from ingot.http.routes import HTML, Open, Route, routes_of
from ingot.identity.people import Person, SignInRefused
from ingot.identity.sessions import DEFAULT_PAGE, LOGIN_SECONDS, OPERATOR, Sessions, safe_redirect_path
from ingot.wire.jobs import RequestStruct

if TYPE_CHECKING:
    from ingot.outbound.provider import Provider

STATE_CHARS: Final = 8  # Of the state, in the name of its cookie.
STYLE_PATH: Final = "/static/ingot.css"
log = structlog.get_logger("ingot.auth")
INTERACTION_ERRORS: Final = frozenset(
    {"login_required", "interaction_required", "consent_required", "account_selection_required"}
)


class SignInQuery(RequestStruct, frozen=True, kw_only=True):
    """Where to go after the sign-in. With `silent` the provider asks nothing, and says no when it would have to.

    With `other` it asks who they are, also those whom it knows: somebody wants to come as somebody else.
    """

    next: str = DEFAULT_PAGE
    silent: bool = False
    other: bool = False


class CallbackQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What the provider sends back: a code or an error, and what tells to which sign-in it belongs."""

    code: str | None = None
    state: str | None = None
    iss: str | None = None
    error: str | None = None


class LinkQuery(RequestStruct, frozen=True, kw_only=True):
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
        route = routes_of(
            "sign-in", "", Open(), response_content_type=HTML, other_statuses=(303,), limit_by_address=True
        )
        return [
            route("GET", SIGN_IN_PATH, self.sign_in),
            route("GET", "/auth/start", self.start),
            route("GET", "/auth/callback", self.callback),
            route("GET", "/auth/link", self.link),
            route("POST", "/auth/link", self.use_link),
            route("POST", "/auth/logout", self.sign_out),
            route("GET", STYLE_PATH, self.style, response_content_type="text/css", limit_by_address=False),
        ]

    async def sign_in(self, call: Request, query: SignInQuery) -> Response[bytes]:
        """The page on which one signs in."""
        return render_page(
            "sign_in",
            provider=None if self._provider is None else urlsplit(self._provider.issuer).hostname,
            here=self._public_url or call.base_url,
            start=f"/auth/start?next={quote(safe_redirect_path(query.next), safe='/')}",
            unsafe=not self._is_secure(call),
        )

    async def start(self, call: Request, query: SignInQuery) -> Response[bytes]:
        """Leads to the provider."""
        self._require_secure(call)
        if self._provider is None:
            return redirect(SIGN_IN_PATH)
        login = await self._sessions.begin_login(query.next)
        url = await self._provider.authorization_url(
            state=login.state,
            nonce=login.nonce,
            verifier=login.verifier,
            prompt="none" if query.silent else "login" if query.other else None,
        )
        return redirect(url, cookies=(set_cookie(_login_cookie(login.state), login.secret, LOGIN_SECONDS),))

    async def callback(self, call: Request, query: CallbackQuery) -> Response[bytes]:
        """Where the provider sends people back to: it makes a session of what the provider says of them."""
        self._require_secure(call)
        login, following = await self._sessions.resume_login(
            read_cookie(call.headers, _login_cookie(query.state)), query.state
        )
        if self._provider is None:
            raise SignInRefused("there is no provider here")
        if query.error is not None:
            if query.error in INTERACTION_ERRORS:  # It was to ask nothing, and would have to.
                return redirect(
                    f"{SIGN_IN_PATH}?next={quote(following, safe='/')}",
                    cookies=(delete_cookie(_login_cookie(query.state)),),
                )
            raise SignInRefused("the provider did not sign you in")
        if query.code is None:
            raise SignInRefused("the provider sent no code")
        try:
            person = await self._provider.fetch_person(
                code=query.code, nonce=login.nonce, verifier=login.verifier, iss=query.iss
            )
        except SignInRefused as refusal:
            if refusal.person is not None:
                await self._sessions.deny_sign_in(refusal.person, act=call.act())
            raise
        return await self._start_session(call, person, following, delete_cookie(_login_cookie(query.state)))

    async def link(self, call: Request, query: LinkQuery) -> Response[bytes]:
        """The page that a link of the operator leads to. It asks, so that nobody uses the link up by looking at it."""
        return render_page("link", code=query.code, unsafe=not self._is_secure(call))

    async def use_link(self, call: Request, query: LinkQuery) -> Response[bytes]:
        """Signs the operator in, once for each link."""
        require_same_origin(call.headers)
        self._require_secure(call)
        await self._sessions.use_link(query.code)
        return await self._start_session(call, OPERATOR, DEFAULT_PAGE)

    async def sign_out(self, call: Request) -> Response[bytes]:
        """Ends the session, also one for which the provider must be asked anew: who leaves is not led through it."""
        require_same_origin(call.headers)
        await self._sessions.sign_out(read_cookie(call.headers, SESSION_COOKIE), act=call.act())
        return redirect(f"{SIGN_IN_PATH}?next={DEFAULT_PAGE}", cookies=(delete_cookie(SESSION_COOKIE),))

    async def style(self, call: Request) -> Response[bytes]:  # noqa: ARG002 - every handler gets its call
        """How the pages look."""
        headers = {"content-type": "text/css; charset=utf-8", "cache-control": "max-age=3600"}
        return Response(STYLE, headers=headers)

    async def _start_session(self, call: Request, person: Person, following: str, *cookies: str) -> Response[bytes]:
        made = await self._sessions.sign_in(
            person,
            user_agent=call.headers.get("user-agent"),
            old_secret=read_cookie(call.headers, SESSION_COOKIE),
            act=call.act(),
        )
        log.info("signed_in", user_id=made.user.id)
        return redirect(following, cookies=(set_cookie(SESSION_COOKIE, made.secret), *cookies))

    def _is_secure(self, call: Request) -> bool:
        """Whether a browser keeps our cookies: over https, or on the machine itself."""
        if self._public_url is not None and self._public_url.startswith("https://"):
            return True
        return is_loopback_host(call.headers.get("host"))

    def _require_secure(self, call: Request) -> None:
        if not self._is_secure(call):
            raise SignInRefused(
                "without https one can sign in only on the machine that the server runs on",
                hint="Put a proxy with https before the server, and set INGOT_PUBLIC_URL to its address.",
            )


def _login_cookie(state: str | None) -> str:
    """The cookie of one sign-in: with several under way, each in a tab of its own, each finds its own."""
    return f"{LOGIN_COOKIE}_{(state or '')[:STATE_CHARS]}"
