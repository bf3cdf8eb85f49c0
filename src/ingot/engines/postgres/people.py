"""People: how they sign in, and the roles they are given."""

from __future__ import annotations

import msgspec

from ingot.engines.people import EXPIRED_ROWS_MAX, UserRow, lower
from ingot.engines.postgres.audit import act_text
from ingot.engines.postgres.connection import Database
from ingot.identity.model import TenantNotFound
from ingot.identity.people import Member, MemberNotFound, SessionNotFound, User, UserNotFound
from ingot.identity.ports import (
    BeginLogin,
    EnableUser,
    EndSession,
    PutMember,
    RemoveMember,
    SignIn,
    TakeLogin,
    TurnAway,
)
from ingot.kernel.ids import is_id


async def begin_login(db: Database, command: BeginLogin) -> None:
    """Remember that somebody set out."""
    act = None if command.act is None else act_text(command.act)
    row = (command.digest, command.next, command.link, command.expires_at, EXPIRED_ROWS_MAX, act)
    await db.call("SELECT ingot.begin_login($1, $2, $3, $4, $5, $6)", *row)


async def take_login(db: Database, command: TakeLogin) -> str | None:
    """Where to go after a sign-in that was begun."""
    ((where,),) = await db.call_once("SELECT ingot.take_login($1, $2)", command.digest, command.link)
    return None if where is None else str(where)


async def sign_in(db: Database, command: SignIn) -> User:
    """Make a session."""
    ((text,),) = await db.call(
        "SELECT ingot.sign_in($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        msgspec.json.encode(command.person).decode(),
        lower(command.person.email),
        command.user_id,
        command.session_id,
        command.digest,
        command.expires_at,
        command.address,
        command.agent,
        command.replaces,
        EXPIRED_ROWS_MAX,
        act_text(command.act),
    )
    return _user(text)


async def turn_away(db: Database, command: TurnAway) -> None:
    """Keep the groups of a person who may not come in."""
    person = msgspec.json.encode(command.person).decode()
    await db.call("SELECT ingot.turn_away($1, $2, $3)", person, command.person.label, act_text(command.act))


async def end_session(db: Database, command: EndSession) -> None:
    """End a session."""
    if not is_id(command.id) or (command.user is not None and not is_id(command.user)):
        raise SessionNotFound(f"there is no session {command.id[:64]!r}")
    await db.call("SELECT ingot.end_session($1, $2, $3)", command.id, command.user, act_text(command.act))


async def enable_user(db: Database, command: EnableUser) -> User:
    """Let a person in or out."""
    if not is_id(command.id):
        raise UserNotFound(f"there is no person {command.id[:64]!r}")
    row = (command.id, command.enabled, act_text(command.act))
    ((text,),) = await db.call("SELECT ingot.enable_user($1, $2, $3)", *row)
    return _user(text)


async def put_member(db: Database, command: PutMember) -> Member:
    """Give a role."""
    _check_tenant(command.tenant)
    if command.user is not None and not is_id(command.user):
        raise UserNotFound(f"there is no person {command.user[:64]!r}")
    row = (command.tenant, command.role, command.user, command.email, command.invitation, act_text(command.act))
    ((text,),) = await db.call("SELECT ingot.put_member($1, $2, $3, $4, $5, $6)", *row)
    return msgspec.json.decode(text, type=Member)


async def remove_member(db: Database, command: RemoveMember) -> Member:
    """Take a role."""
    _check_tenant(command.tenant)
    if not is_id(command.id):
        raise MemberNotFound(f"there is no member {command.id[:64]!r} in this tenant")
    row = (command.tenant, command.id, act_text(command.act))
    ((text,),) = await db.call("SELECT ingot.remove_member($1, $2, $3)", *row)
    return msgspec.json.decode(text, type=Member)


def _check_tenant(tenant: str) -> None:
    if not is_id(tenant):
        raise TenantNotFound(f"there is no tenant {tenant[:64]!r}")


def _user(text: str) -> User:
    return msgspec.json.decode(text, type=UserRow).user()
