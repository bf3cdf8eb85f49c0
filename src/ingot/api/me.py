"""Routes of whoever asks: who they are, what they may do, where they are signed in, which tokens they made."""

from __future__ import annotations

import msgspec

from ingot.api.admin import issue_token
from ingot.http.request import Request
from ingot.http.routes import PREFIX, Authenticated, Route, routes_of
from ingot.identity.credential_service import Credentials
from ingot.identity.credentials import Forbidden, Token
from ingot.identity.people import User
from ingot.identity.sessions import Sessions
from ingot.identity.tenants import Tenants
from ingot.kernel.pages import Page
from ingot.wire.admin import CreatedToken, CreateTokenRequest, PageQuery
from ingot.wire.people import Me, MySession


class MeApi:
    """One's own things over HTTP."""

    def __init__(self, tenants: Tenants, sessions: Sessions, credentials: Credentials) -> None:
        self._tenants = tenants
        self._sessions = sessions
        self._credentials = credentials

    def routes(self) -> list[Route]:
        """The routes of this room."""
        route = routes_of("me", f"{PREFIX}/me", Authenticated())
        return [
            route("GET", "", self.who),
            route("GET", "/sessions", self.list_sessions),
            route("DELETE", "/sessions/{id}", self.end_session, status=204),
            route("GET", "/tokens", self.list_tokens),
            route("POST", "/tokens", self.create_token, status=201),
            route("DELETE", "/tokens/{id}", self.revoke_token),
        ]

    async def who(self, call: Request) -> Me:
        """Who asks, and what they may do."""
        caller = call.caller
        tenant = await self._tenants.get(call.tenant) if call.tenant else None
        return Me(
            kind=caller.kind,
            id=caller.id,
            operator=caller.is_operator,
            tenant=None if tenant is None else tenant.id,
            slug=None if tenant is None else tenant.slug,
            grants=caller.grants,
            tenants=caller.roles,
            user=caller.user,
            session=caller.session,
        )

    async def list_sessions(self, call: Request) -> Page[MySession]:
        """The browsers in which one is signed in, newest first."""
        own = None if call.caller.session is None else call.caller.session.id
        found = await self._sessions.list(_signed_in_user(call).id)
        return Page(items=[MySession(**msgspec.structs.asdict(one), current=one.id == own) for one in found])

    async def end_session(self, call: Request, id: str) -> None:
        """Sign out in one of them."""
        await self._sessions.end(id, user=_signed_in_user(call).id, act=call.act())

    async def list_tokens(self, call: Request, query: PageQuery) -> Page[Token]:
        """A page of the tokens that one made, in every tenant, newest first."""
        return await self._credentials.list_user_tokens(
            _signed_in_user(call).id, cursor=query.cursor, limit=query.limit
        )

    async def create_token(self, call: Request, body: CreateTokenRequest) -> CreatedToken:
        """Make a token of one's own. It does no more than oneself may, and ends with one's rights; it is shown once."""
        _signed_in_user(call)
        if body.operator:
            call.require_operator("makes tokens for all tenants")
        return await issue_token(self._credentials, call, None if body.operator else call.tenant, body)

    async def revoke_token(self, call: Request, id: str) -> Token:
        """End a token of one's own."""
        return await self._credentials.revoke_token(None, id, user=_signed_in_user(call).id, act=call.act())


def _signed_in_user(call: Request) -> User:
    """Who is signed in. A token of theirs may do what its grants say, and nothing in their name."""
    if call.caller.user is None or call.caller.session is None:
        raise Forbidden("this is for people", hint="Sign in at /auth/login; tokens and workers have no sessions.")
    return call.caller.user
