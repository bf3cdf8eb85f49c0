"""Errors on the wire: RFC 9457 problems with a stable code and a hint."""

from __future__ import annotations

from http import HTTPStatus
from math import ceil
from typing import Final

import msgspec

from ingot.kernel.errors import IngotError

PROBLEM: Final = "application/problem+json"
_encode = msgspec.json.Encoder().encode


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong, for programs (`code`) and for people (`detail`, `hint`)."""

    type: str
    """URL of the description of this error."""
    title: str
    """Kind of the error, for people."""
    status: int
    """HTTP status."""
    code: str
    """Stable code of the error, for programs."""
    detail: str
    """Description of this occurrence, for people."""
    hint: str
    """What to do about the error."""


class InternalError(IngotError):
    """Something went wrong in the server."""

    code = "internal_error"
    hint = "Try again; when it stays, the log of the server has the request id and what happened."


class NoSuchRoute(IngotError):
    """There is nothing at this path."""

    code = "no_such_route"
    status = 404
    hint = "/docs lists every route."


class MethodNotAllowed(IngotError):
    """The path does not take this method."""

    code = "method_not_allowed"
    status = 405
    hint = "The header Allow names those that it takes."

    def __init__(self, allowed: list[str]) -> None:
        super().__init__(hint=f"It takes {', '.join(allowed)}.")
        self.allowed = allowed


class MalformedBody(IngotError):
    """The body is not JSON."""

    code = "malformed_body"
    status = 400
    hint = "Send JSON in UTF-8 with Content-Type: application/json."


class UnsupportedMedia(IngotError):
    """The body has another content type than JSON."""

    code = "unsupported_media_type"
    status = 415
    hint = "Send Content-Type: application/json."


class BodyTooLarge(IngotError):
    """The body is larger than this route takes."""

    code = "body_too_large"
    status = 413
    hint = "Send less at once; large inputs travel as blobs."


class SlowSender(IngotError):
    """The request took too long to arrive."""

    code = "request_timeout"
    status = 408
    hint = "Send the request again over a better line."


def problem_of(error: IngotError) -> tuple[int, dict[str, str], bytes]:
    """The status, headers and body that tell of an error."""
    problem = Problem(
        type=f"/docs#{error.code}",
        title=type(error).title(),
        status=error.status,
        code=error.code,
        detail=error.detail,
        hint=error.hint,
    )
    headers = {"content-type": PROBLEM, **getattr(error, "headers", {})}
    if (seconds := getattr(error, "retry_after", None)) is not None:
        headers["retry-after"] = str(max(1, ceil(seconds)))
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = ", ".join(error.allowed)
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    members = getattr(error, "members", None)  # What a program may want to know, beside what all errors tell.
    body = problem if members is None else {**msgspec.structs.asdict(problem), **members}
    return error.status, headers, _encode(body)
