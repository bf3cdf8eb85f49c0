"""Values as people type them: times, JSON, names with values."""

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

TIME_HINT: Final = "Write it as in 2026-01-31T09:00:00Z or 2026-01-31T09:00:00+01:00, or a span as in 30m, 2h, 7d."
STDIN: Final = Path("-")
NONE: Final = "none"  # What takes a limit away.
_DURATION: Final = re.compile(r"\d+(\.\d+)?(ms|s|m|h|d)")


def parse_past_time(text: str | None, option: str) -> datetime | None:
    """An instant, or how long ago it was. Raises `InvalidInput`."""
    return _parse_time(text, option, direction=-1)


def parse_future_time(text: str | None, option: str) -> datetime | None:
    """An instant, or how long it is until then. Raises `InvalidInput`."""
    return _parse_time(text, option, direction=1)


def _parse_time(text: str | None, option: str, *, direction: int) -> datetime | None:
    if text is None:
        return None
    try:
        if _DURATION.fullmatch(text):
            return current_time() + direction * timedelta(seconds=to_seconds(text))
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise InvalidInput(f"{option} is {text[:64]!r}, which is no time", hint=TIME_HINT) from None
    if found.tzinfo is None:
        raise InvalidInput(f"{option} is {text[:64]!r}, which has no offset", hint=TIME_HINT)
    return found


def parse_json(text: str | bytes, what: str) -> msgspec.Raw:
    """JSON as it was written. Raises `InvalidInput`."""
    content = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    try:
        msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(
            f"{what} is no JSON: {error}", hint="""Text has quotes of its own: '"Ada"', or '{"name": "Ada"}'."""
        ) from None
    return msgspec.Raw(content.strip())


def read_json_option(text: str | None, file: Path | None, what: str) -> msgspec.Raw | None:
    """JSON from an option or from a file, of which - is stdin. Raises `InvalidInput`."""
    if text is not None and file is not None:
        raise InvalidInput(f"--{what} and --{what}-file are both given", hint="Leave one of them out.")
    if text is not None:
        return parse_json(text, f"--{what}")
    if file is None:
        return None
    with open_input(file) as lines:
        return parse_json(lines.read(), "stdin" if file == STDIN else str(file))


@contextmanager
def open_input(file: Path) -> Iterator[IO[bytes]]:
    """A file that is read, or stdin for -. Raises `InvalidInput`."""
    if file == STDIN:
        yield sys.stdin.buffer
        return
    try:
        stream = file.open("rb")
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}", hint="Check the name of the file.") from None
    with stream:
        yield stream


def parse_pairs(given: Iterable[str], option: str) -> dict[str, str]:
    """Names and values, as in name=value. Raises `InvalidInput`."""
    found = {}
    for one in given:
        name, sign, value = one.partition("=")
        if not name or not sign:
            raise InvalidInput(f"{option} is {one[:64]!r}", hint=f"Write it as in {option} name=value.")
        found[name] = value
    return found


def parse_limits(said: Iterable[str], names: Collection[str]) -> dict[str, float | None]:
    """Limits as in name=value, of those with these names; `none` is no limit. Raises `InvalidInput`."""
    found: dict[str, float | None] = {}
    for name, value in parse_pairs(said, "--limit").items():
        if name not in names:
            raise InvalidInput(f"there is no limit {name[:64]!r}", hint=f"It is one of {', '.join(names)}.")
        found[name] = None if value == NONE else _parse_limit(name, value)
    return found


def _parse_limit(name: str, value: str) -> float:
    try:
        return float(value) if name in FRACTIONAL_LIMITS else int(value)
    except ValueError:
        raise InvalidInput(
            f"the limit {name} is {value[:64]!r}, which is no number", hint=f"Write a number, or {NONE} for no limit."
        ) from None


def without_none(**values: Any) -> dict[str, Any]:
    """What is not `None`."""
    return {name: value for name, value in values.items() if value is not None}
