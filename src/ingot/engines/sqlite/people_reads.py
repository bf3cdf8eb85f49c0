"""Reading people: who they are, how they are signed in, and which role they have."""

from __future__ import annotations

from collections.abc import Awaitable

from ingot.engines.credentials import TokenRow
from ingot.engines.people import SESSIONS_MAX, FoundSessionRow, OwnerRow, SessionRow, UserRow, lower
from ingot.engines.sqlite.reads import ABOVE_ALL_TEXTS, Reads
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import as_json
from ingot.identity.credentials import Token
from ingot.identity.people import Member, Session, User
from ingot.identity.ports import FoundSession, Owner


class PeopleReads(Reads):
    """The reading half of the store, with people."""

    def find_session(self, digest: bytes) -> Awaitable[FoundSession | None]:
        """See `PeopleStore`."""
        return self._run(self._find_session, digest)

    def _find_session(self, digest: bytes) -> FoundSession | None:
        row = self._read(FoundSessionRow, SQL.session_by_digest, digest, self._clock.micros())
        return None if row is None else row.found()

    def list_sessions(self, user: str) -> Awaitable[list[Session]]:
        """See `PeopleStore`."""
        return self._run(self._list_sessions, user)

    def _list_sessions(self, user: str) -> list[Session]:
        rows = self._read(list[SessionRow], SQL.sessions_of_user, user, self._clock.micros(), SESSIONS_MAX)
        return [row.session() for row in rows or ()]

    def find_user(self, user_id: str) -> Awaitable[Owner | None]:
        """See `PeopleStore`."""
        return self._run(self._find_user, user_id)

    def _find_user(self, user_id: str) -> Owner | None:
        row = self._read(OwnerRow, SQL.owner_by_id, user_id)
        return None if row is None else row.owner()

    def list_users(self, *, email: str | None, before: str | None, limit: int) -> Awaitable[list[User]]:
        """See `PeopleStore`."""
        return self._run(self._list_users, email, before or ABOVE_ALL_TEXTS, limit)

    def _list_users(self, email: str | None, before: str, limit: int) -> list[User]:
        if email is None:
            rows = self._read(list[UserRow], SQL.page_of_users, before, limit)
        else:
            rows = self._read(list[UserRow], SQL.page_of_users_by_email, lower(email), before, limit)
        return [row.user() for row in rows or ()]

    def find_member(self, tenant: str, member_id: str) -> Awaitable[Member | None]:
        """See `PeopleStore`."""
        self._check_tenant(tenant)
        return self._run(self._find_member, self.memory.tenants[tenant], member_id)

    def _find_member(self, tenant: int, member_id: str) -> Member | None:
        found = self._read(list[Member], SQL.members_by_id, tenant, as_json([member_id]))
        return found[0] if found else None

    def list_members(self, tenant: str, *, after: str | None, limit: int) -> Awaitable[list[Member]]:
        """See `PeopleStore`."""
        self._check_tenant(tenant)
        return self._run(self._list_members, self.memory.tenants[tenant], after or "", limit)

    def _list_members(self, tenant: int, after: str, limit: int) -> list[Member]:
        with self._reader():  # One snapshot for who they are and what they are.
            ids = self._read(list[str], SQL.page_of_members, tenant, after, limit)
            found = self._read(list[Member], SQL.members_by_id, tenant, as_json(ids))
        return found or []

    def list_people_tokens(self, user: str, *, before: str | None, limit: int) -> Awaitable[list[Token]]:
        """See `PeopleStore`."""
        return self._run(self._list_people_tokens, user, before or ABOVE_ALL_TEXTS, limit)

    def _list_people_tokens(self, user: str, before: str, limit: int) -> list[Token]:
        rows = self._read(list[TokenRow], SQL.tokens_of_user, user, before, limit)
        return [row.token() for row in rows or ()]
