"""Validation of job and worker fields. Each check returns the valid value or raises `InvalidInput`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from ingot.blobs import checks as blob_checks
from ingot.jobs.errors import JobNotFound, ParentNotFound, PayloadTooLarge
from ingot.jobs.files import INPUTS_MAX, OUTPUTS_MAX
from ingot.jobs.limits import PLACEHOLDER
from ingot.jobs.model import (
    PRIORITY_MAX,
    PRIORITY_MIN,
    Backoff,
    Claim,
    Definition,
    Job,
    JobStatus,
    OnDead,
    Progress,
    Source,
)
from ingot.kernel import json_text
from ingot.kernel.clock import MICROS, to_micros
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import is_id
from ingot.kernel.validation import (
    NUMBER_MAX,
    check_boolean,
    check_field_types,
    check_instance,
    check_integer,
    check_length,
    check_list,
    check_number,
    check_storable,
    check_text,
    format_value,
)

PAYLOAD_BYTES_MAX = 64 * 1024
PAYLOAD_BLOB_BYTES_MAX = 64 * 1024 * 1024  # A worker reads a payload blob into memory.
METADATA_BYTES_MAX = 16 * 1024
ERROR_CHARS_MAX = 16 * 1024
LOG_CHARS_MAX = 64 * 1024
LOG_OFFSET_MAX = 2**50  # Keeps the end of a log below 2**53, so that all JSON parsers read it exactly.
KEY_CHARS_MAX = 512
TYPE_CHARS_MAX = 128
WORKER_ID_CHARS_MAX = 256
PROTOCOL_MAX = 1_000_000
STAGE_CHARS_MAX = 200
TAGS_MAX = 32
TAG_CHARS_MAX = 128
ATTEMPTS_MAX = 10_000
DELAY_DAYS_MAX = 3660
DELAY_SECONDS_MAX = DELAY_DAYS_MAX * 86_400
TIMESTAMP_MAX = to_micros(datetime(9999, 1, 1, tzinfo=UTC))
CLAIM_JOBS_MAX = 1000
CLAIM_TYPES_MAX = 256
CLAIM_SCAN_MAX = 1000  # Maximum number of ready jobs among which a worker without files looks for jobs without files.
BATCH_JOBS_MAX = 10_000
WAIT_SECONDS_MAX = 60.0
SECONDS_MAX = 366 * 86_400
LEASE_MICROS_MAX = 7 * 86_400 * MICROS
DELAY_MICROS_MAX = DELAY_SECONDS_MAX * MICROS
RUNNING_MAX = 1_000_000
PARENTS_MAX = 1_000
BATCH_CHARS_MAX = 128
RETENTION_SECONDS_MAX = 100 * 366 * 86_400
COLLECT_JOBS_MAX = 10_000

_JOB_TYPE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")


def json_bytes(value: object, *, name: str, bytes_max: int) -> bytes:
    """Return a value as JSON text; see `json_text`."""
    return json_text.json_text(value, name=name, bytes_max=bytes_max, too_large=PayloadTooLarge)


def payload(value: object) -> bytes:
    """Return a payload as JSON text."""
    return json_bytes(value, name="payload", bytes_max=PAYLOAD_BYTES_MAX)


def result(value: object) -> bytes:
    """Return a result as JSON text."""
    return json_bytes(value, name="result", bytes_max=PAYLOAD_BYTES_MAX)


def metadata(value: object) -> bytes:
    """Return metadata as JSON text."""
    return json_bytes(value, name="metadata", bytes_max=METADATA_BYTES_MAX)


def source(value: object) -> Source:
    """Return a valid source."""
    try:
        return Source(check_text(value, name="source"))
    except ValueError:
        raise InvalidInput(f"source must be one of {', '.join(Source)}, got {format_value(value)}") from None


def status(value: object) -> JobStatus:
    """Return a valid job status."""
    try:
        return JobStatus(check_text(value, name="status"))
    except ValueError:
        raise InvalidInput(f"status must be one of {', '.join(JobStatus)}, got {format_value(value)}") from None


def json_digest(text: bytes) -> bytes:
    """Return the digest of JSON text with sorted keys. Texts with the same meaning have the same digest."""
    return json_text.json_digest(text)


def payload_digest(text: bytes, blob: str | None) -> bytes:
    """Return the digest of a payload: of its JSON text, or, if it is stored as a blob, of a text with the blob ID."""
    return json_text.json_digest(text if blob is None else b'{"payload_blob":"%s"}' % blob.encode())


def job_type(value: object) -> str:
    """Return a valid job type."""
    return job_type_from_text(check_text(value, name="job type"))


@lru_cache(maxsize=1024)
def job_type_from_text(value: str) -> str:
    """Return a valid job type. The caller has checked that the value is a string."""
    if len(value) > TYPE_CHARS_MAX or not _JOB_TYPE_PATTERN.fullmatch(value):
        raise InvalidInput(
            f"the job type {value[:200]!r} is not valid",
            hint=f"Use 1 to {TYPE_CHARS_MAX} letters, digits and . _ : / -, and begin with a letter or digit.",
        )
    return value


def job_id(value: object) -> str:
    """Return a job ID. Raises `JobNotFound` if the text is not an ID, and `InvalidInput` if it is not a string."""
    text = value if type(value) is str else check_text(value, name="job ID")
    if not is_id(text):
        raise JobNotFound(f"there is no job {text[:64]!r} in this tenant")
    return text


def tenant_id(value: object) -> str:
    """Return a tenant ID. The tenant need not exist."""
    if not isinstance(value, str):
        raise InvalidInput(
            f"tenant must be the ID of a tenant, got {type(value).__name__}",
            hint="Pass tenant.id, a string. Nothing was changed.",
        )
    return check_storable(str.__str__(value), name="tenant")


def optional_tenant_id(value: object) -> str | None:
    """Return a tenant ID, or `None`, which means all tenants."""
    return None if value is None else tenant_id(value)


def claim(value: object) -> Claim:
    """Return a claim whose job is a `Job`."""
    claim = check_instance(value, Claim, name="claim")
    check_instance(claim.job, Job, name="job of the claim")
    return claim


def worker_id(value: object) -> str:
    """Return a worker ID of valid length."""
    return check_length(check_text(value, name="worker ID"), name="worker ID", chars_max=WORKER_ID_CHARS_MAX)


def is_worker_id(value: str) -> bool:
    """Return True if a worker can have this ID."""
    return 1 <= len(value) <= WORKER_ID_CHARS_MAX and "\x00" not in value


def short_text(value: object, *, name: str, chars_max: int = KEY_CHARS_MAX) -> str | None:
    """Return a string of 1 to `chars_max` characters, or `None`."""
    return None if value is None else check_length(check_text(value, name=name), name=name, chars_max=chars_max)


def filter_text(value: object, *, name: str) -> str | None:
    """Return a string to filter by, or `None`."""
    return None if value is None else check_storable(check_text(value, name=name), name=name)


def error_text(value: object) -> str:
    """Return an error message of a worker, truncated so that a long message is never rejected.

    An exception becomes its class name and message. Characters that cannot be stored are replaced.
    """
    text = _describe_exception(value) if isinstance(value, BaseException) else check_text(value, name="error")
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()[:ERROR_CHARS_MAX]


def log_text(value: object) -> str:
    """Return the log text of an attempt at its full length, with characters that cannot be stored replaced."""
    text = check_text(value, name="log")
    if len(text) > LOG_CHARS_MAX:
        raise InvalidInput(
            f"the log text must have at most {LOG_CHARS_MAX} characters, got {len(text)}",
            hint="Send it in several parts. Nothing was changed.",
        )
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def _describe_exception(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception:  # An exception that cannot be converted to text must not hide the failure.
        message = ""
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def after(values: object) -> tuple[str, ...]:
    """Return the IDs of the parents of a job, sorted and without duplicates. Raises `ParentNotFound`."""
    try:
        unique = tuple(sorted({job_id(value) for value in check_list(values, name="after")}))
    except JobNotFound as error:
        raise ParentNotFound(error.detail) from None
    if len(unique) > PARENTS_MAX:
        raise InvalidInput(f"after must name at most {PARENTS_MAX} jobs, got {len(unique)} jobs")
    return unique


def inputs(values: object) -> dict[str, str]:
    """Return the blob IDs of the input files of a job, by file name."""
    if not isinstance(values, Mapping):
        raise InvalidInput(
            f"inputs must be an object that maps file names to blob IDs, got {type(values).__name__}",
            hint='Use a value such as {"report.pdf": "<blob ID>"}. Nothing was changed.',
        )
    if len(values) > INPUTS_MAX:
        raise InvalidInput(f"a job must have at most {INPUTS_MAX} inputs, got {len(values)} inputs")
    return {file_name(name): blob_checks.digest(blob_id, name="blob ID") for name, blob_id in values.items()}


def file_name(value: object) -> str:
    """Return the name of a job file."""
    name = blob_checks.file_name(value, name="file name")
    if name != value:
        raise InvalidInput(
            f"a job file must have a plain name, got the path {format_value(value)}",
            hint="Use a name such as report.pdf.",
        )
    return name


def outputs(values: object) -> tuple[str, ...]:
    """Return the names of output files without duplicates, in their order."""
    names = tuple(dict.fromkeys([file_name(value) for value in check_list(values, name="outputs")]))
    if len(names) > OUTPUTS_MAX:
        raise InvalidInput(f"an attempt must have at most {OUTPUTS_MAX} outputs, got {len(names)} outputs")
    return names


def payload_blob(value: object) -> str | None:
    """Return the ID of the blob that holds a payload, or `None`."""
    return None if value is None else blob_checks.digest(value, name="payload_blob")


def owner_quota(value: object) -> int | None:
    """Return the quota of an owner in bytes, or `None` if there is no quota."""
    return None if value is None else check_integer(value, name="owner_quota", minimum=0, maximum=2**63 - 1)


def on_dead(value: object) -> OnDead:
    """Return a valid `OnDead`."""
    try:
        return OnDead(check_text(value, name="on_dead"))
    except ValueError:
        raise InvalidInput(f"on_dead must be one of {', '.join(OnDead)}, got {format_value(value)}") from None


def tags(values: object) -> tuple[str, ...]:
    """Return the tags sorted and without duplicates."""
    unique = tuple(sorted({check_text(tag, name="tag") for tag in check_list(values, name="tags")}))
    if len(unique) > TAGS_MAX:
        raise InvalidInput(f"a job must have at most {TAGS_MAX} tags, got {len(unique)} tags")
    for tag in unique:
        check_length(tag, name="tag", chars_max=TAG_CHARS_MAX)
    return unique


def priority(value: object) -> int | None:
    """Return a priority from 1 (critical) to 5 (background), or `None`."""
    return None if value is None else _required_priority(value)


def _required_priority(value: object) -> int:
    try:
        return check_integer(value, name="priority", minimum=PRIORITY_MIN, maximum=PRIORITY_MAX)
    except InvalidInput as error:
        error.hint = "Use 1 (critical) to 5 (background); the default is 3. Nothing was changed."
        raise


def max_attempts(value: object) -> int | None:
    """Return a maximum number of attempts, or `None`."""
    return None if value is None else check_integer(value, name="max_attempts", minimum=1, maximum=ATTEMPTS_MAX)


def delay(value: object, *, name: str = "delay") -> int:
    """Return a delay in microseconds. The value is a `timedelta` or a number of seconds."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidInput(f"{name} must be a timedelta or a number of seconds, got {type(seconds).__name__}")
    if not 0 <= seconds < math.inf:
        raise InvalidInput(f"{name} must be neither negative nor infinite, got {format_value(seconds)} seconds")
    if seconds > DELAY_SECONDS_MAX:
        raise InvalidInput(f"{name} must be at most {DELAY_DAYS_MAX} days, got {format_value(seconds)} seconds")
    return round(seconds * MICROS)


def timestamp(value: object) -> int | None:
    """Return a time in microseconds since 1970, or `None`. Times before 1970 become 0."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidInput(f"a time must be a datetime with a UTC offset, got {type(value).__name__}")
    if value.utcoffset() is None:
        value = value.replace(tzinfo=None)
    micros = to_micros(value)
    if micros > TIMESTAMP_MAX:
        raise InvalidInput(f"a time must not be after the year 9998, got {value.isoformat()}")
    return max(micros, 0)


def claim_types(values: object) -> tuple[str, ...]:
    """Return the job types of a worker without duplicates, at least one."""
    unique = tuple(dict.fromkeys([job_type(value) for value in check_list(values, name="types")]))
    if not 1 <= len(unique) <= CLAIM_TYPES_MAX:
        raise InvalidInput(f"a worker must name 1 to {CLAIM_TYPES_MAX} job types, got {len(unique)} types")
    return unique


def percent(value: object) -> float:
    """Return a progress percentage from 0 to 100."""
    return check_number(value, name="percent", minimum=0, maximum=100)


def stage(value: object) -> str:
    """Return the name of a stage of progress, which may be empty."""
    text = check_text(value, name="stage")
    return text and check_length(text, name="stage", chars_max=STAGE_CHARS_MAX)


def progress(value: object) -> Progress | None:
    """Return a valid progress, or `None`."""
    if value is None:
        return None
    progress = check_instance(value, Progress, name="progress")
    percent(progress.percent)
    stage(progress.stage)
    return progress


def fence(value: object) -> int:
    """Return a fence. The store reports a fence that is not the current one."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"fence must be an integer, got {type(value).__name__}")
    return value


def lease(value: object) -> int:
    """Return the duration of a lease in microseconds."""
    return check_integer(value, name="lease", minimum=1, maximum=LEASE_MICROS_MAX)


def definition(value: object) -> Definition:
    """Return a definition whose fields are all valid."""
    definition = check_instance(value, Definition, name="definition")
    job_type(definition.type)
    optional_tenant_id(definition.tenant)
    _required_priority(definition.priority)
    check_integer(definition.max_attempts, name="max_attempts", minimum=1, maximum=ATTEMPTS_MAX)
    check_integer(definition.crash_cap, name="crash_cap", minimum=1, maximum=ATTEMPTS_MAX)
    check_number(definition.timeout_seconds, name="timeout_seconds", minimum=0.001, maximum=SECONDS_MAX)
    backoff = check_instance(definition.backoff, Backoff, name="backoff")
    check_number(backoff.first_seconds, name="backoff.first_seconds", minimum=0, maximum=SECONDS_MAX)
    check_number(backoff.max_seconds, name="backoff.max_seconds", minimum=0, maximum=SECONDS_MAX)
    check_number(backoff.factor, name="backoff.factor", minimum=1, maximum=SECONDS_MAX)
    for name in ("max_running", "max_running_per_key"):
        if (limit := getattr(definition, name)) is not None:
            check_integer(limit, name=name, minimum=1, maximum=RUNNING_MAX)
    check_boolean(definition.reuse, name="reuse")
    check_integer(definition.version, name="version", minimum=1, maximum=NUMBER_MAX)
    if definition.limit_key is not None:
        limit_key(definition.limit_key)
    elif definition.max_running_per_key is not None:
        raise InvalidInput(
            "max_running_per_key requires limit_key, which is not set",
            hint='Set limit_key, for example to "{account.id}". Nothing was changed.',
        )
    if definition.retention_seconds is not None:
        check_number(definition.retention_seconds, name="retention_seconds", minimum=0, maximum=RETENTION_SECONDS_MAX)
    check_boolean(definition.keep_history, name="keep_history")
    return check_field_types(definition)


def limit_key(value: object) -> str:
    """Return a limit key template, which names at least one field of the payload in braces."""
    template = check_length(check_text(value, name="limit_key"), name="limit_key", chars_max=KEY_CHARS_MAX)
    text = PLACEHOLDER.sub("", template)
    if not PLACEHOLDER.search(template) or "{" in text or "}" in text:
        raise InvalidInput(
            f"limit_key must name fields of the payload in braces, got {format_value(template)}",
            hint='Use a template such as "{account.id}". Nothing was changed.',
        )
    return template
