"""The process of a job, as the worker has it."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import ExitStack, suppress
from typing import Self

from ingot.worker.isolation.words import NUMBER

ORDER = b"\0"


class TemplateGone(Exception):
    """The template has ended."""


class Process:
    """A process that waits for its task: where it talks, where it prints, and the line to its template.

    The template ends it, with all that it started, when the line is.
    """

    def __init__(self, talk: socket.socket, printed: int, line: socket.socket) -> None:
        self.talk = talk
        self.printed = printed
        self.line = line
        self.exit_code: int | None = None
        self._pid = _number(line)
        if self._pid < 0:
            raise OSError(-self._pid, os.strerror(-self._pid))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()  # It has ended, unless something went wrong here.
        with suppress(OSError):
            self.talk.shutdown(socket.SHUT_RDWR)  # Who answers it at this moment is not held up.
        self.talk.close()
        self.line.close()
        os.close(self.printed)

    def stop(self) -> None:
        """Ask it to end, and what it started; who has not after a while is killed. From any thread, at any time."""
        with suppress(OSError):
            self.line.send(ORDER)

    def kill(self) -> None:
        """End it now, and what it started."""
        with suppress(OSError):
            self.line.shutdown(socket.SHUT_WR)

    def learn_end(self) -> None:
        """Hear from the template how it ended. A template that was killed says nothing: its processes end here."""
        try:
            self.exit_code = _number(self.line)
        except TemplateGone:
            self.exit_code = -signal.SIGKILL
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)


def new_process(control: socket.socket) -> Process:
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
            socket.send_fds(control, [ORDER], [its_talk.fileno(), its_line.fileno(), its_printed])
        except OSError as error:
            raise TemplateGone from error
        theirs.close()
        os.set_blocking(printed, False)
        process = Process(talk, printed, line)
        on_failure.pop_all()
        return process


def _number(line: socket.socket) -> int:
    """What the template says on the line. Raises `TemplateGone`."""
    data = b""
    while len(data) < NUMBER.size:
        with suppress(ConnectionError):
            if part := line.recv(NUMBER.size - len(data)):
                data += part
                continue
        raise TemplateGone
    (number,) = NUMBER.unpack(data)
    return int(number)
