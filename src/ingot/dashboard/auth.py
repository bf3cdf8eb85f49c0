"""Signing in and out in a browser, with an OpenID Connect provider or with an operator link."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

import msgspec
import structlog

from ingot.dashboard.pages import SIGN_IN_PATH, STYLE, redirect, render_page
from ingot.http.cookies import (
    BROWSER_COOKIE,
    BROWSER_SECONDS,
    LOGIN_COOKIE,
    SESSION_COOKIE,
    delete_cookie,
    read_cookie,
    set_cookie,
)
from ingot.http.csrf import is_loopback_host, require_same_origin
from ingot.http.request import Request, Response
from ingot.http.routes import HTML, Open, Route, route_factory
from ingot.http.signing import Signer
from ingot.identity.people import Person, SignInRefused
from ingot.identity.sessions import DEFAULT_PAGE, LOGIN_SECONDS, OPERATOR, Sessions, safe_redirect_path
from ingot.kernel.ids import new_id
from ingot.wire.jobs import RequestStruct

if TYPE_CHECKING:
    from ingot.outbound.provider import Provider

STATE_CHARS: Final = 8  # Length of the part of the state that is in the name of the login cookie.
STYLE_PATH: Final = "/static/ingot.css"
log = structlog.get_logger("ingot.auth")
# Errors with which a provider declines a silent sign-in that would need an interaction with the person.
INTERACTION_ERRORS: Final = frozenset(
    {"login_required", "interaction_required", "consent_required", "account_selection_required"}
)


class SignInQuery(RequestStruct, frozen=True, kw_only=True):
    """The path to return to after the sign-in, and how the provider interacts with the person.

    With `silent`, the provider shows no page and reports an error if it would have to. With `other`, it asks for the
    account even if the person is signed in there, so that they can choose another one.
    """

    next: str = DEFAULT_PAGE
    silent: bool = False
    other: bool = False


class CallbackQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters that the provider sends: a code or an error, and the state that identifies the sign-in."""

    code: str | None = None
    state: str | None = None
    iss: str | None = None
    error: str | None = None


class LinkQuery(RequestStruct, frozen=True, kw_only=True):
    """The secret of an operator link."""

    code: str


class AuthPages:
    """The pages for signing in and out. Without a provider, people can sign in only with operator links."""

    def __init__(
        self, sessions: Sessions, provider: Provider | None, signer: Signer, *, public_url: str | None
    ) -> None:
        self._sessions = sessions
        self._signer = signer
        self._provider = provider
        self._public_url = public_url

    def routes(self) -> list[Route]:
        """Return the routes of these pages."""
        route = route_factory("sign-in", "", Open(), response_content_type=HTML, other_statuses=(303,))
        return [
            route("GET", SIGN_IN_PATH, self.sign_in),
            route("GET", "/auth/start", self.start, limit_by_address=True),
            route("GET", "/auth/callback", self.callback, limit_by_address=True),
            route("GET", "/auth/link", self.link),
            route("POST", "/auth/link", self.use_link, limit_by_address=True),
            route("POST", "/auth/logout", self.sign_out),
            route("GET", STYLE_PATH, self.style, response_content_type="text/css"),
        ]

    async def sign_in(self, request: Request, query: SignInQuery) -> Response[bytes]:
        """Show the sign-in page."""
        return render_page(
            "sign_in",
            provider=None if self._provider is None else urlsplit(self._provider.issuer).hostname,
            server_url=self._public_url or request.base_url,
            start_url=f"/auth/start?next={quote(safe_redirect_path(query.next), safe='/')}",
            is_secure=self._is_secure(request),
        )

    async def start(self, request: Request, query: SignInQuery) -> Response[bytes]:
        """Redirect to the provider."""
        self._require_secure(request)
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

    async def callback(self, request: Request, query: CallbackQuery) -> Response[bytes]:
        """Complete the sign-in when the provider redirects back, and start a session."""
        self._require_secure(request)
        try:
            login = self._sessions.verify_login(read_cookie(request.headers, _login_cookie(query.state)), query.state)
        except SignInRefused:
            request.uncount()  # It cost nothing, and any site can send its visitors here.
            raise
        next_page = await self._sessions.resume_login(login)
        if self._provider is None:
            raise SignInRefused("no identity provider is configured")
        if query.error is not None:
            if query.error in INTERACTION_ERRORS:  # A silent sign-in was not possible.
                return redirect(
                    f"{SIGN_IN_PATH}?next={quote(next_page, safe='/')}",
                    cookies=(delete_cookie(_login_cookie(query.state)),),
                )
            raise SignInRefused("the provider did not sign you in")
        if query.code is None:
            raise SignInRefused("the provider sent no authorization code")
        try:
            person = await self._provider.fetch_person(
                code=query.code, nonce=login.nonce, verifier=login.verifier, iss=query.iss
            )
        except SignInRefused as refusal:
            if refusal.person is not None:
                await self._sessions.deny_sign_in(refusal.person, act=request.act())
            raise
        response = await self._start_session(request, person, next_page, delete_cookie(_login_cookie(query.state)))
        request.uncount()
        return response

    async def link(self, request: Request, query: LinkQuery) -> Response[bytes]:
        """Show the page of an operator link. A button uses the link, so that programs that preview it do not."""
        return render_page("link", code=query.code, is_secure=self._is_secure(request))

    async def use_link(self, request: Request, query: LinkQuery) -> Response[bytes]:
        """Sign the operator in. Each link works once."""
        self._require_secure(request)
        await self._sessions.use_link(query.code)
        return await self._start_session(request, OPERATOR, DEFAULT_PAGE)

    async def sign_out(self, request: Request) -> Response[bytes]:
        """End the session. This needs no valid session, so that a person with a stale one need not renew it first."""
        require_same_origin(request.headers)
        await self._sessions.sign_out(read_cookie(request.headers, SESSION_COOKIE), act=request.act())
        cookies = (delete_cookie(SESSION_COOKIE),)
        return redirect(f"{SIGN_IN_PATH}?next={DEFAULT_PAGE}", cookies=cookies, clears_browser=True)

    async def style(self, request: Request) -> Response[bytes]:  # noqa: ARG002 - every handler gets the request
        """Return the style sheet of the pages."""
        headers = {"content-type": "text/css; charset=utf-8", "cache-control": "max-age=3600"}
        return Response(STYLE, headers=headers)

    async def _start_session(self, request: Request, person: Person, next_page: str, *cookies: str) -> Response[bytes]:
        session = await self._sessions.sign_in(
            person,
            user_agent=request.headers.get("user-agent"),
            old_secret=read_cookie(request.headers, SESSION_COOKIE),
            act=request.act(),
        )
        log.info("signed_in", user_id=session.user.id)
        browser = read_cookie(request.headers, BROWSER_COOKIE)
        if browser is None or self._signer.verify_text(BROWSER_COOKIE, browser) is None:
            browser = self._signer.sign_text(BROWSER_COOKIE, new_id())
            cookies = (*cookies, set_cookie(BROWSER_COOKIE, browser, BROWSER_SECONDS))
        return redirect(next_page, cookies=(set_cookie(SESSION_COOKIE, session.secret), *cookies))

    def _is_secure(self, request: Request) -> bool:
        """Return whether browsers accept our cookies, which they do over HTTPS or from the local machine."""
        if self._public_url is not None and self._public_url.startswith("https://"):
            return True
        return is_loopback_host(request.headers.get("host"))

    def _require_secure(self, request: Request) -> None:
        if not self._is_secure(request):
            raise SignInRefused(
                "signing in requires HTTPS, except on the machine that the server runs on",
                hint="Put a reverse proxy with HTTPS in front of the server, and set INGOT_PUBLIC_URL to its URL.",
            )


def _login_cookie(state: str | None) -> str:
    """Return the name of the cookie of one sign-in. Sign-ins in several tabs have different cookies."""
    return f"{LOGIN_COOKIE}_{(state or '')[:STATE_CHARS]}"
