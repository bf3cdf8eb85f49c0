"""What a handler returns and raises, as the server takes it."""

from __future__ import annotations

from typing import Final

import msgspec

from ingot.jobs import checks
from ingot.jobs.errors import PayloadTooLarge
from ingot.kernel.errors import InvalidInput
from ingot.worker.job import NoRetry

JSON_ADVICE: Final = "return None, numbers, texts, lists, dicts, or dataclasses of such"
SIZE_ADVICE: Final = "keep it elsewhere, and return where it is"
EXIT_ADVICE: Final = "a handler returns or raises, it does not exit"
_encode = msgspec.json.Encoder().encode


def encode_result(result: object) -> bytes:
    """A result as JSON text. Raises `NoRetry`: the next attempt would return the same."""
    try:
        return checks.result(_encode(result))
    except PayloadTooLarge as error:
        raise NoRetry(f"{error.detail}: {SIZE_ADVICE}") from None
    except RecursionError:
        raise NoRetry(f"the result contains itself, or is nested too deep: {JSON_ADVICE}") from None
    except (InvalidInput, TypeError, ValueError, OverflowError) as error:
        raise NoRetry(f"the result cannot be written as JSON, {error}: {JSON_ADVICE}") from None


def describe_error(error: BaseException) -> str:
    """Why a handler failed, by what it raised."""
    told = checks.error_text(error)
    return f"{told} ({EXIT_ADVICE})" if isinstance(error, SystemExit) else told
