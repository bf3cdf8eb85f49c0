"""What commands write: data to stdout, as tables for people or as JSON for programs, and sentences to stderr."""

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

EXIT_BROKEN_PIPE: Final = 141  # As of a program that the signal of a broken pipe ends.
COLUMN_CHARS_MIN: Final = 8  # What is left of a column, at least.
COLUMN_GAP: Final = 2
PIPE_CHARS_MAX: Final = 10_000  # Where nobody looks nothing is cut.
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
# What moves the cursor, and what turns the direction of writing: others wrote it, and it must not write over ours.
_UNPRINTABLE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_encode = msgspec.json.Encoder().encode
T = TypeVar("T")


class Column(msgspec.Struct, frozen=True):
    """A column of a table.

    One that is `whole` is never cut, however narrow the terminal; one that is `spare` is left out where there is not
    enough room for all.
    """

    name: str
    never_truncate: bool = False
    align_right: bool = False
    optional: bool = False


class Output:
    """Where a command writes to."""

    def __init__(self, *, json: bool) -> None:
        self.json = json

    # -- data -----------------------------------------------------------------------------------------------

    def json_document(self, value: object) -> None:
        """Write one value as JSON, in lines for who reads it."""
        _write_stdout(_encode_json(value, indent=2 if sys.stdout.isatty() else -1) + b"\n")

    def json_line(self, value: object) -> None:
        """Write one value as a line of JSON."""
        _write_stdout(_encode_json(value) + b"\n")

    def json_array(self, items: Iterable[object]) -> None:
        """Write all of them as one JSON document, as they come."""
        before = b"["
        for item in items:
            _write_stdout(before + _encode_json(item))
            before = b",\n "
        _write_stdout(b"[]\n" if before == b"[" else b"]\n")

    def list(self, items: Iterable[T], columns: Sequence[Column], row: Callable[[T], Sequence[object]]) -> None:
        """Write all of them as JSON, or as a table with a row for each."""
        if self.json:
            self.json_array(items)
        else:
            self.table(columns, map(row, items))

    def details(self, value: object, facts: Iterable[tuple[str, object]]) -> None:
        """Write one value as JSON, or as facts."""
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

    def outcome(self, value: object, sentence: str) -> None:
        """Write one value as JSON, or say what was done."""
        if self.json:
            self.json_document(value)
        else:
            self.message(sentence)

    def item(self, value: object, text: str) -> None:
        """Write one of many values as a line of JSON, or as this text."""
        if self.json:
            self.json_line(value)
        else:
            self.text(text)

    def text(self, text: str) -> None:
        """Write text as it is; on a terminal without what could write over it."""
        _write_stdout((printable(text) if sys.stdout.isatty() else text).encode(errors="replace"))

    def bytes(self, data: bytes) -> None:
        """Write bytes as they are."""
        _write_stdout(data)

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> None:
        """Write a table."""
        cells = [[_cell(value) for value in row] for row in rows]
        widths = [
            max(len(column.name), *(row[place].cell_len for row in cells), 0) for place, column in enumerate(columns)
        ]
        wide = sum(widths) + COLUMN_GAP * len(widths) <= _console().width
        kept = [place for place, column in enumerate(columns) if wide or not column.optional]
        table = Table(box=None, padding=(0, COLUMN_GAP, 0, 0), header_style="bold", show_edge=False)
        for place in kept:
            column, width = columns[place], widths[place]
            table.add_column(
                Text(column.name),
                no_wrap=True,
                overflow="ignore" if column.never_truncate else "ellipsis",
                min_width=width if column.never_truncate else min(width, COLUMN_CHARS_MIN),
                justify="right" if column.align_right else "left",
            )
        for row in cells:
            table.add_row(*(row[place] for place in kept))
        self._print(table)

    def fields(self, facts: Iterable[tuple[str, object]]) -> None:
        """Write names and values, one to a line; what is `None` is left out."""
        table = Table(box=None, padding=(0, COLUMN_GAP, 0, 0), show_header=False, show_edge=False)
        table.add_column(no_wrap=True, style="bold")
        table.add_column(overflow="fold")
        for name, value in facts:
            if value is not None:
                table.add_row(name, _cell(value))
        self._print(table)

    def check(self, state: str, name: str, detail: str, hint: str | None) -> None:
        """Write how a check came out, and what to do."""
        line = Text.assemble((f"{state:<8}", STYLES.get(state, "")), f"{printable(name)}: {printable(detail)}")
        if hint is not None:
            line.append(f"\n{'':<8}{printable(hint)}", style="dim")
        self._print(line)

    def redraw(self, title: str, columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> None:
        """Write a table over the last one on a terminal, and below it elsewhere."""
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

    # -- sentences ------------------------------------------------------------------------------------------

    def message(self, sentence: str) -> None:
        """Tell who sits in front of it."""
        print_message(sentence)


def print_message(sentence: str) -> None:
    """Write a sentence to stderr."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(printable(sentence), markup=False)


def printable(text: str) -> str:
    """A text as it may be written to a terminal."""
    return _UNPRINTABLE.sub("�", text)


def current_time() -> datetime:
    """The time on this machine."""
    return to_datetime(SystemClock().micros())


def relative_time(moment: datetime | None) -> str:
    """How long ago something was, or how long it is until then, in one unit."""
    if moment is None:
        return ""
    seconds = (current_time() - moment).total_seconds()
    for size, unit in TIME_UNITS:
        if abs(seconds) >= size:
            span = f"{abs(seconds) / size:.0f} {unit}"
            return f"{span} ago" if seconds > 0 else f"in {span}"
    return "now"


def full_time(moment: datetime | None) -> str | None:
    """An instant in full, and how long ago that was."""
    return (
        None
        if moment is None
        else f"{moment.isoformat(timespec='seconds').replace('+00:00', 'Z')} ({relative_time(moment)})"
    )


def format_size(size: int) -> str:
    """So many bytes, in a unit that people grasp."""
    if size < 1024:
        return f"{size} B"
    power = next((n for n in range(1, len(SIZE_UNITS)) if size < 999.5 * 1024**n), len(SIZE_UNITS))
    value = size / 1024**power
    return f"{value:.{1 if value < 99.95 else 0}f} {SIZE_UNITS[power - 1]}"


def pretty_json(raw: msgspec.Raw) -> str | None:
    """JSON in lines that people read; `None` for null."""
    text = bytes(raw)
    return None if text == b"null" else msgspec.json.format(text, indent=2).decode()


def _encode_json(value: object, *, indent: int = -1) -> bytes:
    """JSON in one line, or in several: payloads stand in it as others wrote them, with ends of lines too."""
    text = msgspec.json.format(_encode(value), indent=indent)
    if not sys.stdout.isatty():
        return text
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text.decode()).encode()


def _cell(value: object) -> Text:
    text = printable(_cell_text(value))
    return Text(text, style=STYLES.get(text, ""))


def _cell_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return relative_time(value)
    if isinstance(value, list | tuple):
        return ", ".join(str(part) for part in value)
    return str(value)


def _console() -> Console:
    """What tables are drawn by: as wide as the terminal, or as wide as it takes."""
    seen = sys.stdout.isatty()
    return Console(file=StringIO(), force_terminal=seen, highlight=False, width=None if seen else PIPE_CHARS_MAX)


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
    """End without another word. What is left to be written at the end goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    sys.exit(code)
