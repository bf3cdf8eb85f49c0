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
from ingot.worker.asks import Ask
from ingot.worker.isolation.process import Process
from ingot.worker.isolation.templates import NotBegun, Templates
from ingot.worker.isolation.words import KILL_SECONDS, READ_BYTES, Gathering, Said, Task, Told, send
from ingot.worker.job import NoRetry, Snoozed, WorkerJob
from ingot.worker.results import EXIT_ADVICE
from ingot.worker.run import Run

MEMORY_REASON: Final = ", as it is when the memory is used up"
NO_MEMORY_EXIT: Final = 127  # That of glibc, when it has no memory to end in another way.
SIGNAL_REASONS: Final = {
    **dict.fromkeys(("SIGKILL", "SIGSEGV", "SIGBUS", "SIGABRT"), MEMORY_REASON),
    "SIGXCPU": ": it used more processor time than its timeout",
}


class Ended(Exception):
    """The process ended without a word."""

    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code
        name = signal.Signals(-exit_code).name if exit_code < 0 else ""
        why = f"was ended by {name}" if name else f"ended with {exit_code}"
        advice = "" if name else f" ({EXIT_ADVICE})"
        reason = MEMORY_REASON if exit_code == NO_MEMORY_EXIT else SIGNAL_REASONS.get(name, advice)
        super().__init__(f"the process of the handler {why}{reason}")


class Failed(Exception):
    """The handler raised, in its process."""


def check_isolated(handler: Handler) -> None:
    """Raises `InvalidInput` for a function that another process cannot find."""
    try:
        pickle.dumps(handler.function)
    except Exception as error:
        raise InvalidInput(
            f"the isolated handler of {handler.type} cannot be handed to another process: {error}",
            hint="Make it a plain function of a module, not a lambda, and not inside another function.",
        ) from error


def run_isolated(run: Run, templates: Templates) -> Any:
    """Run the handler of a job in a process of its own, and answer its result as JSON. Called in a thread."""
    try:
        made = templates.process(run.handler)
    except NotBegun as error:
        raise Failed(f"the handler has no process: {error}") from error
    with made as process:
        run.on_stop = process.stop
        if run.job.canceled:
            process.stop()
        hearing = _Hearing(process, run.job)
        with suppress(OSError):  # It has ended already; how, is heard.
            send(process.talk, _task(run))
        hearing.listen()
    return _made_of(hearing.said, process.exit_code or 0)


def _task(run: Run) -> bytes:
    room = run.job.room()
    return msgspec.json.encode(
        Task(
            function=pickle.dumps(run.handler.function),
            data=msgspec.Raw(msgspec.json.encode(run.job.data)),
            room=str(room),
            cpu_seconds=max(1, round(run.timeout_seconds) + 1),
            memory_bytes=run.handler.memory_bytes,
        )
    )


def _made_of(said: Said | None, exit_code: int) -> Any:
    if said is None:
        raise Ended(exit_code)
    if said.snooze is not None:
        raise Snoozed(said.snooze)
    if said.error is not None:
        raise (Failed if said.retry else NoRetry)(said.error)
    return said.result


class _Hearing:
    """Hears a process out; what it says last is how it ended, and nothing when it just ended.

    What it started may keep its ends open after its own end, so that nobody waits for those to close.
    """

    def __init__(self, process: Process, job: WorkerJob) -> None:
        self._process = process
        self._job = job
        self._gathering = Gathering()
        self._decode = getincrementaldecoder("utf-8")(errors="replace").decode
        self._desk: _Desk | None = None  # Begun by the first question: most ask none.
        self._poll = select.poll()
        self.said: Said | None = None

    def listen(self) -> None:
        """Listen until it has ended, and to what it had said by then. After its last word it has a moment to end."""
        process = self._process
        line = process.line.fileno()
        calls = {process.talk.fileno(): self._hear, process.printed: self._read}
        for descriptor in (*calls, line):
            self._poll.register(descriptor, select.POLLIN)
        kill_at: float | None = None
        while process.exit_code is None:
            for descriptor, _ in self._poll.poll(None if kill_at is None else 1000 * max(0.0, kill_at - monotonic())):
                if descriptor == line:
                    process.learn_end()
                elif not calls[descriptor]():
                    self._poll.unregister(descriptor)
            if self.said is not None and kill_at is None:
                kill_at = monotonic() + KILL_SECONDS
            elif kill_at is not None and monotonic() >= kill_at:
                process.kill()
                kill_at = monotonic() + KILL_SECONDS
        for call in calls.values():
            while call():
                pass
        if self._desk is not None:
            self._desk.close()

    def _hear(self) -> bool:
        """Take in what it says; whether there may be more."""
        if self.said is not None:
            return False
        try:
            data = self._process.talk.recv(READ_BYTES, socket.MSG_DONTWAIT)
            return data != b"" and all(map(self._heed, self._gathering.take(data)))
        except (OSError, ValueError):  # What is no message is one too: who says such things is not listened to.
            return False

    def _heed(self, text: bytes) -> bool:
        said = msgspec.json.decode(text, type=Said)
        if said.asks is not None:
            self._desk = self._desk or _Desk(self._process.talk, self._job)
            return self._desk.ask(said.asks)
        if said.percent is not None:
            self._job.progress(said.percent, said.stage)
            return True
        self.said = said
        return False

    def _read(self) -> bool:
        """Take in what it has written, and whatever it started; whether there may be more."""
        try:
            data = os.read(self._process.printed, READ_BYTES)
        except OSError:
            return False
        if data:
            self._job.log(self._decode(data), end="")
        return data != b""


class _Desk:
    """Asks the server for what a process needs, one thing after the other, in a thread: answers may take their time."""

    def __init__(self, talk: socket.socket, job: WorkerJob) -> None:
        self._talk = talk
        self._job = job
        self._asked: SimpleQueue[Ask | None] = SimpleQueue()
        Thread(target=self._answer, name="ingot-desk", daemon=True).start()

    def ask(self, ask: Ask) -> bool:
        """Answer this; not for one who does not wait for answers."""
        if not self._asked.empty():
            return False
        self._asked.put(ask)
        return True

    def close(self) -> None:
        """Nobody asks any more."""
        self._asked.put(None)

    def _answer(self) -> None:
        with suppress(OSError):
            try:
                while (ask := self._asked.get()) is not None:
                    send(self._talk, msgspec.json.encode(self._told(ask)))
            finally:
                self._talk.shutdown(socket.SHUT_RDWR)

    def _told(self, ask: Ask) -> Told:
        try:
            return Told(answer=msgspec.Raw(self._job.desk.ask(ask)))
        except IngotError as error:
            return Told(code=error.code, detail=error.detail, hint=error.hint)
