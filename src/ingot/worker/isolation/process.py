"""The worker's handle of a child process."""

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
    """A child process: its message and transfer sockets, its output pipe, and a control socket to its template.

    When the control socket is closed, the template kills the process together with everything that it started.
    """

    def __init__(
        self,
        message_socket: socket.socket,
        transfer_socket: socket.socket,
        output_descriptor: int,
        control_socket: socket.socket,
    ) -> None:
        self.message_socket = message_socket
        self.transfer_socket = transfer_socket
        self.output_descriptor = output_descriptor
        self.control_socket = control_socket
        self.exit_code: int | None = None
        self._pid = _receive_number(control_socket)
        if self._pid < 0:
            raise OSError(-self._pid, os.strerror(-self._pid))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()  # Has an effect only if the supervisor failed before the process ended.
        for each in (self.message_socket, self.transfer_socket):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # Unblocks a thread that is sending a reply or a file.
            each.close()
        self.control_socket.close()
        os.close(self.output_descriptor)

    def stop(self) -> None:
        """Terminate the process group with SIGTERM, and later with SIGKILL if it has not ended. Thread-safe."""
        with suppress(OSError):
            self.control_socket.send(REQUEST_BYTE)

    def kill(self) -> None:
        """Kill the process group now."""
        with suppress(OSError):
            self.control_socket.shutdown(socket.SHUT_WR)

    def receive_exit_code(self) -> None:
        """Receive the exit code from the template. If the template was killed, kill the process group instead."""
        try:
            self.exit_code = _receive_number(self.control_socket)
        except TemplateGone:
            self.exit_code = -signal.SIGKILL
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)


def fork_process(template_socket: socket.socket) -> IsolatedProcess:
    """Let a template fork a child. Raises `TemplateGone`, and `OSError` if the fork fails."""
    with ExitStack() as on_failure, ExitStack() as child_ends:
        message_socket, child_message_socket = socket.socketpair()
        on_failure.enter_context(message_socket)
        child_ends.enter_context(child_message_socket)
        transfer_socket, child_transfer_socket = socket.socketpair()
        on_failure.enter_context(transfer_socket)
        child_ends.enter_context(child_transfer_socket)
        control_socket, child_control_socket = socket.socketpair()
        on_failure.enter_context(control_socket)
        child_ends.enter_context(child_control_socket)
        output_descriptor, child_output_descriptor = os.pipe()
        on_failure.callback(os.close, output_descriptor)
        child_ends.callback(os.close, child_output_descriptor)
        try:
            socket.send_fds(
                template_socket,
                [REQUEST_BYTE],
                [
                    child_message_socket.fileno(),
                    child_control_socket.fileno(),
                    child_output_descriptor,
                    child_transfer_socket.fileno(),
                ],
            )
        except OSError as error:
            raise TemplateGone from error
        child_ends.close()
        os.set_blocking(output_descriptor, False)
        process = IsolatedProcess(message_socket, transfer_socket, output_descriptor, control_socket)
        on_failure.pop_all()
        return process


def _receive_number(control_socket: socket.socket) -> int:
    """Receive a number from the template. Raises `TemplateGone`."""
    data = b""
    while len(data) < NUMBER_FORMAT.size:
        with suppress(ConnectionError):
            if part := control_socket.recv(NUMBER_FORMAT.size - len(data)):
                data += part
                continue
        raise TemplateGone
    (number,) = NUMBER_FORMAT.unpack(data)
    return int(number)
