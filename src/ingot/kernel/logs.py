"""Logging to standard error: static event names with fields, never the values of local variables."""

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
# At lower levels, these log all headers of the provider, cookies included, and all signed URLs.
QUIET_LOGGERS: Final = ("botocore", "httpcore", "httpx")
_encode = msgspec.json.Encoder(enc_hook=str).encode

# Fields of the current request. They are added to every log line of its context.
request_fields: ContextVar[dict[str, object] | None] = ContextVar("ingot.request_fields", default=None)
_debug_enabled = False


def configure_logs() -> None:
    """Configure structlog, unless the application has done so.

    The defaults of structlog print tracebacks with local variables, which can contain payloads.
    """
    if not structlog.is_configured():
        _configure(logging.NOTSET, _text_processors())


def configure_server_logs(level: str, log_format: LogFormat | None) -> None:
    """Configure the logs of an Ingot program, including those of libraries: one line per event, from this level on.

    The default format is text on a terminal and JSON otherwise.
    """
    global _debug_enabled  # noqa: PLW0603 - one process has one log
    _debug_enabled = level == "debug"
    log_format = log_format or ("text" if sys.stderr.isatty() else "json")
    _configure(LEVELS[level], _json_processors() if log_format == "json" else _text_processors())
    logging.root.handlers = [_StructlogHandler()]
    logging.root.setLevel(LEVELS[level])
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)


def is_debug_enabled() -> bool:
    """Return whether the level `debug` is logged. Use it to skip the cost of events that would be dropped."""
    return _debug_enabled


def detached_context() -> Context:
    """Return an empty context for work on behalf of many requests, so that no request's fields appear in its logs."""
    return Context()


def report(event: str, error: BaseException, **fields: object) -> None:
    """Log an error where raising is not possible. Never raises: if the log cannot be written, the line is lost."""
    with suppress(Exception):
        structlog.get_logger("ingot").error(event, exc_info=error, **fields)


def _configure(level: int, renderers: list[Processor]) -> None:
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _add_request_fields,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _format_exception,
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(_BestEffortStream(sys.stderr)),  # type: ignore[arg-type]
    )


def _text_processors() -> list[Processor]:
    return [_flatten_exception, structlog.dev.ConsoleRenderer(colors=False), _redact]


def _json_processors() -> list[Processor]:
    return [structlog.processors.EventRenamer("message"), _encode_json, _redact]


class _BestEffortStream:
    """A stream that drops lines that cannot be written, for example when the disk is full."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


class _StructlogHandler(logging.Handler):
    """Passes log records of libraries to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):
            log = structlog.get_logger("ingot")
            log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info)


# -- processors of log events -----------------------------------------------------------------------------------------


def _add_request_fields(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:  # noqa: ARG001 - as structlog calls it
    for field, value in (request_fields.get() or {}).items():
        event.setdefault(field, value)
    return event


def _format_exception(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:  # noqa: ARG001 - as structlog calls it
    """Replace an exception with its type, its message and its stack."""
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
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _exception_message(error: BaseException) -> str:
    """Return the first line of the message. In further lines, databases quote values of the row."""
    return str(error).split("\n", 1)[0][:MESSAGE_CHARS_MAX]


def _format_stack(error: BaseException) -> Iterator[str]:
    """Yield the stacks of an exception and its causes, the first cause first."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        yield from _format_stack(cause)
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
