"""Checks at the door: bad input is refused with a name and a hint before anything is written."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import msgspec

from ingot.jobs.errors import JobNotFound, PayloadTooLarge
from ingot.jobs.model import PRIORITY_MAX, PRIORITY_MIN, Definition, Progress, Source
from ingot.kernel.clock import MICROS, to_micros
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import is_id

PAYLOAD_BYTES_MAX = 64 * 1024
METADATA_BYTES_MAX = 16 * 1024
JSON_SPACE = b" \t\n\r"
JSON_DEPTH_MAX = 200  # What we take in, every reader of ours must be able to decode.
ERROR_CHARS_MAX = 16 * 1024
KEY_CHARS_MAX = 512
TYPE_CHARS_MAX = 128
WORKER_CHARS_MAX = 256
STAGE_CHARS_MAX = 200
TAGS_MAX = 32
TAG_CHARS_MAX = 128
ATTEMPTS_MAX = 10_000
DELAY_DAYS_MAX = 3660
MOMENT_MAX = to_micros(datetime(9999, 1, 1, tzinfo=UTC))
NUMBER_MAX = 2**53  # The largest whole number that every reader of JSON takes in exactly.
CLAIM_JOBS_MAX = 1000
CLAIM_TYPES_MAX = 256
BATCH_JOBS_MAX = 10_000
WAIT_SECONDS_MAX = 60.0
SECONDS_MAX = 366 * 86_400

_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def json_bytes(value: object, *, what: str, bytes_max: int) -> bytes:
    """JSON text as bytes: `bytes` are JSON text already, kept but for space around it; other values are encoded."""
    try:
        text = value.strip(JSON_SPACE) if isinstance(value, bytes) else _encode(value)
        if len(text) <= bytes_max:
            _decode(text)  # Encoded values too: a `Raw` inside them was never looked at.
    except (msgspec.MsgspecError, TypeError, UnicodeError, RecursionError, ValueError, OverflowError) as error:
        raise InvalidInput(f"the {what} is not JSON: {error}") from error
    if len(text) > bytes_max:
        raise PayloadTooLarge(f"the {what} has {len(text)} bytes; the most is {bytes_max}")
    if text.count(b"[") + text.count(b"{") > JSON_DEPTH_MAX and _depth(text) > JSON_DEPTH_MAX:
        raise InvalidInput(f"the {what} is nested deeper than {JSON_DEPTH_MAX} levels")
    return text


def _depth(text: bytes) -> int:
    """How deep JSON text is nested, found level by level, without recursion."""
    deepest, level = 0, [_decode(text)]
    while level := [value for value in level if isinstance(value, dict | list)]:
        deepest += 1
        level = [inner for value in level for inner in (value.values() if isinstance(value, dict) else value)]
    return deepest


def payload(value: object) -> bytes:
    """A payload as JSON text."""
    return json_bytes(value, what="payload", bytes_max=PAYLOAD_BYTES_MAX)


def result(value: object) -> bytes:
    """A result as JSON text."""
    return json_bytes(value, what="result", bytes_max=PAYLOAD_BYTES_MAX)


def metadata(value: object) -> bytes:
    """Metadata as JSON text."""
    return json_bytes(value, what="metadata", bytes_max=METADATA_BYTES_MAX)


def source(value: str) -> Source:
    """One of the sources there are."""
    try:
        return Source(value)
    except ValueError:
        raise InvalidInput(f"source is {value!r}; it is one of {', '.join(Source)}") from None


def digest(text: bytes) -> bytes:
    """The digest of JSON text in sorted-key form, equal for texts that mean the same."""
    return hashlib.sha256(msgspec.json.encode(_decode(text), order="sorted")).digest()


@lru_cache(maxsize=1024)
def job_type(value: str) -> str:
    """A usable job type."""
    if len(value) > TYPE_CHARS_MAX or not _TYPE.fullmatch(value):
        raise InvalidInput(
            f"the job type {value[:200]!r} is not usable",
            hint=f"Use up to {TYPE_CHARS_MAX} letters, digits and . _ : / -, beginning with a letter or digit.",
        )
    return value


def job_id(value: str) -> str:
    """The id of a job. Raises `JobNotFound` for a text that no job can have."""
    if not is_id(value):
        raise JobNotFound(f"there is no job {value[:64]!r} in this tenant")
    return value


def short_text(value: str | None, *, what: str, chars_max: int = KEY_CHARS_MAX) -> str | None:
    """A name or key within its length, or `None`."""
    if value is None:
        return None
    if not 1 <= len(value) <= chars_max:
        raise InvalidInput(f"the {what} has {len(value)} characters; it goes from 1 to {chars_max}")
    if "\x00" in value or (not value.isascii() and _has_lone_surrogate(value)):
        raise InvalidInput(f"the {what} has characters that cannot be stored")
    return value


def error_text(value: str) -> str:
    """What a worker says went wrong, cut to a bounded length so that a report is never refused for being long."""
    return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()[:ERROR_CHARS_MAX]


def _has_lone_surrogate(value: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in value)


def tags(values: Iterable[str]) -> tuple[str, ...]:
    """Tags without repeats, in a stable order."""
    if isinstance(values, str):
        raise InvalidInput("tags is one text; it is a list of texts")
    unique = tuple(sorted(set(values)))
    if len(unique) > TAGS_MAX:
        raise InvalidInput(f"there are {len(unique)} tags; the most is {TAGS_MAX}")
    for tag in unique:
        short_text(tag, what="tag", chars_max=TAG_CHARS_MAX)
    return unique


def priority(value: int | None) -> int | None:
    """A priority from 1 (critical) to 5 (background), or `None`."""
    if value is not None and not PRIORITY_MIN <= value <= PRIORITY_MAX:
        raise InvalidInput(
            f"priority is {value}; it goes from {PRIORITY_MIN} to {PRIORITY_MAX}",
            hint="1 is critical, 3 the default, 5 background; nothing was changed.",
        )
    return value


def max_attempts(value: int | None) -> int | None:
    """A number of attempts within bounds, or `None`."""
    if value is not None and not 1 <= value <= ATTEMPTS_MAX:
        raise InvalidInput(f"max_attempts is {value}; it goes from 1 to {ATTEMPTS_MAX}")
    return value


def delay(value: timedelta | float, *, what: str = "delay") -> int:
    """A delay in microseconds: not negative, not absurd."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not 0 <= seconds < math.inf:
        raise InvalidInput(f"the {what} is {seconds} seconds; it cannot be negative or infinite")
    if seconds > DELAY_DAYS_MAX * 86_400:
        raise InvalidInput(f"the {what} is {seconds} seconds; the most is {DELAY_DAYS_MAX} days")
    return round(seconds * MICROS)


def moment(value: datetime | None) -> int | None:
    """A moment in microseconds, or `None`."""
    if value is None:
        return None
    micros = to_micros(value)
    if micros > MOMENT_MAX:
        raise InvalidInput(f"the time {value.isoformat()} is too far away; the last year is 9998")
    return micros


def whole_number(value: int, *, what: str, least: int, most: int) -> int:
    """A number within its bounds."""
    if not least <= value <= most:
        raise InvalidInput(f"{what} is {value}; it goes from {least} to {most}")
    return value


def claim_types(values: Sequence[str]) -> tuple[str, ...]:
    """The types a worker can do: at least one, each named once."""
    if isinstance(values, str):
        raise InvalidInput("types is one text; it is a list of texts")
    unique = tuple(dict.fromkeys(values))
    if not 1 <= len(unique) <= CLAIM_TYPES_MAX:
        raise InvalidInput(f"there are {len(unique)} types; a claim names 1 to {CLAIM_TYPES_MAX}")
    for value in unique:
        job_type(value)
    return unique


def progress(value: Progress | None) -> Progress | None:
    """A progress between 0 and 100 percent, or `None`."""
    if value is None:
        return None
    if not 0 <= value.percent <= 100:
        raise InvalidInput(f"percent is {value.percent}; it goes from 0 to 100")
    if value.stage:
        short_text(value.stage, what="stage", chars_max=STAGE_CHARS_MAX)
    return value


def definition(value: Definition) -> Definition:
    """A definition whose every value can be used."""
    job_type(value.type)
    priority(value.priority)
    max_attempts(value.max_attempts)
    whole_number(value.crash_cap, what="crash_cap", least=1, most=ATTEMPTS_MAX)
    numbers = {
        "timeout_seconds": (value.timeout_seconds, 0.001),
        "backoff.first_seconds": (value.backoff.first_seconds, 0.0),
        "backoff.max_seconds": (value.backoff.max_seconds, 0.0),
        "backoff.factor": (value.backoff.factor, 1.0),
    }
    for name, (number, least) in numbers.items():
        if not math.isfinite(number) or not least <= number <= SECONDS_MAX:
            raise InvalidInput(f"{name} is {number}; it goes from {least} to {SECONDS_MAX}")
    return value
