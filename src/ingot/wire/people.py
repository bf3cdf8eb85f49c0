"""Requests and answers about people."""

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
    """Who gets a role: a person by id, or whoever signs in with an email that the provider has verified."""

    role: Role
    user: str | None = None
    email: Email | None = None


class ChangeMemberRequest(RequestStruct, frozen=True, kw_only=True):
    """The role that somebody gets instead of the one they have."""

    role: Role


class UsersQuery(PageQuery, frozen=True, kw_only=True):
    """Which people to list."""

    email: Email | None = None


class UserDetails(User, frozen=True, kw_only=True):
    """A person, and the roles they have."""

    operator: bool
    tenants: tuple[TenantRole, ...]


class SignInLinkResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A link that signs the operator in, once."""

    url: str
    expires_at: datetime


class Me(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, in which tenant, and what they may do there.

    `tenant` is the id of that tenant and `slug` its name; a person in none has roles in several, or in none. `tenants`
    are those that a person has a role in.
    """

    kind: Literal["token", "worker", "user"]
    id: str
    operator: bool
    tenant: str | None
    slug: str | None
    grants: tuple[Grant, ...]
    tenants: tuple[TenantRole, ...] = ()
    user: User | None = None
    session: Session | None = None


class MySession(Session, frozen=True, kw_only=True):
    """A session; `current` is the one that asks."""

    current: bool
