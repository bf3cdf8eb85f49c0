"""The whole log of an attempt, kept on the worker's disk if it is long. The server itself keeps only the end."""

from __future__ import annotations

import tempfile
from threading import Lock
from typing import IO, Final

from ingot.jobs.attempt_logs import LOG_TAIL_CHARS_MAX

HEAD_BYTES_MAX: Final = 32 * 1024 * 1024
TAIL_BYTES_MAX: Final = 32 * 1024 * 1024
UTF8_CONTINUATION_BYTES: Final = range(0x80, 0xC0)


class LogSpool:
    """Collects the log of an attempt. Thread-safe.

    The first `head` and the last `tail` bytes are kept, and a note replaces what is omitted between them. A log that
    the server keeps whole anyway stays in memory. If the disk is full, the log is discarded without an error.
    """

    def __init__(self, *, head: int = HEAD_BYTES_MAX, tail: int = TAIL_BYTES_MAX) -> None:
        self._head_bytes_max, self._tail_bytes_max = head, tail
        self._lock = Lock()
        self._parts: list[str] = []
        self._total_chars = 0
        self._file: IO[bytes] | None = None  # The head, followed by the tail as a ring buffer.
        self._total_bytes = 0
        self._is_discarded = False

    @property
    def is_long(self) -> bool:
        """Whether the log is longer than what the server keeps."""
        return self._total_chars > LOG_TAIL_CHARS_MAX

    def write(self, text: str) -> None:
        """Append text."""
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
        """Return a long log as a file, or `None` if it is not long or was discarded. Do not write afterwards."""
        with self._lock:
            if not self.is_long or self._file is None or self._is_discarded:
                return None
            try:
                complete_log = self._assemble()
                complete_log.seek(0)
                return complete_log
            except OSError:
                self._discard()
                return None

    def close(self) -> None:
        """Discard the log."""
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
        head, tail = (
            data[: max(0, self._head_bytes_max - self._total_bytes)],
            data[max(0, self._head_bytes_max - self._total_bytes) :],
        )
        if head:
            self._write_at(self._total_bytes, head)
        tail_position = max(0, self._total_bytes - self._head_bytes_max)
        self._total_bytes += len(data)
        if len(tail) > self._tail_bytes_max:
            tail_position += len(tail) - self._tail_bytes_max
            tail = tail[-self._tail_bytes_max :]
        while tail:
            offset = tail_position % self._tail_bytes_max
            chunk = tail[: self._tail_bytes_max - offset]
            self._write_at(self._head_bytes_max + offset, chunk)
            tail_position, tail = tail_position + len(chunk), tail[len(chunk) :]

    def _write_at(self, offset: int, data: bytes) -> None:
        assert self._file is not None
        self._file.seek(offset)
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def _assemble(self) -> IO[bytes]:
        assert self._file is not None
        omitted_bytes = self._total_bytes - self._head_bytes_max - self._tail_bytes_max
        if omitted_bytes <= 0:
            return self._file
        head = self._read_at(0, self._head_bytes_max)
        end = len(head)
        while end > 0 and head[end - 1] in UTF8_CONTINUATION_BYTES:  # The last character may be incomplete.
            end -= 1
        if end > 0 and head[end - 1] >= 0xC0:
            end -= 1
        tail_start = (self._total_bytes - self._head_bytes_max) % self._tail_bytes_max
        tail = self._read_at(self._head_bytes_max + tail_start, self._tail_bytes_max - tail_start) + self._read_at(
            self._head_bytes_max, tail_start
        )
        begin = next((index for index, byte in enumerate(tail[:4]) if byte not in UTF8_CONTINUATION_BYTES), 0)
        complete_log = tempfile.TemporaryFile(prefix="ingot-log-")  # noqa: SIM115 - closed by `close`
        complete_log.write(head[:end])
        complete_log.write(f"\n[{omitted_bytes + len(head) - end + begin} bytes omitted]\n".encode())
        complete_log.write(tail[begin:])
        complete_log.flush()
        self._file.close()
        self._file = complete_log
        return complete_log

    def _read_at(self, offset: int, size: int) -> bytes:
        assert self._file is not None
        self._file.seek(offset)
        parts = []
        while size > 0 and (data := self._file.read(size)):
            parts.append(data)
            size -= len(data)
        return b"".join(parts)
