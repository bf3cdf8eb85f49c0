"""Commands for tokens and worker credentials."""

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
    """See `CreateToken`."""
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
    """See `RevokeToken`."""
    if command.tenant is not None and not is_id(command.tenant):
        raise TokenNotFound
    await context.database.call(CALL.revoke_token, command.id, command.tenant, json_text(command.act))
    return await _get_token(context, command.id)


async def find_token(context: Context, command: ports.FindToken) -> ports.StoredToken | None:
    """See `FindToken`."""
    ((text,),) = await context.database.call(CALL.find_token, command.token_id)
    return None if text is None else decode_token(text)


async def list_tokens(context: Context, command: ports.ListTokens) -> list[Token]:
    """See `ListTokens`."""
    check_tenant_id(command.tenant)
    arguments = (command.tenant, command.before or ABOVE_ALL_IDS, command.limit)
    return await context.find_all(Token, CALL.list_tokens, *arguments)


async def create_worker_credential(context: Context, command: ports.CreateWorkerCredential) -> WorkerCredential:
    """See `CreateWorkerCredential`."""
    credential = command.credential
    check_tenant_id(credential.tenant)
    await context.database.call(
        CALL.create_worker_credential,
        credential.id,
        credential.tenant,
        command.digest,
        list(credential.types),
        credential.ending,
        credential.created_by,
        json_text(command.act),
    )
    return await _get_worker_credential(context, credential.id)


async def change_worker_credential(context: Context, command: ports.ChangeWorkerCredential) -> WorkerCredential:
    """See `ChangeWorkerCredential`."""
    if command.tenant is not None and not is_id(command.tenant):
        raise CredentialNotFound
    await context.database.call(
        CALL.change_worker_credential,
        command.id,
        command.tenant,
        command.enabled,
        command.digest,
        command.ending,
        command.audit_action,
        json_text(command.act),
    )
    return await _get_worker_credential(context, command.id)


async def find_worker_credential(
    context: Context, command: ports.FindWorkerCredential
) -> ports.StoredWorkerCredential | None:
    """See `FindWorkerCredential`."""
    ((text,),) = await context.database.call(CALL.find_worker_credential, command.credential_id)
    return None if text is None else decode_worker_credential(text)


async def is_worker_name_taken(context: Context, command: ports.IsWorkerNameTaken) -> bool:
    """Return whether a worker credential or a worker role has this name."""
    ((is_taken,),) = await context.database.call(CALL.is_worker_name, command.name)
    return bool(is_taken)


async def list_worker_credentials(context: Context, command: ports.ListWorkerCredentials) -> list[WorkerCredential]:
    """See `ListWorkerCredentials`."""
    check_tenant_id(command.tenant)
    arguments = (command.tenant, command.after or "", command.limit)
    return await context.find_all(WorkerCredential, CALL.list_worker_credentials, *arguments)


async def record_last_used(context: Context, command: ports.RecordLastUsed) -> None:
    """See `RecordLastUsed`."""
    times_by_id = (command.tokens, command.workers, command.sessions)
    columns = [column for times in times_by_id for column in ([*times], [*times.values()])]
    await context.database.call(CALL.record_use, *columns)


async def _get_token(context: Context, token_id: str) -> Token:
    stored = await find_token(context, ports.FindToken(token_id=token_id))
    if stored is None:  # Its tenant was removed in the meantime.
        raise TokenNotFound(f"there is no token {token_id[:64]!r}")
    return stored.token


async def _get_worker_credential(context: Context, credential_id: str) -> WorkerCredential:
    stored = await find_worker_credential(context, ports.FindWorkerCredential(credential_id=credential_id))
    if stored is None:  # Its tenant was removed in the meantime.
        raise CredentialNotFound(f"there is no worker credential {credential_id[:64]!r}")
    return stored.credential
