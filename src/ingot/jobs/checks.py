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
from ingot.jobs.limits import PART
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
from ingot.kernel.values import (
    NUMBER_MAX,
    flag,
    instance,
    number,
    several,
    shown,
    sound,
    storable,
    text,
    whole_number,
    within,
)

PAYLOAD_BYTES_MAX = 64 * 1024
PAYLOAD_BLOB_BYTES_MAX = 64 * 1024 * 1024  # Of one that travels as a blob: a worker holds it in memory.
METADATA_BYTES_MAX = 16 * 1024
ERROR_CHARS_MAX = 16 * 1024
LOG_CHARS_MAX = 64 * 1024
LOG_OFFSET_MAX = 2**50  # So that where a log ends is a number that every reader of JSON takes in exactly.
KEY_CHARS_MAX = 512
TYPE_CHARS_MAX = 128
WORKER_CHARS_MAX = 256
STAGE_CHARS_MAX = 200
TAGS_MAX = 32
TAG_CHARS_MAX = 128
ATTEMPTS_MAX = 10_000
DELAY_DAYS_MAX = 3660
DELAY_SECONDS_MAX = DELAY_DAYS_MAX * 86_400
MOMENT_MAX = to_micros(datetime(9999, 1, 1, tzinfo=UTC))
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

_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")


def json_bytes(value: object, *, what: str, bytes_max: int) -> bytes:
    """JSON text as bytes; see `json_text`."""
    return json_text.json_text(value, what=what, bytes_max=bytes_max, too_large=PayloadTooLarge)


def payload(value: object) -> bytes:
    """A payload as JSON text."""
    return json_bytes(value, what="payload", bytes_max=PAYLOAD_BYTES_MAX)


def result(value: object) -> bytes:
    """A result as JSON text."""
    return json_bytes(value, what="result", bytes_max=PAYLOAD_BYTES_MAX)


def metadata(value: object) -> bytes:
    """Metadata as JSON text."""
    return json_bytes(value, what="metadata", bytes_max=METADATA_BYTES_MAX)


def source(value: object) -> Source:
    """One of the sources there are."""
    try:
        return Source(text(value, what="source"))
    except ValueError:
        raise InvalidInput(f"source is {shown(value)}; it is one of {', '.join(Source)}") from None


def status(value: object) -> JobStatus:
    """One of the states there are."""
    try:
        return JobStatus(text(value, what="status"))
    except ValueError:
        raise InvalidInput(f"status is {shown(value)}; it is one of {', '.join(JobStatus)}") from None


def digest(text: bytes) -> bytes:
    """The digest of JSON text in sorted-key form, equal for texts that mean the same."""
    return json_text.digest(text)


def payload_digest(text: bytes, blob: str | None) -> bytes:
    """The digest of a payload: of its text, or, when that is a blob, of a text that names it."""
    return json_text.digest(text if blob is None else b'{"payload_blob":"%s"}' % blob.encode())


def job_type(value: object) -> str:
    """A usable job type."""
    return type_of_text(text(value, what="job type"))


@lru_cache(maxsize=1024)
def type_of_text(value: str) -> str:
    """A usable job type, from what is known to be a text."""
    if len(value) > TYPE_CHARS_MAX or not _TYPE.fullmatch(value):
        raise InvalidInput(
            f"the job type {value[:200]!r} is not usable",
            hint=f"Use up to {TYPE_CHARS_MAX} letters, digits and . _ : / -, beginning with a letter or digit.",
        )
    return value


def job_id(value: object) -> str:
    """The id of a job. Raises `JobNotFound` for a text that no job can have."""
    known = value if type(value) is str else text(value, what="job id")
    if not is_id(known):
        raise JobNotFound(f"there is no job {known[:64]!r} in this tenant")
    return known


def tenant(value: object) -> str:
    """The id of a tenant, which need not be there."""
    if not isinstance(value, str):
        raise InvalidInput(
            f"the tenant is a {type(value).__name__}; it is the tenant's id",
            hint="Pass tenant.id, a text; nothing was changed.",
        )
    return storable(str.__str__(value), what="tenant")


def tenant_or_any(value: object) -> str | None:
    """The id of a tenant, or `None` for any."""
    return None if value is None else tenant(value)


def claim(value: object) -> Claim:
    """A claim as a worker got it."""
    known = instance(value, Claim, what="claim")
    instance(known.job, Job, what="job of the claim")
    return known


def worker_id(value: object) -> str:
    """The name a worker goes by."""
    return within(text(value, what="worker id"), what="worker id", chars_max=WORKER_CHARS_MAX)


def is_worker_id(value: str) -> bool:
    """Whether a worker can go by this name."""
    return 1 <= len(value) <= WORKER_CHARS_MAX and "\x00" not in value


def short_text(value: object, *, what: str, chars_max: int = KEY_CHARS_MAX) -> str | None:
    """A name or key within its length, or `None`."""
    return None if value is None else within(text(value, what=what), what=what, chars_max=chars_max)


def filter_text(value: object, *, what: str) -> str | None:
    """A text to look for, or `None`."""
    return None if value is None else storable(text(value, what=what), what=what)


def error_text(value: object) -> str:
    """What a worker says went wrong, cut to a bounded length so that a report is never refused for being long.

    An exception is told by its kind and its message.
    """
    known = _told(value) if isinstance(value, BaseException) else text(value, what="error")
    return known.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()[:ERROR_CHARS_MAX]


def log_text(value: object) -> str:
    """What a worker writes about an attempt, as long as it was sent; what no engine can keep is replaced."""
    known = text(value, what="log")
    if len(known) > LOG_CHARS_MAX:
        raise InvalidInput(
            f"the log has {len(known)} characters; the most at once is {LOG_CHARS_MAX}",
            hint="Send it in parts; nothing was changed.",
        )
    return known.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def _told(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception:  # A message that cannot be told hides no failure.
        message = ""
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def after(values: object) -> tuple[str, ...]:
    """The jobs that a job waits for, each named once."""
    try:
        unique = tuple(sorted({job_id(value) for value in several(values, what="after")}))
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
    return {file_name(name): blob_checks.digest(blob, what="id of a blob") for name, blob in values.items()}


def file_name(value: object) -> str:
    """The name of a file of a job."""
    known = blob_checks.file_name(value, what="name of a file")
    if known != value:
        raise InvalidInput(f"{shown(value)} is a path, and not the name of a file", hint="Write it as in report.pdf.")
    return known


def outputs(values: object) -> tuple[str, ...]:
    """The names of files that work has made, each once."""
    known = tuple(dict.fromkeys([file_name(value) for value in several(values, what="outputs")]))
    if len(known) > OUTPUTS_MAX:
        raise InvalidInput(f"there are {len(known)} outputs; the most is {OUTPUTS_MAX}")
    return known


def payload_blob(value: object) -> str | None:
    """The id of the blob that holds a payload, or `None`."""
    return None if value is None else blob_checks.digest(value, what="id of the payload's blob")


def owner_quota(value: object) -> int | None:
    """How many bytes somebody may keep, or `None` for any."""
    return None if value is None else whole_number(value, what="owner_quota", least=0, most=2**63 - 1)


def on_dead(value: object) -> OnDead:
    """One of the ways there are."""
    try:
        return OnDead(text(value, what="on_dead"))
    except ValueError:
        raise InvalidInput(f"on_dead is {shown(value)}; it is one of {', '.join(OnDead)}") from None


def tags(values: object) -> tuple[str, ...]:
    """Tags without repeats, in a stable order."""
    unique = tuple(sorted({text(tag, what="tag") for tag in several(values, what="tags")}))
    if len(unique) > TAGS_MAX:
        raise InvalidInput(f"there are {len(unique)} tags; the most is {TAGS_MAX}")
    for tag in unique:
        within(tag, what="tag", chars_max=TAG_CHARS_MAX)
    return unique


def priority(value: object) -> int | None:
    """A priority from 1 (critical) to 5 (background), or `None`."""
    return None if value is None else _priority(value)


def _priority(value: object) -> int:
    try:
        return whole_number(value, what="priority", least=PRIORITY_MIN, most=PRIORITY_MAX)
    except InvalidInput as error:
        error.hint = "1 is critical, 3 the default, 5 background; nothing was changed."
        raise


def max_attempts(value: object) -> int | None:
    """A number of attempts within bounds, or `None`."""
    return None if value is None else whole_number(value, what="max_attempts", least=1, most=ATTEMPTS_MAX)


def delay(value: object, *, what: str = "delay") -> int:
    """A delay in microseconds: not negative, not absurd."""
    given = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise InvalidInput(f"the {what} is a {type(given).__name__}; it is a timedelta or a number of seconds")
    if not 0 <= given < math.inf:
        raise InvalidInput(f"the {what} is {shown(given)} seconds; it cannot be negative or infinite")
    if given > DELAY_SECONDS_MAX:
        raise InvalidInput(f"the {what} is {shown(given)} seconds; the most is {DELAY_DAYS_MAX} days")
    return round(given * MICROS)


def moment(value: object) -> int | None:
    """A moment in microseconds, or `None`. What lies before 1970 is past, and becomes its first moment."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidInput(f"the time is a {type(value).__name__}; it is a datetime with an offset")
    if value.utcoffset() is None:
        value = value.replace(tzinfo=None)
    micros = to_micros(value)
    if micros > MOMENT_MAX:
        raise InvalidInput(f"the time {value.isoformat()} is too far away; the last year is 9998")
    return max(micros, 0)


def claim_types(values: object) -> tuple[str, ...]:
    """The types a worker can do: at least one, each named once."""
    unique = tuple(dict.fromkeys([job_type(value) for value in several(values, what="types")]))
    if not 1 <= len(unique) <= CLAIM_TYPES_MAX:
        raise InvalidInput(f"there are {len(unique)} types; a claim names 1 to {CLAIM_TYPES_MAX}")
    return unique


def percent(value: object) -> float:
    """How much is done, from 0 to 100."""
    return number(value, what="percent", least=0, most=100)


def stage(value: object) -> str:
    """What is being done; it may be empty."""
    known = text(value, what="stage")
    return known and within(known, what="stage", chars_max=STAGE_CHARS_MAX)


def progress(value: object) -> Progress | None:
    """A progress between 0 and 100 percent, or `None`."""
    if value is None:
        return None
    known = instance(value, Progress, what="progress")
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
    return whole_number(value, what="lease", least=1, most=LEASE_MICROS_MAX)


def definition(value: object) -> Definition:
    """A definition whose every value can be used."""
    known = instance(value, Definition, what="definition")
    job_type(known.type)
    tenant_or_any(known.tenant)
    _priority(known.priority)
    whole_number(known.max_attempts, what="max_attempts", least=1, most=ATTEMPTS_MAX)
    whole_number(known.crash_cap, what="crash_cap", least=1, most=ATTEMPTS_MAX)
    number(known.timeout_seconds, what="timeout_seconds", least=0.001, most=SECONDS_MAX)
    backoff = instance(known.backoff, Backoff, what="backoff")
    number(backoff.first_seconds, what="backoff.first_seconds", least=0, most=SECONDS_MAX)
    number(backoff.max_seconds, what="backoff.max_seconds", least=0, most=SECONDS_MAX)
    number(backoff.factor, what="backoff.factor", least=1, most=SECONDS_MAX)
    for name in ("max_running", "max_running_per_key"):
        if (limit := getattr(known, name)) is not None:
            whole_number(limit, what=name, least=1, most=RUNNING_MAX)
    flag(known.reuse, what="reuse")
    whole_number(known.version, what="version", least=1, most=NUMBER_MAX)
    if known.limit_key is not None:
        limit_key(known.limit_key)
    elif known.max_running_per_key is not None:
        raise InvalidInput("max_running_per_key is given without limit_key", hint="Say which key; nothing was changed.")
    if known.retention_seconds is not None:
        number(known.retention_seconds, what="retention_seconds", least=0, most=RETENTION_SECONDS_MAX)
    flag(known.keep_history, what="keep_history")
    return sound(known)


def limit_key(value: object) -> str:
    """A template that names parts of the payload."""
    known = within(text(value, what="limit_key"), what="limit_key", chars_max=KEY_CHARS_MAX)
    if not PART.search(known) or "{" in PART.sub("", known) or "}" in PART.sub("", known):
        raise InvalidInput(
            f"the limit_key {shown(known)} names no part of the payload",
            hint="Name parts in braces, as in {account.id}; nothing was changed.",
        )
    return known
