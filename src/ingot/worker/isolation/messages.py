"""What a worker, a template and the process of a job say to each other. It is text: nothing in it is run."""

from __future__ import annotations

import struct
from socket import socket
from typing import Any, Final

import msgspec

from ingot.jobs.model import NULL
from ingot.worker.file_requests import FileRequest

MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024  # Of what the process of a job says.
READ_BYTES: Final = 64 * 1024
KILL_SECONDS: Final = 5.0  # That processes have after TERM, and after their last word.
NUMBER_FORMAT: Final = struct.Struct("!i")
_SIZE_FORMAT: Final = struct.Struct("!I")


class TemplateStart(msgspec.Struct, frozen=True, kw_only=True):
    """What a template is told when it begins.

    `prepares` is what another interpreter needs to find the function, which is pickled: that names it. Without `shared`
    it is not looked for in the template, but in every process anew.
    """

    control: int
    worker: int
    prepares: dict[str, Any]
    function: bytes
    shared: bool


class TemplateStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a template says when it is ready, or why it is not: an import failed, or left what no copy may share."""

    failed: str | None = None
    not_shared: str | None = None


class HandlerTask(msgspec.Struct, frozen=True, kw_only=True):
    """What the process of a job is told."""

    function: bytes
    data: msgspec.Raw
    room: str
    cpu_seconds: int
    memory_bytes: int | None


class ChildMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the process says of its job: how far it is, what it asks for, or how it ended.

    What it asks for is asked for this attempt, whoever asks.
    """

    asks: FileRequest | None = None
    percent: float | None = None
    stage: str = ""
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: str | None = None
    retry: bool = True
    snooze: float | None = None


class ReplyMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the process is told when it has asked: the answer, or why there is none."""

    answer: msgspec.Raw = NULL
    code: str | None = None
    detail: str = ""
    hint: str = ""


def send_message(to: socket, text: bytes) -> None:
    """Send a message: its size, and the text."""
    to.sendall(_SIZE_FORMAT.pack(len(text)) + text)


def receive_message(source: socket) -> bytes:
    """Wait for a message, and answer its text. Raises `EOFError`."""
    (size,) = _SIZE_FORMAT.unpack(_receive_exactly(source, _SIZE_FORMAT.size))
    return _receive_exactly(source, size)


def _receive_exactly(source: socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        if not (part := source.recv(min(size - len(data), 1024 * 1024))):
            raise EOFError
        data += part
    return bytes(data)


class MessageBuffer:
    """Messages as their bytes come in, in any pieces: who reads them is not held up by who sends half of one."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The texts of the messages that are whole now. Raises `ValueError` for one that is too large."""
        self._data += data
        found: list[bytes] = []
        while len(self._data) >= _SIZE_FORMAT.size:
            (size,) = _SIZE_FORMAT.unpack_from(self._data)
            if size > MESSAGE_BYTES_MAX:
                raise ValueError(f"a message of {size} bytes; the most is {MESSAGE_BYTES_MAX}")
            end = _SIZE_FORMAT.size + size
            if len(self._data) < end:
                break
            found.append(bytes(self._data[_SIZE_FORMAT.size : end]))
            del self._data[:end]
        return found
