"""Range and conditional requests (RFC 9110), and safe headers for downloads."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

import msgspec

from ingot.http.request import Request
from ingot.kernel.content_types import BINARY_CONTENT_TYPE, is_content_type
from ingot.kernel.errors import IngotError

# With these headers, a browser neither displays nor runs what it downloads.
DOWNLOAD_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
}
NAME_CHARS_MAX: Final = 255
DIGITS_MAX: Final = 18  # Longer numbers exceed every size.
ACTIVE_CONTENT: Final = re.compile(
    r"html|(?:java|ecma|live|vb|j)script|^multipart/|^message/|[/+](?:xml|css|xslt?|wasm|manifest\+json"
    r"|cache-manifest|x-shockwave-flash)$"
)
_RANGE = re.compile(r"bytes=[ \t]*([0-9]*)-([0-9]*)[ \t]*", re.IGNORECASE)
_ETAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"')
_UNSAFE_FILE_NAME_CHARS = re.compile(r"[^ !#-$&-.0-\[\]-~]")


class RangeNotSatisfiable(IngotError):
    """The requested range is outside the file."""

    code = "range_not_satisfiable"
    status = 416
    hint = "Request a range within the size in the Content-Range header."

    def __init__(self, size: int) -> None:
        super().__init__(f"the range is outside the file, which has {size} bytes")
        self.headers = {"content-range": f"bytes */{size}"}


class PreconditionFailed(IngotError):
    """The file does not match If-Match."""

    code = "precondition_failed"
    status = 412
    hint = "The file has changed. Read it again without If-Match."


class SelectedRange(msgspec.Struct, frozen=True):
    """The selected bytes: from `start` up to, but not including, `end`. With status 304 there are none."""

    status: int
    start: int
    end: int
    headers: dict[str, str]

    @property
    def length(self) -> int:
        """The number of bytes."""
        return self.end - self.start


def select_range(request: Request, *, size: int, etag: str) -> SelectedRange:
    """Select the bytes that a GET or HEAD request asks for. `etag` is the strong entity tag, in quotes.

    A request with several ranges, or with a malformed one, gets all bytes. Raises `RangeNotSatisfiable`,
    `PreconditionFailed`, or `InvalidInput` for a condition that was sent twice.
    """
    request.headers.require_unique(("if-match", "if-none-match"))
    get = request.headers.get
    headers = {"etag": etag, "accept-ranges": "bytes"}
    if (match := get("if-match")) is not None and not _matches_etag(match, etag, weak=False):
        raise PreconditionFailed
    if (match := get("if-none-match")) is not None and _matches_etag(match, etag, weak=True):
        return SelectedRange(304, 0, 0, headers)
    range_header, condition = get("range"), get("if-range")
    if range_header is None or request.method != "GET" or (condition is not None and condition.strip() != etag):
        return SelectedRange(200, 0, size, headers)
    if (bounds := _parse_range(range_header, size)) is None:
        return SelectedRange(200, 0, size, headers)
    start, end = bounds
    if start >= end:
        raise RangeNotSatisfiable(size)
    return SelectedRange(206, start, end, {**headers, "content-range": f"bytes {start}-{end - 1}/{size}"})


def _parse_range(header: str, size: int) -> tuple[int, int] | None:
    """Return the start and end of a range, or `None` if it is malformed or not a single one. It can be empty."""
    if (match := _RANGE.fullmatch(header)) is None:
        return None
    first, last = match[1], match[2]
    if not first:
        return (max(0, size - _parse_digits(last)), size) if last else None
    start, end = _parse_digits(first), _parse_digits(last) + 1 if last else size
    return None if end <= start and last else (start, min(end, size))


def _parse_digits(digits: str) -> int:
    digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) <= DIGITS_MAX else 10**DIGITS_MAX


def _matches_etag(tags: str, etag: str, *, weak: bool) -> bool:
    """Return whether a list of entity tags contains this one or is `*`. Weak tags match only with `weak`."""
    if tags.strip() == "*":
        return True
    listed = (match[0] for match in _ETAG.finditer(tags))
    return any(tag == etag or (weak and tag.removeprefix("W/") == etag) for tag in listed)


def content_disposition(name: str | None) -> str:
    """Return the Content-Disposition header for a file that is saved under this name (RFC 6266)."""
    if not name:
        return "attachment"
    name = name[:NAME_CHARS_MAX]
    safe_name = _UNSAFE_FILE_NAME_CHARS.sub("_", name)
    if safe_name == name:
        return f'attachment; filename="{safe_name}"'
    return f"attachment; filename=\"{safe_name}\"; filename*=UTF-8''{quote(name, safe='', errors='replace')}"


def safe_content_type(content_type: str | None) -> str:
    """Return the content type of an uploaded file in a form that is safe to send to a browser.

    Invalid types, and types that a browser would run or use as a part of our pages, become plain bytes.
    """
    if content_type is None or not is_content_type(content_type):
        return BINARY_CONTENT_TYPE
    media_type = content_type.partition(";")[0].strip().lower()
    return BINARY_CONTENT_TYPE if ACTIVE_CONTENT.search(media_type) else content_type
