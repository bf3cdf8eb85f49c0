"""The request that submits a job, built from Python values."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypedDict

import msgspec

from ingot.client.upload_source import Sendable
from ingot.jobs.checks import PAYLOAD_BLOB_BYTES_MAX, PAYLOAD_BYTES_MAX, file_name
from ingot.jobs.errors import PayloadTooLarge
from ingot.kernel.errors import InvalidInput

Duration = float | str | timedelta
DURATION_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
PRIORITIES: Final = {"critical": 1, "high": 2, "normal": 3, "low": 4, "background": 5}
PRIORITY_HINT: Final = f"Use 1 to 5, or {', '.join(PRIORITIES)}."
DURATION_HINT: Final = "Use a number of seconds, or a text such as 500ms, 30s, 5m, 2h or 1d."
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")


class SubmitOptions(TypedDict, total=False):
    """Options of a job, besides its type and payload."""

    priority: int | str
    """1 (critical) to 5 (background), or the name of a priority, such as `"high"`."""
    run_at: datetime
    """Earliest start time, with a UTC offset."""
    delay: Duration
    """Earliest start, relative to now: seconds, a `timedelta`, or a text such as `"5m"`."""
    max_attempts: int
    """Number of failures after which the job is dead."""
    idempotency_key: str
    """The same type, key and payload return the same job."""
    dedupe_key: str
    """The job is rejected while an unfinished job has the same key."""
    tags: Sequence[str]
    """Words by which jobs are found."""
    metadata: object
    """JSON that is stored with the job and not interpreted."""
    after: Sequence[str]
    """IDs of jobs that must succeed before this job starts."""
    on_dead: str
    """If a job in `after` is dead or canceled: `"cancel"` this job (default) or `"run"` it anyway."""
    inputs: Mapping[str, str]
    """IDs of stored blobs that are input files of the job, by file name."""
    payload_blob: str
    """ID of a blob that holds the payload. Requires an empty payload."""
    batch: str
    """Name of a batch. The jobs of a batch are counted together."""
    force: bool
    """Create a job even if an existing one could be reused."""
    correlation_id: str
    """Stored with the job."""
    trace_id: str
    """Stored with the job."""


def to_seconds(value: Duration) -> float:
    """Return a duration in seconds. Raises `InvalidInput`."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip().lower())
        if match is None:
            raise InvalidInput(f"{value[:64]!r} is not a duration", hint=DURATION_HINT)
        return float(match[1]) * DURATION_UNITS[match[2] or "s"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(
            f"a duration must be a number, a str or a timedelta, got {type(value).__name__}", hint=DURATION_HINT
        )
    return float(value)


def parse_priority(value: int | str) -> int:
    """Return the number of a priority that is given as a number or a name. Raises `InvalidInput`."""
    if isinstance(value, int):
        return value
    if not isinstance(value, str):
        raise InvalidInput(f"priority must be an int or a str, got {type(value).__name__}", hint=PRIORITY_HINT)
    if value.isascii() and value.isdecimal():
        return int(value)
    if value.lower() not in PRIORITIES:
        raise InvalidInput(f"{value[:64]!r} is not a priority", hint=PRIORITY_HINT)
    return PRIORITIES[value.lower()]


def job_request_body(type: str, payload: object, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a request. Raises `InvalidInput` for unknown options and for values that are not JSON."""
    fields = dict(options)
    body: dict[str, Any] = {"type": type, "payload": encode_json(payload, name="payload")}
    if len(body["payload"]) > PAYLOAD_BLOB_BYTES_MAX:
        size = len(body["payload"])
        raise PayloadTooLarge(
            f"payload must have at most {PAYLOAD_BLOB_BYTES_MAX} bytes, got {size}",
            hint="Send it as a file of the job.",
        )
    if (delay := fields.pop("delay", None)) is not None:
        body["delay_seconds"] = to_seconds(delay)
    if (priority := fields.pop("priority", None)) is not None:
        body["priority"] = parse_priority(priority)
    if (metadata := fields.pop("metadata", None)) is not None:
        body["metadata"] = encode_json(metadata, name="metadata")
    if unknown := fields.keys() - SubmitOptions.__annotations__.keys():
        allowed = ", ".join(sorted(SubmitOptions.__annotations__))
        raise InvalidInput(f"unknown options of a job: {', '.join(sorted(unknown))}", hint=f"Use {allowed}.")
    return body | {name: value for name, value in fields.items() if value is not None}


def is_large_payload(payload: msgspec.Raw) -> bool:
    """Return whether a payload has to be stored as a blob."""
    return len(payload) > PAYLOAD_BYTES_MAX


def files_by_name(file: Sendable | Mapping[str, Sendable] | None) -> dict[str, Sendable]:
    """Return the input files of a job by name. Raises `InvalidInput` for a file without a name."""
    if file is None:
        return {}
    if isinstance(file, Mapping):
        return {file_name(name): source for name, source in file.items()}
    path = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
    if not isinstance(path, str | os.PathLike):
        raise InvalidInput("the file has no name", hint='Pass a name, as in file={"report.pdf": …}.')
    return {file_name(Path(path).name): file}


def encode_json(value: object, *, name: str) -> msgspec.Raw:
    """Encode a value as JSON. `name` is its name in errors. Raises `InvalidInput`."""
    try:
        return msgspec.Raw(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError, UnicodeEncodeError) as error:
        raise InvalidInput(f"{name} cannot be encoded as JSON: {error}") from None
