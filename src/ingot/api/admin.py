"""Routes of those who run the place: tenants, definitions, tokens, worker credentials."""

from __future__ import annotations

import msgspec

from ingot.http.call import Call
from ingot.http.table import PREFIX, Granted, Route, routes_of
from ingot.identity.credentials import Token, WorkerCredential
from ingot.identity.model import Tenant, TenantNotFound
from ingot.identity.service import Tenants
from ingot.identity.tokens import Credentials
from ingot.jobs.model import Definition
from ingot.jobs.service import Jobs
from ingot.kernel.pages import Page
from ingot.wire.admin import (
    DefinitionBody,
    NewTenant,
    PageQuery,
    TenantChange,
    TokenOrder,
    TokenShown,
    TokensQuery,
    WorkerOrder,
    WorkerShown,
    WorkersQuery,
)


class AdminApi:
    """Administration over HTTP."""

    def __init__(self, tenants: Tenants, credentials: Credentials, jobs: Jobs) -> None:
        self._tenants = tenants
        self._credentials = credentials
        self._jobs = jobs

    def routes(self) -> list[Route]:
        """The routes of this room."""
        route = routes_of("admin", f"{PREFIX}/admin")
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

    async def list_tenants(self, call: Call, query: PageQuery) -> Page[Tenant]:
        """A page of all tenants, by slug; who is no operator sees their own."""
        if not call.caller.is_operator:
            return Page(items=[await self._tenants.get(call.tenant)])
        return await self._tenants.page(cursor=query.cursor, limit=query.limit)

    async def create_tenant(self, call: Call, body: NewTenant) -> Tenant:
        """Make a tenant."""
        call.expect_operator("makes tenants")
        return await self._tenants.create(**msgspec.structs.asdict(body), act=call.act())

    async def get_tenant(self, call: Call, slug: str) -> Tenant:
        """One tenant, by slug or id."""
        if call.caller.is_operator:
            return await self._tenants.get(slug)
        own = await self._tenants.get(call.tenant)
        if slug not in (own.id, own.slug):
            raise TenantNotFound(f"there is no tenant {slug[:64]!r}")
        return own

    async def change_tenant(self, call: Call, slug: str, body: TenantChange) -> Tenant:
        """Change a tenant: its weight, its limits, its name; its groups, which its own admins may change too."""
        if any(given is not None for given in (body.slug, body.weight, body.time_zone, body.limits)):
            call.expect_operator("changes more of a tenant than its groups")
        await self.get_tenant(call, slug)
        call.expect("admin.members")
        for role in (body.groups or {}).values():
            call.expect_role(role)
        return await self._tenants.change(slug, **msgspec.structs.asdict(body), act=call.act())

    async def remove_tenant(self, call: Call, slug: str) -> Tenant:
        """Remove a tenant, and answer what it was.

        Nobody acts in it any more, and its slug is free; what it held goes away in the background, for good.
        """
        call.expect_operator("removes tenants")
        return await self._tenants.remove(slug, act=call.act())

    # -- definitions ----------------------------------------------------------------------------------------

    async def list_definitions(self, call: Call) -> Page[Definition]:
        """The definitions of the tenant and those for all."""
        found = await self._jobs.definitions(tenant=call.tenant)
        return Page(items=[one for one in found if call.caller.may("admin.definitions", f"jobs/{one.type}")])

    async def get_definition(self, call: Call, type: str) -> Definition:
        """The definition that holds for a type."""
        call.expect("admin.definitions", f"jobs/{type}")
        return await self._jobs.definition(type, tenant=call.tenant)

    async def put_definition(self, call: Call, type: str, body: DefinitionBody) -> Definition:
        """Make or replace the definition of a type."""
        call.expect("admin.definitions", f"jobs/{type}")
        if body.shared:
            call.expect_operator("makes definitions for all tenants")
        given = msgspec.structs.asdict(body)
        del given["shared"]
        definition = Definition(type=type, tenant=None if body.shared else call.tenant, **given)
        return await self._jobs.define(definition, act=call.act())

    # -- tokens ---------------------------------------------------------------------------------------------

    async def list_tokens(self, call: Call, query: TokensQuery) -> Page[Token]:
        """A page of the tenant's tokens, newest first; those of operators with `operator`."""
        tenant = self._whose(call, all_of_them=query.operator)
        return await self._credentials.list_tokens(tenant, cursor=query.cursor, limit=query.limit)

    async def create_token(self, call: Call, body: TokenOrder) -> TokenShown:
        """Make a token. Its text is shown this once."""
        return await issue_token(self._credentials, call, self._whose(call, all_of_them=body.operator), body)

    async def get_token(self, call: Call, id: str) -> Token:
        """One token."""
        return await self._credentials.get_token(_own(call), id)

    async def revoke_token(self, call: Call, id: str) -> Token:
        """End a token."""
        return await self._credentials.revoke_token(_own(call), id, act=call.act())

    # -- workers --------------------------------------------------------------------------------------------

    async def list_workers(self, call: Call, query: WorkersQuery) -> Page[WorkerCredential]:
        """A page of the tenant's worker credentials, by id; those that serve all tenants with `shared`."""
        tenant = self._whose(call, all_of_them=query.shared)
        return await self._credentials.list_workers(tenant, cursor=query.cursor, limit=query.limit)

    async def create_worker(self, call: Call, body: WorkerOrder) -> WorkerShown:
        """Make a worker credential. Its secret is shown this once."""
        made = await self._credentials.create_worker(
            self._whose(call, all_of_them=body.shared), body.id, types=body.types, by=call.caller, act=call.act()
        )
        return WorkerShown(**msgspec.structs.asdict(made.credential), secret=made.secret)

    async def get_worker(self, call: Call, id: str) -> WorkerCredential:
        """One worker credential."""
        return await self._credentials.get_worker(_own(call), id)

    async def regenerate_worker(self, call: Call, id: str) -> WorkerShown:
        """Give a worker credential another secret, shown this once. What its workers run is given back."""
        made = await self._credentials.regenerate_worker(_own(call), id, by=call.caller, act=call.act())
        await self._jobs.give_back(id, tenant=made.credential.tenant)
        return WorkerShown(**msgspec.structs.asdict(made.credential), secret=made.secret)

    async def enable_worker(self, call: Call, id: str) -> WorkerCredential:
        """Let the workers of a credential in again."""
        return await self._credentials.enable_worker(_own(call), id, enabled=True, act=call.act())

    async def disable_worker(self, call: Call, id: str) -> WorkerCredential:
        """Put the workers of a credential out, at once. What they run is given back."""
        disabled = await self._credentials.enable_worker(_own(call), id, enabled=False, act=call.act())
        await self._jobs.give_back(id, tenant=disabled.tenant)
        return disabled

    def _whose(self, call: Call, *, all_of_them: bool) -> str | None:
        if all_of_them:
            call.expect_operator("has to do with what is for all tenants")
            return None
        return call.tenant


async def issue_token(credentials: Credentials, call: Call, tenant: str | None, order: TokenOrder) -> TokenShown:
    """Make the token that a caller orders, for a tenant or for the operator."""
    made = await credentials.create_token(
        tenant,
        description=order.description,
        grants=order.grants,
        limits=order.limits,
        expires_at=order.expires_at,
        by=call.caller,
        act=call.act(),
    )
    return TokenShown(**msgspec.structs.asdict(made.token), token=made.text)


def _own(call: Call) -> str | None:
    """Whose credentials the caller may change; `None` is everybody's."""
    return None if call.caller.is_operator else call.tenant
