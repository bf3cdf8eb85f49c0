"""A database connection of the caller's own: what is asked on it, and what its refusals mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Any, Final, Protocol

import msgspec

from ingot.client.errors import error_from_code
from ingot.identity.credentials import Forbidden
from ingot.kernel.errors import IngotError, InvalidInput

ASYNC_CONNECTION_HINT: Final = (
    "Pass a connection of asyncpg, or an AsyncConnection of psycopg; Client takes the others."
)
SYNC_CONNECTION_HINT: Final = "Pass a connection of psycopg or psycopg2; AsyncClient takes those that are awaited."
GRANT_ROLE_HINT: Final = "Let its role into a tenant: `ingot database let-in ROLE --tenant SLUG`."
WRONG_DATABASE_HINT: Final = "Connect to the database in which Ingot lives, migrated to this version."
INSUFFICIENT_PRIVILEGE: Final = "42501"
UNDEFINED_OBJECT_STATES: Final = frozenset({"3F000", "42883"})  # The schema, or a function.


class HasCursor(Protocol):
    """A database connection, as far as types tell."""

    def cursor(self, *args: Any, **options: Any) -> Any:
        """What is asked with; not on connections of asyncpg."""


class SqlCall(msgspec.Struct, frozen=True):
    """A statement that answers one JSON text, with marks for its values."""

    text: str

    @property
    def asyncpg_text(self) -> str:
        """As asyncpg takes it."""
        parts = self.text.split("?")
        return "".join(f"{part}${n}" for n, part in enumerate(parts[:-1], 1)) + parts[-1]

    @property
    def psycopg_text(self) -> str:
        """As the others take it."""
        return self.text.replace("?", "%s")


ENQUEUE_CALL: Final = SqlCall(
    "SELECT coalesce(json_agg(j ORDER BY j.place), '[]')::text AS answer FROM ingot.enqueue_json(?::text::json) AS j"
)
PUBLISH_CALL: Final = SqlCall(
    "SELECT to_json(e)::text AS answer FROM ingot.publish_json(?::text, ?::text::json, ?::text) AS e"
)


class EnqueueResult(msgspec.Struct, frozen=True):
    """What an enqueue answers of each job."""

    id: str
    status: str
    created: bool


class PublishResult(msgspec.Struct, frozen=True):
    """What a publish answers."""

    id: str


def async_uses_asyncpg(connection: Any) -> bool:
    """Whether a connection that is awaited is one of asyncpg, and else of psycopg. Raises `InvalidInput`."""
    if hasattr(connection, "fetchrow") and hasattr(connection, "is_in_transaction"):  # A pool has no transaction.
        return True
    if hasattr(connection, "cursor") and iscoroutinefunction(getattr(connection, "commit", None)):
        return False
    raise InvalidInput(
        f"a {_qualified_type_name(connection)} cannot be used as the connection", hint=ASYNC_CONNECTION_HINT
    )


def sync_uses_asyncpg(connection: Any) -> bool:
    """The same for one that is not awaited, which is never of asyncpg. Raises `InvalidInput`."""
    awaited = hasattr(connection, "fetchrow") or iscoroutinefunction(getattr(connection, "commit", None))
    if awaited or not hasattr(connection, "cursor") or _qualified_type_name(connection).startswith("sqlite3."):
        raise InvalidInput(
            f"a {_qualified_type_name(connection)} cannot be used as the connection", hint=SYNC_CONNECTION_HINT
        )
    return False


def _qualified_type_name(connection: object) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"


def result_text(rows: Sequence[Any]) -> str:
    """The one text of the one row, in whatever shape the caller's connection gives rows."""
    (row,) = rows
    if isinstance(row, str):
        return row
    if isinstance(row, Mapping):
        return str(row["answer"])
    return str(row[0] if hasattr(row, "__getitem__") else row.answer)


def error_from_driver(error: Exception) -> IngotError | None:
    """What an error of a driver says, when it is about us; others are the caller's own."""
    told = getattr(error, "diag", None)
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    message = getattr(told, "message_primary", None) or str(error.args[0] if error.args else error)
    detail = getattr(told, "message_detail", None) or getattr(error, "detail", None)
    hint = getattr(told, "message_hint", None) or getattr(error, "hint", None)
    if not isinstance(state, str):
        return None
    try:
        more: dict[str, Any] = msgspec.json.decode(detail or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        more = {}
    if (state.startswith("IN") or state == INSUFFICIENT_PRIVILEGE) and isinstance(code := more.pop("code", None), str):
        return error_from_code(code, message, hint or "", **more)
    if state == INSUFFICIENT_PRIVILEGE:
        return Forbidden(message, hint=GRANT_ROLE_HINT)
    if state in UNDEFINED_OBJECT_STATES and "ingot" in message:
        return InvalidInput(message, hint=WRONG_DATABASE_HINT)
    return None
