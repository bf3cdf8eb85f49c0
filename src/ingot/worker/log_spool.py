"""All that an attempt writes, kept on the worker's disk when it is much: the server keeps the end of it."""

from __future__ import annotations

import tempfile
from threading import Lock
from typing import IO, Final

from ingot.jobs.attempt_logs import LOG_TAIL_CHARS_MAX

HEAD_BYTES_MAX: Final = 32 * 1024 * 1024
TAIL_BYTES_MAX: Final = 32 * 1024 * 1024
UTF8_CONTINUATION_BYTES: Final = range(0x80, 0xC0)  # Bytes of UTF-8 that begin no character.


class LogSpool:
    """What was written, from any thread. Of more than both limits together the middle is left out, and that is said.

    What the server keeps anyway stays in memory. A disk that is full costs the log, and nothing else.
    """

    def __init__(self, *, head: int = HEAD_BYTES_MAX, tail: int = TAIL_BYTES_MAX) -> None:
        self._head_bytes_max, self._tail_bytes_max = head, tail
        self._lock = Lock()
        self._parts: list[str] = []
        self._total_chars = 0
        self._file: IO[bytes] | None = None  # The head, and behind it the tail, which goes round.
        self._total_bytes = 0
        self._is_discarded = False

    @property
    def is_long(self) -> bool:
        """Whether it is more than the server keeps."""
        return self._total_chars > LOG_TAIL_CHARS_MAX

    def write(self, text: str) -> None:
        """Keep what is written."""
        with self._lock:
            self._total_chars += len(text)
            if self._is_discarded:
                return
            if not self.is_long:
                self._parts.append(text)
                return
            try:
                self._append("".join([*self._parts, text]).encode())
            except OSError:
                self._discard()
            self._parts = []

    def open(self) -> IO[bytes] | None:
        """All of it, as a file, when it is long; `None` where it could not be kept. Nothing is written afterwards."""
        with self._lock:
            if not self.is_long or self._file is None or self._is_discarded:
                return None
            try:
                whole = self._assemble()
                whole.seek(0)
                return whole
            except OSError:
                self._discard()
                return None

    def close(self) -> None:
        """Forget it."""
        with self._lock:
            self._discard()

    def _discard(self) -> None:
        self._is_discarded, self._parts = True, []
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, data: bytes) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="ingot-log-", buffering=0)  # noqa: SIM115 - closed by `close`
        head, rest = (
            data[: max(0, self._head_bytes_max - self._total_bytes)],
            data[max(0, self._head_bytes_max - self._total_bytes) :],
        )
        if head:
            self._write_at(self._total_bytes, head)
        before = max(0, self._total_bytes - self._head_bytes_max)  # Of the tail.
        self._total_bytes += len(data)
        if len(rest) > self._tail_bytes_max:
            before += len(rest) - self._tail_bytes_max
            rest = rest[-self._tail_bytes_max :]
        while rest:
            place = before % self._tail_bytes_max
            some = rest[: self._tail_bytes_max - place]
            self._write_at(self._head_bytes_max + place, some)
            before, rest = before + len(some), rest[len(some) :]

    def _write_at(self, place: int, data: bytes) -> None:
        assert self._file is not None
        self._file.seek(place)
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def _assemble(self) -> IO[bytes]:
        assert self._file is not None
        left_out = self._total_bytes - self._head_bytes_max - self._tail_bytes_max
        if left_out <= 0:
            return self._file
        head = self._read_at(0, self._head_bytes_max)
        end = len(head)
        while end > 0 and head[end - 1] in UTF8_CONTINUATION_BYTES:  # Of the last character there may be a part.
            end -= 1
        if end > 0 and head[end - 1] >= 0xC0:
            end -= 1
        turn = (self._total_bytes - self._head_bytes_max) % self._tail_bytes_max
        tail = self._read_at(self._head_bytes_max + turn, self._tail_bytes_max - turn) + self._read_at(
            self._head_bytes_max, turn
        )
        begin = next((at for at, byte in enumerate(tail[:4]) if byte not in UTF8_CONTINUATION_BYTES), 0)
        whole = tempfile.TemporaryFile(prefix="ingot-log-")  # noqa: SIM115 - closed by `close`
        whole.write(head[:end])
        whole.write(f"\n[{left_out + len(head) - end + begin} bytes are left out here]\n".encode())
        whole.write(tail[begin:])
        whole.flush()
        self._file.close()
        self._file = whole
        return whole

    def _read_at(self, place: int, size: int) -> bytes:
        assert self._file is not None
        self._file.seek(place)
        parts = []
        while size > 0 and (data := self._file.read(size)):
            parts.append(data)
            size -= len(data)
        return b"".join(parts)
