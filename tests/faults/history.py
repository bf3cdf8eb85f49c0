"""The calls of a store and their results, recorded outside the store.

A line is written before a call (`invoke`) and after its result (`ok`, `fail`, `info`). A call without a result, or with
`info`, is indeterminate: it may or may not have happened, and a checker accepts both.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

Line = tuple[str, str, Any]  # The kind of the line, the number of the call, and its content.


class Call(msgspec.Struct, kw_only=True):
    """One call. `invoked` and `answered` are positions in the history, so that they compare as real time does."""

    number: str
    verb: str
    arguments: dict[str, Any]
    invoked: int
    answered: int | None = None
    answer: Any = None
    error: str | None = None

    @property
    def acked(self) -> bool:
        """Whether the call returned without an error."""
        return self.answered is not None and self.error is None

    @property
    def refused(self) -> bool:
        """Whether the call returned an error that promises that nothing changed."""
        return self.answered is not None and self.error is not None

    @property
    def before(self) -> float:
        """The position before which the call happened. An indeterminate call may happen at any time."""
        return float("inf") if self.answered is None else self.answered


class Recorder(ABC):
    """Numbers calls and writes their lines. Numbers begin with `prefix`, so that they are unique across runs."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._calls = 0

    def number(self) -> str:
        """Return a number that no other call has."""
        self._calls += 1
        return f"{self._prefix}.{self._calls}"

    @abstractmethod
    def write(self, lines: Iterable[Line]) -> None:
        """Store lines."""

    def invoke(self, number: str, verb: str, arguments: dict[str, Any]) -> None:
        """Record that a call begins."""
        self.write([("invoke", number, [verb, arguments])])

    def ok(self, number: str, answer: Any) -> None:
        """Record the result of a call."""
        self.write([("ok", number, answer)])

    def fail(self, number: str, code: str) -> None:
        """Record an error that promises that nothing changed."""
        self.write([("fail", number, code)])

    def info(self, number: str, code: str) -> None:
        """Record that the outcome of a call is unknown."""
        self.write([("info", number, code)])

    def note(self, key: str, value: Any) -> None:
        """Record a fact that is not a call."""
        self.write([("note", key, value)])


class FileRecorder(Recorder):
    """Appends to a file with one system call per write, so that lines survive a kill of this process."""

    def __init__(self, prefix: str, path: Path) -> None:
        super().__init__(prefix)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(self._file, b"\n")  # Ends a line that a kill has truncated.

    def write(self, lines: Iterable[Line]) -> None:
        os.write(self._file, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


class ListRecorder(Recorder):
    """Stores the lines in memory, for tests in which the disk fails and not the process."""

    def __init__(self, prefix: str, lines: list[Line]) -> None:
        super().__init__(prefix)
        self.lines = lines

    def write(self, lines: Iterable[Line]) -> None:
        self.lines.extend(lines)


class History:
    """All calls so far, in the order in which they began."""

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}
        self.notes: list[tuple[str, Any]] = []
        self._lines = 0

    @property
    def acked(self) -> int:
        """The number of calls that returned without an error."""
        return sum(call.acked for call in self.calls.values())

    def add(self, lines: Iterable[Line]) -> None:
        """Add lines."""
        for kind, number, content in lines:
            self._lines += 1
            if kind == "note":
                self.notes.append((number, content))
            elif kind == "invoke":
                self.calls[number] = Call(number=number, verb=content[0], arguments=content[1], invoked=self._lines)
            elif kind == "ok":
                self.calls[number].answered, self.calls[number].answer = self._lines, content
            elif kind == "fail":
                self.calls[number].answered, self.calls[number].error = self._lines, content
            else:
                assert kind == "info", f"unknown kind of line: {kind}"

    def of(self, *verbs: str) -> list[Call]:
        """Return the calls of these operations, in the order in which they began."""
        return [call for call in self.calls.values() if call.verb in verbs]


class HistoryFile:
    """Reads a file that a `FileRecorder` appends to, and continues where it stopped before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.history = History()

    def read_new_lines(self) -> History:
        """Return all calls up to now. A line that a kill truncated is ignored: its process did nothing afterwards."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._offset += len(whole)
            for line in whole.splitlines():
                with suppress(msgspec.DecodeError):
                    self.history.add([msgspec.json.decode(line, type=Line)])
        return self.history
