"""Routes of members, people and sign-in links."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

from ingot.http.request import Request
from ingot.http.routes import PREFIX, Granted, Route, route_factory
from ingot.identity.credentials import Forbidden
from ingot.identity.grants import ANY
from ingot.identity.members import Members, check_email
from ingot.identity.people import ROLE_GRANTS, Member, MemberNotFound, Session, User
from ingot.identity.sessions import Sessions
from ingot.identity.users import Users
from ingot.kernel.pages import PAGE_ROWS_MAX, Page
from ingot.wire.admin import PageQuery
from ingot.wire.people import ChangeMemberRequest, PutMemberRequest, SignInLinkResponse, UserDetails, UsersQuery

# Otherwise a person who loses access could keep it with a link.
LINK_HINT: Final = "Use the operator's token, or another operator token of a program."


class PeopleApi:
    """Routes of members, people and sign-in links."""

    def __init__(self, members: Members, users: Users, sessions: Sessions, *, public_url: str | None) -> None:
        self._members = members
        self._users = users
        self._sessions = sessions
        self._public_url = public_url

    def routes(self) -> list[Route]:
        """Return the routes of this module."""
        route = route_factory("people", f"{PREFIX}/admin", Granted("admin.members"))
        return [
            route("GET", "/members", self.list_members),
            route("POST", "/members", self.put_member, status=201),
            route("GET", "/members/{id}", self.get_member),
            route("PATCH", "/members/{id}", self.change_member),
            route("DELETE", "/members/{id}", self.remove_member),
            route("GET", "/users", self.list_users),
            route("GET", "/users/{id}", self.get_user),
            route("POST", "/users/{id}/disable", self.disable_user),
            route("POST", "/users/{id}/enable", self.enable_user),
            route("GET", "/users/{id}/sessions", self.list_sessions),
            route("DELETE", "/users/{id}/sessions/{session}", self.end_session, status=204),
            route("POST", "/links", self.create_link, status=201),
        ]

    # -- members --------------------------------------------------------------------------------------------

    async def list_members(self, request: Request, query: PageQuery) -> Page[Member]:
        """List the members of the tenant, including people with a role through a group, and invitations."""
        return await self._members.list(request.tenant, cursor=query.cursor, limit=query.limit)

    async def put_member(self, request: Request, body: PutMemberRequest) -> Member:
        """Invite a person to a role in the tenant, by email or ID, or change the role that was given to a member.

        An invitation grants nothing until the person accepts it, and expires after 14 days. Inviting again renews it.
        The response contains nothing about the invited person.
        """
        request.require_role(body.role)
        if body.user is not None:
            await self._require_role_of(request, body.user)
        await self._require_role_of_invitation(request, user=body.user, email=body.email)
        return await self._members.put(
            request.tenant, role=body.role, user=body.user, email=body.email, act=request.act()
        )

    async def get_member(self, request: Request, id: str) -> Member:
        """Return a member or an invitation."""
        return await self._members.get(request.tenant, id)

    async def change_member(self, request: Request, id: str, body: ChangeMemberRequest) -> Member:
        """Change the role that was given to a member, or that of an invitation."""
        request.require_role(body.role)
        await self._require_role_of(request, id)
        return await self._members.change(request.tenant, id, role=body.role, act=request.act())

    async def remove_member(self, request: Request, id: str) -> Member:
        """Remove a member, with the tokens that they created in the tenant, or revoke an invitation."""
        await self._require_role_of(request, id)
        return await self._members.remove(request.tenant, id, act=request.act())

    async def _require_role_of(self, request: Request, member_id: str) -> None:
        """Raise `Forbidden` if the caller could not give the role that a member or an invitation has now."""
        with suppress(MemberNotFound):
            request.require_role((await self._members.get(request.tenant, member_id)).role)

    async def _require_role_of_invitation(self, request: Request, *, user: str | None, email: str | None) -> None:
        """Raise `Forbidden` if the caller could not give the role of an invitation that it would replace."""
        if all(request.caller.may(grant.action, grant.resource) for grants in ROLE_GRANTS.values() for grant in grants):
            return
        invited_email = None if email is None else check_email(email)
        cursor = None
        while True:
            page = await self._members.list(request.tenant, cursor=cursor, limit=PAGE_ROWS_MAX)
            for member in page.items:
                if member.invited and (member.user, member.email) == (user, invited_email):
                    request.require_role(member.role)
            cursor = page.next_cursor
            if cursor is None:
                return

    # -- users ----------------------------------------------------------------------------------------------

    async def list_users(self, request: Request, query: UsersQuery) -> Page[User]:
        """List the people who have signed in to this server, newest first."""
        request.require_operator("can list people")
        return await self._users.list(email=query.email, cursor=query.cursor, limit=query.limit)

    async def get_user(self, request: Request, id: str) -> UserDetails:
        """Return a person with their roles."""
        request.require_operator("can read people")
        owner = await self._users.get(id)
        operator = self._users.is_operator(owner.user)
        return UserDetails(**msgspec.structs.asdict(owner.user), operator=operator, tenants=owner.roles)

    async def disable_user(self, request: Request, id: str) -> User:
        """Disable a person at once. Their sessions end, their tokens are revoked, and they cannot sign in."""
        request.require_operator("can disable people")
        return await self._users.enable(id, enabled=False, act=request.act())

    async def enable_user(self, request: Request, id: str) -> User:
        """Enable a person, who can then sign in again."""
        request.require_operator("can enable people")
        return await self._users.enable(id, enabled=True, act=request.act())

    async def list_sessions(self, request: Request, id: str) -> Page[Session]:
        """List the sessions of a person, newest first."""
        request.require_operator("can list the sessions of other people")
        return Page(items=await self._sessions.list((await self._users.get(id)).user.id))

    async def end_session(self, request: Request, id: str, session: str) -> None:
        """End a session of a person."""
        request.require_operator("can end the sessions of other people")
        await self._sessions.end(session, user=id, act=request.act())

    async def create_link(self, request: Request) -> SignInLinkResponse:
        """Create a link that signs the operator in once, within 15 minutes."""
        request.require_operator("can create sign-in links")
        request.require(ANY)  # The link signs in with all grants.
        if request.caller.user is not None and not request.caller.user.is_local:
            raise Forbidden("people who sign in with a provider cannot create sign-in links", hint=LINK_HINT)
        link = await self._sessions.create_link(request.act())
        return SignInLinkResponse(
            url=link_url(self._public_url or request.base_url, link.secret), expires_at=link.expires_at
        )


def link_url(server: str, secret: str) -> str:
    """Return the URL that signs the operator in."""
    return f"{server}/auth/link?code={secret}"
