"""Routes with which callers see their identity and manage their own sessions and tokens."""

from __future__ import annotations

import msgspec

from ingot.api.admin import issue_token
from ingot.http.request import Request
from ingot.http.routes import PREFIX, Authenticated, Route, route_factory
from ingot.identity.credential_service import Credentials
from ingot.identity.credentials import Forbidden, Token
from ingot.identity.members import Members
from ingot.identity.people import Invitation, Member, TenantRole, User
from ingot.identity.roles import NO_TENANT, no_tenant_error
from ingot.identity.sessions import Sessions
from ingot.identity.tenants import Tenants
from ingot.kernel.pages import Page
from ingot.wire.admin import CreatedToken, CreateTokenRequest, PageQuery
from ingot.wire.people import Me, MySession


class MeApi:
    """Routes below `/me`."""

    def __init__(self, tenants: Tenants, sessions: Sessions, credentials: Credentials, members: Members) -> None:
        self._tenants = tenants
        self._sessions = sessions
        self._credentials = credentials
        self._members = members

    def routes(self) -> list[Route]:
        """Return the routes of this module."""
        route = route_factory("me", f"{PREFIX}/me", Authenticated())
        return [
            route("GET", "", self.who),
            route("GET", "/invitations", self.list_invitations),
            route("POST", "/invitations/{id}/accept", self.accept_invitation),
            route("POST", "/invitations/{id}/decline", self.decline_invitation, status=204),
            route("POST", "/tenants/{tenant}/choose", self.choose_tenant),
            route("POST", "/tenants/{tenant}/leave", self.leave_tenant),
            route("GET", "/sessions", self.list_sessions),
            route("DELETE", "/sessions/{id}", self.end_session, status=204),
            route("GET", "/tokens", self.list_tokens),
            route("POST", "/tokens", self.create_token, status=201),
            route("DELETE", "/tokens/{id}", self.revoke_token),
        ]

    async def who(self, request: Request) -> Me:
        """Return the caller and its grants."""
        caller = request.caller
        tenant = await self._tenants.get(request.tenant) if request.tenant else None
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

    async def list_invitations(self, request: Request) -> Page[Invitation]:
        """List the invitations that you can accept, oldest first."""
        return Page(items=await self._members.invitations(_signed_in_user(request).id))

    async def accept_invitation(self, request: Request, id: str) -> Member:
        """Accept an invitation, and become a member of the tenant.

        Your sessions continue to act in the tenant in which they act now.
        """
        return await self._members.accept(id, user=_signed_in_user(request).id, act=request.act())

    async def decline_invitation(self, request: Request, id: str) -> None:
        """Decline an invitation."""
        await self._members.decline(id, user=_signed_in_user(request).id, act=request.act())

    async def choose_tenant(self, request: Request, tenant: str) -> TenantRole:
        """Act in another tenant in this session, and in sessions that you start later."""
        _signed_in_user(request)
        return await self._members.choose_tenant(request.caller, tenant)

    async def leave_tenant(self, request: Request, tenant: str) -> Member:
        """Leave a tenant. All your roles there end, and your tokens there are revoked.

        Roles by group apply again only after you accept an invitation to the tenant.
        """
        _signed_in_user(request)
        return await self._members.leave(request.caller, tenant, act=request.act())

    async def list_sessions(self, request: Request) -> Page[MySession]:
        """List your sessions, newest first."""
        current_id = None if request.caller.session is None else request.caller.session.id
        sessions = await self._sessions.list(_signed_in_user(request).id)
        return Page(
            items=[
                MySession(**msgspec.structs.asdict(session), current=session.id == current_id) for session in sessions
            ]
        )

    async def end_session(self, request: Request, id: str) -> None:
        """End one of your sessions."""
        await self._sessions.end(id, user=_signed_in_user(request).id, act=request.act())

    async def list_tokens(self, request: Request, query: PageQuery) -> Page[Token]:
        """List the tokens that you created in all tenants, newest first."""
        return await self._credentials.list_user_tokens(
            _signed_in_user(request).id, cursor=query.cursor, limit=query.limit
        )

    async def create_token(self, request: Request, body: CreateTokenRequest) -> CreatedToken:
        """Create a personal token. It never allows more than you may do. The response shows its text only once."""
        _signed_in_user(request)
        if body.operator:
            request.require_operator("can create tokens for all tenants")
        if request.caller.tenant == NO_TENANT:
            raise no_tenant_error(request.caller)
        return await issue_token(self._credentials, request, None if body.operator else request.tenant, body)

    async def revoke_token(self, request: Request, id: str) -> Token:
        """Revoke one of your tokens."""
        return await self._credentials.revoke_token(None, id, user=_signed_in_user(request).id, act=request.act())


def _signed_in_user(request: Request) -> User:
    """Return the person who is signed in. Raises `Forbidden` for tokens, also for those that a person created."""
    if request.caller.user is None or request.caller.session is None:
        raise Forbidden(
            "this route needs a person who is signed in",
            hint="Sign in at /auth/login. Tokens and worker credentials cannot be used here.",
        )
    return request.caller.user
