"""Log events as text for people: one line with the time, the level, the message and its fields."""

from __future__ import annotations

import re
from typing import Final

from structlog.typing import EventDict, WrappedLogger

MESSAGE_COLUMNS: Final = 40  # Shorter messages are padded, so that the fields of several lines are aligned.
LEVEL_COLUMNS: Final = 7
DETAIL_FIELDS: Final = ("traceback", "exception", "hint")  # Each is shown on lines of its own.
LEVEL_STYLES: Final = {"warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m", "debug": "\x1b[2m"}
DIM: Final = "\x1b[2m"
RESET: Final = "\x1b[0m"
# Text from others must not overwrite other lines or disguise them, on a terminal or in a log: control characters, marks
# and changes of the writing direction, and characters that end a line. This is a part of a regular expression.
UNPRINTABLE_CHARS: Final = "\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_UNPRINTABLE: Final = re.compile(f"\x1b(?!\\[[0-9;]*m)|[{UNPRINTABLE_CHARS}]")  # Color codes are kept.


class TextRenderer:
    """Renders log events as text.

    The field `text` is a sentence for people. It replaces the name of the event and all fields except those of the job,
    which begin with `job_`. Events without it show all fields.
    """

    def __init__(self, *, colors: bool) -> None:
        self._colors = colors

    def __call__(self, logger: WrappedLogger, name: str, event: EventDict) -> str:  # noqa: ARG002 - as structlog calls it
        """Return the lines of an event."""
        time, level, event_name = (str(event.pop(field, "")) for field in ("timestamp", "level", "event"))
        details = [_detail_text(field, str(event.pop(field))) for field in DETAIL_FIELDS if event.get(field)]
        text = event.pop("text", None)
        message, *more_lines = _printable(event_name if text is None else str(text)).split("\n")
        fields = _printable(_fields_text(event, only_job=text is not None))
        if fields:
            message = message.ljust(MESSAGE_COLUMNS)
        head = (self._style(time, DIM), self._style(level.ljust(LEVEL_COLUMNS), LEVEL_STYLES.get(level, "")))
        line = "  ".join((*head, message, *([self._style(fields, DIM)] if fields else [])))
        lines = [line.rstrip(), *more_lines, *(_printable("\n".join(details)).split("\n") if details else [])]
        rendered = "\n    ".join(lines)
        return rendered + RESET if "\x1b" in rendered else rendered

    def _style(self, text: str, style: str) -> str:
        return f"{style}{text}{RESET}" if self._colors and style else text


def _fields_text(fields: EventDict, *, only_job: bool) -> str:
    """Return the fields as text: the type and the ID of the job, then the others."""
    job_type, job_id = fields.pop("job_type", None), fields.pop("job_id", None)
    parts = [str(part) for part in (job_type, job_id) if part is not None] if job_type is not None else []
    if job_type is None and job_id is not None:
        parts = [f"job_id={job_id}"]
    if not only_job:
        parts += [f"{name}={_value_text(value)}" for name, value in fields.items() if value is not None]
    return " ".join(parts)


def _value_text(value: object) -> str:
    text = str(value)
    return repr(text) if not text or " " in text or "\n" in text else text


def _detail_text(field: str, value: str) -> str:
    return f"Hint: {value}" if field == "hint" else value.rstrip()


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub("\ufffd", text)
