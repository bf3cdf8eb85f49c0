"""Reading people: who they are, how they are signed in, and which role they have."""

from __future__ import annotations

from typing import Final

import msgspec

from ingot.engines.credentials import TokenRow
from ingot.engines.people import SESSIONS_MAX, FoundSessionRow, OwnerRow, SessionRow, UserRow, lower
from ingot.engines.postgres import identity
from ingot.engines.postgres.credentials import ABOVE_ALL_IDS
from ingot.engines.postgres.reads import Reads
from ingot.identity.credentials import Token
from ingot.identity.people import Member, Session, User
from ingot.identity.ports import FoundSession, Owner
from ingot.kernel.ids import is_id

BELOW_ALL_IDS: Final = "00000000-0000-0000-0000-000000000000"


class PeopleReads(Reads):
    """The reading half of the store, with people."""

    async def find_session(self, digest: bytes) -> FoundSession | None:
        """See `PeopleStore`."""
        ((text,),) = await self.database.call("SELECT ingot.find_session($1)", digest)
        return None if text is None else msgspec.json.decode(text, type=FoundSessionRow).found()

    async def list_sessions(self, user: str) -> list[Session]:
        """See `PeopleStore`."""
        if not is_id(user):
            return []
        rows = await self.database.call("SELECT ingot.list_sessions($1, $2)", user, SESSIONS_MAX)
        return [msgspec.json.decode(text, type=SessionRow).session() for (text,) in rows]

    async def find_user(self, user_id: str) -> Owner | None:
        """See `PeopleStore`."""
        if not is_id(user_id):
            return None
        ((text,),) = await self.database.call("SELECT ingot.find_user($1)", user_id)
        return None if text is None else msgspec.json.decode(text, type=OwnerRow).owner()

    async def list_users(self, *, email: str | None, before: str | None, limit: int) -> list[User]:
        """See `PeopleStore`."""
        rows = await self.database.call(
            "SELECT ingot.list_users($1, $2, $3)", lower(email), before or ABOVE_ALL_IDS, limit
        )
        return [msgspec.json.decode(text, type=UserRow).user() for (text,) in rows]

    async def find_member(self, tenant: str, member_id: str) -> Member | None:
        """See `PeopleStore`."""
        await identity.check_tenant(self.database, self.memory, tenant)
        if not is_id(member_id):
            return None
        ((text,),) = await self.database.call("SELECT ingot.find_member($1, $2)", tenant, member_id)
        return None if text is None else msgspec.json.decode(text, type=Member)

    async def list_members(self, tenant: str, *, after: str | None, limit: int) -> list[Member]:
        """See `PeopleStore`."""
        await identity.check_tenant(self.database, self.memory, tenant)
        rows = await self.database.call("SELECT ingot.list_members($1, $2, $3)", tenant, after or BELOW_ALL_IDS, limit)
        return [msgspec.json.decode(text, type=Member) for (text,) in rows]

    async def list_people_tokens(self, user: str, *, before: str | None, limit: int) -> list[Token]:
        """See `PeopleStore`."""
        if not is_id(user):
            return []
        row = (user, before or ABOVE_ALL_IDS, limit)
        rows = await self.database.call("SELECT ingot.list_people_tokens($1, $2, $3)", *row)
        return [TokenRow.read(text).token() for (text,) in rows]
