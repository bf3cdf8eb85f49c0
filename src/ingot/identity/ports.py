"""What identity asks of an engine."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

import msgspec

from ingot.identity.credentials import Token, WorkerCredential
from ingot.identity.model import Limits, Tenant


class CreateTenant(msgspec.Struct, frozen=True, kw_only=True):
    """Make this tenant."""

    tenant: Tenant


class ChangeTenant(msgspec.Struct, frozen=True, kw_only=True):
    """Give the tenant with this id these values. What is `None` stays as it was."""

    id: str
    slug: str | None = None
    weight: int | None = None
    time_zone: str | None = None
    limits: Limits | None = None


class TenantStore(Protocol):
    """Where tenants are kept. Every write is durable when the call returns."""

    def create_tenant(self, command: CreateTenant) -> Awaitable[Tenant]:
        """Make a tenant. Raises `TenantExists` when its slug is taken; then nothing changes."""

    def change_tenant(self, command: ChangeTenant) -> Awaitable[Tenant]:
        """Change some of a tenant's values. Raises `TenantNotFound`, or `TenantExists` when the new slug is taken."""

    def get_tenant(self, id_or_slug: str) -> Awaitable[Tenant | None]:
        """The tenant with this id or slug, or `None`."""

    def list_tenants(self) -> Awaitable[list[Tenant]]:
        """All tenants, by slug."""


class CreateToken(msgspec.Struct, frozen=True, kw_only=True):
    """Keep this token. `digest` is all that is kept of its text. The time it was made is the store's."""

    token: Token
    digest: bytes


class RevokeToken(msgspec.Struct, frozen=True, kw_only=True):
    """The token holds no longer. `tenant` restricts whose it may be; `None` is any."""

    id: str
    tenant: str | None


class CreateWorkerCredential(msgspec.Struct, frozen=True, kw_only=True):
    """Keep this credential. `digest` is all that is kept of its secret."""

    credential: WorkerCredential
    digest: bytes


class ChangeWorkerCredential(msgspec.Struct, frozen=True, kw_only=True):
    """Enable or disable a credential, or give it another secret. `tenant` restricts whose it may be; `None` is any.

    With a credential that is disabled or gets another secret, its workers are out: what they run is given back.
    """

    id: str
    tenant: str | None
    enabled: bool | None = None
    digest: bytes | None = None
    ending: str | None = None


class NoteUse(msgspec.Struct, frozen=True, kw_only=True):
    """These credentials were used, at the latest at these instants."""

    tokens: dict[str, int]
    workers: dict[str, int]


class FoundToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token and what is kept of its text."""

    token: Token
    digest: bytes


class FoundWorkerCredential(msgspec.Struct, frozen=True, kw_only=True):
    """A worker credential and what is kept of its secret."""

    credential: WorkerCredential
    digest: bytes


class CredentialStore(Protocol):
    """Where credentials are kept. Every write is durable when the call returns."""

    def create_token(self, command: CreateToken) -> Awaitable[Token]:
        """Keep a token. Raises `TenantNotFound`."""

    def revoke_token(self, command: RevokeToken) -> Awaitable[Token]:
        """Revoke a token; one that was revoked before stays as it is. Raises `TokenNotFound`."""

    def find_token(self, token_id: str) -> Awaitable[FoundToken | None]:
        """The token with this id, or `None`."""

    def list_tokens(self, tenant: str | None, *, before: str | None, limit: int) -> Awaitable[list[Token]]:
        """Tokens of a tenant, or those of the operator for `None`, newest first, from below the id `before`."""

    def create_worker_credential(self, command: CreateWorkerCredential) -> Awaitable[WorkerCredential]:
        """Keep a credential. Raises `CredentialExists`, whoever has it, or `TenantNotFound`."""

    def change_worker_credential(self, command: ChangeWorkerCredential) -> Awaitable[WorkerCredential]:
        """Change a credential. Raises `CredentialNotFound`."""

    def find_worker_credential(self, credential_id: str) -> Awaitable[FoundWorkerCredential | None]:
        """The credential with this id, or `None`."""

    def list_worker_credentials(
        self, tenant: str | None, *, after: str | None, limit: int
    ) -> Awaitable[list[WorkerCredential]]:
        """Credentials of a tenant, or the shared ones for `None`, by id, from behind `after`."""

    def note_use(self, command: NoteUse) -> Awaitable[None]:
        """Remember when credentials were last used. An earlier instant than is known changes nothing."""
