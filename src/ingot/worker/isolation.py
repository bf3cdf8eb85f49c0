"""A handler in a process of its own: limited, without rights it does not need, and ended whole when it is to stop."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import pwd
import resource
import signal
import sys
import threading
import traceback
from codecs import getincrementaldecoder
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final

import msgspec

from ingot.client.errors import error_of_code
from ingot.jobs.model import NULL, Job
from ingot.kernel.errors import IngotError, InvalidInput
from ingot.settings import forget_secrets
from ingot.worker.app import Function, Handler
from ingot.worker.asks import Ask
from ingot.worker.files import Files
from ingot.worker.job import NoRetry, Snoozed, WorkerJob, sendable
from ingot.worker.results import EXIT_ADVICE, error_text, result_text
from ingot.worker.run import Run

MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
READ_BYTES: Final = 64 * 1024
KILL_SECONDS: Final = 5.0  # That the processes have after TERM.
LOOK_SECONDS: Final = 0.2  # How often it is looked whether a process that says nothing lives.
UNPRIVILEGED: Final = "nobody"
DESCRIPTORS_MAX: Final = 64 * 1024  # More are not open before the handler runs.
TELLING_BYTES: Final = 64 * 1024 * 1024  # Beyond the limit, for telling that it was reached.
MEMORY_REASON: Final = ", as it is when the memory is used up"
SIGNAL_REASONS: Final = {
    **dict.fromkeys(("SIGKILL", "SIGSEGV", "SIGBUS", "SIGABRT"), MEMORY_REASON),
    "SIGXCPU": ": it used more processor time than its timeout",
}
NO_MEMORY_EXIT: Final = 127  # That of glibc, when it has no memory to end in another way.
_spawn = multiprocessing.get_context("spawn")


class Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the process says of its job: how far it is, what it asks for, or how it ended.

    It is text: nothing in it is run. What it asks for is asked for this attempt, whoever asks.
    """

    asks: Ask | None = None
    percent: float | None = None
    stage: str = ""
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: str | None = None
    retry: bool = True
    snooze: float | None = None


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the process is told when it has asked: the answer, or why there is none."""

    answer: msgspec.Raw = NULL
    code: str | None = None
    detail: str = ""
    hint: str = ""


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


def run_isolated(run: Run) -> Any:
    """Run the handler of a job in a process of its own, and answer its result as JSON. Called in a thread."""
    ours, theirs = _spawn.Pipe()
    room = run.job.room()
    _hand_over(room)
    reading, writing = os.pipe()
    process = _spawn.Process(
        target=_work,
        args=(
            theirs,
            _Descriptor(writing),
            run.handler.function,
            msgspec.json.encode(run.job.data),
            str(room),
            _limits(run),
        ),
        name=f"ingot-{run.job.type}",
        daemon=True,
    )
    try:
        process.start()
    except BaseException:
        ours.close()
        os.close(reading)
        raise
    finally:
        theirs.close()
        os.close(writing)
    printed = threading.Thread(target=_read, args=(reading, run.job), daemon=True)
    printed.start()
    hearing = _Hearing(ours, run.job)
    hearing.start()
    stopping = _Stopping(process)
    run.on_stop = stopping.begin
    if run.job.canceled:
        stopping.begin()
    while hearing.is_alive() and process.is_alive():
        hearing.join(LOOK_SECONDS)
    process.join(KILL_SECONDS)
    stopping.end()  # What it left running ends with it.
    process.join()
    _bury(stopping.group)
    hearing.join(KILL_SECONDS)
    printed.join(KILL_SECONDS)
    return _made_of(hearing.said, process.exitcode or 0)


def _bury(group: int) -> None:
    """Take note of the end of what the process left running: as the first process of a container it is ours to."""
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-group, 0)


def _made_of(said: Said | None, exit_code: int) -> Any:
    if said is None:
        raise Ended(exit_code)
    if said.snooze is not None:
        raise Snoozed(said.snooze)
    if said.error is not None:
        raise (Failed if said.retry else NoRetry)(said.error)
    return said.result


class _Hearing(threading.Thread):
    """Hears the process out; what it says last is how it ended, and nothing when it just ended.

    What it forked may keep its pipe open after its end, so that nobody waits for the end of the pipe.
    """

    def __init__(self, ours: Connection, job: WorkerJob) -> None:
        super().__init__(name="ingot-hearing", daemon=True)
        self._ours, self._job = ours, job
        self.said: Said | None = None

    def run(self) -> None:
        """Listen."""
        with self._ours, suppress(EOFError, OSError, msgspec.DecodeError):
            while True:
                said = msgspec.json.decode(self._ours.recv_bytes(MESSAGE_BYTES_MAX), type=Said)
                if said.asks is not None:
                    self._ours.send_bytes(msgspec.json.encode(self._told(said.asks)))
                elif said.percent is not None:
                    self._job.progress(said.percent, said.stage)
                else:
                    self.said = said
                    return

    def _told(self, ask: Ask) -> Told:
        try:
            return Told(answer=msgspec.Raw(self._job.desk.ask(ask)))
        except IngotError as error:
            return Told(code=error.code, detail=error.detail, hint=error.hint)


def _read(descriptor: int, job: WorkerJob) -> None:
    """What is written, by whatever the process starts too, goes to the log."""
    decode = getincrementaldecoder("utf-8")(errors="replace").decode
    with open(descriptor, "rb", buffering=0) as stream:
        while data := stream.read(READ_BYTES):
            job.log(decode(data), end="")


def _hand_over(room: Path) -> None:
    """Give the folder of the attempt to whom the handler runs as."""
    if os.geteuid() == 0:
        user = pwd.getpwnam(UNPRIVILEGED)
        os.chown(room, user.pw_uid, user.pw_gid)


def _limits(run: Run) -> dict[str, int]:
    limits = {"cpu": max(1, round(run.timeout_seconds) + 1)}
    if run.handler.memory_bytes is not None:
        limits["memory"] = run.handler.memory_bytes
    return limits


class _Stopping:
    """The end of a process and of all that it started: asked for, and after a while made. Called from any thread."""

    def __init__(self, process: SpawnProcess) -> None:
        assert process.pid
        self._process, self.group = process, process.pid
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._over = False

    def begin(self) -> None:
        """Ask the processes to end, and make them when they do not."""
        with self._lock:
            if self._over or self._timer is not None:
                return
            self._signal(signal.SIGTERM)
            self._timer = threading.Timer(KILL_SECONDS, self._kill)
            self._timer.daemon = True
            self._timer.start()

    def end(self) -> None:
        """Make them end now. Afterwards nothing is signalled: the number may be another's by then."""
        with self._lock:
            self._signal(signal.SIGKILL)
            self._over = True
            if self._timer is not None:
                self._timer.cancel()

    def _kill(self) -> None:
        with self._lock:
            if not self._over:
                self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """To the process and all that it started; to itself alone before it is the first of a group."""
        try:
            os.killpg(self.group, number)
        except (ProcessLookupError, PermissionError):
            if number == signal.SIGKILL:
                self._process.kill()
            else:
                self._process.terminate()


# -- in the process -------------------------------------------------------------------------------------------


class _Descriptor:
    """An open file that is handed over to the process."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __getstate__(self) -> Any:
        return multiprocessing.reduction.DupFd(self.descriptor)

    def __setstate__(self, handed: Any) -> None:
        self.descriptor = handed.detach()


class _IsolatedJob(WorkerJob):
    """A job that tells of itself by a pipe."""

    def __init__(self, data: Job, theirs: Connection, room: Path) -> None:
        super().__init__(data)
        self._theirs = theirs
        self._given_room = room
        self._saying, self._asking = threading.Lock(), threading.Lock()
        self._moving = Files(data, self._ask, self.room, self.check)

    @property
    def files(self) -> Files:
        """What moves its files."""
        return self._moving

    def room(self) -> Path:
        """The folder that it was given."""
        return self._given_room

    def progress(self, percent: float, stage: str = "") -> None:
        """Tell how far it is."""
        known = min(100.0, max(0.0, float(percent)))
        self.say(Said(percent=known, stage=sendable(stage)))

    def say(self, said: Said) -> None:
        """Tell the worker something."""
        with self._saying:
            self._theirs.send_bytes(msgspec.json.encode(said))

    def _ask(self, ask: Ask) -> bytes:
        """Have the worker ask: it has a credential, and this process has none."""
        with self._asking:
            self.say(Said(asks=ask))
            told = msgspec.json.decode(self._theirs.recv_bytes(MESSAGE_BYTES_MAX), type=Told)
        if told.code is not None:
            raise error_of_code(told.code, told.detail, told.hint)
        return bytes(told.answer)

    def log(self, text: object, *, end: str = "\n") -> None:
        """Write to the log of this attempt."""
        sys.stdout.write(f"{text}{end}")
        sys.stdout.flush()


def _work(
    theirs: Connection, printing: _Descriptor, function: Function, data: bytes, room: str, limits: dict[str, int]
) -> None:
    os.setsid()
    forget_secrets()  # The files that it reads may be made to run what they hold.
    os.dup2(printing.descriptor, 1)
    os.dup2(printing.descriptor, 2)
    os.close(printing.descriptor)
    _leave_a_guard()
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    job = _IsolatedJob(msgspec.json.decode(data, type=Job), theirs, Path(room))
    "".encode("idna")  # What it takes to find a host is read while that can be: Python may be in root's own folder.
    _give_up_rights(limits)
    try:
        said = Said(result=msgspec.Raw(result_text(function(job))))
    except Snoozed as snoozed:
        said = Said(snooze=snoozed.seconds)
    except NoRetry as error:
        said = Said(error=sendable(error) or "the handler said not to retry", retry=False)
    except MemoryError:
        said = Said(error=_memory_used_up(limits))
    except Exception as error:
        traceback.print_exc()
        said = Said(error=error_text(error))
    job.say(said)
    theirs.close()


def _leave_a_guard() -> None:
    """Leave a process behind that ends all of this group when the worker is gone: it may be killed at any moment.

    It is no child of ours, for a handler that waits for all of its own.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    if (child := os.fork()) != 0:
        os.waitpid(child, 0)
        return
    if os.fork() != 0:
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    kept = parent.sentinel
    os.closerange(0, kept)
    os.closerange(kept + 1, DESCRIPTORS_MAX)
    os.read(kept, 1)  # Its other end is the worker's.
    os.killpg(0, signal.SIGKILL)


def _memory_used_up(limits: dict[str, int]) -> str:
    if "memory" not in limits:
        return "MemoryError: the machine has no memory left"
    resource.setrlimit(resource.RLIMIT_AS, (limits["memory"] + TELLING_BYTES,) * 2)
    return f"MemoryError: the handler used more than its memory_mb={limits['memory'] // 1024**2}"


def _give_up_rights(limits: dict[str, int]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu"], limits["cpu"] + 1))
    if "memory" in limits:
        resource.setrlimit(resource.RLIMIT_AS, (limits["memory"], limits["memory"] + TELLING_BYTES))
    if os.geteuid() == 0:
        user = pwd.getpwnam(UNPRIVILEGED)
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
