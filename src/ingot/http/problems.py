"""Error responses: RFC 9457 problems with a stable code and a hint."""

from __future__ import annotations

from http import HTTPStatus
from math import ceil
from typing import Final

import msgspec

from ingot.kernel.errors import IngotError, SchemaMismatch, StorageFull, StoreLocked, StoreMisconfigured, StoreTooNew

PROBLEM: Final = "application/problem+json"
UNAVAILABLE_RETRY_SECONDS: Final = 1  # In 503 responses to which no other delay applies.
# Callers cannot correct these errors. Their details and hints are for the operator, and only the log contains them.
OPERATOR_ERRORS: Final = (StoreMisconfigured, StoreTooNew, StoreLocked, StorageFull)
OPERATOR_HINT: Final = "Only the operator of this server can correct this. The log of the server contains the details."
_encode = msgspec.json.Encoder().encode


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An error. Programs use `code`, which is stable. `title`, `detail` and `hint` are for people."""

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
    """Next step for the caller."""


class InternalError(IngotError):
    """The server failed to handle the request."""

    code = "internal_error"
    hint = "Try again. If the error persists, search the server log for request_failed."


class NoSuchRoute(IngotError):
    """No route has this path."""

    code = "no_such_route"
    status = 404
    hint = "See /docs for all routes."


class MethodNotAllowed(IngotError):
    """The route does not support this method."""

    code = "method_not_allowed"
    status = 405
    hint = "Use a method from the Allow header."

    def __init__(self, allowed: list[str]) -> None:
        super().__init__(hint=f"Supported methods: {', '.join(allowed)}.")
        self.allowed = allowed


class MalformedBody(IngotError):
    """The body is not valid JSON."""

    code = "malformed_body"
    status = 400
    hint = "Send JSON in UTF-8 with Content-Type: application/json."


class UnsupportedMedia(IngotError):
    """The content type of the body is not supported."""

    code = "unsupported_media_type"
    status = 415
    hint = "Send Content-Type: application/json."


class BodyTooLarge(IngotError):
    """The body is too large for this route."""

    code = "body_too_large"
    status = 413
    hint = "Send less per request, and store large inputs as blobs."


class SlowSender(IngotError):
    """The body of the request took too long to arrive."""

    code = "request_timeout"
    status = 408
    hint = "Send the request again, over a faster connection."


def problem_of(error: IngotError) -> tuple[int, dict[str, str], bytes]:
    """Return the status, headers and body of the response for an error."""
    is_for_operator = isinstance(error, OPERATOR_ERRORS)
    problem = Problem(
        type=f"/docs#{error.code}",
        title=type(error).title(),
        status=error.status,
        code=error.code,
        detail=type(error).title() if is_for_operator else error.detail,
        hint=OPERATOR_HINT if is_for_operator else error.hint,
    )
    headers = {"content-type": PROBLEM, **getattr(error, "headers", {})}
    is_unavailable = error.status == HTTPStatus.SERVICE_UNAVAILABLE
    seconds = getattr(error, "retry_after", UNAVAILABLE_RETRY_SECONDS if is_unavailable else None)
    if seconds is not None:
        headers["retry-after"] = str(max(1, ceil(seconds)))
    if isinstance(error, SchemaMismatch):
        headers["connection"] = "close"  # Behind a load balancer, the next connection leads to another server.
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = ", ".join(error.allowed)
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    members = getattr(error, "members", None)  # Data for programs that only this kind of error has.
    body = problem if members is None else {**msgspec.structs.asdict(problem), **members}
    return error.status, headers, _encode(body)
