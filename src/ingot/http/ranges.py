"""What of some bytes a request wants, by its headers (RFC 9110), and the headers of what is handed out."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

import msgspec

from ingot.http.request import Request
from ingot.kernel.content_types import BINARY_CONTENT_TYPE, is_content_type
from ingot.kernel.errors import IngotError

DOWNLOAD_HEADERS: Final = {  # Whatever it is, a browser that gets it shows and runs nothing of it.
    "content-security-policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
}
NAME_CHARS_MAX: Final = 255
DIGITS_MAX: Final = 18  # More than any size has.
ACTIVE_CONTENT: Final = re.compile(
    r"html|(?:java|ecma|live|vb|j)script|^multipart/|^message/|[/+](?:xml|css|xslt?|wasm|manifest\+json"
    r"|cache-manifest|x-shockwave-flash)$"
)
_RANGE = re.compile(r"bytes=[ \t]*([0-9]*)-([0-9]*)[ \t]*", re.IGNORECASE)
_ETAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"')
_UNSAFE_FILE_NAME_CHARS = re.compile(r"[^ !#-$&-.0-\[\]-~]")


class RangeNotSatisfiable(IngotError):
    """There is nothing in this range."""

    code = "range_not_satisfiable"
    status = 416
    hint = "Content-Range tells how many bytes there are."

    def __init__(self, size: int) -> None:
        super().__init__(f"there are {size} bytes, and none of them in this range")
        self.headers = {"content-range": f"bytes */{size}"}


class PreconditionFailed(IngotError):
    """What is here is not what If-Match names."""

    code = "precondition_failed"
    status = 412
    hint = "It has changed; read it again without If-Match."


class SelectedRange(msgspec.Struct, frozen=True):
    """What to send: the bytes from `start` up to `end`, with this status and these headers; with 304 none."""

    status: int
    start: int
    end: int
    headers: dict[str, str]

    @property
    def length(self) -> int:
        """How many bytes that is."""
        return self.end - self.start


def select_range(call: Request, *, size: int, etag: str) -> SelectedRange:
    """What a GET or HEAD wants of so many bytes, which have this strong entity tag, with its quotes.

    Several ranges are answered with the whole, and so is what cannot be read. Raises `RangeNotSatisfiable`, or
    `PreconditionFailed`; `InvalidInput` for a condition that was sent twice.
    """
    call.headers.require_unique(("if-match", "if-none-match"))
    get = call.headers.get
    headers = {"etag": etag, "accept-ranges": "bytes"}
    if (match := get("if-match")) is not None and not _matches_etag(match, etag, weak=False):
        raise PreconditionFailed
    if (match := get("if-none-match")) is not None and _matches_etag(match, etag, weak=True):
        return SelectedRange(304, 0, 0, headers)
    asked, condition = get("range"), get("if-range")
    if asked is None or call.method != "GET" or (condition is not None and condition.strip() != etag):
        return SelectedRange(200, 0, size, headers)
    if (found := _parse_range(asked, size)) is None:
        return SelectedRange(200, 0, size, headers)
    start, end = found
    if start >= end:
        raise RangeNotSatisfiable(size)
    return SelectedRange(206, start, end, {**headers, "content-range": f"bytes {start}-{end - 1}/{size}"})


def _parse_range(asked: str, size: int) -> tuple[int, int] | None:
    """The range that is asked for, empty where there is nothing in it; `None` when it is none, or more than one."""
    if (found := _RANGE.fullmatch(asked)) is None:
        return None
    first, last = found[1], found[2]
    if not first:
        return (max(0, size - _parse_digits(last)), size) if last else None
    start, end = _parse_digits(first), _parse_digits(last) + 1 if last else size
    return None if end <= start and last else (start, min(end, size))


def _parse_digits(digits: str) -> int:
    digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) <= DIGITS_MAX else 10**DIGITS_MAX


def _matches_etag(tags: str, etag: str, *, weak: bool) -> bool:
    """Whether a list of entity tags names this one, or all. A weak tag is as good as a strong one, or is none."""
    if tags.strip() == "*":
        return True
    found = (tag[0] for tag in _ETAG.finditer(tags))
    return any(tag == etag or (weak and tag.removeprefix("W/") == etag) for tag in found)


def content_disposition(name: str | None) -> str:
    """The value of Content-Disposition for a file to be saved under this name (RFC 6266)."""
    if not name:
        return "attachment"
    name = name[:NAME_CHARS_MAX]
    plain = _UNSAFE_FILE_NAME_CHARS.sub("_", name)
    if plain == name:
        return f'attachment; filename="{plain}"'
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='', errors='replace')}"


def safe_content_type(content_type: str | None) -> str:
    """The content type of what somebody uploaded, as it may be told to a browser.

    What is none, and what a browser would run or take for a part of a page of ours, is plain bytes.
    """
    if content_type is None or not is_content_type(content_type):
        return BINARY_CONTENT_TYPE
    kind = content_type.partition(";")[0].strip().lower()
    return BINARY_CONTENT_TYPE if ACTIVE_CONTENT.search(kind) else content_type
