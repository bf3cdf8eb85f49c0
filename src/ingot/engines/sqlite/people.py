"""People: their logins, sessions and roles."""

from __future__ import annotations

import msgspec

from ingot.engines.json_rows import decode
from ingot.engines.people_rows import EXPIRED_ROWS_MAX, SESSIONS_MAX, normalize_email_or_none
from ingot.engines.sqlite.readers import ABOVE_ALL_TEXTS, Reader
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.events.audit import Act
from ingot.identity import ports
from ingot.identity.credentials import Token
from ingot.identity.people import (
    INVITATION_MICROS,
    INVITATIONS_MAX,
    OWN_INVITATIONS_MAX,
    Invitation,
    InvitationNotFound,
    Member,
    MemberByGroup,
    MemberNotFound,
    Role,
    Session,
    SessionNotFound,
    SignInRefused,
    TooManyInvitations,
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
    tenant = _tenant_of_new_session(tx, user_id, command.replaced_digest)
    tx.execute(SQL.delete_expired_sessions, tx.now, EXPIRED_ROWS_MAX)
    if command.replaced_digest is not None:
        tx.execute(SQL.delete_session_by_digest, command.replaced_digest)
    session = (command.session_id, command.digest, user_id, tx.now, command.expires_at, command.address, command.agent)
    tx.execute(SQL.insert_session, *session, tenant)
    after = {"user": user_id, "email": person.email}
    act = msgspec.structs.replace(command.act, who=f"user:{user_id}", name=person.label)
    tx.audit(act, "session.created", f"session/{command.session_id}", tenant=None, after=after)
    return _get_user(tx, user_id)


def _tenant_of_new_session(tx: Transaction, user_id: str, replaced_digest: bytes | None) -> int | None:
    """Return the tenant in which a new session of a person acts: that of the session that it replaces, or their own."""
    if replaced_digest is not None:
        for (replaced_tenant,) in list(tx.execute(SQL.session_of_user, replaced_digest, user_id)):
            return None if replaced_tenant is None else int(replaced_tenant)
    chosen: int | None = tx.execute(SQL.chosen_tenant, user_id).get
    tx.execute(SQL.choose_tenant_of_user, user_id, chosen)
    return chosen


def deny_sign_in(tx: Transaction, command: ports.DenySignIn) -> None:
    """Mark a person as refused, store their groups, and end their sessions."""
    person = command.person
    for user_id, _ in list(tx.execute(SQL.user_by_subject, person.issuer, person.subject)):
        before = _get_user(tx, user_id)
        tx.execute(SQL.delete_user_groups, user_id)
        tx.execute(SQL.insert_user_groups, user_id, as_json(person.groups))
        tx.execute(SQL.set_user_refused, user_id)
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
    """Invite a person or an email, or change the role of a person who has one of their own."""
    tenant = tx.writer_state.number_of(command.tenant)
    if command.user is not None and tx.execute(SQL.own_role, tenant, command.user).get is not None:
        return _change_role(tx, command.act, command.tenant, command.user, command.role)
    tx.execute(SQL.delete_expired_invitations, tenant, tx.now)
    invitation_id: str | None = tx.execute(SQL.find_invitation, tenant, command.email, command.user).get
    before = None if invitation_id is None else _find_member(tx, tenant, invitation_id)
    expires_at = tx.now + INVITATION_MICROS
    if invitation_id is not None:
        tx.execute(SQL.change_invitation, invitation_id, command.role, expires_at)
    else:
        if tx.execute(SQL.count_invitations, tenant).get >= INVITATIONS_MAX:
            raise TooManyInvitations(f"the tenant has {INVITATIONS_MAX} invitations, which is the maximum")
        invitation_id = command.invitation_id
        values = (command.email, command.user, command.role, tx.now, command.act.who, expires_at)
        tx.execute(SQL.insert_invitation, invitation_id, tenant, *values)
    return _audit_member(tx, command.act, command.tenant, invitation_id, before)


def change_member(tx: Transaction, command: ports.ChangeMember) -> Member:
    """Change the role that was given to a person, or that of an invitation."""
    tenant = tx.writer_state.number_of(command.tenant)
    member = _require_member(tx, tenant, command.id)
    if not member.invited:
        return _change_role(tx, command.act, command.tenant, command.id, command.role)
    tx.execute(SQL.set_role_of_invitation, command.id, command.role)
    return _audit_member(tx, command.act, command.tenant, command.id, member)


def _change_role(tx: Transaction, act: Act, tenant_id: str, user_id: str, role: Role) -> Member:
    """Change a person's own role."""
    tenant = tx.writer_state.number_of(tenant_id)
    before = _find_member(tx, tenant, user_id)
    tx.execute(SQL.put_member, tenant, user_id, role, tx.now, act.who)
    return _audit_member(tx, act, tenant_id, user_id, before)


def _audit_member(tx: Transaction, act: Act, tenant_id: str, member_id: str, before: Member | None) -> Member:
    """Return a member or an invitation that was written. The audit log records it if it differs from before."""
    after = _find_member(tx, tx.writer_state.number_of(tenant_id), member_id)
    assert after is not None, "the role was just written"
    if after != before:
        tx.audit(act, "member.put", f"member/{member_id}", tenant=tenant_id, before=before, after=after)
    return after


def remove_member(tx: Transaction, command: ports.RemoveMember) -> Member:
    """Remove the role of a person, or an invitation, with the tokens that depend on it."""
    tenant = tx.writer_state.number_of(command.tenant)
    member = _require_member(tx, tenant, command.id)
    if member.invited:
        tx.execute(SQL.delete_invitation, member.id)
    else:
        tx.execute(SQL.delete_member, tenant, command.id)
        tx.execute(SQL.delete_invitations_of_user, tenant, command.id)
        tx.execute(SQL.revoke_tokens_of_user, command.id, tx.now, tenant)
    after = _find_member(tx, tenant, command.id)
    tx.audit(command.act, "member.removed", f"member/{command.id}", tenant=command.tenant, before=member, after=after)
    return member


def _require_member(tx: Transaction, tenant: int, member_id: str) -> Member:
    """Return a member with a role of their own, or an invitation. Raises `MemberNotFound` or `MemberByGroup`."""
    member = _find_member(tx, tenant, member_id)
    if member is None:
        raise MemberNotFound(f"there is no member {member_id[:64]!r} in this tenant")
    if all(source.group is not None for source in member.sources):
        raise MemberByGroup(f"the role of {member_id!r} comes from a group")
    return member


def accept_invitation(tx: Transaction, command: ports.AcceptInvitation) -> Member:
    """Turn an invitation into a role of the invited person."""
    tenant_id, role = _invitation_for(tx, command.id, command.user)
    tenant = tx.writer_state.number_of(tenant_id)
    before = _find_member(tx, tenant, command.user)
    tx.execute(SQL.delete_invitation, command.id)
    tx.execute(SQL.delete_departure, tenant, command.user)
    tx.execute(SQL.join_tenant, tenant, command.user, role, tx.now, command.act.who)
    after = _find_member(tx, tenant, command.user)
    assert after is not None, "the role was just written"
    target = f"member/{command.user}"
    tx.audit(command.act, "invitation.accepted", target, tenant=tenant_id, before=before, after=after)
    return after


def decline_invitation(tx: Transaction, command: ports.DeclineInvitation) -> None:
    """Remove an invitation for the person who was invited."""
    tenant_id, _ = _invitation_for(tx, command.id, command.user)
    before = _find_member(tx, tx.writer_state.number_of(tenant_id), command.id)
    tx.execute(SQL.delete_invitation, command.id)
    tx.audit(command.act, "invitation.declined", f"member/{command.id}", tenant=tenant_id, before=before)


def _invitation_for(tx: Transaction, invitation_id: str, user_id: str) -> tuple[str, Role]:
    """Return the tenant and the role of a person's invitation. Raises `InvitationNotFound`."""
    for tenant_id, role in list(tx.execute(SQL.invitation_for_user, invitation_id, user_id, tx.now)):
        return tenant_id, role
    raise InvitationNotFound(f"there is no invitation {invitation_id[:64]!r} for you")


def leave_tenant(tx: Transaction, command: ports.LeaveTenant) -> Member:
    """Remove all roles of a person in a tenant, with the tokens that depend on them."""
    tenant = tx.writer_state.number_of(command.tenant)
    member = _find_member(tx, tenant, command.user)
    if member is None or member.invited:
        raise MemberNotFound(f"there is no member {command.user[:64]!r} in this tenant")
    tx.execute(SQL.delete_member, tenant, command.user)
    if any(source.group is not None for source in member.sources):
        tx.execute(SQL.insert_departure, tenant, command.user, tx.now)
    tx.execute(SQL.revoke_tokens_of_user, command.user, tx.now, tenant)
    tx.audit(command.act, "member.left", f"member/{command.user}", tenant=command.tenant, before=member)
    return member


def choose_tenant(tx: Transaction, command: ports.ChooseTenant) -> None:
    """Set the tenant of a session, and of later sessions of the person."""
    tenant = tx.writer_state.number_of(command.tenant)
    tx.execute(SQL.choose_tenant_of_session, command.session, tenant, command.user)
    tx.execute(SQL.choose_tenant_of_user, command.user, tenant)


def _get_user(tx: Transaction, user_id: str) -> User:
    text = tx.execute(SQL.user_by_id, user_id).get
    if text is None:
        raise UserNotFound(f"there is no person {user_id[:64]!r}")
    return decode(User, text)


def _find_member(tx: Transaction, tenant: int, member_id: str) -> Member | None:
    members = decode(list[Member], tx.execute(SQL.members_by_id, tenant, as_json([member_id]), tx.now).get)
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
    members = reader.read(list[Member], SQL.members_by_id, tenant, as_json([command.member_id]), reader.clock.micros())
    return members[0] if members else None


def list_members(reader: Reader, command: ports.ListMembers) -> list[Member]:
    """Read a page of the members and invitations of a tenant."""
    tenant = reader.writer_state.number_of(command.tenant)
    now = reader.clock.micros()
    with reader.snapshot():
        ids = reader.read(list[str], SQL.page_of_members, tenant, command.after or "", command.limit, now)
        return reader.read(list[Member], SQL.members_by_id, tenant, as_json(ids), now)


def list_invitations(reader: Reader, command: ports.ListInvitations) -> list[Invitation]:
    """Read the unexpired invitations of a person."""
    values = (command.user, reader.clock.micros(), OWN_INVITATIONS_MAX)
    return reader.read(list[Invitation], SQL.invitations_of_user, *values)


def list_user_tokens(reader: Reader, command: ports.ListUserTokens) -> list[Token]:
    """Read a page of the tokens that a person created."""
    values = (command.user, command.before or ABOVE_ALL_TEXTS, command.limit)
    return reader.read(list[Token], SQL.tokens_of_user, *values)
