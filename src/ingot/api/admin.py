"""Routes of administration: tenants, definitions, tokens and worker credentials."""

from __future__ import annotations

import msgspec

from ingot.http.request import Request
from ingot.http.routes import PREFIX, Granted, Route, route_factory
from ingot.identity.credential_service import Credentials
from ingot.identity.credentials import Token, WorkerCredential
from ingot.identity.model import Tenant, TenantNotFound
from ingot.identity.people import Role
from ingot.identity.tenants import Tenants
from ingot.jobs.model import Definition
from ingot.jobs.service import Jobs
from ingot.kernel.pages import Page
from ingot.wire.admin import (
    ChangeTenantRequest,
    CreatedToken,
    CreateTenantRequest,
    CreateTokenRequest,
    CreateWorkerCredentialRequest,
    PageQuery,
    PutDefinitionRequest,
    TokensQuery,
    WorkerCredentialsQuery,
    WorkerCredentialWithSecret,
)


class AdminApi:
    """Routes below `/admin`."""

    def __init__(self, tenants: Tenants, credentials: Credentials, jobs: Jobs) -> None:
        self._tenants = tenants
        self._credentials = credentials
        self._jobs = jobs

    def routes(self) -> list[Route]:
        """Return the routes of this module."""
        route = route_factory("admin", f"{PREFIX}/admin")
        tenants, definitions = Granted("admin.tenants"), Granted("admin.definitions")
        tokens, workers = Granted("admin.tokens"), Granted("admin.workers")
        return [
            route("GET", "/tenants", self.list_tenants, tenants),
            route("POST", "/tenants", self.create_tenant, tenants, status=201),
            route("GET", "/tenants/{slug}", self.get_tenant, tenants),
            route("PATCH", "/tenants/{slug}", self.change_tenant, tenants),
            route("DELETE", "/tenants/{slug}", self.remove_tenant, tenants),
            route("GET", "/definitions", self.list_definitions, definitions),
            route("GET", "/definitions/{type}", self.get_definition, definitions),
            route("PUT", "/definitions/{type}", self.put_definition, definitions),
            route("GET", "/tokens", self.list_tokens, tokens),
            route("POST", "/tokens", self.create_token, tokens, status=201),
            route("GET", "/tokens/{id}", self.get_token, tokens),
            route("DELETE", "/tokens/{id}", self.revoke_token, tokens),
            route("GET", "/workers", self.list_workers, workers),
            route("POST", "/workers", self.create_worker, workers, status=201),
            route("GET", "/workers/{id}", self.get_worker, workers),
            route("POST", "/workers/{id}/regenerate", self.regenerate_worker, workers),
            route("POST", "/workers/{id}/enable", self.enable_worker, workers),
            route("POST", "/workers/{id}/disable", self.disable_worker, workers),
        ]

    # -- tenants --------------------------------------------------------------------------------------------

    async def list_tenants(self, request: Request, query: PageQuery) -> Page[Tenant]:
        """List tenants, ordered by slug. Operators see all tenants, other callers their own."""
        if not request.caller.is_operator:
            return Page(items=[await self._tenants.get(request.tenant)])
        return await self._tenants.page(cursor=query.cursor, limit=query.limit)

    async def create_tenant(self, request: Request, body: CreateTenantRequest) -> Tenant:
        """Create a tenant."""
        request.require_operator("can create tenants")
        return await self._tenants.create(**msgspec.structs.asdict(body), act=request.act())

    async def get_tenant(self, request: Request, slug: str) -> Tenant:
        """Return a tenant by slug or ID."""
        if request.caller.is_operator:
            return await self._tenants.get(slug)
        own = await self._tenants.get(request.tenant)
        if slug not in (own.id, own.slug):
            raise TenantNotFound(f"there is no tenant {slug[:64]!r}")
        return own

    async def change_tenant(self, request: Request, slug: str, body: ChangeTenantRequest) -> Tenant:
        """Change a tenant. Admins of the tenant can change `groups`, and operators all fields."""
        if any(value is not None for value in (body.slug, body.weight, body.time_zone, body.limits)):
            request.require_operator("can change more of a tenant than its groups")
        tenant = await self.get_tenant(request, slug)
        request.require("admin.members")
        if body.groups is not None:
            for role in _changed_roles(tenant.groups, body.groups):
                request.require_role(role)
        return await self._tenants.change(slug, **msgspec.structs.asdict(body), act=request.act())

    async def remove_tenant(self, request: Request, slug: str) -> Tenant:
        """Remove a tenant and return it as it was.

        The tenant cannot be used any more, and its slug is free. Its data is deleted in the background and cannot be
        restored.
        """
        request.require_operator("can remove tenants")
        return await self._tenants.remove(slug, act=request.act())

    # -- definitions ----------------------------------------------------------------------------------------

    async def list_definitions(self, request: Request) -> Page[Definition]:
        """List the definitions of the tenant and those for all tenants."""
        definitions = await self._jobs.definitions(tenant=request.tenant)
        visible = [item for item in definitions if request.caller.may("admin.definitions", f"jobs/{item.type}")]
        return Page(items=visible)

    async def get_definition(self, request: Request, type: str) -> Definition:
        """Return the definition that applies to a job type in the tenant."""
        request.require("admin.definitions", f"jobs/{type}")
        return await self._jobs.definition(type, tenant=request.tenant)

    async def put_definition(self, request: Request, type: str, body: PutDefinitionRequest) -> Definition:
        """Create or replace the definition of a job type."""
        request.require("admin.definitions", f"jobs/{type}")
        if body.shared:
            request.require_operator("can create definitions for all tenants")
        fields = msgspec.structs.asdict(body)
        del fields["shared"]
        definition = Definition(type=type, tenant=None if body.shared else request.tenant, **fields)
        return await self._jobs.define(definition, act=request.act())

    # -- tokens ---------------------------------------------------------------------------------------------

    async def list_tokens(self, request: Request, query: TokensQuery) -> Page[Token]:
        """List the tokens of the tenant, newest first."""
        tenant = self._requested_tenant(request, for_all_tenants=query.operator)
        return await self._credentials.list_tokens(tenant, cursor=query.cursor, limit=query.limit)

    async def create_token(self, request: Request, body: CreateTokenRequest) -> CreatedToken:
        """Create a token. The response shows its text, which cannot be read again."""
        return await issue_token(
            self._credentials, request, self._requested_tenant(request, for_all_tenants=body.operator), body
        )

    async def get_token(self, request: Request, id: str) -> Token:
        """Return a token."""
        return await self._credentials.get_token(_credential_scope(request), id)

    async def revoke_token(self, request: Request, id: str) -> Token:
        """Revoke a token."""
        return await self._credentials.revoke_token(_credential_scope(request), id, act=request.act())

    # -- workers --------------------------------------------------------------------------------------------

    async def list_workers(self, request: Request, query: WorkerCredentialsQuery) -> Page[WorkerCredential]:
        """List the worker credentials of the tenant, ordered by ID."""
        tenant = self._requested_tenant(request, for_all_tenants=query.shared)
        return await self._credentials.list_worker_credentials(tenant, cursor=query.cursor, limit=query.limit)

    async def create_worker(self, request: Request, body: CreateWorkerCredentialRequest) -> WorkerCredentialWithSecret:
        """Create a worker credential. The response shows its secret, which cannot be read again."""
        created = await self._credentials.create_worker_credential(
            self._requested_tenant(request, for_all_tenants=body.shared),
            body.id,
            types=body.types,
            caller=request.caller,
            act=request.act(),
        )
        return WorkerCredentialWithSecret(**msgspec.structs.asdict(created.credential), secret=created.secret)

    async def get_worker(self, request: Request, id: str) -> WorkerCredential:
        """Return a worker credential."""
        return await self._credentials.get_worker_credential(_credential_scope(request), id)

    async def regenerate_worker(self, request: Request, id: str) -> WorkerCredentialWithSecret:
        """Replace the secret of a worker credential. Jobs that its workers run are released.

        The response shows the new secret, which cannot be read again.
        """
        regenerated = await self._credentials.regenerate_worker_credential(
            _credential_scope(request), id, caller=request.caller, act=request.act()
        )
        await self._jobs.give_back(id, tenant=regenerated.credential.tenant)
        return WorkerCredentialWithSecret(**msgspec.structs.asdict(regenerated.credential), secret=regenerated.secret)

    async def enable_worker(self, request: Request, id: str) -> WorkerCredential:
        """Enable a worker credential."""
        return await self._credentials.enable_worker_credential(
            _credential_scope(request), id, enabled=True, act=request.act()
        )

    async def disable_worker(self, request: Request, id: str) -> WorkerCredential:
        """Disable a worker credential at once. Jobs that its workers run are released."""
        disabled = await self._credentials.enable_worker_credential(
            _credential_scope(request), id, enabled=False, act=request.act()
        )
        await self._jobs.give_back(id, tenant=disabled.tenant)
        return disabled

    def _requested_tenant(self, request: Request, *, for_all_tenants: bool) -> str | None:
        if for_all_tenants:
            request.require_operator("can manage credentials for all tenants")
            return None
        return request.tenant


async def issue_token(
    credentials: Credentials, request: Request, tenant: str | None, body: CreateTokenRequest
) -> CreatedToken:
    """Create a token for a tenant, or an operator token if `tenant` is `None`."""
    created = await credentials.create_token(
        tenant,
        description=body.description,
        grants=body.grants,
        limits=body.limits,
        expires_at=body.expires_at,
        caller=request.caller,
        act=request.act(),
    )
    return CreatedToken(**msgspec.structs.asdict(created.token), token=created.text)


def _changed_roles(old: dict[str, Role], new: dict[str, Role]) -> set[Role]:
    """Return the roles that groups get or lose."""
    return {role for _, role in old.items() ^ new.items()}


def _credential_scope(request: Request) -> str | None:
    """Return the tenant whose credentials the caller may manage, or `None` for all tenants."""
    return None if request.caller.is_operator else request.tenant
