"""An attempt in a process of its own: what it says is heard, what it prints is kept, and it ends when it is to."""

from __future__ import annotations

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

from ingot.kernel.errors import IngotError, InvalidInput
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
from ingot.worker.job import NoRetry, SnoozeSignal, WorkerJob
from ingot.worker.result_encoding import EXIT_ADVICE

MEMORY_REASON: Final = ", as it is when the memory is used up"
OUT_OF_MEMORY_EXIT_CODE: Final = 127  # That of glibc, when it has no memory to end in another way.
SIGNAL_REASONS: Final = {
    **dict.fromkeys(("SIGKILL", "SIGSEGV", "SIGBUS", "SIGABRT"), MEMORY_REASON),
    "SIGXCPU": ": it used more processor time than its timeout",
}


class ProcessExited(Exception):
    """The process ended without a word."""

    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code
        name = signal.Signals(-exit_code).name if exit_code < 0 else ""
        why = f"was ended by {name}" if name else f"ended with {exit_code}"
        advice = "" if name else f" ({EXIT_ADVICE})"
        reason = MEMORY_REASON if exit_code == OUT_OF_MEMORY_EXIT_CODE else SIGNAL_REASONS.get(name, advice)
        super().__init__(f"the process of the handler {why}{reason}")


class IsolatedHandlerFailed(Exception):
    """The handler raised, in its process."""


def check_picklable(handler: Handler) -> None:
    """Raises `InvalidInput` for a function that another process cannot find."""
    try:
        pickle.dumps(handler.function)
    except Exception as error:
        raise InvalidInput(
            f"the isolated handler of {handler.type} cannot be handed to another process: {error}",
            hint="Make it a plain function of a module, not a lambda, and not inside another function.",
        ) from error


def run_isolated(run: RunningAttempt, templates: Templates) -> Any:
    """Run the handler of a job in a process of its own, and answer its result as JSON. Called in a thread."""
    try:
        made = templates.start_process(run.handler)
    except ProcessNotStarted as error:
        raise IsolatedHandlerFailed(f"the handler has no process: {error}") from error
    with made as process:
        run.stop_callback = process.stop
        if run.job.canceled:
            process.stop()
        hearing = _ProcessSupervisor(process, run.job)
        with suppress(OSError):  # It has ended already; how, is heard.
            send_message(process.message_socket, _task_message(run))
        hearing.supervise()
    return _result_or_raise(hearing.final_message, process.exit_code or 0)


def _task_message(run: RunningAttempt) -> bytes:
    room = run.job.workdir()
    return msgspec.json.encode(
        HandlerTask(
            function=pickle.dumps(run.handler.function),
            data=msgspec.Raw(msgspec.json.encode(run.job.data)),
            room=str(room),
            cpu_seconds=max(1, round(run.timeout_seconds) + 1),
            memory_bytes=run.handler.memory_bytes,
        )
    )


def _result_or_raise(said: ChildMessage | None, exit_code: int) -> Any:
    if said is None:
        raise ProcessExited(exit_code)
    if said.snooze is not None:
        raise SnoozeSignal(said.snooze)
    if said.error is not None:
        raise (IsolatedHandlerFailed if said.retry else NoRetry)(said.error)
    return said.result


class _ProcessSupervisor:
    """Hears a process out; what it says last is how it ended, and nothing when it just ended.

    What it started may keep its ends open after its own end, so that nobody waits for those to close.
    """

    def __init__(self, process: IsolatedProcess, job: WorkerJob) -> None:
        self._process = process
        self._job = job
        self._message_buffer = MessageBuffer()
        self._decode = getincrementaldecoder("utf-8")(errors="replace").decode
        self._file_request_thread: _FileRequestThread | None = None  # Begun by the first question: most ask none.
        self._poll = select.poll()
        self.final_message: ChildMessage | None = None

    def supervise(self) -> None:
        """Listen until it has ended, and to what it had said by then. After its last word it has a moment to end."""
        process = self._process
        line = process.control_socket.fileno()
        calls = {process.message_socket.fileno(): self._receive_messages, process.output_descriptor: self._read_output}
        for descriptor in (*calls, line):
            self._poll.register(descriptor, select.POLLIN)
        kill_at: float | None = None
        while process.exit_code is None:
            for descriptor, _ in self._poll.poll(None if kill_at is None else 1000 * max(0.0, kill_at - monotonic())):
                if descriptor == line:
                    process.receive_exit_code()
                elif not calls[descriptor]():
                    self._poll.unregister(descriptor)
            if self.final_message is not None and kill_at is None:
                kill_at = monotonic() + KILL_SECONDS
            elif kill_at is not None and monotonic() >= kill_at:
                process.kill()
                kill_at = monotonic() + KILL_SECONDS
        for call in calls.values():
            while call():
                pass
        if self._file_request_thread is not None:
            self._file_request_thread.close()

    def _receive_messages(self) -> bool:
        """Take in what it says; whether there may be more."""
        if self.final_message is not None:
            return False
        try:
            data = self._process.message_socket.recv(READ_BYTES, socket.MSG_DONTWAIT)
            return data != b"" and all(map(self._handle_message, self._message_buffer.feed(data)))
        except (OSError, ValueError):  # What is no message is one too: who says such things is not listened to.
            return False

    def _handle_message(self, text: bytes) -> bool:
        said = msgspec.json.decode(text, type=ChildMessage)
        if said.asks is not None:
            self._file_request_thread = self._file_request_thread or _FileRequestThread(
                self._process.message_socket, self._job
            )
            return self._file_request_thread.submit(said.asks)
        if said.percent is not None:
            self._job.progress(said.percent, said.stage)
            return True
        self.final_message = said
        return False

    def _read_output(self) -> bool:
        """Take in what it has written, and whatever it started; whether there may be more."""
        try:
            data = os.read(self._process.output_descriptor, READ_BYTES)
        except OSError:
            return False
        if data:
            self._job.log(self._decode(data), end="")
        return data != b""


class _FileRequestThread:
    """Asks the server for what a process needs, one thing after the other, in a thread: answers may take their time."""

    def __init__(self, talk: socket.socket, job: WorkerJob) -> None:
        self._message_socket = talk
        self._job = job
        self._requests: SimpleQueue[FileRequest | None] = SimpleQueue()
        Thread(target=self._run, name="ingot-desk", daemon=True).start()

    def submit(self, ask: FileRequest) -> bool:
        """Answer this; not for one who does not wait for answers."""
        if not self._requests.empty():
            return False
        self._requests.put(ask)
        return True

    def close(self) -> None:
        """Nobody asks any more."""
        self._requests.put(None)

    def _run(self) -> None:
        with suppress(OSError):
            try:
                while (ask := self._requests.get()) is not None:
                    send_message(self._message_socket, msgspec.json.encode(self._reply_to(ask)))
            finally:
                self._message_socket.shutdown(socket.SHUT_RDWR)

    def _reply_to(self, ask: FileRequest) -> ReplyMessage:
        try:
            return ReplyMessage(answer=msgspec.Raw(self._job.file_client.send(ask)))
        except IngotError as error:
            return ReplyMessage(code=error.code, detail=error.detail, hint=error.hint)
