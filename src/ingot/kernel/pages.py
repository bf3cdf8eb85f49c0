"""Keyset pages: a cursor names a position, never a count of rows to skip."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import is_id
from ingot.kernel.validation import check_text

PAGE_ROWS_MAX = 1000
PAGE_ROWS_DEFAULT = 50
_CURSOR_VERSION = 1

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Some items in order, and where the next ones begin (`None`: these were the last)."""

    items: list[T]
    """Items of this page."""
    next_cursor: str | None = None
    """Cursor of the next page; `null` if this is the last one."""


class HasId(Protocol):
    """What has an id, by which its list is ordered."""

    @property
    def id(self) -> str:
        """The id."""


L = TypeVar("L", bound=HasId)


class InvalidCursor(InvalidInput):
    """This cursor does not belong to this list."""

    code = "invalid_cursor"
    hint = "Start again without a cursor; a cursor only fits the filter that made it."


def check_limit(limit: object) -> int:
    """A page size within bounds. Raises `InvalidInput` otherwise."""
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise InvalidInput(f"limit is a {type(limit).__name__}; it is a whole number")
    if not 1 <= limit <= PAGE_ROWS_MAX:
        raise InvalidInput(f"limit goes from 1 to {PAGE_ROWS_MAX}")
    return limit


def encode_cursor(position: str, *, bound_to: Sequence[str | None]) -> str:
    """An opaque cursor for a position in the list that the values of `bound_to` select."""
    return (
        base64.urlsafe_b64encode(msgspec.json.encode((_CURSOR_VERSION, _filter_fingerprint(bound_to), position)))
        .decode()
        .rstrip("=")
    )


def decode_cursor(cursor: str, *, bound_to: Sequence[str | None]) -> str:
    """The position in a cursor. Raises `InvalidCursor` when it was made for another list or by nobody."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        version, mark, position = msgspec.json.decode(
            base64.urlsafe_b64decode(padded.encode("ascii", "strict")), type=tuple[int, str, str]
        )
    except (binascii.Error, UnicodeError, msgspec.MsgspecError) as error:
        raise InvalidCursor from error
    if version != _CURSOR_VERSION or mark != _filter_fingerprint(bound_to):
        raise InvalidCursor
    return position


def decode_cursor_position(
    cursor: object, *, bound_to: Sequence[str | None], is_valid: Callable[[str], bool] = is_id
) -> str | None:
    """The id that a list goes on behind, or `None` without a cursor.

    Raises `InvalidCursor` for one that was made for another list or by nobody, and for an id that does not fit.
    """
    if cursor is None:
        return None
    place = decode_cursor(check_text(cursor, name="cursor"), bound_to=bound_to)
    if not is_valid(place):
        raise InvalidCursor
    return place


def page_by_id(found: list[L], *, limit: int, bound_to: Sequence[str | None]) -> Page[L]:
    """A page of what was found, at most `limit`; when there are so many there may be more."""
    more = encode_cursor(found[-1].id, bound_to=bound_to) if len(found) == limit else None
    return Page(items=found, next_cursor=more)


def _filter_fingerprint(bound_to: Sequence[str | None]) -> str:
    return hashlib.sha256(msgspec.json.encode(list(bound_to))).hexdigest()[:12]
