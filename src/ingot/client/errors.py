"""Errors of the client, and the exceptions for error responses."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

import ingot.blobs.errors
import ingot.events.errors
import ingot.identity.credentials
import ingot.identity.model
import ingot.identity.people
import ingot.jobs.errors
import ingot.jobs.files  # noqa: F401 - loads the errors of all rooms, which `_error_classes` finds by their codes
from ingot.kernel.errors import IngotError

EXCERPT_CHARS_MAX: Final = 200
PAGE_BYTES_MAX: Final = 16 * 1024
_HTML_TITLE: Final = re.compile(rb"\s*<(?:!doctype|html)\b.*?<title[^>]*>(.*?)</title>", re.DOTALL | re.IGNORECASE)
GATEWAY_HINT: Final = "Check that `ingot serve` is running behind the proxy, and check the timeouts of the proxy."
GATEWAY_STATUSES: Final = frozenset({502, 503, 504})
# Temporary failures of an object store.
RETRYABLE_STORE_STATUSES: Final = frozenset({408, 429, 500, *GATEWAY_STATUSES})
# The response of an object store to a signed URL that has expired or has a wrong signature.
SIGNED_URL_REFUSED_STATUS: Final = 403
TLS_MISMATCH_ERRORS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF")


class ServerUnreachable(IngotError):
    """The server cannot be reached."""

    code = "server_unreachable"
    status = 503
    hint = "Check INGOT_SERVER_URL or --server, and that `ingot serve` is running there."


class StoreUnreachable(ServerUnreachable):
    """The object store of the server cannot be reached."""

    code = "store_unreachable"
    hint = (
        "The server is reachable, but it stores files in this object store. Check that the store is running and "
        "reachable from this machine. If clients need another host name for it than the server, set "
        "INGOT_S3_PUBLIC_ENDPOINT on the server."
    )


class NotIngot(IngotError):
    """The response is not from an Ingot server."""

    code = "not_ingot"
    status = 502
    hint = "Check INGOT_SERVER_URL or --server: it is a URL without a path, such as http://127.0.0.1:8080."


class ProxyLimit(IngotError):
    """A proxy in front of the server does not accept requests of this size."""

    code = "proxy_limit"
    status = 413
    hint = "Increase the limit of the proxy. For nginx it is client_max_body_size, and 0 means that there is none."


class ServerTooOld(IngotError):
    """The server does not support this request."""

    code = "server_too_old"
    status = 501
    hint = "The server and this client have different versions. Install the same version of both."


class Refused(IngotError):
    """The server rejected the request with an error code that this client does not know."""

    code = "refused"


class _ErrorResponse(msgspec.Struct, frozen=True):
    status: int
    code: str
    detail: str
    hint: str
    # Only `quota_exceeded` has the following three fields.
    scope: str | None = None
    usage_bytes: int = 0
    quota_bytes: int = 0
    retry_after_seconds: float | None = None  # Only of `rate_limited`.


def error_from_response(status: int, content: bytes) -> IngotError:
    """Return the exception for an error response of a server."""
    try:
        problem = msgspec.json.decode(content, type=_ErrorResponse)
    except (msgspec.DecodeError, UnicodeDecodeError):
        excerpt = _excerpt(content)
        if status in GATEWAY_STATUSES:
            return ServerUnreachable(
                f"a proxy in front of the server responded with status {status}: {excerpt!r}", hint=GATEWAY_HINT
            )
        if status == ProxyLimit.status:
            return ProxyLimit(f"a proxy in front of the server rejected the request as too large: {excerpt!r}")
        return NotIngot(f"the error response with status {status} is not from Ingot: {excerpt!r}")
    if problem.code == "no_such_route":
        return ServerTooOld(f"the server does not support this request: {problem.detail}")
    return _build_error(_error_classes().get(problem.code, Refused), problem)


def error_from_code(code: str, detail: str, hint: str, **attributes: Any) -> IngotError:
    """Return the exception for an error code, with the attributes of its class."""
    error_class = _error_classes().get(code, Refused)
    error = _build_error(error_class, _ErrorResponse(status=error_class.status, code=code, detail=detail, hint=hint))
    error.__dict__.update(attributes)
    return error


def _build_error(error_class: type[IngotError], problem: _ErrorResponse) -> IngotError:
    """Return an error with the detail and hint of the server, without calling the `__init__` of its class."""
    error = error_class.__new__(error_class)
    IngotError.__init__(error, problem.detail, hint=problem.hint)
    attributes: dict[str, Any] = {"code": problem.code, "status": problem.status}
    if problem.scope is not None:
        attributes |= {"scope": problem.scope, "usage": problem.usage_bytes, "limit": problem.quota_bytes}
    if problem.retry_after_seconds is not None:
        attributes["retry_after_seconds"] = problem.retry_after_seconds
    error.__dict__.update(attributes)
    return error


def _error_classes() -> dict[str, type[IngotError]]:
    """Return the error classes by code. Of several classes with the same code, the most general one is used."""
    class_by_code: dict[str, type[IngotError]] = {}
    error_classes: list[type[IngotError]] = [IngotError]
    for error_class in error_classes:
        class_by_code.setdefault(error_class.code, error_class)
        error_classes.extend(error_class.__subclasses__())
    return class_by_code


def _excerpt(content: bytes) -> str:
    """Return the beginning of a response, or the title of an HTML page."""
    title = _HTML_TITLE.match(content[:PAGE_BYTES_MAX])
    return (content if title is None else title[1])[:EXCERPT_CHARS_MAX].decode(errors="replace").strip()


def store_error_from_response(status: int, content: bytes) -> StoreRefused:
    """Return the exception for an error response of an object store."""
    excerpt = _excerpt(content)
    if status == SIGNED_URL_REFUSED_STATUS:
        return AddressRefused(f"the object store rejected the signed URL: {excerpt!r}")
    error = StoreRefused(f"the object store responded with status {status}: {excerpt!r}")
    if status not in RETRYABLE_STORE_STATUSES:
        error.__dict__["status"] = 500  # Callers retry errors with the status 503.
    return error


def invalid_response_error(content: bytes, error: Exception) -> IngotError:
    """Return the exception for a response that cannot be decoded: of another program, or of another version."""
    if isinstance(error, msgspec.ValidationError):
        return ServerTooOld(f"the response of the server does not have the expected fields: {error}")
    return NotIngot(f"the response is not from Ingot: {_excerpt(content)!r}")


def server_unreachable_error(url: str, reason: str) -> ServerUnreachable:
    """Return the exception for a server that cannot be reached."""
    if url.startswith("https:") and any(name in reason for name in TLS_MISMATCH_ERRORS):
        return ServerUnreachable(
            f"{url} does not support https: {reason}",
            hint="Check INGOT_SERVER_URL: the URL of a server without a TLS proxy begins with http://.",
        )
    return ServerUnreachable(f"{url} cannot be reached: {reason}")


def store_unreachable_error(host: str, reason: str) -> StoreUnreachable:
    """Return the exception for an object store that cannot be reached."""
    return StoreUnreachable(f"the object store of the server at {host} cannot be reached: {reason}")


class JobDead(IngotError):
    """The job failed and will not be retried."""

    code = "job_dead"
    status = 409
    hint = "Check its attempts and its log. `retry` runs it again."


class JobCanceled(IngotError):
    """The job was canceled."""

    code = "job_canceled"
    status = 409
    hint = "`retry` runs it again."


class NotInTime(IngotError):
    """The job did not finish in time."""

    code = "not_in_time"
    status = 408
    hint = "The job continues. Wait longer, or cancel it."


class StreamEnded(IngotError):
    """The server ended the stream, and it cannot be resumed."""

    code = "stream_ended"
    status = 403
    hint = "Check that the token is valid and that the tenant still exists."


class StoreRefused(IngotError):
    """The object store rejected the request."""

    code = "store_refused"
    status = 503
    hint = "Try again later. If the error persists, check the object store and the bucket that the server uses."


class AddressRefused(StoreRefused):
    """The object store rejected the signed URL."""

    code = "address_refused"
    status = 403
    hint = (
        "Check that the clocks of the server and its object store agree, and that the server signs with a valid "
        "access key."
    )


class DownloadDamaged(IngotError):
    """The received bytes do not have the digest of the blob."""

    code = "download_damaged"
    hint = "The bytes were discarded. Download the blob again. `ingot blobs verify` checks the copy on the server."


class DownloadUnderWay(IngotError):
    """Another download of the same blob is writing to the same file."""

    code = "download_under_way"
    status = 409
    hint = "Wait until it ends, or choose another path. Nothing was changed."
