"""Logs: static event names with fields, on standard error, never with the values of local variables."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from contextvars import Context, ContextVar
from typing import Any, Final, Literal, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from ingot.kernel.redaction import redact

LogFormat = Literal["json", "text"]
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
MESSAGE_CHARS_MAX: Final = 300
# They tell of every header that a provider sends, its cookies too, and of every address that is signed.
QUIET_LOGGERS: Final = ("botocore", "httpcore", "httpx")
_encode = msgspec.json.Encoder(enc_hook=str).encode

# What is known of the request under way, and stands in every line that is logged meanwhile.
request_fields: ContextVar[dict[str, object] | None] = ContextVar("ingot.about", default=None)
_debug_enabled = False


def configure_logs() -> None:
    """Set the logs up, unless the program that uses us has done so.

    Left alone, structlog draws tracebacks with local variables, and with them payloads.
    """
    if not structlog.is_configured():
        _configure(logging.NOTSET, _text_processors())


def configure_server_logs(level: str, form: LogFormat | None) -> None:
    """Set up the logs of a program of ours: one line each, from this level on, those of libraries too.

    With no form they are text on a terminal, and JSON elsewhere.
    """
    global _debug_enabled  # noqa: PLW0603 - one process has one log
    _debug_enabled = level == "debug"
    form = form or ("text" if sys.stderr.isatty() else "json")
    _configure(LEVELS[level], _json_processors() if form == "json" else _text_processors())
    logging.root.handlers = [_StructlogHandler()]
    logging.root.setLevel(LEVELS[level])
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)


def is_debug_enabled() -> bool:
    """Whether lines of the level `debug` are wanted: asking is cheaper than saying what nobody hears."""
    return _debug_enabled


def detached_context() -> Context:
    """A context for work that is done for many at once: what it logs is about no request."""
    return Context()


def report(event: str, error: BaseException, **fields: object) -> None:
    """Log an error from where nothing may be raised: a log that cannot be written loses the line, not the thread."""
    with suppress(Exception):
        structlog.get_logger("ingot").error(event, exc_info=error, **fields)


def _configure(level: int, ending: list[Processor]) -> None:
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _add_request_fields,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _format_exception,
            *ending,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(_BestEffortStream(sys.stderr)),  # type: ignore[arg-type]
    )


def _text_processors() -> list[Processor]:
    return [_flatten_exception, structlog.dev.ConsoleRenderer(colors=False), _redact]


def _json_processors() -> list[Processor]:
    return [structlog.processors.EventRenamer("message"), _encode_json, _redact]


class _BestEffortStream:
    """A stream for lines: one that cannot be written, as on a full disk, is lost, and nothing else is."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


class _StructlogHandler(logging.Handler):
    """Hands what libraries log to our own log."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):
            log = structlog.get_logger("ingot")
            log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info)


# -- the way of a line ------------------------------------------------------------------------------------------------


def _add_request_fields(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:  # noqa: ARG001 - as structlog calls it
    for field, value in (request_fields.get() or {}).items():
        event.setdefault(field, value)
    return event


def _format_exception(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:  # noqa: ARG001 - as structlog calls it
    """An exception as its type, its message and the places it came by."""
    error = event.pop("exc_info", None)
    if error is True:
        error = sys.exc_info()[1]
    elif isinstance(error, tuple):
        error = error[1]
    if isinstance(error, BaseException):
        event["exception"] = {
            "type": _exception_type(error),
            "message": _exception_message(error),
            "stack": "".join(_format_stack(error)),
        }
    return event


def _exception_type(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _exception_message(error: BaseException) -> str:
    """The first line: databases tell in the next ones what was in the row."""
    return str(error).split("\n", 1)[0][:MESSAGE_CHARS_MAX]


def _format_stack(error: BaseException) -> Iterator[str]:
    """From the first cause to the last, each with the places it came by."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None:
        yield from _format_stack(before)
        yield "which led to:\n"
    yield from traceback.format_tb(error.__traceback__)
    yield f"{_exception_type(error)}: {_exception_message(error)}\n"


def _flatten_exception(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:  # noqa: ARG001 - as structlog calls it
    if "exception" in event:
        event["exception"] = event["exception"]["stack"].rstrip()
    return event


def _encode_json(logger: WrappedLogger, name: str, event: EventDict) -> str:  # noqa: ARG001 - as structlog calls it
    return _encode(event).decode()


def _redact(logger: WrappedLogger, name: str, line: Any) -> str:  # noqa: ARG001 - as structlog calls it
    return redact(line)
