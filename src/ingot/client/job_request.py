"""What a program says of a job it wants done, as the server takes it."""

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
PRIORITY_HINT: Final = f"It is 1 to 5, or {', '.join(PRIORITIES)}."
DURATION_HINT: Final = "Write seconds as a number, or as in 500ms, 30s, 5m, 2h, 1d."
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


class SubmitOptions(TypedDict, total=False):
    """What can be said of a job besides its type and payload."""

    priority: int | str
    run_at: datetime
    delay: Duration
    max_attempts: int
    idempotency_key: str
    dedupe_key: str
    tags: Sequence[str]
    metadata: object
    after: Sequence[str]
    on_dead: str
    inputs: Mapping[str, str]
    payload_blob: str
    batch: str
    force: bool
    correlation_id: str
    trace_id: str


def to_seconds(value: Duration) -> float:
    """A time in seconds. Raises `InvalidInput`."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        found = _DURATION.fullmatch(value.strip().lower())
        if found is None:
            raise InvalidInput(f"{value[:64]!r} is no time", hint=DURATION_HINT)
        return float(found[1]) * DURATION_UNITS[found[2]]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"a {type(value).__name__} is no time", hint=DURATION_HINT)
    return float(value)


def parse_priority(value: int | str) -> int:
    """A priority by its number or its name. Raises `InvalidInput`."""
    if isinstance(value, int):
        return value
    if not isinstance(value, str):
        raise InvalidInput(f"a {type(value).__name__} is no priority", hint=PRIORITY_HINT)
    if value.isascii() and value.isdecimal():
        return int(value)
    if value.lower() not in PRIORITIES:
        raise InvalidInput(f"there is no priority {value[:64]!r}", hint=PRIORITY_HINT)
    return PRIORITIES[value.lower()]


def job_request_body(type: str, payload: object, order: Mapping[str, Any]) -> dict[str, Any]:
    """A job as it is asked for. Raises `InvalidInput` for what is no JSON, and for what nobody knows."""
    said = dict(order)
    body: dict[str, Any] = {"type": type, "payload": encode_json(payload, what="payload")}
    if len(body["payload"]) > PAYLOAD_BLOB_BYTES_MAX:
        size = len(body["payload"])
        raise PayloadTooLarge(
            f"the payload has {size} bytes; the most is {PAYLOAD_BLOB_BYTES_MAX}", hint="Send it as a file of the job."
        )
    if (delay := said.pop("delay", None)) is not None:
        body["delay_seconds"] = to_seconds(delay)
    if (priority := said.pop("priority", None)) is not None:
        body["priority"] = parse_priority(priority)
    if (metadata := said.pop("metadata", None)) is not None:
        body["metadata"] = encode_json(metadata, what="metadata")
    if unknown := said.keys() - SubmitOptions.__annotations__.keys():
        known = ", ".join(sorted(SubmitOptions.__annotations__))
        raise InvalidInput(f"a job has no {', '.join(sorted(unknown))}", hint=f"It is one of {known}.")
    return body | {name: value for name, value in said.items() if value is not None}


def is_large_payload(payload: msgspec.Raw) -> bool:
    """Whether a payload travels as a blob."""
    return len(payload) > PAYLOAD_BYTES_MAX


def files_by_name(file: Sendable | Mapping[str, Sendable] | None) -> dict[str, Sendable]:
    """Files by the names that a job knows them by. Raises `InvalidInput` for one without a name."""
    if file is None:
        return {}
    if isinstance(file, Mapping):
        return {file_name(name): source for name, source in file.items()}
    path = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
    if not isinstance(path, str | os.PathLike):
        raise InvalidInput("the file has no name", hint='Write it as in file={"report.pdf": …}.')
    return {file_name(Path(path).name): file}


def encode_json(value: object, *, what: str) -> msgspec.Raw:
    """A value as JSON. Raises `InvalidInput`."""
    try:
        return msgspec.Raw(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError, UnicodeEncodeError) as error:
        raise InvalidInput(f"the {what} cannot be written as JSON: {error}") from None
