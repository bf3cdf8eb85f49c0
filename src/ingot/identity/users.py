"""Finding, enabling and disabling people."""

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
    """The service for people who have signed in."""

    def __init__(self, store: Store, authenticator: Authenticator) -> None:
        self._store = store
        self._authenticator = authenticator

    async def get(self, user_id: str) -> UserWithRoles:
        """Return the person with this ID and their roles. Raises `UserNotFound`."""
        user = await self._store.run(FindUser(user_id=_check_user_id(user_id)))
        if user is None:
            raise UserNotFound(f"there is no person {user_id[:64]!r}")
        return user

    async def list(
        self, *, email: str | None = None, cursor: str | None = None, limit: int = PAGE_ROWS_DEFAULT
    ) -> Page[User]:
        """List people, or only those with an email, newest first."""
        email = None if email is None else check_email(email)
        bound_to = ("users", email)
        before = decode_cursor_position(cursor, bound_to=bound_to)
        users = await self._store.run(ListUsers(email=email, before=before, limit=check_limit(limit)))
        return page_by_id(users, limit=limit, bound_to=bound_to)

    async def enable(self, user_id: str, *, enabled: bool, act: Act) -> User:
        """Enable or disable a person. Raises `UserNotFound`.

        Disabling ends their sessions and tokens, in this process at once and in others within seconds.
        """
        command = SetUserEnabled(
            id=_check_user_id(user_id), enabled=check_boolean(enabled, name="enabled"), act=new_act(act)
        )
        return await self._authenticator.run_and_invalidate(command)

    def is_operator(self, user: User) -> bool:
        """Return whether a person acts in all tenants."""
        return user.enabled and self._authenticator.rules.is_operator(user)


def _check_user_id(value: object) -> str:
    if not is_id(check_text(value, name="user ID")):
        raise UserNotFound(f"there is no person {str(value)[:64]!r}")
    return str(value)
