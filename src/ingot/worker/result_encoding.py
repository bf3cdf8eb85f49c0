"""Encodes results and describes errors of handlers for the server."""

from __future__ import annotations

from typing import Final

import msgspec

from ingot.jobs import checks
from ingot.jobs.errors import PayloadTooLarge
from ingot.kernel.errors import InvalidInput
from ingot.worker.job import NoRetry

JSON_ADVICE: Final = "return None, numbers, strings, lists, dicts or dataclasses"
SIZE_ADVICE: Final = "store large data with job.upload() and return its name"
EXIT_ADVICE: Final = "a handler must return or raise an exception instead of exiting"
_encode = msgspec.json.Encoder().encode


def encode_result(result: object) -> bytes:
    """Encode a result as JSON. Raises `NoRetry` if that fails, because another attempt would return the same value."""
    try:
        return checks.result(_encode(result))
    except PayloadTooLarge as error:
        raise NoRetry(f"{error.detail}: {SIZE_ADVICE}") from None
    except RecursionError:
        raise NoRetry(f"the result contains itself or is nested too deeply: {JSON_ADVICE}") from None
    except (InvalidInput, TypeError, ValueError, OverflowError) as error:
        raise NoRetry(f"the result cannot be encoded as JSON: {error}; {JSON_ADVICE}") from None


def describe_error(error: BaseException) -> str:
    """Describe the exception that a handler raised."""
    message = checks.error_text(error)
    return f"{message} ({EXIT_ADVICE})" if isinstance(error, SystemExit) else message
