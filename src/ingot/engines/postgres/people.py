"""Commands for logins, sessions, people and members."""

from __future__ import annotations

from ingot.engines.people_rows import EXPIRED_ROWS_MAX, SESSIONS_MAX, normalize_email_or_none
from ingot.engines.postgres.context import Context
from ingot.engines.postgres.function_calls import CALL, json_text
from ingot.engines.postgres.lane_cache import ABOVE_ALL_IDS, NIL_ID, id_or_nil
from ingot.engines.postgres.tenants import check_tenant, check_tenant_id
from ingot.identity import ports
from ingot.identity.credentials import Token
from ingot.identity.people import (
    OWN_INVITATIONS_MAX,
    Invitation,
    InvitationNotFound,
    Member,
    MemberNotFound,
    Session,
    SessionNotFound,
    User,
    UserNotFound,
)
from ingot.kernel.ids import is_id


async def begin_login(context: Context, command: ports.BeginLogin) -> None:
    """See `BeginLogin`."""
    arguments = (command.digest, command.next_page, command.is_link, command.expires_at, EXPIRED_ROWS_MAX)
    await context.database.call(CALL.begin_login, *arguments, json_text(command.act))


async def consume_login(context: Context, command: ports.ConsumeLogin) -> str | None:
    """See `ConsumeLogin`."""
    ((next_page,),) = await context.database.call(CALL.consume_login, command.digest, command.is_link, once=True)
    return None if next_page is None else str(next_page)


async def sign_in(context: Context, command: ports.SignIn) -> User:
    """See `SignIn`."""
    return await context.fetch(
        User,
        CALL.sign_in,
        json_text(command.person),
        normalize_email_or_none(command.person.email),
        command.user_id,
        command.session_id,
        command.digest,
        command.expires_at,
        command.address,
        command.agent,
        command.replaced_digest,
        EXPIRED_ROWS_MAX,
        json_text(command.act),
    )


async def deny_sign_in(context: Context, command: ports.DenySignIn) -> None:
    """See `DenySignIn`."""
    person = command.person
    await context.database.call(CALL.reject_sign_in, json_text(person), person.label, json_text(command.act))


async def end_session(context: Context, command: ports.EndSession) -> None:
    """See `EndSession`."""
    if not is_id(command.id) or (command.user is not None and not is_id(command.user)):
        raise SessionNotFound(f"there is no session {command.id[:64]!r}")
    await context.database.call(CALL.end_session, command.id, command.user, json_text(command.act))


async def set_user_enabled(context: Context, command: ports.SetUserEnabled) -> User:
    """See `SetUserEnabled`."""
    if not is_id(command.id):
        raise UserNotFound(f"there is no person {command.id[:64]!r}")
    return await context.fetch(User, CALL.enable_user, command.id, command.enabled, json_text(command.act))


async def put_member(context: Context, command: ports.PutMember) -> Member:
    """See `PutMember`."""
    check_tenant_id(command.tenant)
    if command.user is not None and not is_id(command.user):
        raise UserNotFound(f"there is no person {command.user[:64]!r}")
    return await context.fetch(
        Member,
        CALL.put_member,
        command.tenant,
        command.role,
        command.user,
        command.email,
        command.invitation_id,
        json_text(command.act),
    )


async def change_member(context: Context, command: ports.ChangeMember) -> Member:
    """See `ChangeMember`."""
    check_tenant_id(command.tenant)
    if not is_id(command.id):
        raise MemberNotFound(f"there is no member {command.id[:64]!r} in this tenant")
    arguments = (command.tenant, command.id, command.role, json_text(command.act))
    return await context.fetch(Member, CALL.change_member, *arguments)


async def accept_invitation(context: Context, command: ports.AcceptInvitation) -> Member:
    """See `AcceptInvitation`."""
    return await context.fetch(Member, CALL.accept_invitation, *_invitation_arguments(command))


async def decline_invitation(context: Context, command: ports.DeclineInvitation) -> None:
    """See `DeclineInvitation`."""
    await context.database.call(CALL.decline_invitation, *_invitation_arguments(command))


def _invitation_arguments(command: ports.AcceptInvitation | ports.DeclineInvitation) -> tuple[str, str, str | None]:
    if not is_id(command.id) or not is_id(command.user):
        raise InvitationNotFound(f"there is no invitation {command.id[:64]!r} for you")
    return command.id, command.user, json_text(command.act)


async def list_invitations(context: Context, command: ports.ListInvitations) -> list[Invitation]:
    """See `ListInvitations`."""
    return await context.find_all(Invitation, CALL.list_invitations, id_or_nil(command.user), OWN_INVITATIONS_MAX)


async def leave_tenant(context: Context, command: ports.LeaveTenant) -> Member:
    """See `LeaveTenant`."""
    check_tenant_id(command.tenant)
    if not is_id(command.user):
        raise MemberNotFound(f"there is no member {command.user[:64]!r} in this tenant")
    return await context.fetch(Member, CALL.leave_tenant, command.tenant, command.user, json_text(command.act))


async def choose_tenant(context: Context, command: ports.ChooseTenant) -> None:
    """See `ChooseTenant`."""
    check_tenant_id(command.tenant)
    await context.database.call(CALL.choose_tenant, id_or_nil(command.session), id_or_nil(command.user), command.tenant)


async def remove_member(context: Context, command: ports.RemoveMember) -> Member:
    """See `RemoveMember`."""
    check_tenant_id(command.tenant)
    if not is_id(command.id):
        raise MemberNotFound(f"there is no member {command.id[:64]!r} in this tenant")
    return await context.fetch(Member, CALL.remove_member, command.tenant, command.id, json_text(command.act))


async def find_session(context: Context, command: ports.FindSession) -> ports.StoredSession | None:
    """See `FindSession`."""
    return await context.find(ports.StoredSession, CALL.find_session, command.digest)


async def list_sessions(context: Context, command: ports.ListSessions) -> list[Session]:
    """See `ListSessions`."""
    return await context.find_all(Session, CALL.list_sessions, id_or_nil(command.user), SESSIONS_MAX)


async def find_user(context: Context, command: ports.FindUser) -> ports.UserWithRoles | None:
    """See `FindUser`."""
    return await context.find(ports.UserWithRoles, CALL.find_user, id_or_nil(command.user_id))


async def list_users(context: Context, command: ports.ListUsers) -> list[User]:
    """See `ListUsers`."""
    arguments = (normalize_email_or_none(command.email), command.before or ABOVE_ALL_IDS, command.limit)
    return await context.find_all(User, CALL.list_users, *arguments)


async def find_member(context: Context, command: ports.FindMember) -> Member | None:
    """See `FindMember`."""
    await check_tenant(context, command.tenant)
    return await context.find(Member, CALL.find_member, command.tenant, id_or_nil(command.member_id))


async def list_members(context: Context, command: ports.ListMembers) -> list[Member]:
    """See `ListMembers`."""
    await check_tenant(context, command.tenant)
    arguments = (command.tenant, command.after or NIL_ID, command.limit)
    return await context.find_all(Member, CALL.list_members, *arguments)


async def list_user_tokens(context: Context, command: ports.ListUserTokens) -> list[Token]:
    """See `ListUserTokens`."""
    arguments = (id_or_nil(command.user), command.before or ABOVE_ALL_IDS, command.limit)
    return await context.find_all(Token, CALL.list_user_tokens, *arguments)
