"""Credentials: small tables that change rarely."""

from __future__ import annotations

from typing import Final

import msgspec

from ingot.engines.credentials import TokenRow, WorkerCredentialRow
from ingot.engines.postgres.audit import act_text
from ingot.engines.postgres.connection import Database
from ingot.identity.credentials import CredentialNotFound, Token, TokenNotFound, WorkerCredential
from ingot.identity.model import TenantNotFound
from ingot.identity.ports import (
    ChangeWorkerCredential,
    CreateToken,
    CreateWorkerCredential,
    FoundToken,
    FoundWorkerCredential,
    NoteUse,
    RevokeToken,
)
from ingot.kernel.clock import to_micros
from ingot.kernel.ids import is_id

ABOVE_ALL_IDS: Final = "ffffffff-ffff-ffff-ffff-ffffffffffff"


async def create_token(db: Database, command: CreateToken) -> Token:
    """Keep a token."""
    token = command.token
    _check_tenant(token.tenant)
    await db.call(
        "SELECT ingot.create_token($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        token.id,
        token.tenant,
        command.digest,
        token.description,
        _text(token.grants),
        _text(token.limits),
        token.ending,
        token.created_by,
        None if token.expires_at is None else to_micros(token.expires_at),
        act_text(command.act),
        token.user,
    )
    return await _token(db, token.id)


async def revoke_token(db: Database, command: RevokeToken) -> Token:
    """End a token."""
    if command.tenant is not None and not is_id(command.tenant):
        raise TokenNotFound
    await db.call("SELECT ingot.revoke_token($1, $2, $3)", command.id, command.tenant, act_text(command.act))
    return await _token(db, command.id)


async def find_token(db: Database, token_id: str) -> FoundToken | None:
    """The token with this id."""
    ((text,),) = await db.call("SELECT ingot.find_token($1)", token_id)
    return None if text is None else TokenRow.read(text).found()


async def list_tokens(db: Database, tenant: str | None, *, before: str | None, limit: int) -> list[Token]:
    """Tokens of a tenant, or of the operator."""
    _check_tenant(tenant)
    rows = await db.call("SELECT ingot.list_tokens($1, $2, $3)", tenant, before or ABOVE_ALL_IDS, limit)
    return [TokenRow.read(text).token() for (text,) in rows]


async def create_worker_credential(db: Database, command: CreateWorkerCredential) -> WorkerCredential:
    """Keep a worker credential."""
    made = command.credential
    _check_tenant(made.tenant)
    row = (made.id, made.tenant, command.digest, list(made.types), made.ending, made.created_by)
    await db.call("SELECT ingot.create_worker_credential($1, $2, $3, $4, $5, $6, $7)", *row, act_text(command.act))
    return await _worker(db, made.id)


async def change_worker_credential(db: Database, command: ChangeWorkerCredential) -> WorkerCredential:
    """Enable, disable, or give another secret."""
    if command.tenant is not None and not is_id(command.tenant):
        raise CredentialNotFound
    row = (command.id, command.tenant, command.enabled, command.digest, command.ending)
    of_act = (command.action, act_text(command.act))
    await db.call("SELECT ingot.change_worker_credential($1, $2, $3, $4, $5, $6, $7)", *row, *of_act)
    return await _worker(db, command.id)


async def find_worker_credential(db: Database, credential_id: str) -> FoundWorkerCredential | None:
    """The credential with this id."""
    ((text,),) = await db.call("SELECT ingot.find_worker_credential($1)", credential_id)
    return None if text is None else WorkerCredentialRow.read(text).found()


async def is_worker_name(db: Database, name: str) -> bool:
    """Whether there is such a credential, or such a role of a worker."""
    ((found,),) = await db.call("SELECT ingot.is_worker_name($1)", name)
    return bool(found)


async def list_worker_credentials(
    db: Database, tenant: str | None, *, after: str | None, limit: int
) -> list[WorkerCredential]:
    """Credentials of a tenant, or the shared ones."""
    _check_tenant(tenant)
    rows = await db.call("SELECT ingot.list_worker_credentials($1, $2, $3)", tenant, after or "", limit)
    return [WorkerCredentialRow.read(text).credential() for (text,) in rows]


async def note_use(db: Database, command: NoteUse) -> None:
    """Remember when credentials were last used."""
    used = (command.tokens, command.workers, command.sessions)
    row = [part for kind in used for part in ([*kind], [*kind.values()])]
    await db.call("SELECT ingot.note_use($1, $2, $3, $4, $5, $6)", *row)


def _check_tenant(tenant: str | None) -> None:
    if tenant is not None and not is_id(tenant):
        raise TenantNotFound(f"there is no tenant {tenant[:64]!r}")


async def _token(db: Database, token_id: str) -> Token:
    found = await find_token(db, token_id)
    if found is None:  # Its tenant was removed at this moment.
        raise TokenNotFound(f"there is no token {token_id[:64]!r}")
    return found.token


async def _worker(db: Database, credential_id: str) -> WorkerCredential:
    found = await find_worker_credential(db, credential_id)
    if found is None:  # Its tenant was removed at this moment.
        raise CredentialNotFound(f"there is no worker credential {credential_id[:64]!r}")
    return found.credential


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
