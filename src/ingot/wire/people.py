"""Requests and responses of people, members and sessions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from ingot.identity.grants import Grant
from ingot.identity.members import EMAIL_CHARS_MAX
from ingot.identity.people import Role, Session, TenantRole, User
from ingot.wire.admin import PageQuery
from ingot.wire.jobs import RequestStruct

Email = Annotated[str, msgspec.Meta(min_length=3, max_length=EMAIL_CHARS_MAX)]


class PutMemberRequest(RequestStruct, frozen=True, kw_only=True):
    """An invitation of the person with an ID or with a verified email. Set exactly one of `user` and `email`."""

    role: Role
    """Role of the member."""
    user: str | None = None
    """ID of the person, as their page `/me` shows it."""
    email: Email | None = None
    """Email address to invite. People who sign in with it, verified, can accept the invitation."""


class ChangeMemberRequest(RequestStruct, frozen=True, kw_only=True):
    """A new role for a member."""

    role: Role
    """New role of the member."""


class UsersQuery(PageQuery, frozen=True, kw_only=True):
    """The people to list."""

    email: Email | None = None
    """Only people with this email address."""


class UserDetails(User, frozen=True, kw_only=True):
    """A person with their roles."""

    operator: bool
    """Whether the person acts in all tenants."""
    tenants: tuple[TenantRole, ...]
    """Tenants in which the person has a role."""


class SignInLinkResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A link that signs the operator in once."""

    url: str
    """Link that signs the operator in. It works once."""
    expires_at: datetime
    """When the link expires."""


class Me(msgspec.Struct, frozen=True, kw_only=True):
    """The caller, the tenant of the request, and what the caller may do there."""

    kind: Literal["token", "worker", "user"]
    """Kind of the caller."""
    id: str
    """ID of the token, worker credential or person."""
    operator: bool
    """Whether the caller acts in all tenants."""
    tenant: str | None
    """ID of the tenant of the request; `null` for a person who has not chosen one, or has none."""
    slug: str | None
    """Readable name of that tenant."""
    grants: tuple[Grant, ...]
    """Grants of the caller in that tenant."""
    tenants: tuple[TenantRole, ...] = ()
    """Tenants in which the person has a role."""
    user: User | None = None
    """The person, also for a token that a person created."""
    session: Session | None = None
    """Session in which the person is signed in; `null` for programs."""


class MySession(Session, frozen=True, kw_only=True):
    """A session of the caller."""

    current: bool
    """Whether this request uses the session."""
