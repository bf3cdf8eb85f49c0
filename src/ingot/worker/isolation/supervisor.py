"""Runs an attempt in a child process: handles its messages, collects its output, and makes sure that it ends."""

from __future__ import annotations

import logging
import os
import pickle
import select
import signal
import socket
from codecs import getincrementaldecoder
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, Final

import msgspec

from ingot.jobs.checks import LOG_CHARS_MAX
from ingot.kernel.errors import IngotError, InvalidInput
from ingot.kernel.logs import STACK_CHARS_MAX
from ingot.worker.app import Handler
from ingot.worker.attempt import RunningAttempt
from ingot.worker.file_requests import FileRequest
from ingot.worker.isolation.messages import (
    KILL_SECONDS,
    READ_BYTES,
    ChildMessage,
    HandlerTask,
    MessageBuffer,
    ReplyMessage,
    send_message,
)
from ingot.worker.isolation.process import IsolatedProcess
from ingot.worker.isolation.templates import ProcessNotStarted, Templates
from ingot.worker.isolation.transfers import IssuedUrls, TransferThread
from ingot.worker.job import NoRetry, SnoozeSignal, WorkerJob
from ingot.worker.result_encoding import EXIT_ADVICE

MEMORY_REASON: Final = ", possibly because it ran out of memory"
OUT_OF_MEMORY_EXIT_CODE: Final = 127  # From glibc, when it has no memory left for a regular exit.
SIGNAL_REASONS: Final = {
    **dict.fromkeys(("SIGKILL", "SIGSEGV", "SIGBUS", "SIGABRT"), MEMORY_REASON),
    "SIGXCPU": ": it used more processor time than its timeout",
}


class ProcessExited(Exception):
    """The process ended without reporting an outcome."""

    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code
        name = signal.Signals(-exit_code).name if exit_code < 0 else ""
        ending = f"was terminated by {name}" if name else f"exited with code {exit_code}"
        advice = "" if name else f" ({EXIT_ADVICE})"
        reason = MEMORY_REASON if exit_code == OUT_OF_MEMORY_EXIT_CODE else SIGNAL_REASONS.get(name, advice)
        super().__init__(f"the handler process {ending}{reason}")


class IsolatedHandlerFailed(Exception):
    """The handler raised an exception in its process, or the process could not be started."""


def check_picklable(handler: Handler) -> None:
    """Raise `InvalidInput` if another process cannot import the function of the handler."""
    try:
        pickle.dumps(handler.function)
    except Exception as error:
        raise InvalidInput(
            f"the isolated handler for {handler.type} cannot be passed to another process: {error}",
            hint="Define it as a plain function at the top level of a module, not as a lambda or nested function.",
        ) from error


def run_isolated(attempt: RunningAttempt, templates: Templates) -> Any:
    """Run the handler of a job in its own process and return the result as JSON. Blocks the calling thread."""
    try:
        isolated_process = templates.start_process(attempt.handler)
    except ProcessNotStarted as error:
        raise IsolatedHandlerFailed(f"the handler process could not be started: {error}") from error
    with isolated_process as process:
        attempt.stop_callback = process.stop
        if attempt.job.canceled:
            process.stop()
        supervisor = _ProcessSupervisor(process, attempt.job)
        with suppress(OSError):  # The process has ended already, which `supervise` detects.
            send_message(process.message_socket, _task_message(attempt))
        supervisor.supervise()
    message = supervisor.final_message
    if message is not None and message.error is not None:
        if message.traceback:
            attempt.job.append_log(message.traceback[-LOG_CHARS_MAX:])
        attempt.stack = message.stack and message.stack[:STACK_CHARS_MAX]
    return _result_or_raise(message, process.exit_code or 0)


def _task_message(attempt: RunningAttempt) -> bytes:
    workdir = attempt.job.workdir()
    return msgspec.json.encode(
        HandlerTask(
            function=pickle.dumps(attempt.handler.function),
            data=msgspec.Raw(msgspec.json.encode(attempt.job.data)),
            workdir=str(workdir),
            cpu_seconds=max(1, round(attempt.timeout_seconds) + 1),
            memory_bytes=attempt.handler.memory_bytes,
            log_level=logging.getLogger().level,
            network=attempt.handler.network,
        )
    )


def _result_or_raise(message: ChildMessage | None, exit_code: int) -> Any:
    if message is None:
        raise ProcessExited(exit_code)
    if message.snooze is not None:
        raise SnoozeSignal(message.snooze)
    if message.error is not None:
        raise (IsolatedHandlerFailed if message.retry else NoRetry)(message.error)
    return message.result


class _ProcessSupervisor:
    """Follows a process until it ends. `final_message` is the outcome, or `None` if the process reported none.

    The end of the process is taken from its exit code and not from its closed sockets, because processes that it
    started may keep these open.
    """

    def __init__(self, process: IsolatedProcess, job: WorkerJob) -> None:
        self._process = process
        self._job = job
        self._message_buffer = MessageBuffer()
        self._decode = getincrementaldecoder("utf-8")(errors="replace").decode
        self._file_request_thread: _FileRequestThread | None = None  # Started by the first request.
        self._issued_urls = IssuedUrls()
        self._poll = select.poll()
        self.final_message: ChildMessage | None = None

    def supervise(self) -> None:
        """Handle messages and output until the process has ended.

        After it has reported the outcome, it is killed if it does not end within `KILL_SECONDS`.
        """
        process = self._process
        control_descriptor = process.control_socket.fileno()
        readers = {
            process.message_socket.fileno(): self._receive_messages,
            process.output_descriptor: self._read_output,
        }
        transfer_descriptor = process.transfer_socket.fileno()
        for descriptor in (*readers, control_descriptor, transfer_descriptor):
            self._poll.register(descriptor, select.POLLIN)
        kill_at: float | None = None
        while process.exit_code is None:
            for descriptor, event in self._poll.poll(
                None if kill_at is None else 1000 * max(0.0, kill_at - monotonic())
            ):
                if descriptor == control_descriptor:
                    process.receive_exit_code()
                elif descriptor == transfer_descriptor:
                    self._poll.unregister(descriptor)
                    if not event & select.POLLHUP:
                        TransferThread(process.transfer_socket, self._issued_urls).start()
                elif not readers[descriptor]():
                    self._poll.unregister(descriptor)
            if self.final_message is not None and kill_at is None:
                kill_at = monotonic() + KILL_SECONDS
            elif kill_at is not None and monotonic() >= kill_at:
                process.kill()
                kill_at = monotonic() + KILL_SECONDS
        for read_more in readers.values():
            while read_more():
                pass
        if self._file_request_thread is not None:
            self._file_request_thread.close()

    def _receive_messages(self) -> bool:
        """Handle the messages that have arrived. Return whether more can follow."""
        if self.final_message is not None:
            return False
        try:
            data = self._process.message_socket.recv(READ_BYTES, socket.MSG_DONTWAIT)
            return data != b"" and all(map(self._handle_message, self._message_buffer.feed(data)))
        except (OSError, ValueError):  # Treat an invalid message as the end of the stream.
            return False

    def _handle_message(self, payload: bytes) -> bool:
        message = msgspec.json.decode(payload, type=ChildMessage)
        if message.file_request is not None:
            self._file_request_thread = self._file_request_thread or _FileRequestThread(
                self._process.message_socket, self._job, self._issued_urls
            )
            return self._file_request_thread.submit(message.file_request)
        if message.percent is not None:
            self._job.progress(message.percent, message.stage)
            return True
        self.final_message = message
        return False

    def _read_output(self) -> bool:
        """Write the output of the process group to the log. Return whether more can follow."""
        try:
            data = os.read(self._process.output_descriptor, READ_BYTES)
        except OSError:
            return False
        if data:
            self._job.log(self._decode(data), end="")
        return data != b""


class _FileRequestThread:
    """Sends the file requests of a process to the server, in a thread because responses can take long."""

    def __init__(self, message_socket: socket.socket, job: WorkerJob, issued_urls: IssuedUrls) -> None:
        self._message_socket = message_socket
        self._job = job
        self._issued_urls = issued_urls
        self._requests: SimpleQueue[FileRequest | None] = SimpleQueue()
        Thread(target=self._run, name="ingot-file-requests", daemon=True).start()

    def submit(self, request: FileRequest) -> bool:
        """Queue a request. Return `False` if another one is queued: a child must wait for the reply."""
        if not self._requests.empty():
            return False
        self._requests.put(request)
        return True

    def close(self) -> None:
        """End the thread after the current request."""
        self._requests.put(None)

    def _run(self) -> None:
        with suppress(OSError):
            try:
                while (request := self._requests.get()) is not None:
                    send_message(self._message_socket, msgspec.json.encode(self._reply_to(request)))
            finally:
                self._message_socket.shutdown(socket.SHUT_RDWR)

    def _reply_to(self, request: FileRequest) -> ReplyMessage:
        try:
            response = self._job.file_client.send(request)
            self._issued_urls.add_from(response)
            return ReplyMessage(response=msgspec.Raw(response))
        except IngotError as error:
            return ReplyMessage(code=error.code, detail=error.detail, hint=error.hint)
