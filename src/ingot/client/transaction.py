"""Calls on a database connection of the application, and the exceptions for errors of its driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Any, Final, Protocol

import msgspec

from ingot.client.errors import error_from_code
from ingot.identity.credentials import Forbidden
from ingot.kernel.errors import IngotError, InvalidInput

ASYNC_CONNECTION_HINT: Final = (
    "Pass a connection of asyncpg or an AsyncConnection of psycopg. Client takes synchronous connections."
)
SYNC_CONNECTION_HINT: Final = "Pass a connection of psycopg or psycopg2. AsyncClient takes asynchronous connections."
GRANT_ROLE_HINT: Final = "Grant the role access to a tenant: `ingot database grant-app ROLE --tenant SLUG`."
WRONG_DATABASE_HINT: Final = "Connect to the database that contains Ingot's schema, migrated to this version."
INSUFFICIENT_PRIVILEGE: Final = "42501"
UNDEFINED_OBJECT_STATES: Final = frozenset({"3F000", "42883"})  # Undefined schema, undefined function.


class HasCursor(Protocol):
    """A database connection. This method is what the supported drivers have in common."""

    def cursor(self, *args: Any, **options: Any) -> Any:
        """Open a cursor. It is not used with asyncpg."""


class SqlCall(msgspec.Struct, frozen=True):
    """A statement that returns one JSON text, with `?` for each parameter."""

    text: str

    @property
    def asyncpg_text(self) -> str:
        """The statement with the placeholders of asyncpg."""
        parts = self.text.split("?")
        return "".join(f"{part}${n}" for n, part in enumerate(parts[:-1], 1)) + parts[-1]

    @property
    def psycopg_text(self) -> str:
        """The statement with the placeholders of psycopg and psycopg2."""
        return self.text.replace("?", "%s")


ENQUEUE_CALL: Final = SqlCall(
    "SELECT coalesce(json_agg(job ORDER BY job.place), '[]')::text AS result "
    "FROM ingot.enqueue_json(?::text::json) AS job"
)
PUBLISH_CALL: Final = SqlCall(
    "SELECT to_json(event)::text AS result FROM ingot.publish_json(?::text, ?::text::json, ?::text) AS event"
)


class EnqueueResult(msgspec.Struct, frozen=True):
    """A row of `ingot.enqueue_json`."""

    id: str
    status: str
    created: bool


class PublishResult(msgspec.Struct, frozen=True):
    """The row of `ingot.publish_json`."""

    id: str


def async_uses_asyncpg(connection: Any) -> bool:
    """Return whether an async connection is of asyncpg, or else of psycopg. Raises `InvalidInput` for any other."""
    if hasattr(connection, "fetchrow") and hasattr(connection, "is_in_transaction"):  # A pool has only the first.
        return True
    if hasattr(connection, "cursor") and iscoroutinefunction(getattr(connection, "commit", None)):
        return False
    raise InvalidInput(f"{_qualified_type_name(connection)} is not a supported connection", hint=ASYNC_CONNECTION_HINT)


def sync_uses_asyncpg(connection: Any) -> bool:
    """Return `False`, since asyncpg has no sync connections. Raises `InvalidInput` for an unsupported connection."""
    is_async = hasattr(connection, "fetchrow") or iscoroutinefunction(getattr(connection, "commit", None))
    if is_async or not hasattr(connection, "cursor") or _qualified_type_name(connection).startswith("sqlite3."):
        raise InvalidInput(
            f"{_qualified_type_name(connection)} is not a supported connection", hint=SYNC_CONNECTION_HINT
        )
    return False


def _qualified_type_name(connection: object) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"


def result_text(rows: Sequence[Any]) -> str:
    """Return the only value of the only row, whatever row type the connection is configured with."""
    (row,) = rows
    if isinstance(row, str):
        return row
    if isinstance(row, Mapping):
        return str(row["result"])
    return str(row[0] if hasattr(row, "__getitem__") else row.result)


def error_from_driver(error: Exception) -> IngotError | None:
    """Return the exception for a driver error that Ingot caused, or `None` for any other."""
    diagnostics = getattr(error, "diag", None)
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    message = getattr(diagnostics, "message_primary", None) or str(error.args[0] if error.args else error)
    detail = getattr(diagnostics, "message_detail", None) or getattr(error, "detail", None)
    hint = getattr(diagnostics, "message_hint", None) or getattr(error, "hint", None)
    if not isinstance(state, str):
        return None
    try:
        attributes: dict[str, Any] = msgspec.json.decode(detail or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        attributes = {}
    code = attributes.pop("code", None)
    if (state.startswith("IN") or state == INSUFFICIENT_PRIVILEGE) and isinstance(code, str):
        return error_from_code(code, message, hint or "", **attributes)
    if state == INSUFFICIENT_PRIVILEGE:
        return Forbidden(message, hint=GRANT_ROLE_HINT)
    if state in UNDEFINED_OBJECT_STATES and "ingot" in message:
        return InvalidInput(message, hint=WRONG_DATABASE_HINT)
    return None
