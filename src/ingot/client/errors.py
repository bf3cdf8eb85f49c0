"""What a server said went wrong, as the error that it is; and what goes wrong before it can say anything."""

from __future__ import annotations

from typing import Any, Final

import msgspec

import ingot.blobs.errors
import ingot.events.errors
import ingot.identity.credentials
import ingot.identity.model
import ingot.identity.people
import ingot.jobs.errors
import ingot.jobs.files  # noqa: F401 - the errors of all rooms are known by their codes, whoever asks
from ingot.kernel.errors import IngotError

EXCERPT_CHARS_MAX: Final = 200
GATEWAY_STATUSES: Final = frozenset({502, 503, 504})
RETRYABLE_STORE_STATUSES: Final = frozenset(
    {408, 429, 500, *GATEWAY_STATUSES}
)  # What object stores answer that may do it later.
SIGNED_URL_REFUSED_STATUS: Final = 403  # What they answer to an address that has expired, or was not signed so.
TLS_MISMATCH_ERRORS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF")


class ServerUnreachable(IngotError):
    """The server does not answer."""

    code = "server_unreachable"
    status = 503
    hint = "Check INGOT_SERVER_URL, or --server of a command, and that `ingot serve` runs there."


class StoreUnreachable(ServerUnreachable):
    """The object store of the server does not answer."""

    code = "store_unreachable"
    hint = (
        "The server answers, and its files are there: check that this store runs and is reached from here; "
        "when clients call it by another name, INGOT_S3_PUBLIC_ENDPOINT of the server says so."
    )


class NotIngot(IngotError):
    """What answers there is not an Ingot server."""

    code = "not_ingot"
    status = 502
    hint = (
        "Check INGOT_SERVER_URL, or --server of a command: it is the address of the server alone, "
        "as in http://127.0.0.1:8080."
    )


class ServerTooOld(IngotError):
    """The server does not know what this client asks for."""

    code = "server_too_old"
    status = 501
    hint = "Server and client are of different versions: bring both to the same one."


class Refused(IngotError):
    """The server refused, for a reason that this client has no name for."""

    code = "refused"


class _ErrorResponse(msgspec.Struct, frozen=True):
    status: int
    code: str
    detail: str
    hint: str
    scope: str | None = None  # These three of a quota.
    usage_bytes: int = 0
    quota_bytes: int = 0


def error_from_response(status: int, content: bytes) -> IngotError:
    """The error that an answer tells of."""
    try:
        problem = msgspec.json.decode(content, type=_ErrorResponse)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = content[:EXCERPT_CHARS_MAX].decode(errors="replace").strip()
        if status in GATEWAY_STATUSES:
            return ServerUnreachable(f"what is before the server answers {status}: {said!r}")
        return NotIngot(f"the answer is no error of Ingot's ({status}): {said!r}")
    if problem.code == "no_such_route":
        return ServerTooOld(f"the server does not know this: {problem.detail}")
    return _build_error(_error_classes().get(problem.code, Refused), problem)


def error_from_code(code: str, detail: str, hint: str, **more: Any) -> IngotError:
    """The error of this code, with what it carries besides."""
    kind = _error_classes().get(code, Refused)
    error = _build_error(kind, _ErrorResponse(status=kind.status, code=code, detail=detail, hint=hint))
    error.__dict__.update(more)
    return error


def _build_error(kind: type[IngotError], problem: _ErrorResponse) -> IngotError:
    """An error of this kind, whatever its own constructor asks for: what it says is what the server said."""
    error = kind.__new__(kind)
    IngotError.__init__(error, problem.detail, hint=problem.hint)
    own: dict[str, Any] = {"code": problem.code, "status": problem.status}
    if problem.scope is not None:
        own |= {"scope": problem.scope, "usage": problem.usage_bytes, "limit": problem.quota_bytes}
    error.__dict__.update(own)
    return error


def _error_classes() -> dict[str, type[IngotError]]:
    """The kinds of errors by their code; of two with the same the plainer."""
    found: dict[str, type[IngotError]] = {}
    kinds: list[type[IngotError]] = [IngotError]
    for kind in kinds:
        found.setdefault(kind.code, kind)
        kinds.extend(kind.__subclasses__())
    return found


def store_error_from_response(status: int, content: bytes) -> StoreRefused:
    """The error of an object store that a server sent us to."""
    said = content[:EXCERPT_CHARS_MAX].decode(errors="replace").strip()
    if status == SIGNED_URL_REFUSED_STATUS:
        return AddressRefused(f"the address is not good: {said!r}")
    error = StoreRefused(f"the object store answers {status}: {said!r}")
    if status not in RETRYABLE_STORE_STATUSES:
        error.__dict__["status"] = 500
    return error


def invalid_response_error(content: bytes, error: Exception) -> IngotError:
    """The error of an answer that is none we know: of another program, or of another version."""
    if isinstance(error, msgspec.ValidationError):
        return ServerTooOld(f"the answer of the server is not as this client knows it: {error}")
    said = content[:EXCERPT_CHARS_MAX].decode(errors="replace").strip()
    return NotIngot(f"what is said is no answer of Ingot's: {said!r}")


def server_unreachable_error(url: str, why: str) -> ServerUnreachable:
    """The error of a server that does not answer."""
    if url.startswith("https:") and any(name in why for name in TLS_MISMATCH_ERRORS):
        return ServerUnreachable(
            f"{url} does not speak https: {why}",
            hint="Check INGOT_SERVER_URL: a server without a proxy before it is reached by http://.",
        )
    return ServerUnreachable(f"{url} does not answer: {why}")


def store_unreachable_error(host: str, why: str) -> StoreUnreachable:
    """The error of an object store that a server sent us to, and that does not answer."""
    return StoreUnreachable(f"the store of the server at {host} does not answer: {why}")


class JobDead(IngotError):
    """The job failed, and is not tried again."""

    code = "job_dead"
    status = 409
    hint = "Look at its attempts and its log; `retry` runs it again."


class JobCanceled(IngotError):
    """The job was canceled."""

    code = "job_canceled"
    status = 409
    hint = "`retry` runs it again."


class NotInTime(IngotError):
    """The job is not finished yet."""

    code = "not_in_time"
    status = 408
    hint = "It goes on all the same: wait longer, or cancel it."


class StreamEnded(IngotError):
    """The server ended the stream, and would not go on with it."""

    code = "stream_ended"
    status = 403
    hint = "Check the token, and that the tenant is still there."


class StoreRefused(IngotError):
    """The object store did not take or give the bytes."""

    code = "store_refused"
    status = 503
    hint = "Try again later; when it stays so, look at the store, and at the bucket that the server uses."


class AddressRefused(StoreRefused):
    """The address that the server gave is not good, or not any more."""

    code = "address_refused"
    status = 403
    hint = "Check that the clocks of the server and of its object store agree, and the key that the server signs with."


class DownloadDamaged(IngotError):
    """The bytes that came are not those of the blob."""

    code = "download_damaged"
    hint = "Nothing was kept. Fetch it again; `ingot blobs verify` tells whether it is whole on the server."


class DownloadUnderWay(IngotError):
    """Somebody else fetches the same blob into the same file at this moment."""

    code = "download_under_way"
    status = 409
    hint = "Wait until that is done, or choose another path. Nothing was changed."
