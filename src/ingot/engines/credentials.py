"""Rows of credentials, as both engines read them."""

from __future__ import annotations

import msgspec

from ingot.engines.people import OwnerRow
from ingot.identity.credentials import Token, TokenLimits, WorkerCredential
from ingot.identity.grants import Grant
from ingot.identity.ports import FoundToken, FoundWorkerCredential
from ingot.kernel.clock import to_datetime, to_datetime_or_none


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `tokens`. The digest is hexadecimal, and empty where nobody is to be recognized by it.

    The owner is there where one is looked for: the person it belongs to.
    """

    id: str
    tenant: str | None
    digest: str
    description: str
    grants: tuple[Grant, ...]
    limits: TokenLimits
    ending: str
    created_at: int
    created_by: str | None
    expires_at: int | None
    last_used_at: int | None
    revoked_at: int | None
    user: str | None = None
    owner: OwnerRow | None = None

    @classmethod
    def read(cls, text: bytes | str) -> TokenRow:
        """The row in a JSON text."""
        return msgspec.json.decode(text, type=cls)

    def token(self) -> Token:
        """The token."""
        return Token(
            id=self.id,
            tenant=self.tenant,
            description=self.description,
            grants=self.grants,
            limits=self.limits,
            ending=self.ending,
            created_at=to_datetime(self.created_at),
            created_by=self.created_by,
            expires_at=to_datetime_or_none(self.expires_at),
            last_used_at=to_datetime_or_none(self.last_used_at),
            revoked_at=to_datetime_or_none(self.revoked_at),
            user=self.user,
        )

    def found(self) -> FoundToken:
        """The token, its digest and whose it is."""
        owner = None if self.owner is None else self.owner.owner()
        return FoundToken(token=self.token(), digest=bytes.fromhex(self.digest), owner=owner)


class WorkerCredentialRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `worker_credentials`, with its digest as in `TokenRow`."""

    id: str
    tenant: str | None
    digest: str
    types: tuple[str, ...]
    enabled: bool
    ending: str
    created_at: int
    created_by: str | None
    regenerated_at: int | None
    last_used_at: int | None

    @classmethod
    def read(cls, text: bytes | str) -> WorkerCredentialRow:
        """The row in a JSON text."""
        return msgspec.json.decode(text, type=cls)

    def credential(self) -> WorkerCredential:
        """The credential."""
        return WorkerCredential(
            id=self.id,
            tenant=self.tenant,
            types=self.types,
            enabled=self.enabled,
            ending=self.ending,
            created_at=to_datetime(self.created_at),
            created_by=self.created_by,
            regenerated_at=to_datetime_or_none(self.regenerated_at),
            last_used_at=to_datetime_or_none(self.last_used_at),
        )

    def found(self) -> FoundWorkerCredential:
        """The credential and its digest."""
        return FoundWorkerCredential(credential=self.credential(), digest=bytes.fromhex(self.digest))
