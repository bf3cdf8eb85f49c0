"""A database connection of the caller's own: what is asked on it, and what its refusals mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Any, Final, Protocol

import msgspec

from ingot.client.errors import error_of_code
from ingot.identity.credentials import Forbidden
from ingot.kernel.errors import IngotError, InvalidInput

AWAITED_HINT: Final = "Pass a connection of asyncpg, or an AsyncConnection of psycopg; Client takes the others."
PLAIN_HINT: Final = "Pass a connection of psycopg or psycopg2; AsyncClient takes those that are awaited."
LET_IN_HINT: Final = "Let its role into a tenant: `ingot database let-in ROLE --tenant SLUG`."
ELSEWHERE_HINT: Final = "Connect to the database in which Ingot lives, migrated to this version."
NOT_ALLOWED: Final = "42501"
NOT_THERE: Final = frozenset({"3F000", "42883"})  # The schema, or a function.


class HasCursor(Protocol):
    """A database connection, as far as types tell."""

    def cursor(self, *args: Any, **options: Any) -> Any:
        """What is asked with; not on connections of asyncpg."""


class Call(msgspec.Struct, frozen=True):
    """A statement that answers one JSON text, with marks for its values."""

    text: str

    @property
    def numbered(self) -> str:
        """As asyncpg takes it."""
        parts = self.text.split("?")
        return "".join(f"{part}${n}" for n, part in enumerate(parts[:-1], 1)) + parts[-1]

    @property
    def marked(self) -> str:
        """As the others take it."""
        return self.text.replace("?", "%s")


ENQUEUE: Final = Call(
    "SELECT coalesce(json_agg(j ORDER BY j.place), '[]')::text AS answer FROM ingot.enqueue_json(?::text::json) AS j"
)
PUBLISH: Final = Call("SELECT to_json(e)::text AS answer FROM ingot.publish_json(?::text, ?::text::json, ?::text) AS e")


class Made(msgspec.Struct, frozen=True):
    """What an enqueue answers of each job."""

    id: str
    status: str
    created: bool


class Told(msgspec.Struct, frozen=True):
    """What a publish answers."""

    id: str


def awaited_driver(connection: Any) -> bool:
    """Whether a connection that is awaited is one of asyncpg, and else of psycopg. Raises `InvalidInput`."""
    if hasattr(connection, "fetchrow") and hasattr(connection, "is_in_transaction"):  # A pool has no transaction.
        return True
    if hasattr(connection, "cursor") and iscoroutinefunction(getattr(connection, "commit", None)):
        return False
    raise InvalidInput(f"a {_kind(connection)} cannot be used as the connection", hint=AWAITED_HINT)


def plain_driver(connection: Any) -> bool:
    """The same for one that is not awaited, which is never of asyncpg. Raises `InvalidInput`."""
    awaited = hasattr(connection, "fetchrow") or iscoroutinefunction(getattr(connection, "commit", None))
    if awaited or not hasattr(connection, "cursor") or _kind(connection).startswith("sqlite3."):
        raise InvalidInput(f"a {_kind(connection)} cannot be used as the connection", hint=PLAIN_HINT)
    return False


def _kind(connection: object) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"


def answer_of(rows: Sequence[Any]) -> str:
    """The one text of the one row, in whatever shape the caller's connection gives rows."""
    (row,) = rows
    if isinstance(row, str):
        return row
    if isinstance(row, Mapping):
        return str(row["answer"])
    return str(row[0] if hasattr(row, "__getitem__") else row.answer)


def refusal_of(error: Exception) -> IngotError | None:
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
    if (state.startswith("IN") or state == NOT_ALLOWED) and isinstance(code := more.pop("code", None), str):
        return error_of_code(code, message, hint or "", **more)
    if state == NOT_ALLOWED:
        return Forbidden(message, hint=LET_IN_HINT)
    if state in NOT_THERE and "ingot" in message:
        return InvalidInput(message, hint=ELSEWHERE_HINT)
    return None
