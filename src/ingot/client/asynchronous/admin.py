"""What those who run the place ask for: tenants, tokens, worker credentials, definitions, people, the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from ingot.client.asynchronous.http import AsyncHttp
from ingot.client.url_path import url_path
from ingot.events.audit import Entry
from ingot.identity.credentials import Token, TokenLimits, WorkerCredential
from ingot.identity.grants import Grant
from ingot.identity.model import Tenant
from ingot.identity.people import Member, Role, User
from ingot.identity.secret_values import Rotated
from ingot.jobs.model import Definition
from ingot.kernel.pages import Page
from ingot.wire.admin import CreatedToken, WorkerCredentialWithSecret
from ingot.wire.people import SignInLinkResponse, UserDetails


class AsyncAdmin:
    """Administration. What a caller may do is what its grants say."""

    def __init__(self, http: AsyncHttp) -> None:
        self._http = http

    # -- tenants --------------------------------------------------------------------------------------------

    def tenants(self) -> AsyncIterator[Tenant]:
        """All tenants, by slug."""
        return self._http.iterate_items("/admin/tenants", Page[Tenant], query={})

    async def tenant(self, slug: str) -> Tenant:
        """One tenant."""
        return await self._http.request("GET", url_path("admin", "tenants", slug), Tenant)

    async def create_tenant(self, slug: str, **values: Any) -> Tenant:
        """Make a tenant."""
        return await self._http.request("POST", "/admin/tenants", Tenant, body={"slug": slug, **values})

    async def change_tenant(self, slug: str, **values: Any) -> Tenant:
        """Change a tenant: its weight, time zone, limits, groups or slug."""
        return await self._http.request("PATCH", url_path("admin", "tenants", slug), Tenant, body=values)

    async def remove_tenant(self, slug: str) -> Tenant:
        """Remove a tenant, with all it holds."""
        return await self._http.request("DELETE", url_path("admin", "tenants", slug), Tenant)

    # -- tokens ---------------------------------------------------------------------------------------------

    def tokens(self, *, operator: bool = False) -> AsyncIterator[Token]:
        """The tokens of the tenant, or those of operators, newest first."""
        query = {"operator": "true" if operator else None}
        return self._http.iterate_items("/admin/tokens", Page[Token], query=query)

    async def create_token(
        self,
        description: str,
        grants: Sequence[Grant | Mapping[str, str]],
        *,
        expires_at: datetime | None = None,
        operator: bool = False,
        limits: TokenLimits | Mapping[str, float] | None = None,
    ) -> CreatedToken:
        """Make a token, with a `rate`, `burst` and `quota_bytes` of its own. Its text is in the answer, this once."""
        body: dict[str, Any] = {"description": description, "grants": grants, "operator": operator}
        if expires_at is not None:
            body["expires_at"] = expires_at
        if limits is not None:
            body["limits"] = limits
        return await self._http.request("POST", "/admin/tokens", CreatedToken, body=body)

    async def revoke_token(self, token_id: str) -> Token:
        """End a token."""
        return await self._http.request("DELETE", url_path("admin", "tokens", token_id), Token, idempotent=True)

    # -- worker credentials ---------------------------------------------------------------------------------

    def worker_credentials(self, *, shared: bool = False) -> AsyncIterator[WorkerCredential]:
        """The worker credentials of the tenant, or those that serve all."""
        query = {"shared": "true" if shared else None}
        return self._http.iterate_items("/admin/workers", Page[WorkerCredential], query=query)

    async def create_worker(
        self, worker_id: str, *, types: Sequence[str] = (), shared: bool = False
    ) -> WorkerCredentialWithSecret:
        """Make a worker credential. Its secret is in the answer, this once."""
        body = {"id": worker_id, "types": types, "shared": shared}
        return await self._http.request("POST", "/admin/workers", WorkerCredentialWithSecret, body=body)

    async def regenerate_worker(self, worker_id: str) -> WorkerCredentialWithSecret:
        """Give a worker credential another secret."""
        return await self._http.request(
            "POST", url_path("admin", "workers", worker_id, "regenerate"), WorkerCredentialWithSecret, body={}
        )

    async def enable_worker(self, worker_id: str) -> WorkerCredential:
        """Let the workers of a credential in again."""
        return await self._http.request(
            "POST", url_path("admin", "workers", worker_id, "enable"), WorkerCredential, body={}, idempotent=True
        )

    async def disable_worker(self, worker_id: str) -> WorkerCredential:
        """Put the workers of a credential out."""
        return await self._http.request(
            "POST", url_path("admin", "workers", worker_id, "disable"), WorkerCredential, body={}, idempotent=True
        )

    # -- definitions ----------------------------------------------------------------------------------------

    async def define(self, type: str, **values: Any) -> Definition:
        """Make or replace the definition of a type."""
        return await self._http.request(
            "PUT", url_path("admin", "definitions", type), Definition, body=values, idempotent=True
        )

    # -- secrets --------------------------------------------------------------------------------------------

    async def rotate_secret_key(self) -> Rotated:
        """Encrypt the secrets of all tenants with the current key of the server."""
        return await self._http.request("POST", "/admin/secrets/rotate-key", Rotated, body={}, idempotent=True)

    # -- people and acts ------------------------------------------------------------------------------------

    def members(self) -> AsyncIterator[Member]:
        """Everybody with a role in the tenant."""
        return self._http.iterate_items("/admin/members", Page[Member], query={})

    async def put_member(self, role: Role, *, email: str | None = None, user: str | None = None) -> Member:
        """Give somebody a role, or invite them by email."""
        who = {"email": email} if user is None else {"user": user}
        return await self._http.request("POST", "/admin/members", Member, body={"role": role, **who}, idempotent=True)

    async def remove_member(self, member_id: str) -> Member:
        """Take a role or an invitation."""
        return await self._http.request("DELETE", url_path("admin", "members", member_id), Member)

    def users(self, *, email: str | None = None) -> AsyncIterator[User]:
        """The people who have signed in, newest first."""
        return self._http.iterate_items("/admin/users", Page[User], query={"email": email})

    async def user(self, user_id: str) -> UserDetails:
        """One person, and their roles."""
        return await self._http.request("GET", url_path("admin", "users", user_id), UserDetails)

    async def disable_user(self, user_id: str) -> User:
        """Put a person out."""
        return await self._http.request(
            "POST", url_path("admin", "users", user_id, "disable"), User, body={}, idempotent=True
        )

    async def enable_user(self, user_id: str) -> User:
        """Let a person in again."""
        return await self._http.request(
            "POST", url_path("admin", "users", user_id, "enable"), User, body={}, idempotent=True
        )

    async def link(self) -> SignInLinkResponse:
        """A link that signs the operator in, once."""
        return await self._http.request("POST", "/admin/links", SignInLinkResponse, body={})

    def audit(self, **filters: Any) -> AsyncIterator[Entry]:
        """What was done, newest first; `action`, `who`, `target` and `all` say which."""
        return self._http.iterate_items("/admin/audit", Page[Entry], query=filters)
