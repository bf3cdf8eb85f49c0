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

EXIT_GONE: Final = 141  # As of a program that the signal of a broken pipe ends.
WIDTH_MIN: Final = 8  # What is left of a column, at least.
GAP: Final = 2
WIDTH_MAX: Final = 10_000  # Where nobody looks nothing is cut.
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
SIZES: Final = ("KiB", "MiB", "GiB", "TiB")
SPANS: Final = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
# What moves the cursor, and what turns the direction of writing: others wrote it, and it must not write over ours.
_UNSHOWN: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_encode = msgspec.json.Encoder().encode
T = TypeVar("T")


class Column(msgspec.Struct, frozen=True):
    """A column of a table.

    One that is `whole` is never cut, however narrow the terminal; one that is `spare` is left out where there is not
    enough room for all.
    """

    name: str
    whole: bool = False
    right: bool = False
    spare: bool = False


class Output:
    """Where a command writes to."""

    def __init__(self, *, json: bool) -> None:
        self.json = json

    # -- data -----------------------------------------------------------------------------------------------

    def document(self, value: object) -> None:
        """Write one value as JSON, in lines for who reads it."""
        _write(_json(value, indent=2 if sys.stdout.isatty() else -1) + b"\n")

    def line(self, value: object) -> None:
        """Write one value as a line of JSON."""
        _write(_json(value) + b"\n")

    def array(self, items: Iterable[object]) -> None:
        """Write all of them as one JSON document, as they come."""
        before = b"["
        for item in items:
            _write(before + _json(item))
            before = b",\n "
        _write(b"[]\n" if before == b"[" else b"]\n")

    def list(self, items: Iterable[T], columns: Sequence[Column], row: Callable[[T], Sequence[object]]) -> None:
        """Write all of them as JSON, or as a table with a row for each."""
        if self.json:
            self.array(items)
        else:
            self.table(columns, map(row, items))

    def details(self, value: object, facts: Iterable[tuple[str, object]]) -> None:
        """Write one value as JSON, or as facts."""
        if self.json:
            self.document(value)
        else:
            self.facts(facts)

    def result(self, value: object, text: str) -> None:
        """Write one value as JSON, or as a line of text."""
        if self.json:
            self.document(value)
        else:
            self.text(f"{text}\n")

    def outcome(self, value: object, sentence: str) -> None:
        """Write one value as JSON, or say what was done."""
        if self.json:
            self.document(value)
        else:
            self.say(sentence)

    def item(self, value: object, text: str) -> None:
        """Write one of many values as a line of JSON, or as this text."""
        if self.json:
            self.line(value)
        else:
            self.text(text)

    def text(self, text: str) -> None:
        """Write text as it is; on a terminal without what could write over it."""
        _write((shown(text) if sys.stdout.isatty() else text).encode(errors="replace"))

    def bytes(self, data: bytes) -> None:
        """Write bytes as they are."""
        _write(data)

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> None:
        """Write a table."""
        cells = [[_cell(value) for value in row] for row in rows]
        widths = [
            max(len(column.name), *(row[place].cell_len for row in cells), 0) for place, column in enumerate(columns)
        ]
        wide = sum(widths) + GAP * len(widths) <= _console().width
        kept = [place for place, column in enumerate(columns) if wide or not column.spare]
        table = Table(box=None, padding=(0, GAP, 0, 0), header_style="bold", show_edge=False)
        for place in kept:
            column, width = columns[place], widths[place]
            table.add_column(
                Text(column.name),
                no_wrap=True,
                overflow="ignore" if column.whole else "ellipsis",
                min_width=width if column.whole else min(width, WIDTH_MIN),
                justify="right" if column.right else "left",
            )
        for row in cells:
            table.add_row(*(row[place] for place in kept))
        self._print(table)

    def facts(self, facts: Iterable[tuple[str, object]]) -> None:
        """Write names and values, one to a line; what is `None` is left out."""
        table = Table(box=None, padding=(0, GAP, 0, 0), show_header=False, show_edge=False)
        table.add_column(no_wrap=True, style="bold")
        table.add_column(overflow="fold")
        for name, value in facts:
            if value is not None:
                table.add_row(name, _cell(value))
        self._print(table)

    def told(self, state: str, name: str, detail: str, hint: str | None) -> None:
        """Write how a check came out, and what to do."""
        line = Text.assemble((f"{state:<8}", STYLES.get(state, "")), f"{shown(name)}: {shown(detail)}")
        if hint is not None:
            line.append(f"\n{'':<8}{shown(hint)}", style="dim")
        self._print(line)

    def refresh(self, title: str, columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> None:
        """Write a table over the last one on a terminal, and below it elsewhere."""
        if sys.stdout.isatty():
            _write(b"\x1b[H\x1b[2J")
        self.text(f"{title}\n")
        self.table(columns, rows)

    def _print(self, table: Table | Text) -> None:
        console = _console()
        console.print(table, soft_wrap=isinstance(table, Text))
        assert isinstance(console.file, StringIO)
        lines = console.file.getvalue().splitlines()
        _write("".join(f"{line.rstrip()}\n" for line in lines).encode(errors="replace"))

    # -- sentences ------------------------------------------------------------------------------------------

    def say(self, sentence: str) -> None:
        """Tell who sits in front of it."""
        say(sentence)


def say(sentence: str) -> None:
    """Write a sentence to stderr."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(shown(sentence), markup=False)


def shown(text: str) -> str:
    """A text as it may be written to a terminal."""
    return _UNSHOWN.sub("�", text)


def now() -> datetime:
    """The time on this machine."""
    return to_datetime(SystemClock().micros())


def ago(moment: datetime | None) -> str:
    """How long ago something was, or how long it is until then, in one unit."""
    if moment is None:
        return ""
    seconds = (now() - moment).total_seconds()
    for size, unit in SPANS:
        if abs(seconds) >= size:
            span = f"{abs(seconds) / size:.0f} {unit}"
            return f"{span} ago" if seconds > 0 else f"in {span}"
    return "now"


def at(moment: datetime | None) -> str | None:
    """An instant in full, and how long ago that was."""
    return None if moment is None else f"{moment.isoformat(timespec='seconds').replace('+00:00', 'Z')} ({ago(moment)})"


def sized(size: int) -> str:
    """So many bytes, in a unit that people grasp."""
    if size < 1024:
        return f"{size} B"
    power = next((n for n in range(1, len(SIZES)) if size < 999.5 * 1024**n), len(SIZES))
    value = size / 1024**power
    return f"{value:.{1 if value < 99.95 else 0}f} {SIZES[power - 1]}"


def compact(raw: msgspec.Raw) -> str | None:
    """JSON in lines that people read; `None` for null."""
    text = bytes(raw)
    return None if text == b"null" else msgspec.json.format(text, indent=2).decode()


def _json(value: object, *, indent: int = -1) -> bytes:
    """JSON in one line, or in several: payloads stand in it as others wrote them, with ends of lines too."""
    text = msgspec.json.format(_encode(value), indent=indent)
    if not sys.stdout.isatty():
        return text
    return _UNSHOWN.sub(lambda found: f"\\u{ord(found[0]):04x}", text.decode()).encode()


def _cell(value: object) -> Text:
    text = shown(_words(value))
    return Text(text, style=STYLES.get(text, ""))


def _words(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return ago(value)
    if isinstance(value, list | tuple):
        return ", ".join(str(part) for part in value)
    return str(value)


def _console() -> Console:
    """What tables are drawn by: as wide as the terminal, or as wide as it takes."""
    seen = sys.stdout.isatty()
    return Console(file=StringIO(), force_terminal=seen, highlight=False, width=None if seen else WIDTH_MAX)


def _write(content: bytes) -> None:
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        _leave(EXIT_GONE)
    except OSError as error:
        say(f"ingot: the output cannot be written: {error.strerror}")
        _leave(1)


def _leave(code: int) -> NoReturn:
    """End without another word. What is left to be written at the end goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    sys.exit(code)
