"""The account page of the signed-in person, with roles and sessions."""

from __future__ import annotations

from typing import Final

from ingot.dashboard.pages import redirect, render_page
from ingot.http.request import Request, Response
from ingot.http.routes import HTML, Authenticated, Route, route_factory
from ingot.identity.credentials import Forbidden
from ingot.identity.grants import RECORD_RESOURCES
from ingot.identity.members import Members
from ingot.identity.people import ROLE_GRANTS, User
from ingot.identity.sessions import DEFAULT_PAGE, Sessions

ACTION_DESCRIPTIONS: Final = {
    "jobs.*": "create, view and manage jobs",
    "jobs.read": "view jobs",
    "jobs.create": "create jobs",
    "workers.*": "run, view and manage workers",
    "workers.read": "view workers",
    "events.*": "publish and view events",
    "events.read": "view events",
    "blobs.*": "store, read and delete files",
    "blobs.read": "read files",
    "blobs.write": "store files",
    "blobs.delete": "delete files",
    **{f"{plural}.*": f"view and change {plural}" for plural in RECORD_RESOURCES},
    "admin.*": "manage members, tokens, worker credentials and definitions, and read the audit log",
}


class MePage:
    """The account page."""

    def __init__(self, sessions: Sessions, members: Members) -> None:
        self._sessions = sessions
        self._members = members

    def routes(self) -> list[Route]:
        """Return the routes of this page."""
        route = route_factory("sign-in", DEFAULT_PAGE, Authenticated(), response_content_type=HTML)
        return [
            route("GET", "", self.show),
            route("POST", "/sessions/{id}/end", self.end_session, status=303),
            route("POST", "/invitations/{id}/accept", self.accept_invitation, status=303),
            route("POST", "/invitations/{id}/decline", self.decline_invitation, status=303),
            route("POST", "/tenants/{tenant}/choose", self.choose_tenant, status=303),
            route("POST", "/tenants/{tenant}/leave", self.leave_tenant, status=303),
        ]

    async def show(self, request: Request) -> Response[bytes]:
        """Show the account page."""
        user = _signed_in_user(request)
        return render_page(
            "me",
            user=user,
            is_operator=request.caller.is_operator,
            roles=[
                (role, [ACTION_DESCRIPTIONS[grant.action] for grant in ROLE_GRANTS[role.role]])
                for role in request.caller.roles
            ],
            tenant=request.caller.tenant,
            invitations=await self._members.invitations(user.id),
            sessions=await self._sessions.list(user.id),
            current_session=request.caller.session,
        )

    async def end_session(self, request: Request, id: str) -> Response[bytes]:
        """End one session of the signed-in person."""
        await self._sessions.end(id, user=_signed_in_user(request).id, act=request.act())
        return redirect(DEFAULT_PAGE)

    async def accept_invitation(self, request: Request, id: str) -> Response[bytes]:
        """Accept an invitation of the signed-in person."""
        await self._members.accept(id, user=_signed_in_user(request).id, act=request.act())
        return redirect(DEFAULT_PAGE)

    async def decline_invitation(self, request: Request, id: str) -> Response[bytes]:
        """Decline an invitation of the signed-in person."""
        await self._members.decline(id, user=_signed_in_user(request).id, act=request.act())
        return redirect(DEFAULT_PAGE)

    async def choose_tenant(self, request: Request, tenant: str) -> Response[bytes]:
        """Let the session act in a tenant."""
        _signed_in_user(request)
        await self._members.choose_tenant(request.caller, tenant)
        return redirect(DEFAULT_PAGE)

    async def leave_tenant(self, request: Request, tenant: str) -> Response[bytes]:
        """End the membership of the signed-in person in a tenant."""
        _signed_in_user(request)
        await self._members.leave(request.caller, tenant, act=request.act())
        return redirect(DEFAULT_PAGE)


def _signed_in_user(request: Request) -> User:
    if request.caller.user is None or request.caller.session is None:
        raise Forbidden("this page needs a signed-in person", hint="With a token, use GET /api/v1/me.")
    return request.caller.user
