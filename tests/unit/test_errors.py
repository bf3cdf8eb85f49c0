"""Error classes: each has its own code, a status, a hint and a title."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import ingot
from ingot.identity import TenantNotFound
from ingot.jobs import LeaseLost, PayloadTooLarge
from ingot.kernel.errors import IngotError, InvalidInput, StoreError

# Codes are part of the API: clients branch on them, so they never change.
CODES = {
    "AddressInUse": ("address_in_use", 500),
    "AddressRefused": ("address_refused", 403),
    "AttemptNotFound": ("attempt_not_found", 404),
    "BadRequest": ("bad_request", 400),
    "BatchNotFound": ("batch_not_found", 404),
    "BlobDamaged": ("blob_damaged", 500),
    "BlobNotFound": ("blob_not_found", 404),
    "BlobTooLarge": ("blob_too_large", 413),
    "BodyTooLarge": ("body_too_large", 413),
    "Conflict": ("conflict", 409),
    "CredentialExists": ("worker_credential_exists", 409),
    "CredentialNotFound": ("worker_credential_not_found", 404),
    "CrossSite": ("cross_site", 403),
    "DependencyCycle": ("dependency_cycle", 422),
    "DownloadDamaged": ("download_damaged", 500),
    "DownloadUnderWay": ("download_under_way", 409),
    "DuplicateJob": ("duplicate_job", 409),
    "EventTooLarge": ("event_too_large", 413),
    "FileNotFound": ("file_not_found", 404),
    "Forbidden": ("forbidden", 403),
    "FormTooLarge": ("form_too_large", 413),
    "HeadTooLarge": ("head_too_large", 431),
    "Gap": ("gap", 410),
    "IdempotencyMismatch": ("idempotency_mismatch", 422),
    "IngotError": ("error", 500),
    "InternalError": ("internal_error", 500),
    "InvalidCursor": ("invalid_cursor", 422),
    "InvalidInput": ("invalid_input", 422),
    "InvitationNotFound": ("invitation_not_found", 404),
    "JobFinished": ("job_finished", 409),
    "JobLimitExceeded": ("job_limit_exceeded", 429),
    "JobNotFinished": ("job_not_finished", 409),
    "JobNotFound": ("job_not_found", 404),
    "JobNotQueued": ("job_not_queued", 409),
    "KeyChanged": ("key_changed", 412),
    "KeyExists": ("key_exists", 409),
    "KeyNotFound": ("key_not_found", 404),
    "LeaseLost": ("lease_lost", 409),
    "MalformedBody": ("malformed_body", 400),
    "MalformedForm": ("malformed_form", 400),
    "MemberByGroup": ("member_by_group", 409),
    "MemberNotFound": ("member_not_found", 404),
    "MethodNotAllowed": ("method_not_allowed", 405),
    "NoSuchRoute": ("no_such_route", 404),
    "NotFound": ("not_found", 404),
    "OtelMissing": ("otel_missing", 500),
    "OutcomeUnknown": ("outcome_unknown", 503),
    "OutputMissing": ("output_missing", 409),
    "ParentNotFound": ("parent_not_found", 422),
    "PayloadTooLarge": ("payload_too_large", 413),
    "PreconditionFailed": ("precondition_failed", 412),
    "ProviderUnavailable": ("provider_unavailable", 503),
    "QuotaExceeded": ("quota_exceeded", 507),
    "RangeNotSatisfiable": ("range_not_satisfiable", 416),
    "RateLimited": ("rate_limited", 429),
    "TenantBusy": ("tenant_busy", 429),
    "TypeLimitExceeded": ("type_limit_exceeded", 429),
    "RecordChanged": ("record_changed", 409),
    "RecordNotFound": ("record_not_found", 404),
    "SecretKeyUnusable": ("secret_key_unusable", 500),
    "SecretUnreadable": ("secret_unreadable", 500),
    "SessionNotFound": ("session_not_found", 404),
    "SessionStale": ("session_stale", 401),
    "SettingsError": ("invalid_setting", 500),
    "SignInRefused": ("sign_in_refused", 401),
    "SignatureInvalid": ("signature_invalid", 403),
    "SlowHead": ("head_timeout", 408),
    "SlowSender": ("request_timeout", 408),
    "Stopping": ("stopping", 503),
    "StoreRefused": ("store_refused", 503),
    "StorageFull": ("storage_full", 507),
    "StoreBusy": ("store_busy", 503),
    "StoreError": ("store_failed", 503),
    "StoreLocked": ("store_locked", 503),
    "ObjectsElsewhere": ("objects_elsewhere", 500),
    "StoreMisconfigured": ("store_misconfigured", 500),
    "StoreTooNew": ("store_too_new", 500),
    "SchemaMismatch": ("schema_mismatch", 503),
    "ProxyLimit": ("proxy_limit", 413),
    "ProtocolMismatch": ("protocol_mismatch", 409),
    "TenantExists": ("tenant_exists", 409),
    "TenantNotChosen": ("tenant_not_chosen", 403),
    "TenantNotFound": ("tenant_not_found", 404),
    "TokenNotFound": ("token_not_found", 404),
    "TooMany": ("too_many", 429),
    "BuffersFull": ("buffers_full", 503),
    "TooManyBytes": ("too_many_bytes", 429),
    "TooManyConnections": ("too_many_connections", 503),
    "TooManyInvitations": ("too_many_invitations", 429),
    "TooManyUploads": ("too_many_uploads", 429),
    "TooManyRecords": ("too_many_records", 429),
    "TooManyTokens": ("too_many_tokens", 429),
    "TooManyWaiting": ("too_many_waiting", 429),
    "TooManyFailures": ("too_many_failures", 429),
    "TooManyRequests": ("too_many_requests", 429),
    "Unauthorized": ("unauthorized", 401),
    "UnsupportedMedia": ("unsupported_media_type", 415),
    "UploadEnded": ("upload_ended", 409),
    "UploadIncomplete": ("upload_incomplete", 409),
    "UploadNotFound": ("upload_not_found", 404),
    "UploadOffsetWrong": ("upload_offset_wrong", 409),
    "UploadTaken": ("upload_taken", 409),
    "UserNotFound": ("user_not_found", 404),
    "WrongDigest": ("wrong_digest", 422),
    "WrongLength": ("wrong_length", 422),
    "WrongUrl": ("wrong_url", 422),
    "StreamEnded": ("stream_ended", 403),
    "FileRefused": ("file_refused", 422),
    "ServerUnreachable": ("server_unreachable", 503),
    "StoreUnreachable": ("store_unreachable", 503),
    "ServerTooOld": ("server_too_old", 501),
    "Refused": ("refused", 500),
    "NotInTime": ("not_in_time", 408),
    "HeartbeatStopped": ("heart_stopped", 500),
    "NotIngot": ("not_ingot", 502),
    "NoFiles": ("no_files", 422),
    "NoToken": ("no_token", 401),
    "JobDead": ("job_dead", 409),
    "JobCanceled": ("job_canceled", 409),
    "WorkerNotFound": ("worker_not_found", 404),
    "PointerUnresolved": ("pointer_unresolved", 422),
    "SomeFailed": ("some_failed", 500),
    "ContentMismatch": ("unlike_its_name", 422),
}


def _errors(kind: type[IngotError] = IngotError) -> list[type[IngotError]]:
    for module in pkgutil.walk_packages(ingot.__path__, "ingot."):
        importlib.import_module(module.name)
    errors = [kind]
    for subclass in kind.__subclasses__():
        errors += _errors(subclass)
    return [error for error in errors if error.__module__.startswith("ingot.")]


def test_every_error_has_its_known_code_and_status() -> None:
    assert {error.__name__: (error.code, error.status) for error in _errors()} == CODES


def test_no_two_errors_share_a_code() -> None:
    codes = [error.__dict__.get("code") for error in _errors()]
    assert None not in codes
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("error", _errors(), ids=lambda error: error.__name__)
def test_every_error_has_a_title_and_a_hint(error: type[IngotError]) -> None:
    assert error.__doc__
    title, hint = error.title(), error.hint
    assert title.endswith(".")
    assert hint.endswith(".")
    assert "\n" not in title


def test_the_docstring_is_the_message_unless_one_is_given() -> None:
    assert str(LeaseLost()) == LeaseLost().detail == LeaseLost.title()
    assert str(LeaseLost("gone")) == LeaseLost("gone").detail == "gone"


def test_the_hint_of_one_error_does_not_change_its_class() -> None:
    error = InvalidInput("no", hint="Do this.")
    assert (error.hint, InvalidInput("no").hint) == ("Do this.", InvalidInput.hint)
    assert InvalidInput.hint != "Do this."


def test_errors_can_be_caught_by_their_base_class() -> None:
    assert issubclass(PayloadTooLarge, InvalidInput)
    assert issubclass(TenantNotFound, IngotError)
    assert not issubclass(LeaseLost, StoreError)
