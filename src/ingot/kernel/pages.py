"""Keyset pagination: a cursor contains a position in a list, not a number of rows to skip."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import is_id
from ingot.kernel.validation import check_text, format_value

PAGE_ROWS_MAX = 1000
PAGE_ROWS_DEFAULT = 50
_CURSOR_VERSION = 1

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A part of a list, and the cursor of the next page. The cursor is `None` on the last page."""

    items: list[T]
    """Items of this page."""
    next_cursor: str | None = None
    """Cursor of the next page; `null` if this is the last one."""


class HasId(Protocol):
    """An item of a list that is ordered by ID."""

    @property
    def id(self) -> str:
        """The ID of the item."""


L = TypeVar("L", bound=HasId)


class InvalidCursor(InvalidInput):
    """The cursor is not valid for this list."""

    code = "invalid_cursor"
    hint = "Start again without a cursor. A cursor is valid only for the caller that got it, and with the same filters."


def check_limit(limit: object) -> int:
    """Return a valid page size. Raises `InvalidInput`."""
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise InvalidInput(f"limit must be an integer, got {type(limit).__name__}")
    if not 1 <= limit <= PAGE_ROWS_MAX:
        raise InvalidInput(f"limit must be between 1 and {PAGE_ROWS_MAX}, got {format_value(limit)}")
    return limit


def encode_cursor(position: str, *, bound_to: Sequence[str | None]) -> str:
    """Return an opaque cursor for a position in a list. `bound_to` names the list and the values of its filters."""
    return (
        base64.urlsafe_b64encode(msgspec.json.encode((_CURSOR_VERSION, _filter_fingerprint(bound_to), position)))
        .decode()
        .rstrip("=")
    )


def decode_cursor(cursor: str, *, bound_to: Sequence[str | None]) -> str:
    """Return the position in a cursor. Raises `InvalidCursor` for a cursor of another list, and for any other text."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        version, fingerprint, position = msgspec.json.decode(
            base64.urlsafe_b64decode(padded.encode("ascii", "strict")), type=tuple[int, str, str]
        )
    except (binascii.Error, UnicodeError, msgspec.MsgspecError) as error:
        raise InvalidCursor from error
    if version != _CURSOR_VERSION or fingerprint != _filter_fingerprint(bound_to) or "\x00" in position:
        raise InvalidCursor
    return position


def decode_cursor_position(
    cursor: object, *, bound_to: Sequence[str | None], is_valid: Callable[[str], bool] = is_id
) -> str | None:
    """Return the ID after which the page starts, or `None` without a cursor.

    Raises `InvalidCursor` for a cursor of another list, for any other text, and if the ID is not valid.
    """
    if cursor is None:
        return None
    position = decode_cursor(check_text(cursor, name="cursor"), bound_to=bound_to)
    if not is_valid(position):
        raise InvalidCursor
    return position


def page_by_id(items: list[L], *, limit: int, bound_to: Sequence[str | None]) -> Page[L]:
    """Return a page of items that were read with this limit. With fewer items, it is the last page."""
    next_cursor = encode_cursor(items[-1].id, bound_to=bound_to) if len(items) == limit else None
    return Page(items=items, next_cursor=next_cursor)


def _filter_fingerprint(bound_to: Sequence[str | None]) -> str:
    return hashlib.sha256(msgspec.json.encode(list(bound_to))).hexdigest()[:12]
