"""Administration: tenants, tokens, worker credentials, definitions, members, users and the audit log."""

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
    """Administrative operations: `client.admin`. Each needs a grant."""

    def __init__(self, http: AsyncHttp) -> None:
        self._http = http

    # -- tenants --------------------------------------------------------------------------------------------

    def tenants(self) -> AsyncIterator[Tenant]:
        """Iterate over tenants, ordered by slug. Operators see all tenants, other callers their own."""
        return self._http.iterate_items("/admin/tenants", Page[Tenant], query={})

    async def tenant(self, slug: str) -> Tenant:
        """Return a tenant by slug or ID. Raises `TenantNotFound`."""
        return await self._http.request("GET", url_path("admin", "tenants", slug), Tenant)

    async def create_tenant(self, slug: str, **values: Any) -> Tenant:
        """Create a tenant. `values` are its `weight`, `time_zone`, `limits` and `groups`."""
        return await self._http.request("POST", "/admin/tenants", Tenant, body={"slug": slug, **values})

    async def change_tenant(self, slug: str, **values: Any) -> Tenant:
        """Change the `weight`, `time_zone`, `limits`, `groups` or `slug` of a tenant."""
        return await self._http.request("PATCH", url_path("admin", "tenants", slug), Tenant, body=values)

    async def remove_tenant(self, slug: str) -> Tenant:
        """Remove a tenant and return it as it was. Its data is deleted in the background."""
        return await self._http.request("DELETE", url_path("admin", "tenants", slug), Tenant)

    # -- tokens ---------------------------------------------------------------------------------------------

    def tokens(self, *, operator: bool = False) -> AsyncIterator[Token]:
        """Iterate over the tokens of the tenant, or those of operators, newest first."""
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
        """Create a token. The return value contains its text, which cannot be read again.

        `limits` can set a `rate`, a `burst` and `quota_bytes` for the token.
        """
        body: dict[str, Any] = {"description": description, "grants": grants, "operator": operator}
        if expires_at is not None:
            body["expires_at"] = expires_at
        if limits is not None:
            body["limits"] = limits
        return await self._http.request("POST", "/admin/tokens", CreatedToken, body=body)

    async def revoke_token(self, token_id: str) -> Token:
        """Revoke a token."""
        return await self._http.request("DELETE", url_path("admin", "tokens", token_id), Token, idempotent=True)

    # -- worker credentials ---------------------------------------------------------------------------------

    def worker_credentials(self, *, shared: bool = False) -> AsyncIterator[WorkerCredential]:
        """Iterate over the worker credentials of the tenant, or over the shared ones."""
        query = {"shared": "true" if shared else None}
        return self._http.iterate_items("/admin/workers", Page[WorkerCredential], query=query)

    async def create_worker(
        self, worker_id: str, *, types: Sequence[str] = (), shared: bool = False
    ) -> WorkerCredentialWithSecret:
        """Create a worker credential. The return value contains its secret, which cannot be read again.

        Its workers may run the job types in `types`, or all types if it is empty.
        """
        body = {"id": worker_id, "types": types, "shared": shared}
        return await self._http.request("POST", "/admin/workers", WorkerCredentialWithSecret, body=body)

    async def regenerate_worker(self, worker_id: str) -> WorkerCredentialWithSecret:
        """Replace the secret of a worker credential. Jobs that its workers run are released."""
        return await self._http.request(
            "POST", url_path("admin", "workers", worker_id, "regenerate"), WorkerCredentialWithSecret, body={}
        )

    async def enable_worker(self, worker_id: str) -> WorkerCredential:
        """Enable a worker credential."""
        return await self._http.request(
            "POST", url_path("admin", "workers", worker_id, "enable"), WorkerCredential, body={}, idempotent=True
        )

    async def disable_worker(self, worker_id: str) -> WorkerCredential:
        """Disable a worker credential at once. Jobs that its workers run are released."""
        return await self._http.request(
            "POST", url_path("admin", "workers", worker_id, "disable"), WorkerCredential, body={}, idempotent=True
        )

    # -- definitions ----------------------------------------------------------------------------------------

    async def define(self, type: str, **values: Any) -> Definition:
        """Create or replace the definition of a type. `values` are its fields."""
        return await self._http.request(
            "PUT", url_path("admin", "definitions", type), Definition, body=values, idempotent=True
        )

    # -- secrets --------------------------------------------------------------------------------------------

    async def rotate_secret_key(self) -> Rotated:
        """Encrypt the secrets of all tenants again with the current secret key of the server."""
        return await self._http.request("POST", "/admin/secrets/rotate-key", Rotated, body={}, idempotent=True)

    # -- people and the audit log ---------------------------------------------------------------------------

    def members(self) -> AsyncIterator[Member]:
        """Iterate over the members of the tenant, including people with a role through a group, and invitations."""
        return self._http.iterate_items("/admin/members", Page[Member], query={})

    async def put_member(self, role: Role, *, email: str | None = None, user: str | None = None) -> Member:
        """Invite a person to a role in the tenant, by email or ID, or change the role that was given to a member."""
        person = {"email": email} if user is None else {"user": user}
        body = {"role": role, **person}
        return await self._http.request("POST", "/admin/members", Member, body=body, idempotent=True)

    async def change_member(self, member_id: str, role: Role) -> Member:
        """Change the role that was given to a member, or that of an invitation."""
        path = url_path("admin", "members", member_id)
        return await self._http.request("PATCH", path, Member, body={"role": role}, idempotent=True)

    async def remove_member(self, member_id: str) -> Member:
        """Remove a member, with the tokens that they created in the tenant, or revoke an invitation."""
        return await self._http.request("DELETE", url_path("admin", "members", member_id), Member)

    def users(self, *, email: str | None = None) -> AsyncIterator[User]:
        """Iterate over the people who have signed in, newest first."""
        return self._http.iterate_items("/admin/users", Page[User], query={"email": email})

    async def user(self, user_id: str) -> UserDetails:
        """Return a person with their roles."""
        return await self._http.request("GET", url_path("admin", "users", user_id), UserDetails)

    async def disable_user(self, user_id: str) -> User:
        """Disable a person at once. Their sessions end, their tokens are revoked, and they cannot sign in."""
        return await self._http.request(
            "POST", url_path("admin", "users", user_id, "disable"), User, body={}, idempotent=True
        )

    async def enable_user(self, user_id: str) -> User:
        """Enable a person, who can then sign in again."""
        return await self._http.request(
            "POST", url_path("admin", "users", user_id, "enable"), User, body={}, idempotent=True
        )

    async def link(self) -> SignInLinkResponse:
        """Create a link that signs the operator in once, within 15 minutes."""
        return await self._http.request("POST", "/admin/links", SignInLinkResponse, body={})

    def audit(self, **filters: Any) -> AsyncIterator[Entry]:
        """Iterate over the audit log, newest first. The filters are `action`, `who`, `target` and `all`."""
        return self._http.iterate_items("/admin/audit", Page[Entry], query=filters)
