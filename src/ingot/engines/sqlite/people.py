"""People: their logins, sessions and roles."""

from __future__ import annotations

import msgspec

from ingot.engines.json_rows import decode
from ingot.engines.people_rows import EXPIRED_ROWS_MAX, SESSIONS_MAX, normalize_email_or_none
from ingot.engines.sqlite.readers import ABOVE_ALL_TEXTS, Reader
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.identity import ports
from ingot.identity.credentials import Token
from ingot.identity.people import (
    Member,
    MemberByGroup,
    MemberNotFound,
    Session,
    SessionNotFound,
    SignInRefused,
    User,
    UserNotFound,
)


def begin_login(tx: Transaction, command: ports.BeginLogin) -> None:
    """Store a login that has begun, and delete expired ones."""
    tx.execute(SQL.delete_expired_logins, tx.now, EXPIRED_ROWS_MAX)
    tx.execute(SQL.insert_login, command.digest, command.next_page, command.is_link, command.expires_at)
    if command.act is not None:
        tx.audit(command.act, "link.created", "link", tenant=None)


def consume_login(tx: Transaction, command: ports.ConsumeLogin) -> str | None:
    """Delete a login and return the page to open after it, or `None` if it does not exist or has expired."""
    next_page: str | None = tx.execute(SQL.consume_login, command.digest, command.is_link, tx.now).get
    return next_page


def sign_in(tx: Transaction, command: ports.SignIn) -> User:
    """Store a person who signs in, and create a session."""
    person, user_id = command.person, command.user_id
    for stored_id, enabled in tx.execute(SQL.user_by_subject, person.issuer, person.subject):
        if not enabled:
            raise SignInRefused("an operator has disabled this person")
        user_id = stored_id
    email = normalize_email_or_none(person.email)
    row = (person.issuer, person.subject, person.email, email, person.email_verified, person.name, person.picture)
    tx.execute(SQL.put_user, user_id, *row, tx.now)
    tx.execute(SQL.delete_user_groups, user_id)
    tx.execute(SQL.insert_user_groups, user_id, as_json(person.groups))
    if email is not None and person.email_verified:
        tx.execute(SQL.accept_invitations, user_id, email, tx.now)
        tx.execute(SQL.delete_invitations_by_email, email)
    tx.execute(SQL.delete_expired_sessions, tx.now, EXPIRED_ROWS_MAX)
    if command.replaced_digest is not None:
        tx.execute(SQL.delete_session_by_digest, command.replaced_digest)
    session = (command.session_id, command.digest, user_id, tx.now, command.expires_at, command.address, command.agent)
    tx.execute(SQL.insert_session, *session)
    after = {"user": user_id, "email": person.email}
    act = msgspec.structs.replace(command.act, who=f"user:{user_id}", name=person.label)
    tx.audit(act, "session.created", f"session/{command.session_id}", tenant=None, after=after)
    return _get_user(tx, user_id)


def deny_sign_in(tx: Transaction, command: ports.DenySignIn) -> None:
    """Store the groups of a person who is not allowed to sign in, and end their sessions."""
    person = command.person
    for user_id, _ in list(tx.execute(SQL.user_by_subject, person.issuer, person.subject)):
        before = _get_user(tx, user_id)
        tx.execute(SQL.delete_user_groups, user_id)
        tx.execute(SQL.insert_user_groups, user_id, as_json(person.groups))
        tx.execute(SQL.delete_sessions_of_user, user_id)
        after = _get_user(tx, user_id)
        if after != before:
            act = msgspec.structs.replace(command.act, who=f"user:{user_id}", name=person.label)
            tx.audit(act, "user.turned_away", f"user/{user_id}", tenant=None, before=before, after=after)


def end_session(tx: Transaction, command: ports.EndSession) -> None:
    """End a session."""
    text = tx.execute(SQL.session_by_id, command.id).get
    session = None if text is None else msgspec.json.decode(text, type=dict[str, str | None])
    if session is None or command.user not in (None, session["user"]):
        raise SessionNotFound(f"there is no session {command.id[:64]!r}")
    tx.execute(SQL.delete_session, command.id)
    tx.audit(command.act, "session.ended", f"session/{command.id}", tenant=None, before=session)


def set_user_enabled(tx: Transaction, command: ports.SetUserEnabled) -> User:
    """Enable or disable a person. Disabling ends their sessions and tokens."""
    before = _get_user(tx, command.id)
    tx.execute(SQL.set_user_enabled, command.id, command.enabled)
    if not command.enabled:
        tx.execute(SQL.delete_sessions_of_user, command.id)
        tx.execute(SQL.revoke_tokens_of_user, command.id, tx.now, None)
    after = _get_user(tx, command.id)
    if after != before:
        action = "user.enabled" if command.enabled else "user.disabled"
        tx.audit(command.act, action, f"user/{command.id}", tenant=None, before=before, after=after)
    return after


def put_member(tx: Transaction, command: ports.PutMember) -> Member:
    """Give a role to a person, or to an email by an invitation."""
    tenant = tx.writer_state.number_of(command.tenant)
    values = (command.role, tx.now, command.act.who)
    if command.user is not None:
        member_id = _get_user(tx, command.user).id
        before = _find_member(tx, tenant, member_id)
        tx.execute(SQL.put_member, tenant, member_id, *values)
        tx.execute(SQL.delete_invitation_of_user, tenant, member_id)
    else:
        existing_id = tx.execute(SQL.invitation_by_email, tenant, command.email).get
        before = None if existing_id is None else _find_member(tx, tenant, existing_id)
        member_id = tx.execute(SQL.put_invitation, command.invitation_id, tenant, command.email, *values).get
    after = _find_member(tx, tenant, member_id)
    assert after is not None, "the role was just written"
    if after != before:
        tx.audit(command.act, "member.put", f"member/{member_id}", tenant=command.tenant, before=before, after=after)
    return after


def remove_member(tx: Transaction, command: ports.RemoveMember) -> Member:
    """Remove the role of a person, or an invitation, with the tokens that depend on it."""
    tenant = tx.writer_state.number_of(command.tenant)
    member = _find_member(tx, tenant, command.id)
    if member is None:
        raise MemberNotFound(f"there is no member {command.id[:64]!r} in this tenant")
    if all(source.group is not None for source in member.sources):
        raise MemberByGroup(f"the role of {command.id!r} comes from a group")
    if member.user is None:
        tx.execute(SQL.delete_invitation, member.id)
        tx.execute(SQL.revoke_tokens_of_invitees, tenant, member.email, tx.now)
    else:
        tx.execute(SQL.delete_member, tenant, member.user)
        tx.execute(SQL.delete_invitation_of_user, tenant, member.user)
        tx.execute(SQL.revoke_tokens_of_user, member.user, tx.now, tenant)
    after = _find_member(tx, tenant, command.id)
    tx.audit(command.act, "member.removed", f"member/{command.id}", tenant=command.tenant, before=member, after=after)
    return member


def _get_user(tx: Transaction, user_id: str) -> User:
    text = tx.execute(SQL.user_by_id, user_id).get
    if text is None:
        raise UserNotFound(f"there is no person {user_id[:64]!r}")
    return decode(User, text)


def _find_member(tx: Transaction, tenant: int, member_id: str) -> Member | None:
    members = tx.read(list[Member], SQL.members_by_id, tenant, as_json([member_id]))
    return members[0] if members else None


def find_session(reader: Reader, command: ports.FindSession) -> ports.StoredSession | None:
    """Find an unexpired session with its person."""
    return reader.find(ports.StoredSession, SQL.session_by_digest, command.digest, reader.clock.micros())


def list_sessions(reader: Reader, command: ports.ListSessions) -> list[Session]:
    """Read the unexpired sessions of a person."""
    return reader.read(list[Session], SQL.sessions_of_user, command.user, reader.clock.micros(), SESSIONS_MAX)


def find_user(reader: Reader, command: ports.FindUser) -> ports.UserWithRoles | None:
    """Find a person with their roles."""
    return reader.find(ports.UserWithRoles, SQL.user_with_roles_by_id, command.user_id)


def list_users(reader: Reader, command: ports.ListUsers) -> list[User]:
    """Read a page of people, newest first."""
    page = (command.before or ABOVE_ALL_TEXTS, command.limit)
    if command.email is None:
        return reader.read(list[User], SQL.page_of_users, *page)
    return reader.read(list[User], SQL.page_of_users_by_email, normalize_email_or_none(command.email), *page)


def find_member(reader: Reader, command: ports.FindMember) -> Member | None:
    """Find a member or an invitation of a tenant."""
    tenant = reader.writer_state.number_of(command.tenant)
    members = reader.read(list[Member], SQL.members_by_id, tenant, as_json([command.member_id]))
    return members[0] if members else None


def list_members(reader: Reader, command: ports.ListMembers) -> list[Member]:
    """Read a page of the members and invitations of a tenant."""
    tenant = reader.writer_state.number_of(command.tenant)
    with reader.snapshot():
        ids = reader.read(list[str], SQL.page_of_members, tenant, command.after or "", command.limit)
        return reader.read(list[Member], SQL.members_by_id, tenant, as_json(ids))


def list_user_tokens(reader: Reader, command: ports.ListUserTokens) -> list[Token]:
    """Read a page of the tokens that a person created."""
    values = (command.user, command.before or ABOVE_ALL_TEXTS, command.limit)
    return reader.read(list[Token], SQL.tokens_of_user, *values)
