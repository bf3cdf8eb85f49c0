"""The process of a job, as the worker has it."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import ExitStack, suppress
from typing import Self

from ingot.worker.isolation.messages import NUMBER_FORMAT

REQUEST_BYTE = b"\0"


class TemplateGone(Exception):
    """The template has ended."""


class IsolatedProcess:
    """A process that waits for its task: where it talks, where it prints, and the line to its template.

    The template ends it, with all that it started, when the line is.
    """

    def __init__(self, talk: socket.socket, printed: int, line: socket.socket) -> None:
        self.message_socket = talk
        self.output_descriptor = printed
        self.control_socket = line
        self.exit_code: int | None = None
        self._pid = _receive_number(line)
        if self._pid < 0:
            raise OSError(-self._pid, os.strerror(-self._pid))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()  # It has ended, unless something went wrong here.
        with suppress(OSError):
            self.message_socket.shutdown(socket.SHUT_RDWR)  # Who answers it at this moment is not held up.
        self.message_socket.close()
        self.control_socket.close()
        os.close(self.output_descriptor)

    def stop(self) -> None:
        """Ask it to end, and what it started; who has not after a while is killed. From any thread, at any time."""
        with suppress(OSError):
            self.control_socket.send(REQUEST_BYTE)

    def kill(self) -> None:
        """End it now, and what it started."""
        with suppress(OSError):
            self.control_socket.shutdown(socket.SHUT_WR)

    def receive_exit_code(self) -> None:
        """Hear from the template how it ended. A template that was killed says nothing: its processes end here."""
        try:
            self.exit_code = _receive_number(self.control_socket)
        except TemplateGone:
            self.exit_code = -signal.SIGKILL
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)


def fork_process(control: socket.socket) -> IsolatedProcess:
    """Have a template make a process. Raises `TemplateGone`, and `OSError` when there can be no more."""
    with ExitStack() as on_failure, ExitStack() as theirs:
        talk, its_talk = socket.socketpair()
        on_failure.enter_context(talk)
        theirs.enter_context(its_talk)
        line, its_line = socket.socketpair()
        on_failure.enter_context(line)
        theirs.enter_context(its_line)
        printed, its_printed = os.pipe()
        on_failure.callback(os.close, printed)
        theirs.callback(os.close, its_printed)
        try:
            socket.send_fds(control, [REQUEST_BYTE], [its_talk.fileno(), its_line.fileno(), its_printed])
        except OSError as error:
            raise TemplateGone from error
        theirs.close()
        os.set_blocking(printed, False)
        process = IsolatedProcess(talk, printed, line)
        on_failure.pop_all()
        return process


def _receive_number(line: socket.socket) -> int:
    """What the template says on the line. Raises `TemplateGone`."""
    data = b""
    while len(data) < NUMBER_FORMAT.size:
        with suppress(ConnectionError):
            if part := line.recv(NUMBER_FORMAT.size - len(data)):
                data += part
                continue
        raise TemplateGone
    (number,) = NUMBER_FORMAT.unpack(data)
    return int(number)
