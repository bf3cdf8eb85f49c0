"""Values that every call refuses, by the reason."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any

import msgspec

from ingot.identity import Limits

NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - times without an offset are refused
TOO_FAR = datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(timedelta(hours=-12)))
LONE_SURROGATE = "a\ud800b"


def deep(levels: int) -> object:
    """Return a list that is nested this many levels deep."""
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


BAD_ORDERS: dict[str, dict[str, Any]] = {
    "a negative delay": {"delay": -0.001},
    "a negative timedelta": {"delay": timedelta(seconds=-1)},
    "an infinite delay": {"delay": math.inf},
    "a delay that is not a number": {"delay": math.nan},
    "a delay of a century": {"delay": timedelta(days=36_500)},
    "a delay beyond the range of floats": {"delay": 10**400},
    "priority 0": {"priority": 0},
    "priority 6": {"priority": 6},
    "a negative priority": {"priority": -1},
    "a huge priority": {"priority": 10**30},
    "no attempts": {"max_attempts": 0},
    "negative attempts": {"max_attempts": -5},
    "too many attempts": {"max_attempts": 10_001},
    "hugely many attempts": {"max_attempts": 2**63},
    "a time without an offset": {"run_at": NAIVE},
    "a time beyond the calendar": {"run_at": TOO_FAR},
    "a time and a delay": {"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 1},
    "an empty idempotency key": {"idempotency_key": ""},
    "a long idempotency key": {"idempotency_key": "k" * 513},
    "an idempotency key with NUL": {"idempotency_key": "a\x00b"},
    "an idempotency key that is not valid text": {"idempotency_key": LONE_SURROGATE},
    "an empty dedupe key": {"dedupe_key": ""},
    "a long dedupe key": {"dedupe_key": "k" * 513},
    "a dedupe key with NUL": {"dedupe_key": "\x00"},
    "a dedupe key that is not valid text": {"dedupe_key": LONE_SURROGATE},
    "too many tags": {"tags": [f"t{n}" for n in range(33)]},
    "an empty tag": {"tags": [""]},
    "a long tag": {"tags": ["t" * 129]},
    "a tag with NUL": {"tags": ["a\x00"]},
    "a tag that is not valid text": {"tags": [LONE_SURROGATE]},
    "tags in one string": {"tags": "abc"},
    "an empty correlation id": {"correlation_id": ""},
    "a long trace id": {"trace_id": "t" * 513},
    "a source ref with NUL": {"source_ref": "\x00"},
    "a creator that is not valid text": {"created_by": LONE_SURROGATE},
    "metadata that is not JSON": {"metadata": b"{"},
    "metadata nested too deep": {"metadata": deep(201)},
    "an empty type": {"type": ""},
    "a long type": {"type": "t" * 129},
    "a type with a space": {"type": "a b"},
    "a type with NUL": {"type": "a\x00"},
    "a type with a line end": {"type": "noop\n"},
    "a type that begins with a dot": {"type": ".a"},
    "a type in another script": {"type": "тип"},
    "a type that is not valid text": {"type": LONE_SURROGATE},
    "an empty payload": {"payload": b""},
    "a truncated JSON text": {"payload": b'{"a": 1'},
    "two JSON texts": {"payload": b"1 2"},
    "JSON with a comment": {"payload": b"1 // one"},
    "NaN in JSON": {"payload": b"NaN"},
    "a raw NUL in JSON": {"payload": b'"\x00"'},
    "a raw line end in a JSON text": {"payload": b'"a\nb"'},
    "bytes that are not UTF-8": {"payload": b'"\xff\xfe"'},
    "a key that is not UTF-8": {"payload": b'{"\xff": 1}'},
    "an escaped lone surrogate": {"payload": b'"\\ud800"'},
    "a lone surrogate": {"payload": LONE_SURROGATE},
    "a byte order mark": {"payload": b"\xef\xbb\xbf1"},
    "a number beyond the range of floats": {"payload": b"1e400"},
    "a whole number of 5000 digits": {"payload": b"1" * 5000},
    "JSON nested too deep": {"payload": b"[" * 201 + b"]" * 201},
    "JSON nested 30000 levels deep": {"payload": b"[" * 30_000 + b"]" * 30_000},
    "objects nested too deep": {"payload": b'{"a":' * 201 + b"1" + b"}" * 201},
    "a value nested too deep": {"payload": deep(201)},
    "a value that JSON cannot hold": {"payload": {1, 2, object()}},
    "raw text that is not JSON": {"payload": msgspec.Raw(b"junk")},
    "raw text inside a value that is not JSON": {"payload": {"a": msgspec.Raw(b"}, {")}},
}

BAD_TENANTS: dict[str, dict[str, Any]] = {
    "an empty slug": {"slug": ""},
    "a long slug": {"slug": "a" * 64},
    "a slug in capitals": {"slug": "Acme"},
    "a slug that begins with a hyphen": {"slug": "-a"},
    "a slug that ends with a hyphen": {"slug": "a-"},
    "a slug with a line end": {"slug": "a\n"},
    "a slug with NUL": {"slug": "a\x00"},
    "a slug that is not valid text": {"slug": LONE_SURROGATE},
    "weight 0": {"weight": 0},
    "a large weight": {"weight": 1001},
    "no time zone": {"time_zone": ""},
    "an unknown time zone": {"time_zone": "Mars/Olympus"},
    "a time zone that is a path": {"time_zone": "../../etc/passwd"},
    "a time zone that is a folder": {"time_zone": "Europe"},
    "a time zone with NUL": {"time_zone": "UTC\x00"},
    "a time zone that is not valid text": {"time_zone": LONE_SURROGATE},
    "a negative limit": {"limits": Limits(quota_bytes=-1)},
    "a huge limit": {"limits": Limits(quota_bytes=2**64)},
    "a limit that is not a number": {"limits": Limits(rate=math.nan)},
    "an infinite limit": {"limits": Limits(query_seconds=math.inf)},
}


class _NoOffset(tzinfo):
    def utcoffset(self, moment: datetime | None) -> None:
        return None

    dst = utcoffset

    def tzname(self, moment: datetime | None) -> str:
        return "nowhere"


NOT_TEXT = [5, True, b"text", ["text"], {"a": 1}, object()]
NOT_WHOLE = ["3", 1.5, 3.0, True, False, Decimal(3), [3], math.nan, 10**5000]
NOT_NUMBER = ["3", True, Decimal(3), [3], math.nan, math.inf, -math.inf, 10**5000]
NOT_TIME = ["2030-01-01T00:00:00Z", 5, True, date(2030, 1, 1), datetime(2030, 1, 1, tzinfo=_NoOffset())]
NOT_DELAY = ["1", True, Decimal(1), [1], datetime(2030, 1, 1, tzinfo=UTC), math.nan, 10**5000]
NOT_LIST = [5, True, object(), "text", b"text"]
NOT_TENANT = [*NOT_TEXT, None, "a\ud800", "a\x00"]
NOT_FENCE = ["1", 1.0, True, None]
NOT_FLAG = ["yes", 1, 0, None]

# Cursors that no list returns.
BAD_CURSORS = [
    "",
    " ",
    "x",
    "0",
    "'",
    "\x00",
    "\x00x",
    "é",
    "-1",
    "9" * 400,
    "ffffffff-ffff-ffff-ffff-fffffffffff",
    "a\nb",
]
