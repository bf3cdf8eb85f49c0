"""Routes of those who look after people: members of a tenant, users, links."""

from __future__ import annotations

from typing import Final

import msgspec

from ingot.http.request import Request
from ingot.http.routes import PREFIX, Granted, Route, routes_of
from ingot.identity.credentials import Forbidden
from ingot.identity.grants import ANY
from ingot.identity.members import Members
from ingot.identity.people import Member, Session, User
from ingot.identity.sessions import Sessions
from ingot.identity.users import Users
from ingot.kernel.pages import Page
from ingot.wire.admin import PageQuery
from ingot.wire.people import ChangeMemberRequest, PutMemberRequest, SignInLinkResponse, UserDetails, UsersQuery

LINK_HINT: Final = "It would outlast them: use the operator's token, or that of another program."


class PeopleApi:
    """People over HTTP."""

    def __init__(self, members: Members, users: Users, sessions: Sessions, *, public_url: str | None) -> None:
        self._members = members
        self._users = users
        self._sessions = sessions
        self._public_url = public_url

    def routes(self) -> list[Route]:
        """The routes of this room."""
        route = routes_of("people", f"{PREFIX}/admin", Granted("admin.members"))
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

    async def list_members(self, call: Request, query: PageQuery) -> Page[Member]:
        """A page of everybody with a role in the tenant, own or by a group, and of those who are invited."""
        return await self._members.list(call.tenant, cursor=query.cursor, limit=query.limit)

    async def put_member(self, call: Request, body: PutMemberRequest) -> Member:
        """Give somebody a role in the tenant, or invite them by email."""
        call.require_role(body.role)
        return await self._members.put(call.tenant, role=body.role, user=body.user, email=body.email, act=call.act())

    async def get_member(self, call: Request, id: str) -> Member:
        """One member or invitation."""
        return await self._members.get(call.tenant, id)

    async def change_member(self, call: Request, id: str, body: ChangeMemberRequest) -> Member:
        """Give a member another role."""
        call.require_role(body.role)
        return await self._members.change(call.tenant, id, role=body.role, act=call.act())

    async def remove_member(self, call: Request, id: str) -> Member:
        """Take a member's own role, or an invitation, from the tenant. The tokens they made there end."""
        return await self._members.remove(call.tenant, id, act=call.act())

    # -- users ----------------------------------------------------------------------------------------------

    async def list_users(self, call: Request, query: UsersQuery) -> Page[User]:
        """A page of the people who have signed in here, newest first; those with an email with `email`."""
        call.require_operator("sees everybody")
        return await self._users.list(email=query.email, cursor=query.cursor, limit=query.limit)

    async def get_user(self, call: Request, id: str) -> UserDetails:
        """One person, and the roles they have."""
        call.require_operator("sees everybody")
        owner = await self._users.get(id)
        operator = self._users.is_operator(owner.user)
        return UserDetails(**msgspec.structs.asdict(owner.user), operator=operator, tenants=owner.roles)

    async def disable_user(self, call: Request, id: str) -> User:
        """Put a person out, at once: their sessions and tokens end, and they are not let in again."""
        call.require_operator("puts people out")
        return await self._users.enable(id, enabled=False, act=call.act())

    async def enable_user(self, call: Request, id: str) -> User:
        """Let a person in again."""
        call.require_operator("lets people in")
        return await self._users.enable(id, enabled=True, act=call.act())

    async def list_sessions(self, call: Request, id: str) -> Page[Session]:
        """The browsers in which a person is signed in, newest first."""
        call.require_operator("sees everybody's sessions")
        return Page(items=await self._sessions.list((await self._users.get(id)).user.id))

    async def end_session(self, call: Request, id: str, session: str) -> None:
        """Sign a person out in one of them."""
        call.require_operator("signs others out")
        await self._sessions.end(session, user=id, act=call.act())

    async def create_link(self, call: Request) -> SignInLinkResponse:
        """Make a link that signs the operator in, once, within a quarter of an hour."""
        call.require_operator("makes links")
        call.require(ANY)  # Who comes with it may do everything.
        if call.caller.user is not None and not call.caller.user.is_local:
            raise Forbidden("who signs in with a provider makes no links", hint=LINK_HINT)
        made = await self._sessions.create_link(call.act())
        return SignInLinkResponse(
            url=link_url(self._public_url or call.base_url, made.secret), expires_at=made.expires_at
        )


def link_url(server: str, secret: str) -> str:
    """The link that signs the operator in."""
    return f"{server}/auth/link?code={secret}"
