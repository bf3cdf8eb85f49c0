"""What was asked of a store and what it answered, kept outside the store.

A line is written before a call (`invoke`) and after its answer (`ok`, `fail`, `info`). A call without an answer, or
with `info`, is indeterminate: it may or may not have happened, and a checker accepts both.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

Line = tuple[str, str, Any]  # what it is, the number of the call, what was said


class Call(msgspec.Struct, kw_only=True):
    """One call. `invoked` and `answered` are places in the history, so that they compare as real time does."""

    number: str
    verb: str
    asked: dict[str, Any]
    invoked: int
    answered: int | None = None
    answer: Any = None
    error: str | None = None

    @property
    def acked(self) -> bool:
        """It was answered, and not with an error."""
        return self.answered is not None and self.error is None

    @property
    def refused(self) -> bool:
        """It was answered with an error that promises that nothing changed."""
        return self.answered is not None and self.error is not None

    @property
    def before(self) -> float:
        """The place by which it had happened; an indeterminate call may happen at any time."""
        return float("inf") if self.answered is None else self.answered


class Recorder(ABC):
    """Numbers calls and hands their lines on. Numbers begin with `prefix`, so that runs never share one."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._calls = 0

    def number(self) -> str:
        """A number no other call has."""
        self._calls += 1
        return f"{self._prefix}.{self._calls}"

    @abstractmethod
    def write(self, lines: Iterable[Line]) -> None:
        """Keep these lines."""

    def invoke(self, number: str, verb: str, asked: dict[str, Any]) -> None:
        """A call is about to be made."""
        self.write([("invoke", number, [verb, asked])])

    def ok(self, number: str, answer: Any) -> None:
        """It was answered."""
        self.write([("ok", number, answer)])

    def fail(self, number: str, code: str) -> None:
        """It was answered with an error: nothing changed."""
        self.write([("fail", number, code)])

    def info(self, number: str, code: str) -> None:
        """Nobody knows whether it happened."""
        self.write([("info", number, code)])

    def note(self, key: str, value: Any) -> None:
        """Something that is no call."""
        self.write([("note", key, value)])


class FileRecorder(Recorder):
    """Appends to a file, each line in one system call: a kill of this process cannot take back what was written."""

    def __init__(self, prefix: str, path: Path) -> None:
        super().__init__(prefix)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(self._file, b"\n")  # Ends a line that a kill cut off.

    def write(self, lines: Iterable[Line]) -> None:
        os.write(self._file, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


class ListRecorder(Recorder):
    """Keeps the lines in memory, for stores whose disk, not whose process, is made to fail."""

    def __init__(self, prefix: str, lines: list[Line]) -> None:
        super().__init__(prefix)
        self.lines = lines

    def write(self, lines: Iterable[Line]) -> None:
        self.lines.extend(lines)


class History:
    """All calls so far, in the order in which they were made."""

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}
        self.notes: list[tuple[str, Any]] = []
        self._lines = 0

    @property
    def acked(self) -> int:
        """How many calls were answered without an error."""
        return sum(call.acked for call in self.calls.values())

    def add(self, lines: Iterable[Line]) -> None:
        """Read on."""
        for what, number, said in lines:
            self._lines += 1
            if what == "note":
                self.notes.append((number, said))
            elif what == "invoke":
                self.calls[number] = Call(number=number, verb=said[0], asked=said[1], invoked=self._lines)
            elif what == "ok":
                self.calls[number].answered, self.calls[number].answer = self._lines, said
            elif what == "fail":
                self.calls[number].answered, self.calls[number].error = self._lines, said
            else:
                assert what == "info", f"there is no line {what}"

    def of(self, *verbs: str) -> list[Call]:
        """The calls of these kinds, in the order in which they were made."""
        return [call for call in self.calls.values() if call.verb in verbs]


class HistoryFile:
    """Reads a file that a `FileRecorder` appends to, from where it stopped before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.history = History()

    def read_on(self) -> History:
        """All calls up to now. A line that a kill cut off does not count: nobody went on after it."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read += len(whole)
            for line in whole.splitlines():
                with suppress(msgspec.DecodeError):
                    self.history.add([msgspec.json.decode(line, type=Line)])
        return self.history
