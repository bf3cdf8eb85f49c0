"""Parse values of options: times, JSON, `name=value` pairs and limits."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from ingot.cli.output import current_time
from ingot.client.job_request import to_seconds
from ingot.identity.model import FRACTIONAL_LIMITS
from ingot.kernel.errors import InvalidInput

TIME_HINT: Final = (
    "Use a time with an offset, such as 2026-01-31T09:00:00Z or 2026-01-31T09:00:00+01:00, "
    "or a duration, such as 30m, 2h or 7d."
)
STDIN: Final = Path("-")
NONE: Final = "none"  # Removes a limit, or the role of a group.
_DURATION: Final = re.compile(r"\d+(\.\d+)?(ms|s|m|h|d)")


def parse_past_time(text: str | None, option: str) -> datetime | None:
    """Parse a time, or a duration before now. Raises `InvalidInput`."""
    return _parse_time(text, option, direction=-1)


def parse_future_time(text: str | None, option: str) -> datetime | None:
    """Parse a time, or a duration from now. Raises `InvalidInput`."""
    return _parse_time(text, option, direction=1)


def _parse_time(text: str | None, option: str, *, direction: int) -> datetime | None:
    if text is None:
        return None
    try:
        if _DURATION.fullmatch(text):
            return current_time() + direction * timedelta(seconds=to_seconds(text))
        time = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise InvalidInput(f"{option} must be a time, got {text[:64]!r}", hint=TIME_HINT) from None
    if time.tzinfo is None:
        raise InvalidInput(f"{option} must have a UTC offset, got {text[:64]!r}", hint=TIME_HINT)
    return time


def parse_json(text: str | bytes, source: str) -> msgspec.Raw:
    """Check that a text is JSON and return its bytes unchanged. Raises `InvalidInput`, which names the source."""
    content = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    try:
        msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(
            f"{source} is not valid JSON: {error}",
            hint="""Strings and field names need double quotes. In a shell: '"Ada"', or '{"name": "Ada"}'.""",
        ) from None
    return msgspec.Raw(content.strip())


def read_json_option(text: str | None, file: Path | None, option: str) -> msgspec.Raw | None:
    """Read JSON from an option, a file or stdin. `option` is its name without dashes. Raises `InvalidInput`."""
    if text is not None and file is not None:
        raise InvalidInput(f"--{option} and --{option}-file cannot be combined", hint="Remove one of them.")
    if text is not None:
        return parse_json(text, f"--{option}")
    if file is None:
        return None
    with open_input(file) as lines:
        return parse_json(lines.read(), "stdin" if file == STDIN else str(file))


@contextmanager
def open_input(file: Path) -> Iterator[IO[bytes]]:
    """Open a file, or stdin for `-`. Raises `InvalidInput`."""
    if file == STDIN:
        yield sys.stdin.buffer
        return
    try:
        stream = file.open("rb")
    except OSError as error:
        raise InvalidInput(
            f"{file} cannot be read: {error.strerror}", hint="Check the path and its permissions."
        ) from None
    with stream:
        yield stream


def parse_pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """Parse texts such as `name=value`. Raises `InvalidInput`."""
    pairs = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not name or not separator:
            raise InvalidInput(
                f"{option} must have the form name=value, got {text[:64]!r}", hint=f"Use {option} name=value."
            )
        pairs[name] = value
    return pairs


def parse_limits(texts: Iterable[str], names: Collection[str]) -> dict[str, float | None]:
    """Parse limits such as `name=value`. The value `none` becomes `None`. Raises `InvalidInput`."""
    limits: dict[str, float | None] = {}
    for name, value in parse_pairs(texts, "--limit").items():
        if name not in names:
            raise InvalidInput(f"there is no limit named {name[:64]!r}", hint=f"Use one of {', '.join(names)}.")
        limits[name] = None if value == NONE else _parse_limit(name, value)
    return limits


def _parse_limit(name: str, value: str) -> float:
    try:
        return float(value) if name in FRACTIONAL_LIMITS else int(value)
    except ValueError:
        raise InvalidInput(
            f"the limit {name} must be a number, got {value[:64]!r}", hint=f"Use a number, or {NONE} for no limit."
        ) from None


def without_none(**values: Any) -> dict[str, Any]:
    """Return the arguments that are not `None`."""
    return {name: value for name, value in values.items() if value is not None}
