"""Logging to standard error: static event names with fields, never the values of local variables."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import Context, ContextVar
from types import TracebackType
from typing import Any, Final, Literal, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from ingot.kernel.errors import IngotError
from ingot.kernel.log_text import TextRenderer
from ingot.kernel.redaction import redact

LogFormat = Literal["json", "text"]
FORMATS: Final[tuple[LogFormat, ...]] = ("json", "text")
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
MESSAGE_CHARS_MAX: Final = 300
STACK_CHARS_MAX: Final = 8192
OMISSION: Final = "\n  …\n"
# At lower levels, the first three log all headers of the provider, cookies included, and all signed URLs. The pool of
# the database logs each failed connection with a traceback; the engine logs once when the database is away.
QUIET_LOGGERS: Final = {
    "botocore": logging.WARNING,
    "httpcore": logging.WARNING,
    "httpx": logging.WARNING,
    "asyncpg.pool": logging.ERROR,
}
_encode = msgspec.json.Encoder(enc_hook=str).encode

# Fields of the current request or job. They are added to every log line of its context.
context_fields: ContextVar[dict[str, object] | None] = ContextVar("ingot.context_fields", default=None)
_debug_enabled = False


def configure_logs() -> None:
    """Configure structlog, unless the application has done so.

    The defaults of structlog print tracebacks with local variables, which can contain payloads.
    """
    if not structlog.is_configured():
        _configure(logging.NOTSET, _text_processors(is_terminal=False))


def configure_server_logs(level: str, log_format: LogFormat | None, *, libraries: bool = True) -> None:
    """Configure the logs of an Ingot program, including those of libraries: one line per event, from this level on.

    The default format is text on a terminal and JSON otherwise. Without `libraries`, `logging` is left as it is.
    """
    global _debug_enabled  # noqa: PLW0603 - one process has one log
    _debug_enabled = level == "debug"
    is_terminal = sys.stderr.isatty()
    log_format = log_format or ("text" if is_terminal else "json")
    _configure(LEVELS[level], _json_processors() if log_format == "json" else _text_processors(is_terminal=is_terminal))
    if not libraries:
        return
    logging.root.handlers = [_StructlogHandler()]
    logging.root.setLevel(LEVELS[level])
    silence_libraries()
    logging.captureWarnings(capture=True)


def silence_libraries() -> None:
    """Drop messages of libraries that contain secrets, or repeat what the program logs."""
    for name, level in QUIET_LOGGERS.items():
        logging.getLogger(name).setLevel(level)


def is_debug_enabled() -> bool:
    """Return whether the level `debug` is logged. Use it to skip the cost of events that would be dropped."""
    return _debug_enabled


def detached_context() -> Context:
    """Return an empty context for work on behalf of many requests, so that no request's fields appear in its logs."""
    return Context()


def report(event: str, error: BaseException, **fields: object) -> None:
    """Log an error where raising is not possible. Never raises: if the log cannot be written, the line is lost.

    An error whose cause has been logged is left out.
    """
    if isinstance(error, IngotError) and error.is_logged:
        return
    with suppress(Exception):
        structlog.get_logger("ingot").error(event, exc_info=error, **fields)


def _configure(level: int, renderers: list[Processor]) -> None:
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _add_context_fields,
            structlog.processors.add_log_level,
            _format_exception,
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(_BestEffortStream(sys.stderr)),  # type: ignore[arg-type]
    )


def _text_processors(*, is_terminal: bool) -> list[Processor]:
    time = structlog.processors.TimeStamper(fmt="%H:%M:%S" if is_terminal else "iso", utc=not is_terminal)
    return [time, _flatten_exception, TextRenderer(colors=is_terminal and _uses_colors()), _redact]


def _uses_colors() -> bool:
    """Return whether the terminal supports colors, and the user has not turned them off with `NO_COLOR`."""
    from rich.console import Console  # noqa: PLC0415 - slow to import, and only needed on a terminal

    console = Console(stderr=True)
    return console.color_system is not None and not console.no_color


def _json_processors() -> list[Processor]:
    time = structlog.processors.TimeStamper(fmt="iso", utc=True)
    return [time, _drop_text, structlog.processors.EventRenamer("message"), _encode_json, _redact]


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


# -- exceptions -------------------------------------------------------------------------------------------------------


def first_line(message: str) -> str:
    """Return the first line of an error message. In further lines, databases quote values of the row."""
    return message.split("\n", 1)[0][:MESSAGE_CHARS_MAX]


def _whole_traceback(error: BaseException) -> TracebackType | None:
    return error.__traceback__


def format_stack(
    error: BaseException, traceback_of: Callable[[BaseException], TracebackType | None] = _whole_traceback
) -> str:
    """Return the stacks of an exception and its causes, the first cause first, without values of local variables.

    `traceback_of` selects the frames of each. If the text is long, its middle is left out.
    """
    text = "".join(_stack_parts(error, traceback_of))
    half = (STACK_CHARS_MAX - len(OMISSION)) // 2
    return text if len(text) <= STACK_CHARS_MAX else f"{text[:half]}{OMISSION}{text[-half:]}"


def _stack_parts(error: BaseException, traceback_of: Callable[[BaseException], TracebackType | None]) -> Iterator[str]:
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    causes = [cause] if cause is not None else []
    if isinstance(error, BaseExceptionGroup):
        causes += error.exceptions
    for one in causes:
        yield from _stack_parts(one, traceback_of)
        yield "which led to:\n"
    yield from traceback.format_tb(traceback_of(error))
    yield f"{_exception_type(error)}: {first_line(str(error))}\n"


def _exception_type(error: BaseException) -> str:
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


# -- processors of log events -----------------------------------------------------------------------------------------


def _add_context_fields(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:  # noqa: ARG001 - as structlog calls it
    for field, value in (context_fields.get() or {}).items():
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
            "message": first_line(str(error)),
            "stack": format_stack(error),
        }
    return event


def _flatten_exception(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:  # noqa: ARG001 - as structlog calls it
    if "exception" in event:
        event["exception"] = event["exception"]["stack"].rstrip()
    return event


def _drop_text(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:  # noqa: ARG001 - as structlog calls it
    """Drop the sentence for people, which repeats the fields."""
    event.pop("text", None)
    return event


def _encode_json(logger: WrappedLogger, name: str, event: EventDict) -> str:  # noqa: ARG001 - as structlog calls it
    return _encode(event).decode()


def _redact(logger: WrappedLogger, name: str, line: Any) -> str:  # noqa: ARG001 - as structlog calls it
    return redact(line)
