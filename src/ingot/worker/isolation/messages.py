"""Messages between the worker, a template and a child. They are JSON, so that a child cannot inject code."""

from __future__ import annotations

import struct
from socket import socket
from typing import Any, Final

import msgspec

from ingot.jobs.model import NULL
from ingot.worker.file_requests import FileRequest

MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024  # Maximum size of a message from a child.
READ_BYTES: Final = 64 * 1024
KILL_SECONDS: Final = 5.0  # Time for a process to end after SIGTERM, or after it has reported the outcome.
NUMBER_FORMAT: Final = struct.Struct("!i")
_SIZE_FORMAT: Final = struct.Struct("!I")


class TemplateStart(msgspec.Struct, frozen=True, kw_only=True):
    """The start parameters of a template.

    `preparation_data` is what another interpreter needs to import the module of the function. `function` is pickled,
    which stores only its name. Without `share_import`, each child imports the module instead of the template.
    """

    socket_descriptor: int
    worker_pid: int
    preparation_data: dict[str, Any]
    function: bytes
    share_import: bool


class TemplateStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Sent by a template after its start: ready, or why it is not.

    `not_shared_reason` says what the import left behind that must not be shared by children, such as a thread.
    """

    import_error: str | None = None
    not_shared_reason: str | None = None


class HandlerTask(msgspec.Struct, frozen=True, kw_only=True):
    """The job that a child runs, and its limits."""

    function: bytes
    data: msgspec.Raw
    workdir: str
    cpu_seconds: int
    memory_bytes: int | None
    log_level: int
    network: bool


class ChildMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message from a child: its progress, a file request, or the outcome.

    The worker sends file requests only for the attempt of this child. An `error` comes with its `traceback` for the log
    of the job, and its `stack` for the log of the worker.
    """

    file_request: FileRequest | None = None
    percent: float | None = None
    stage: str = ""
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: str | None = None
    traceback: str = ""
    stack: str | None = None
    retry: bool = True
    snooze: float | None = None


class ReplyMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reply to a file request: the response of the server, or an error."""

    response: msgspec.Raw = NULL
    code: str | None = None
    detail: str = ""
    hint: str = ""


def send_message(target: socket, payload: bytes) -> None:
    """Send a message, preceded by its size."""
    target.sendall(_SIZE_FORMAT.pack(len(payload)) + payload)


def receive_message(source: socket, bytes_max: int | None = None) -> bytes:
    """Wait for a message and return its payload. Raises `EOFError`, and `ValueError` if it is too large."""
    (size,) = _SIZE_FORMAT.unpack(receive_exactly(source, _SIZE_FORMAT.size))
    if bytes_max is not None and size > bytes_max:
        raise ValueError(f"a message can have at most {bytes_max} bytes, got {size}")
    return receive_exactly(source, size)


def receive_exactly(source: socket, size: int) -> bytes:
    """Wait for this many bytes and return them. Raises `EOFError`."""
    data = bytearray()
    while len(data) < size:
        if not (part := source.recv(min(size - len(data), 1024 * 1024))):
            raise EOFError
        data += part
    return bytes(data)


class MessageBuffer:
    """Assembles messages from bytes that arrive in any pieces, so that the reader never blocks on half a message."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add data and return the payloads of all complete messages. Raises `ValueError` if a message is too large."""
        self._data += data
        messages: list[bytes] = []
        while len(self._data) >= _SIZE_FORMAT.size:
            (size,) = _SIZE_FORMAT.unpack_from(self._data)
            if size > MESSAGE_BYTES_MAX:
                raise ValueError(f"a message can have at most {MESSAGE_BYTES_MAX} bytes, got {size}")
            end = _SIZE_FORMAT.size + size
            if len(self._data) < end:
                break
            messages.append(bytes(self._data[_SIZE_FORMAT.size : end]))
            del self._data[:end]
        return messages
