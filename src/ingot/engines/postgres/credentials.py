"""Credentials: small tables that change rarely."""

from __future__ import annotations

from ingot.engines.credential_rows import decode_token, decode_worker_credential
from ingot.engines.postgres.context import Context
from ingot.engines.postgres.function_calls import CALL, json_text
from ingot.engines.postgres.lane_cache import ABOVE_ALL_IDS
from ingot.engines.postgres.tenants import check_tenant_id
from ingot.identity import ports
from ingot.identity.credentials import CredentialNotFound, Token, TokenNotFound, WorkerCredential
from ingot.kernel.clock import to_micros
from ingot.kernel.ids import is_id


async def create_token(context: Context, command: ports.CreateToken) -> Token:
    """Keep a token."""
    token = command.token
    check_tenant_id(token.tenant)
    await context.database.call(
        CALL.create_token,
        token.id,
        token.tenant,
        command.digest,
        token.description,
        json_text(token.grants),
        json_text(token.limits),
        token.ending,
        token.created_by,
        None if token.expires_at is None else to_micros(token.expires_at),
        json_text(command.act),
        token.user,
    )
    return await _get_token(context, token.id)


async def revoke_token(context: Context, command: ports.RevokeToken) -> Token:
    """End a token."""
    if command.tenant is not None and not is_id(command.tenant):
        raise TokenNotFound
    await context.database.call(CALL.revoke_token, command.id, command.tenant, json_text(command.act))
    return await _get_token(context, command.id)


async def find_token(context: Context, command: ports.FindToken) -> ports.StoredToken | None:
    """The token with this id."""
    ((text,),) = await context.database.call(CALL.find_token, command.token_id)
    return None if text is None else decode_token(text)


async def list_tokens(context: Context, command: ports.ListTokens) -> list[Token]:
    """Tokens of a tenant, or of the operator."""
    check_tenant_id(command.tenant)
    row = (command.tenant, command.before or ABOVE_ALL_IDS, command.limit)
    return await context.find_all(Token, CALL.list_tokens, *row)


async def create_worker_credential(context: Context, command: ports.CreateWorkerCredential) -> WorkerCredential:
    """Keep a worker credential."""
    made = command.credential
    check_tenant_id(made.tenant)
    row = (made.id, made.tenant, command.digest, list(made.types), made.ending, made.created_by)
    await context.database.call(CALL.create_worker_credential, *row, json_text(command.act))
    return await _get_worker_credential(context, made.id)


async def change_worker_credential(context: Context, command: ports.ChangeWorkerCredential) -> WorkerCredential:
    """Enable, disable, or give another secret."""
    if command.tenant is not None and not is_id(command.tenant):
        raise CredentialNotFound
    row = (command.id, command.tenant, command.enabled, command.digest, command.ending)
    of_act = (command.audit_action, json_text(command.act))
    await context.database.call(CALL.change_worker_credential, *row, *of_act)
    return await _get_worker_credential(context, command.id)


async def find_worker_credential(
    context: Context, command: ports.FindWorkerCredential
) -> ports.StoredWorkerCredential | None:
    """The credential with this id."""
    ((text,),) = await context.database.call(CALL.find_worker_credential, command.credential_id)
    return None if text is None else decode_worker_credential(text)


async def is_worker_name_taken(context: Context, command: ports.IsWorkerNameTaken) -> bool:
    """Whether there is such a credential, or such a role of a worker."""
    ((found,),) = await context.database.call(CALL.is_worker_name, command.name)
    return bool(found)


async def list_worker_credentials(context: Context, command: ports.ListWorkerCredentials) -> list[WorkerCredential]:
    """Credentials of a tenant, or the shared ones."""
    check_tenant_id(command.tenant)
    row = (command.tenant, command.after or "", command.limit)
    return await context.find_all(WorkerCredential, CALL.list_worker_credentials, *row)


async def record_last_used(context: Context, command: ports.RecordLastUsed) -> None:
    """Remember when credentials were last used."""
    used = (command.tokens, command.workers, command.sessions)
    row = [part for kind in used for part in ([*kind], [*kind.values()])]
    await context.database.call(CALL.note_use, *row)


async def _get_token(context: Context, token_id: str) -> Token:
    found = await find_token(context, ports.FindToken(token_id=token_id))
    if found is None:  # Its tenant was removed at this moment.
        raise TokenNotFound(f"there is no token {token_id[:64]!r}")
    return found.token


async def _get_worker_credential(context: Context, credential_id: str) -> WorkerCredential:
    found = await find_worker_credential(context, ports.FindWorkerCredential(credential_id=credential_id))
    if found is None:  # Its tenant was removed at this moment.
        raise CredentialNotFound(f"there is no worker credential {credential_id[:64]!r}")
    return found.credential
