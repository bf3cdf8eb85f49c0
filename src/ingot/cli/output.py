"""Write the output of commands: data to stdout, as tables or JSON, and messages to stderr."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from io import StringIO
from typing import Any, Final, NoReturn, TypeVar

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ingot.kernel.clock import SystemClock, to_datetime
from ingot.kernel.log_text import UNPRINTABLE_CHARS

EXIT_BROKEN_PIPE: Final = 141  # The exit code that shells report for a program killed by SIGPIPE.
COLUMN_CHARS_MIN: Final = 8  # Minimum width of a truncated column.
COLUMN_GAP: Final = 2
PIPE_CHARS_MAX: Final = 10_000  # Width of tables without a terminal, where nothing should be truncated.
STYLES: Final = {
    "running": "cyan",
    "succeeded": "green",
    "dead": "red",
    "canceled": "yellow",
    "online": "green",
    "draining": "yellow",
    "offline": "red",
    "disabled": "red",
    "ok": "green",
    "warning": "yellow",
    "failed": "red",
}
SIZE_UNITS: Final = ("KiB", "MiB", "GiB", "TiB")
TIME_UNITS: Final = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
_UNPRINTABLE: Final = re.compile(f"[{UNPRINTABLE_CHARS}\x1b]")
_encode = msgspec.json.Encoder().encode
T = TypeVar("T")


class Column(msgspec.Struct, frozen=True):
    """A column of a table.

    If the terminal is too narrow for the table, `optional` columns are left out, and columns without `never_truncate`
    are truncated.
    """

    name: str
    never_truncate: bool = False
    align_right: bool = False
    optional: bool = False


class Output:
    """The output of a command, as JSON if `json` is set."""

    def __init__(self, *, json: bool) -> None:
        self.json = json

    # -- data -----------------------------------------------------------------------------------------------

    def json_document(self, value: object) -> None:
        """Write one value as JSON, indented if stdout is a terminal."""
        _write_stdout(_encode_json(value, indent=2 if sys.stdout.isatty() else -1) + b"\n")

    def json_line(self, value: object) -> None:
        """Write one value as a line of JSON."""
        _write_stdout(_encode_json(value) + b"\n")

    def json_array(self, items: Iterable[object]) -> None:
        """Write items as one JSON array, each as soon as it is available."""
        separator = b"["
        for item in items:
            _write_stdout(separator + _encode_json(item))
            separator = b",\n "
        _write_stdout(b"[]\n" if separator == b"[" else b"]\n")

    def list(self, items: Iterable[T], columns: Sequence[Column], row: Callable[[T], Sequence[object]]) -> None:
        """Write items as JSON, or as a table with one row per item."""
        if self.json:
            self.json_array(items)
        else:
            self.table(columns, map(row, items))

    def details(self, value: object, facts: Iterable[tuple[str, object]]) -> None:
        """Write one value as JSON, or its facts, one per line."""
        if self.json:
            self.json_document(value)
        else:
            self.fields(facts)

    def result(self, value: object, text: str) -> None:
        """Write one value as JSON, or as a line of text."""
        if self.json:
            self.json_document(value)
        else:
            self.text(f"{text}\n")

    def outcome(self, value: object, message: str) -> None:
        """Write one value as JSON to stdout, or a message to stderr."""
        if self.json:
            self.json_document(value)
        else:
            self.message(message)

    def item(self, value: object, text: str) -> None:
        """Write one of many values as a line of JSON, or as text."""
        if self.json:
            self.json_line(value)
        else:
            self.text(text)

    def text(self, text: str) -> None:
        """Write text unchanged, or without control characters if stdout is a terminal."""
        _write_stdout((printable(text) if sys.stdout.isatty() else text).encode(errors="replace"))

    def bytes(self, data: bytes) -> None:
        """Write bytes unchanged."""
        _write_stdout(data)

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> None:
        """Write a table."""
        cells = [[_cell(value) for value in row] for row in rows]
        widths = [
            max(len(column.name), *(row[index].cell_len for row in cells), 0) for index, column in enumerate(columns)
        ]
        all_fit = sum(widths) + COLUMN_GAP * len(widths) <= _console().width
        shown = [index for index, column in enumerate(columns) if all_fit or not column.optional]
        table = Table(box=None, padding=(0, COLUMN_GAP, 0, 0), header_style="bold", show_edge=False)
        for index in shown:
            column, width = columns[index], widths[index]
            table.add_column(
                Text(column.name),
                no_wrap=True,
                overflow="ignore" if column.never_truncate else "ellipsis",
                min_width=width if column.never_truncate else min(width, COLUMN_CHARS_MIN),
                justify="right" if column.align_right else "left",
            )
        for row in cells:
            table.add_row(*(row[index] for index in shown))
        self._print(table)

    def fields(self, facts: Iterable[tuple[str, object]]) -> None:
        """Write names and values, one pair per line. Values that are `None` are left out."""
        table = Table(box=None, padding=(0, COLUMN_GAP, 0, 0), show_header=False, show_edge=False)
        table.add_column(no_wrap=True, style="bold")
        table.add_column(overflow="fold")
        for name, value in facts:
            if value is not None:
                table.add_row(name, _cell(value))
        self._print(table)

    def check(self, state: str, name: str, detail: str, hint: str | None) -> None:
        """Write the result of a check and its hint."""
        line = Text.assemble((f"{state:<8}", STYLES.get(state, "")), f"{printable(name)}: {printable(detail)}")
        if hint is not None:
            line.append(f"\n{'':<8}{printable(hint)}", style="dim")
        self._print(line)

    def redraw(self, title: str, columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> None:
        """Write a table that replaces the previous one on a terminal, and follows it elsewhere."""
        if sys.stdout.isatty():
            _write_stdout(b"\x1b[H\x1b[2J")
        self.text(f"{title}\n")
        self.table(columns, rows)

    def _print(self, table: Table | Text) -> None:
        console = _console()
        console.print(table, soft_wrap=isinstance(table, Text))
        assert isinstance(console.file, StringIO)
        lines = console.file.getvalue().splitlines()
        _write_stdout("".join(f"{line.rstrip()}\n" for line in lines).encode(errors="replace"))

    # -- messages -------------------------------------------------------------------------------------------

    def message(self, text: str) -> None:
        """Write a message to stderr."""
        print_message(text)


def print_message(text: str) -> None:
    """Write a message to stderr."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(printable(text), markup=False)


def printable(text: str) -> str:
    """Replace characters that must not be written to a terminal."""
    return _UNPRINTABLE.sub("�", text)


def current_time() -> datetime:
    """Return the time of this machine."""
    return to_datetime(SystemClock().micros())


def relative_time(moment: datetime | None) -> str:
    """Format a time relative to now in one unit, such as `5 min ago` or `in 2 h`."""
    if moment is None:
        return ""
    seconds = (current_time() - moment).total_seconds()
    for size, unit in TIME_UNITS:
        if abs(seconds) >= size:
            duration = f"{abs(seconds) / size:.0f} {unit}"
            return f"{duration} ago" if seconds > 0 else f"in {duration}"
    return "now"


def full_time(moment: datetime | None) -> str | None:
    """Format a time as ISO 8601, followed by the relative time."""
    return (
        None
        if moment is None
        else f"{moment.isoformat(timespec='seconds').replace('+00:00', 'Z')} ({relative_time(moment)})"
    )


def format_size(size: int) -> str:
    """Format a number of bytes with a binary unit, such as `1.5 MiB`."""
    if size < 1024:
        return f"{size} B"
    power = next((n for n in range(1, len(SIZE_UNITS)) if size < 999.5 * 1024**n), len(SIZE_UNITS))
    value = size / 1024**power
    return f"{value:.{1 if value < 99.95 else 0}f} {SIZE_UNITS[power - 1]}"


def pretty_json(raw: msgspec.Raw) -> str | None:
    """Indent JSON. Return `None` for `null`."""
    text = bytes(raw)
    return None if text == b"null" else msgspec.json.format(text, indent=2).decode()


def _encode_json(value: object, *, indent: int = -1) -> bytes:
    """Encode a value as JSON. Reformatting removes line breaks inside raw payloads, so that one line stays one line."""
    text = msgspec.json.format(_encode(value), indent=indent)
    if not sys.stdout.isatty():
        return text
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text.decode()).encode()


def _cell(value: object) -> Text:
    text = printable(_cell_text(value))
    return Text(text, style=STYLES.get(text, ""))


def _cell_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return relative_time(value)
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return str(value)


def _console() -> Console:
    """Create a console that renders tables, as wide as the terminal, or wide enough for everything without one."""
    is_terminal = sys.stdout.isatty()
    width = None if is_terminal else PIPE_CHARS_MAX
    return Console(file=StringIO(), force_terminal=is_terminal, highlight=False, width=width)


def _write_stdout(content: bytes) -> None:
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        _exit_silently(EXIT_BROKEN_PIPE)
    except OSError as error:
        print_message(f"ingot: the output cannot be written: {error.strerror}")
        _exit_silently(1)


def _exit_silently(code: int) -> NoReturn:
    """Exit without a message. Output that Python flushes at exit goes to the null device."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, sys.stdout.fileno())
    sys.exit(code)
