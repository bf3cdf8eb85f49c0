"""All that an attempt writes, kept on the worker's disk when it is much: the server keeps the end of it."""

from __future__ import annotations

import tempfile
from threading import Lock
from typing import IO, Final

from ingot.jobs.logs import LOG_CHARS_KEPT

HEAD_BYTES_MAX: Final = 32 * 1024 * 1024
TAIL_BYTES_MAX: Final = 32 * 1024 * 1024
CONTINUED: Final = range(0x80, 0xC0)  # Bytes of UTF-8 that begin no character.


class WholeLog:
    """What was written, from any thread. Of more than both limits together the middle is left out, and that is said.

    What the server keeps anyway stays in memory. A disk that is full costs the log, and nothing else.
    """

    def __init__(self, *, head: int = HEAD_BYTES_MAX, tail: int = TAIL_BYTES_MAX) -> None:
        self._head_max, self._tail_max = head, tail
        self._door = Lock()
        self._parts: list[str] = []
        self._chars = 0
        self._file: IO[bytes] | None = None  # The head, and behind it the tail, which goes round.
        self._bytes = 0
        self._broken = False

    @property
    def is_long(self) -> bool:
        """Whether it is more than the server keeps."""
        return self._chars > LOG_CHARS_KEPT

    def write(self, text: str) -> None:
        """Keep what is written."""
        with self._door:
            self._chars += len(text)
            if self._broken:
                return
            if not self.is_long:
                self._parts.append(text)
                return
            try:
                self._keep("".join([*self._parts, text]).encode())
            except OSError:
                self._give_up()
            self._parts = []

    def open(self) -> IO[bytes] | None:
        """All of it, as a file, when it is long; `None` where it could not be kept. Nothing is written afterwards."""
        with self._door:
            if not self.is_long or self._file is None or self._broken:
                return None
            try:
                whole = self._whole()
                whole.seek(0)
                return whole
            except OSError:
                self._give_up()
                return None

    def close(self) -> None:
        """Forget it."""
        with self._door:
            self._give_up()

    def _give_up(self) -> None:
        self._broken, self._parts = True, []
        if self._file is not None:
            self._file.close()
            self._file = None

    def _keep(self, data: bytes) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="ingot-log-", buffering=0)  # noqa: SIM115 - closed by `close`
        head, rest = data[: max(0, self._head_max - self._bytes)], data[max(0, self._head_max - self._bytes) :]
        if head:
            self._put(self._bytes, head)
        before = max(0, self._bytes - self._head_max)  # Of the tail.
        self._bytes += len(data)
        if len(rest) > self._tail_max:
            before += len(rest) - self._tail_max
            rest = rest[-self._tail_max :]
        while rest:
            place = before % self._tail_max
            some = rest[: self._tail_max - place]
            self._put(self._head_max + place, some)
            before, rest = before + len(some), rest[len(some) :]

    def _put(self, place: int, data: bytes) -> None:
        assert self._file is not None
        self._file.seek(place)
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def _whole(self) -> IO[bytes]:
        assert self._file is not None
        left_out = self._bytes - self._head_max - self._tail_max
        if left_out <= 0:
            return self._file
        head = self._read(0, self._head_max)
        end = len(head)
        while end > 0 and head[end - 1] in CONTINUED:  # Of the last character there may be a part.
            end -= 1
        if end > 0 and head[end - 1] >= 0xC0:
            end -= 1
        turn = (self._bytes - self._head_max) % self._tail_max
        tail = self._read(self._head_max + turn, self._tail_max - turn) + self._read(self._head_max, turn)
        begin = next((at for at, byte in enumerate(tail[:4]) if byte not in CONTINUED), 0)
        whole = tempfile.TemporaryFile(prefix="ingot-log-")  # noqa: SIM115 - closed by `close`
        whole.write(head[:end])
        whole.write(f"\n[{left_out + len(head) - end + begin} bytes are left out here]\n".encode())
        whole.write(tail[begin:])
        whole.flush()
        self._file.close()
        self._file = whole
        return whole

    def _read(self, place: int, size: int) -> bytes:
        assert self._file is not None
        self._file.seek(place)
        parts = []
        while size > 0 and (data := self._file.read(size)):
            parts.append(data)
            size -= len(data)
        return b"".join(parts)
