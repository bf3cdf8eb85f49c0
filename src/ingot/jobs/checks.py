"""Checks at the door: bad input is refused with a name and a hint before anything is written."""

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
PAYLOAD_BLOB_BYTES_MAX = 64 * 1024 * 1024  # Of one that travels as a blob: a worker holds it in memory.
METADATA_BYTES_MAX = 16 * 1024
ERROR_CHARS_MAX = 16 * 1024
LOG_CHARS_MAX = 64 * 1024
LOG_OFFSET_MAX = 2**50  # So that where a log ends is a number that every reader of JSON takes in exactly.
KEY_CHARS_MAX = 512
TYPE_CHARS_MAX = 128
WORKER_ID_CHARS_MAX = 256
STAGE_CHARS_MAX = 200
TAGS_MAX = 32
TAG_CHARS_MAX = 128
ATTEMPTS_MAX = 10_000
DELAY_DAYS_MAX = 3660
DELAY_SECONDS_MAX = DELAY_DAYS_MAX * 86_400
TIMESTAMP_MAX = to_micros(datetime(9999, 1, 1, tzinfo=UTC))
CLAIM_JOBS_MAX = 1000
CLAIM_TYPES_MAX = 256
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
    """JSON text as bytes; see `json_text`."""
    return json_text.json_text(value, name=name, bytes_max=bytes_max, too_large=PayloadTooLarge)


def payload(value: object) -> bytes:
    """A payload as JSON text."""
    return json_bytes(value, name="payload", bytes_max=PAYLOAD_BYTES_MAX)


def result(value: object) -> bytes:
    """A result as JSON text."""
    return json_bytes(value, name="result", bytes_max=PAYLOAD_BYTES_MAX)


def metadata(value: object) -> bytes:
    """Metadata as JSON text."""
    return json_bytes(value, name="metadata", bytes_max=METADATA_BYTES_MAX)


def source(value: object) -> Source:
    """One of the sources there are."""
    try:
        return Source(check_text(value, name="source"))
    except ValueError:
        raise InvalidInput(f"source is {format_value(value)}; it is one of {', '.join(Source)}") from None


def status(value: object) -> JobStatus:
    """One of the states there are."""
    try:
        return JobStatus(check_text(value, name="status"))
    except ValueError:
        raise InvalidInput(f"status is {format_value(value)}; it is one of {', '.join(JobStatus)}") from None


def json_digest(text: bytes) -> bytes:
    """The digest of JSON text in sorted-key form, equal for texts that mean the same."""
    return json_text.json_digest(text)


def payload_digest(text: bytes, blob: str | None) -> bytes:
    """The digest of a payload: of its text, or, when that is a blob, of a text that names it."""
    return json_text.json_digest(text if blob is None else b'{"payload_blob":"%s"}' % blob.encode())


def job_type(value: object) -> str:
    """A usable job type."""
    return job_type_from_text(check_text(value, name="job type"))


@lru_cache(maxsize=1024)
def job_type_from_text(value: str) -> str:
    """A usable job type, from what is known to be a text."""
    if len(value) > TYPE_CHARS_MAX or not _JOB_TYPE_PATTERN.fullmatch(value):
        raise InvalidInput(
            f"the job type {value[:200]!r} is not usable",
            hint=f"Use up to {TYPE_CHARS_MAX} letters, digits and . _ : / -, beginning with a letter or digit.",
        )
    return value


def job_id(value: object) -> str:
    """The id of a job. Raises `JobNotFound` for a text that no job can have."""
    known = value if type(value) is str else check_text(value, name="job id")
    if not is_id(known):
        raise JobNotFound(f"there is no job {known[:64]!r} in this tenant")
    return known


def tenant_id(value: object) -> str:
    """The id of a tenant, which need not be there."""
    if not isinstance(value, str):
        raise InvalidInput(
            f"the tenant is a {type(value).__name__}; it is the tenant's id",
            hint="Pass tenant.id, a text; nothing was changed.",
        )
    return check_storable(str.__str__(value), name="tenant")


def optional_tenant_id(value: object) -> str | None:
    """The id of a tenant, or `None` for any."""
    return None if value is None else tenant_id(value)


def claim(value: object) -> Claim:
    """A claim as a worker got it."""
    known = check_instance(value, Claim, name="claim")
    check_instance(known.job, Job, name="job of the claim")
    return known


def worker_id(value: object) -> str:
    """The name a worker goes by."""
    return check_length(check_text(value, name="worker id"), name="worker id", chars_max=WORKER_ID_CHARS_MAX)


def is_worker_id(value: str) -> bool:
    """Whether a worker can go by this name."""
    return 1 <= len(value) <= WORKER_ID_CHARS_MAX and "\x00" not in value


def short_text(value: object, *, name: str, chars_max: int = KEY_CHARS_MAX) -> str | None:
    """A name or key within its length, or `None`."""
    return None if value is None else check_length(check_text(value, name=name), name=name, chars_max=chars_max)


def filter_text(value: object, *, name: str) -> str | None:
    """A text to look for, or `None`."""
    return None if value is None else check_storable(check_text(value, name=name), name=name)


def error_text(value: object) -> str:
    """What a worker says went wrong, cut to a bounded length so that a report is never refused for being long.

    An exception is told by its kind and its message.
    """
    known = _describe_exception(value) if isinstance(value, BaseException) else check_text(value, name="error")
    return known.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()[:ERROR_CHARS_MAX]


def log_text(value: object) -> str:
    """What a worker writes about an attempt, as long as it was sent; what no engine can keep is replaced."""
    known = check_text(value, name="log")
    if len(known) > LOG_CHARS_MAX:
        raise InvalidInput(
            f"the log has {len(known)} characters; the most at once is {LOG_CHARS_MAX}",
            hint="Send it in parts; nothing was changed.",
        )
    return known.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def _describe_exception(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception:  # A message that cannot be told hides no failure.
        message = ""
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def after(values: object) -> tuple[str, ...]:
    """The jobs that a job waits for, each named once."""
    try:
        unique = tuple(sorted({job_id(value) for value in check_list(values, name="after")}))
    except JobNotFound as error:
        raise ParentNotFound(error.detail) from None
    if len(unique) > PARENTS_MAX:
        raise InvalidInput(f"there are {len(unique)} jobs in after; the most is {PARENTS_MAX}")
    return unique


def inputs(values: object) -> dict[str, str]:
    """The ids of the blobs that a job works on, by name."""
    if not isinstance(values, Mapping):
        raise InvalidInput(
            f"inputs is a {type(values).__name__}; it says which blobs by name",
            hint='Write it as in {"report.pdf": "<the id of a blob>"}; nothing was changed.',
        )
    if len(values) > INPUTS_MAX:
        raise InvalidInput(f"there are {len(values)} inputs; the most is {INPUTS_MAX}")
    return {file_name(name): blob_checks.digest(blob, name="id of a blob") for name, blob in values.items()}


def file_name(value: object) -> str:
    """The name of a file of a job."""
    known = blob_checks.file_name(value, name="name of a file")
    if known != value:
        raise InvalidInput(
            f"{format_value(value)} is a path, and not the name of a file", hint="Write it as in report.pdf."
        )
    return known


def outputs(values: object) -> tuple[str, ...]:
    """The names of files that work has made, each once."""
    known = tuple(dict.fromkeys([file_name(value) for value in check_list(values, name="outputs")]))
    if len(known) > OUTPUTS_MAX:
        raise InvalidInput(f"there are {len(known)} outputs; the most is {OUTPUTS_MAX}")
    return known


def payload_blob(value: object) -> str | None:
    """The id of the blob that holds a payload, or `None`."""
    return None if value is None else blob_checks.digest(value, name="id of the payload's blob")


def owner_quota(value: object) -> int | None:
    """How many bytes somebody may keep, or `None` for any."""
    return None if value is None else check_integer(value, name="owner_quota", minimum=0, maximum=2**63 - 1)


def on_dead(value: object) -> OnDead:
    """One of the ways there are."""
    try:
        return OnDead(check_text(value, name="on_dead"))
    except ValueError:
        raise InvalidInput(f"on_dead is {format_value(value)}; it is one of {', '.join(OnDead)}") from None


def tags(values: object) -> tuple[str, ...]:
    """Tags without repeats, in a stable order."""
    unique = tuple(sorted({check_text(tag, name="tag") for tag in check_list(values, name="tags")}))
    if len(unique) > TAGS_MAX:
        raise InvalidInput(f"there are {len(unique)} tags; the most is {TAGS_MAX}")
    for tag in unique:
        check_length(tag, name="tag", chars_max=TAG_CHARS_MAX)
    return unique


def priority(value: object) -> int | None:
    """A priority from 1 (critical) to 5 (background), or `None`."""
    return None if value is None else _required_priority(value)


def _required_priority(value: object) -> int:
    try:
        return check_integer(value, name="priority", minimum=PRIORITY_MIN, maximum=PRIORITY_MAX)
    except InvalidInput as error:
        error.hint = "1 is critical, 3 the default, 5 background; nothing was changed."
        raise


def max_attempts(value: object) -> int | None:
    """A number of attempts within bounds, or `None`."""
    return None if value is None else check_integer(value, name="max_attempts", minimum=1, maximum=ATTEMPTS_MAX)


def delay(value: object, *, name: str = "delay") -> int:
    """A delay in microseconds: not negative, not absurd."""
    given = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise InvalidInput(f"the {name} is a {type(given).__name__}; it is a timedelta or a number of seconds")
    if not 0 <= given < math.inf:
        raise InvalidInput(f"the {name} is {format_value(given)} seconds; it cannot be negative or infinite")
    if given > DELAY_SECONDS_MAX:
        raise InvalidInput(f"the {name} is {format_value(given)} seconds; the most is {DELAY_DAYS_MAX} days")
    return round(given * MICROS)


def timestamp(value: object) -> int | None:
    """A moment in microseconds, or `None`. What lies before 1970 is past, and becomes its first moment."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidInput(f"the time is a {type(value).__name__}; it is a datetime with an offset")
    if value.utcoffset() is None:
        value = value.replace(tzinfo=None)
    micros = to_micros(value)
    if micros > TIMESTAMP_MAX:
        raise InvalidInput(f"the time {value.isoformat()} is too far away; the last year is 9998")
    return max(micros, 0)


def claim_types(values: object) -> tuple[str, ...]:
    """The types a worker can do: at least one, each named once."""
    unique = tuple(dict.fromkeys([job_type(value) for value in check_list(values, name="types")]))
    if not 1 <= len(unique) <= CLAIM_TYPES_MAX:
        raise InvalidInput(f"there are {len(unique)} types; a claim names 1 to {CLAIM_TYPES_MAX}")
    return unique


def percent(value: object) -> float:
    """How much is done, from 0 to 100."""
    return check_number(value, name="percent", minimum=0, maximum=100)


def stage(value: object) -> str:
    """What is being done; it may be empty."""
    known = check_text(value, name="stage")
    return known and check_length(known, name="stage", chars_max=STAGE_CHARS_MAX)


def progress(value: object) -> Progress | None:
    """A progress between 0 and 100 percent, or `None`."""
    if value is None:
        return None
    known = check_instance(value, Progress, name="progress")
    percent(known.percent)
    stage(known.stage)
    return known


def fence(value: object) -> int:
    """The number of a claim; one that nobody holds is for the store to tell."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"the fence is a {type(value).__name__}; it is a whole number")
    return value


def lease(value: object) -> int:
    """How long a lease lasts, in microseconds."""
    return check_integer(value, name="lease", minimum=1, maximum=LEASE_MICROS_MAX)


def definition(value: object) -> Definition:
    """A definition whose every value can be used."""
    known = check_instance(value, Definition, name="definition")
    job_type(known.type)
    optional_tenant_id(known.tenant)
    _required_priority(known.priority)
    check_integer(known.max_attempts, name="max_attempts", minimum=1, maximum=ATTEMPTS_MAX)
    check_integer(known.crash_cap, name="crash_cap", minimum=1, maximum=ATTEMPTS_MAX)
    check_number(known.timeout_seconds, name="timeout_seconds", minimum=0.001, maximum=SECONDS_MAX)
    backoff = check_instance(known.backoff, Backoff, name="backoff")
    check_number(backoff.first_seconds, name="backoff.first_seconds", minimum=0, maximum=SECONDS_MAX)
    check_number(backoff.max_seconds, name="backoff.max_seconds", minimum=0, maximum=SECONDS_MAX)
    check_number(backoff.factor, name="backoff.factor", minimum=1, maximum=SECONDS_MAX)
    for name in ("max_running", "max_running_per_key"):
        if (limit := getattr(known, name)) is not None:
            check_integer(limit, name=name, minimum=1, maximum=RUNNING_MAX)
    check_boolean(known.reuse, name="reuse")
    check_integer(known.version, name="version", minimum=1, maximum=NUMBER_MAX)
    if known.limit_key is not None:
        limit_key(known.limit_key)
    elif known.max_running_per_key is not None:
        raise InvalidInput("max_running_per_key is given without limit_key", hint="Say which key; nothing was changed.")
    if known.retention_seconds is not None:
        check_number(known.retention_seconds, name="retention_seconds", minimum=0, maximum=RETENTION_SECONDS_MAX)
    check_boolean(known.keep_history, name="keep_history")
    return check_field_types(known)


def limit_key(value: object) -> str:
    """A template that names parts of the payload."""
    known = check_length(check_text(value, name="limit_key"), name="limit_key", chars_max=KEY_CHARS_MAX)
    if not PLACEHOLDER.search(known) or "{" in PLACEHOLDER.sub("", known) or "}" in PLACEHOLDER.sub("", known):
        raise InvalidInput(
            f"the limit_key {format_value(known)} names no part of the payload",
            hint="Name parts in braces, as in {account.id}; nothing was changed.",
        )
    return known
