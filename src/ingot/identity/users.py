"""Looking at people, and letting them in or out."""

from __future__ import annotations

from ingot.events.audit import Act, new_act
from ingot.identity.authenticator import Authenticator
from ingot.identity.members import check_email
from ingot.identity.people import User, UserNotFound
from ingot.identity.ports import FindUser, ListUsers, SetUserEnabled, UserWithRoles
from ingot.kernel.commands import Store
from ingot.kernel.ids import is_id
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, Page, check_limit, decode_cursor_position, page_by_id
from ingot.kernel.validation import check_boolean, check_text


class Users:
    """The people who have signed in here."""

    def __init__(self, store: Store, access: Authenticator) -> None:
        self._store = store
        self._authenticator = access

    async def get(self, user_id: str) -> UserWithRoles:
        """The person with this id, and their roles. Raises `UserNotFound`."""
        found = await self._store.run(FindUser(user_id=_check_user_id(user_id)))
        if found is None:
            raise UserNotFound(f"there is no person {user_id[:64]!r}")
        return found

    async def list(
        self, *, email: str | None = None, cursor: str | None = None, limit: int = PAGE_ROWS_DEFAULT
    ) -> Page[User]:
        """A page of all people, or of those with an email, newest first."""
        wanted = None if email is None else check_email(email)
        bound_to = ("users", wanted)
        before = decode_cursor_position(cursor, bound_to=bound_to)
        found = await self._store.run(ListUsers(email=wanted, before=before, limit=check_limit(limit)))
        return page_by_id(found, limit=limit, bound_to=bound_to)

    async def enable(self, user_id: str, *, enabled: bool, act: Act) -> User:
        """Let a person in, or out: then their sessions and tokens end, here at once. Raises `UserNotFound`."""
        command = SetUserEnabled(
            id=_check_user_id(user_id), enabled=check_boolean(enabled, name="enabled"), act=new_act(act)
        )
        return await self._authenticator.change(command)

    def is_operator(self, user: User) -> bool:
        """Whether a person acts in every tenant."""
        return user.enabled and self._authenticator.rules.is_operator(user)


def _check_user_id(value: object) -> str:
    if not is_id(check_text(value, name="user id")):
        raise UserNotFound(f"there is no person {str(value)[:64]!r}")
    return str(value)
