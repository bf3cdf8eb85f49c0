"""Tokens and worker credentials, in small tables that change rarely."""

from __future__ import annotations

import apsw

from ingot.engines.credential_rows import decode_token, decode_worker_credential
from ingot.engines.json_rows import decode
from ingot.engines.sqlite.readers import ABOVE_ALL_TEXTS, Reader
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.identity import ports
from ingot.identity.credentials import (
    PERSON_TOKENS_MAX,
    TENANT_TOKENS_MAX,
    CredentialExists,
    CredentialNotFound,
    Token,
    TokenNotFound,
    TooManyTokens,
    WorkerCredential,
)
from ingot.identity.people import UserNotFound
from ingot.kernel.clock import to_micros


def create_token(tx: Transaction, command: ports.CreateToken) -> Token:
    """Store a token."""
    token = command.token
    expires_at = None if token.expires_at is None else to_micros(token.expires_at)
    if token.user is not None and not tx.execute(SQL.is_user_enabled, token.user).get:
        raise UserNotFound(f"there is no person {token.user[:64]!r}")
    tenant = _tenant_number(tx, token.tenant)
    if token.user is not None:
        valid = tx.execute(SQL.count_valid_tokens_of_user, token.user, tx.now, PERSON_TOKENS_MAX).get
        if valid >= PERSON_TOKENS_MAX:
            raise TooManyTokens(f"the person has {PERSON_TOKENS_MAX} valid tokens, which is the maximum")
    if tx.execute(SQL.count_valid_tokens, tenant, tx.now, TENANT_TOKENS_MAX).get >= TENANT_TOKENS_MAX:
        raise TooManyTokens(f"the tenant has {TENANT_TOKENS_MAX} valid tokens, which is the maximum")
    tx.execute(
        SQL.insert_tokens,
        token.id,
        tenant,
        command.digest,
        token.description,
        as_json(token.grants),
        as_json(token.limits),
        token.ending,
        tx.now,
        token.created_by,
        expires_at,
        token.user,
    )
    created = _get_token(tx, token.id)
    tx.audit(command.act, "token.created", f"token/{created.id}", tenant=created.tenant, after=created)
    return created


def revoke_token(tx: Transaction, command: ports.RevokeToken) -> Token:
    """Revoke a token."""
    token = _get_token(tx, command.id)
    if command.tenant not in (None, token.tenant):
        raise TokenNotFound(f"there is no token {command.id!r} in this tenant")
    if token.revoked_at is not None:
        return token
    tx.execute(SQL.revoke_token, command.id, tx.now)
    revoked = _get_token(tx, command.id)
    tx.audit(command.act, "token.revoked", f"token/{revoked.id}", tenant=revoked.tenant, before=token, after=revoked)
    return revoked


def create_worker_credential(tx: Transaction, command: ports.CreateWorkerCredential) -> WorkerCredential:
    """Store a worker credential."""
    credential = command.credential
    tenant = _tenant_number(tx, credential.tenant)
    row = (
        credential.id,
        tenant,
        command.digest,
        as_json(credential.types),
        credential.enabled,
        credential.ending,
        tx.now,
        credential.created_by,
    )
    try:
        tx.execute(SQL.insert_worker_credentials, *row)
    except apsw.ConstraintError:
        raise CredentialExists(f"a worker credential {credential.id!r} already exists") from None
    created = _get_worker_credential(tx, credential.id)
    tx.audit(
        command.act,
        "worker_credential.created",
        f"worker_credential/{created.id}",
        tenant=created.tenant,
        after=created,
    )
    return created


def change_worker_credential(tx: Transaction, command: ports.ChangeWorkerCredential) -> WorkerCredential:
    """Enable or disable a worker credential, or replace its secret."""
    credential = _get_worker_credential(tx, command.id)
    if command.tenant not in (None, credential.tenant):
        raise CredentialNotFound(f"there is no worker credential {command.id!r} in this tenant")
    row = (command.id, command.enabled, command.digest, command.ending, tx.now)
    tx.execute(SQL.change_worker_credential, *row)
    changed = _get_worker_credential(tx, command.id)
    if command.digest is not None or changed.enabled != credential.enabled:
        target = f"worker_credential/{credential.id}"
        tx.audit(command.act, command.audit_action, target, tenant=credential.tenant, before=credential, after=changed)
    return changed


def record_last_used(tx: Transaction, command: ports.RecordLastUsed) -> None:
    """Record when credentials were last used."""
    for token_id, at in command.tokens.items():
        tx.execute(SQL.record_token_use, token_id, at)
    for worker_id, at in command.workers.items():
        tx.execute(SQL.record_worker_credential_use, worker_id, at)
    for session_id, at in command.sessions.items():
        tx.execute(SQL.record_session_use, session_id, at)


def _tenant_number(tx: Transaction, tenant: str | None) -> int | None:
    return None if tenant is None else tx.writer_state.number_of(tenant)


def _get_token(tx: Transaction, token_id: str) -> Token:
    text = tx.execute(SQL.token_by_id, token_id).get
    if text is None:
        raise TokenNotFound(f"there is no token {token_id[:64]!r}")
    return decode(Token, text)


def _get_worker_credential(tx: Transaction, worker_id: str) -> WorkerCredential:
    text = tx.execute(SQL.worker_credential_by_id, worker_id).get
    if text is None:
        raise CredentialNotFound(f"there is no worker credential {worker_id[:64]!r}")
    return decode(WorkerCredential, text)


def find_token(reader: Reader, command: ports.FindToken) -> ports.StoredToken | None:
    """Find a token by its ID."""
    text = reader.execute(SQL.token_by_id, command.token_id).get
    return None if text is None else decode_token(text)


def list_tokens(reader: Reader, command: ports.ListTokens) -> list[Token]:
    """Read a page of the tokens of a tenant, or of the operator."""
    reader.writer_state.check_tenant(command.tenant)
    values = (command.tenant, command.before or ABOVE_ALL_TEXTS, command.limit)
    return reader.read(list[Token], SQL.tokens_of_tenant, *values)


def find_worker_credential(reader: Reader, command: ports.FindWorkerCredential) -> ports.StoredWorkerCredential | None:
    """Find a worker credential by its ID."""
    text = reader.execute(SQL.worker_credential_by_id, command.credential_id).get
    return None if text is None else decode_worker_credential(text)


def is_worker_name_taken(reader: Reader, command: ports.IsWorkerNameTaken) -> bool:
    """Return whether a worker credential has this name."""
    return reader.execute(SQL.worker_credential_by_id, command.name).get is not None


def list_worker_credentials(reader: Reader, command: ports.ListWorkerCredentials) -> list[WorkerCredential]:
    """Read a page of the worker credentials of a tenant, or of the shared ones."""
    reader.writer_state.check_tenant(command.tenant)
    values = (command.tenant, command.after or "", command.limit)
    return reader.read(list[WorkerCredential], SQL.worker_credentials_of_tenant, *values)
